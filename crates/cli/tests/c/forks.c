/* Handlers of forks (pthread_atfork), which use files as any function may. Linked with `at_fork.c`. */
#include "traps.h"

extern void (*at_fork)(int when);
static int shared, replaced, own, go[2];
static volatile int signals;

static void counts(int signal) { signals++; }

/* Where a program says that it forks: numbers come and go, the offset moves, a program is started with it. */
static void uses_files(int when) {
	static const char *const texts[] = {"before ", "parent ", "child "};
	char name[4096], byte;
	int status;
	pid_t child;
	if (when == 2)
		CHECK(read(go[0], &byte, 1) == 1);
	CHECK(raise(SIGUSR1) == 0 && signals == (when == 0 ? 1 : 2));
	CHECK(write(shared, texts[when], strlen(texts[when])) == (ssize_t)strlen(texts[when]));
	snprintf(name, sizeof name, "%s.%d.%d", file, when, getpid());
	int fd = open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
	CHECK(fd >= 0 && unlink(name) == 0 && write(fd, "0123456789", 10) == 10 && lseek(fd, 4, SEEK_SET) == 4);
	int twin = dup(fd);
	CHECK(twin >= 0 && read(twin, &byte, 1) == 1 && byte == '4' && lseek(fd, 0, SEEK_CUR) == 5);
	CHECK(dup2(fd, replaced) == replaced && pread(replaced, &byte, 1, 9) == 1 && byte == '9');
	if (when < 2) {
		char number[20], *args[] = {"sh", "-c", "exec printf XY >&$0", number, NULL};
		snprintf(number, sizeof number, "%d", fd);
		CHECK(posix_spawn(&child, "/bin/sh", NULL, NULL, args, environ) == 0);
		CHECK(waitpid(child, &status, 0) == child && status == 0);
		CHECK(write(fd, "Z", 1) == 1 && pread(fd, number, 10, 0) == 10 && memcmp(number, "01234XYZ89", 10) == 0);
	}
	CHECK(close(twin) == 0 && close(fd) == 0 && (own < 0 || close(own) == 0));
	own = open(file, O_RDONLY);
	CHECK(own >= 0 && pread(own, &byte, 1, 0) == 1 && byte == '-');
	if (when == 1)
		CHECK(write(go[1], "x", 1) == 1);
}

static void handlers_of_forks_use_files(void) {
	struct sigaction act = {.sa_handler = counts};
	int status;
	alarm(100);
	shared = fresh(O_RDWR), own = open(file, O_RDONLY), replaced = open(other, O_CREAT | O_RDWR, 0600);
	CHECK(sigaction(SIGUSR1, &act, NULL) == 0 && own >= 0 && replaced >= 0 && write(shared, "-", 1) == 1 && pipe(go) == 0);
	at_fork = uses_files;
	pid_t child = fork();
	if (child == 0)
		exit(write(shared, "ends ", 5) == 5 ? 0 : 1);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(write(shared, "end", 3) == 3);
	at_fork = NULL;
	holds("-before parent child ends end");
}

TRAPS({"at_fork", handlers_of_forks_use_files})
