/* A fork beside a thread that attaches for the first time: it has begun to register the library's functions of pthread_atfork(3). */
#define _GNU_SOURCE
#include <heddle.h>

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define WANT(what) do { if (!(what)) { fprintf(stderr, "line %d: %s: %s\n", __LINE__, #what, heddle_error()); _exit(1); } } while (0)

typedef void function(void);
static volatile int attaches, is_inside, has_forked;

/* The C library's, which pthread_atfork(3) calls. */
int __register_atfork(function *before, function *in_parent, function *in_child, void *of)
{
	int (*real)(function *, function *, function *, void *) = dlsym(RTLD_NEXT, "__register_atfork");
	if (attaches) {
		is_inside = 1;
		while (!has_forked)
			sched_yield();
	}
	return real(before, in_parent, in_child, of);
}

static void *attach(void *at)
{
	WANT(heddle_attach(at) == 0);
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t thread;
	int status;
	WANT(argc == 2);
	attaches = 1;
	WANT(pthread_create(&thread, NULL, attach, argv[1]) == 0);
	while (!is_inside)
		sched_yield();
	pid_t child = fork();
	if (child == 0) {
		alarm(10);
		attaches = 0;
		attach(argv[1]);
		_exit(0);
	}
	has_forked = 1;
	WANT(pthread_join(thread, NULL) == 0 && waitpid(child, &status, 0) == child && status == 0);
	return 0;
}
