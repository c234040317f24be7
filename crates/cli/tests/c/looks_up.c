/* A library that a program is linked with: it looks up functions, and has one of the C library's names itself. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/uio.h>

static int calls;

void *next_for_library(const char *name) { return dlsym(RTLD_NEXT, name); }
int calls_of_library(void) { return calls; }

ssize_t writev(int fd, const struct iovec *parts, int n) {
	static ssize_t (*next)(int, const struct iovec *, int);
	if (!next)
		next = dlsym(RTLD_NEXT, "writev");
	calls++;
	return next(fd, parts, n);
}
