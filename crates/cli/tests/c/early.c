/* A filter ends the program for what attaching takes, and a library works on files before the preloaded one is started. */
#include "traps.h"
#include "filters.h"

extern int status_early;

static void files_are_opened_early(void) {
	static const int calls[] = {SYS_statx, SYS_membarrier};
	char text[16];
	int status;
	if (getenv("FILTERED")) {
		CHECK(status_early == 0);
		holds("early");
		return;
	}
	CHECK(setenv("EARLY", file, 1) == 0);
	for (int i = 0; i < 2; i++) {
		pid_t child = fork();
		if (child == 0) {
			snprintf(text, sizeof text, "%d", calls[i]);
			under_a_filter("opened", text, SECCOMP_RET_KILL_PROCESS);
		}
		CHECK(waitpid(child, &status, 0) == child);
		if (status != 0)
			fprintf(stderr, "call %d: status %d\n", calls[i], status);
		CHECK(status == 0);
	}
}

TRAPS({"opened", files_are_opened_early})
