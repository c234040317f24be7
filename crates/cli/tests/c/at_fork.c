/* A library that a program is linked with: its handlers of forks are set before any library is preloaded to its end. */
#include <pthread.h>

void (*at_fork)(int when);

static void prepare(void) {
	if (at_fork)
		at_fork(0);
}
static void in_parent(void) {
	if (at_fork)
		at_fork(1);
}
static void in_child(void) {
	if (at_fork)
		at_fork(2);
}

__attribute__((constructor)) static void start(void) { pthread_atfork(prepare, in_parent, in_child); }
