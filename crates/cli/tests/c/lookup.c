/* Functions of the C library that a program looks up by name. */
#include "traps.h"
#include <dlfcn.h>

typedef ssize_t (*writes)(int, const void *, size_t);
#ifdef __x86_64__
#define VERSION "GLIBC_2.2.5"
#else
#define VERSION "GLIBC_2.17"
#endif
typedef off_t (*seeks)(int, off_t, int);
void *next_for_library(const char *name);
int calls_of_library(void);

static void *c_library(void) {
	void *handle = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
	CHECK(handle);
	return handle;
}

/* By each way one part, and between them one by the usual name. */
static void found_in_many_ways(void) {
	void *c = c_library(), *program = dlopen(NULL, RTLD_LAZY), *threads = dlopen("libpthread.so.0", RTLD_LAZY);
	CHECK(program && threads);
	writes found[] = {dlsym(c, "write"), dlsym(RTLD_DEFAULT, "write"), dlsym(RTLD_NEXT, "write"), dlsym(program, "write"),
			  dlsym(threads, "write"), next_for_library("write"), dlvsym(c, "write", VERSION)};
	int fd = fresh(O_RDWR);
	for (size_t i = 0; i < sizeof found / sizeof *found; i++) {
		char part[3] = {'a' + i, ' '};
		CHECK(found[i] && found[i](fd, part, 2) == 2 && write(fd, "- ", 2) == 2);
	}
	CHECK(((seeks)dlsym(c, "lseek"))(fd, 0, SEEK_CUR) == 28);
	int two = ((int (*)(int))dlsym(c, "dup"))(fd);
	CHECK(write(two, "two", 3) == 3 && ((int (*)(int))dlsym(c, "close"))(two) == 0);
	holds("a - b - c - d - e - f - g - two");
}

/* A library with a function of the same name that calls the next one: the chain goes through it once. */
static void another_stands_between(void) {
	int pipes[2], before;
	char byte;
	CHECK(pipe(pipes) == 0);
	before = calls_of_library();
	CHECK(pwrite(fresh(O_RDWR), "x", 1, 0) == 1 && writev(pipes[1], &(struct iovec){"x", 1}, 1) == 1);
	CHECK(calls_of_library() == before + 1 && read(pipes[0], &byte, 1) == 1 && byte == 'x');
}

static void what_is_not_there(void) {
	CHECK(dlsym(c_library(), "no_such_function") == NULL && dlerror() != NULL && dlerror() == NULL);
	CHECK(dlsym(RTLD_DEFAULT, "no_such_function") == NULL && dlerror() != NULL);
	CHECK(dlvsym(c_library(), "write", "NO_SUCH_VERSION") == NULL && dlerror() != NULL);
	CHECK(dlsym(c_library(), "qsort") == (void *)qsort);
}

TRAPS({"found", found_in_many_ways}, {"between", another_stands_between}, {"missing", what_is_not_there})
