/* Traps for a library that stands between a program and the kernel: each is a function that ends the program with the line that was not as
 * the kernel has it. `PROGRAM NAME FILE OTHER`: FILE is in a heddle mount, OTHER is not. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <linux/close_range.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <pthread.h>
#include <unistd.h>

#define CHECK(x)                                                                                    \
	do {                                                                                        \
		if (!(x)) {                                                                         \
			fprintf(stderr, "line %d: not true: %s (errno %d %s)\n", __LINE__, #x, errno, strerror(errno)); \
			_exit(1);                                                                   \
		}                                                                                   \
	} while (0)

static const char *file, *other;
extern char **environ;

static int fresh(int flags) {
	int fd = open(file, O_CREAT | O_TRUNC | flags, 0644);
	CHECK(fd >= 0);
	return fd;
}

static void holds(const char *text) {
	/* stdio reads by ways of its own: what it sees went through the mount. */
	char buf[4096] = {0};
	FILE *f = fopen(file, "r");
	CHECK(f);
	size_t n = fread(buf, 1, sizeof buf - 1, f);
	CHECK(n == strlen(text) && memcmp(buf, text, n) == 0);
	fclose(f);
}

struct trap {
	const char *name;
	void (*run)(void);
};

static int run_trap(const struct trap *traps, size_t count, int argc, char **argv) {
	if (argc != 4)
		return 2;
	file = argv[2], other = argv[3];
	for (size_t i = 0; i < count; i++)
		if (strcmp(traps[i].name, argv[1]) == 0) {
			traps[i].run();
			return 0;
		}
	fprintf(stderr, "no such trap: %s\n", argv[1]);
	return 2;
}

#define TRAPS(...)                                                                                  \
	int main(int argc, char **argv) {                                                           \
		static const struct trap traps[] = {__VA_ARGS__};                                   \
		return run_trap(traps, sizeof traps / sizeof *traps, argc, argv);                   \
	}
