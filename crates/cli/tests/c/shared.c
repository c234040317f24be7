/* An offset that two processes share after a fork: one has it for itself only when the other cannot write with it any more. */
#include "traps.h"
#include <utmp.h>

static int to_parent[2], to_child[2];

static void tell(int fd) { CHECK(write(fd, "x", 1) == 1); }

static void await(int fd) {
	char byte;
	CHECK(read(fd, &byte, 1) == 1);
}

static void writes(int fd, const char *letter, int times) {
	while (times--)
		CHECK(write(fd, letter, 1) == 1);
}

static int becomes_a_daemon(void) { return daemon(1, 1); }
static int gets_no_terminal(void) { return login_tty(open("/dev/null", O_RDWR)) == -1 ? 0 : -1; }

/* Parent and child write in turns. `keeps` leaves the numbers 0 to 2 as they are. */
static void writes_to_standard_numbers_after(int (*keeps)(void)) {
	char expected[202] = "a";
	int status, fd = fresh(O_RDWR);
	CHECK(write(fd, "a", 1) == 1 && pipe(to_parent) == 0 && pipe(to_child) == 0);
	pid_t child = fork();
	if (child == 0) {
		CHECK(close(to_child[1]) == 0 && dup2(fd, 1) == 1 && dup2(fd, 2) == 2 && close(fd) == 0 && keeps() == 0);
		tell(to_parent[1]);
		await(to_child[0]);
		writes(1, "d", 100);
		CHECK(close(1) == 0 && close(2) == 0);
		tell(to_parent[1]);
		_exit(0);
	}
	CHECK(child > 0 && close(to_parent[1]) == 0);
	await(to_parent[0]);
	writes(fd, "p", 50);
	tell(to_child[1]);
	await(to_parent[0]);
	writes(fd, "p", 50);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	memset(expected + 1, 'p', 50), memset(expected + 51, 'd', 100), memset(expected + 151, 'p', 50);
	holds(expected);
}

static void a_daemon_keeps_numbers(void) { writes_to_standard_numbers_after(becomes_a_daemon); }
static void a_login_fails(void) { writes_to_standard_numbers_after(gets_no_terminal); }

/* The C library writes when the stream ends. The parent writes beside that, and all of it is there. */
static void streams_end_beside_writes(void) {
	static char buffer[1 << 20], bytes[(1 << 20) - 1];
	struct stat now;
	for (int round = 0; round < 50; round++) {
		int status, fd = fresh(O_RDWR | O_CLOEXEC);
		off_t written = 1;
		CHECK(write(fd, "a", 1) == 1);
		pid_t child = fork();
		if (child == 0) {
			FILE *stream = round % 4 == 3 ? popen("true", "w") : fdopen(fd, "w");
			CHECK(stream && setvbuf(stream, buffer, _IOFBF, sizeof buffer) == 0);
			if (round % 4 == 3)
				CHECK(dup2(fd, fileno(stream)) == fileno(stream) && close(fd) == 0);
			CHECK(fwrite(bytes, 1, sizeof bytes, stream) == sizeof bytes);
			switch (round % 4) {
			case 0: CHECK(fclose(stream) == 0); break;
			case 1: CHECK(freopen("/dev/null", "w", stream)); break;
			case 2: CHECK(freopen64("/dev/null", "w", stream)); break;
			case 3: CHECK(pclose(stream) == 0);
			}
			_exit(0);
		}
		for (; waitpid(child, &status, WNOHANG) == 0; written++)
			CHECK(write(fd, "p", 1) == 1);
		CHECK(status == 0 && fstat(fd, &now) == 0 && now.st_size == written + (off_t)sizeof bytes);
		CHECK(lseek(fd, 0, SEEK_CUR) == now.st_size && close(fd) == 0);
	}
}

TRAPS({"daemon", a_daemon_keeps_numbers}, {"login", a_login_fails}, {"streams", streams_end_beside_writes})
