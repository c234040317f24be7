/* Handlers, children and threads. */
#include "traps.h"
#include <sched.h>

static volatile sig_atomic_t seen;

/* Without the one that the C library adds on some processors. */
static int flags_of(const struct sigaction *action) { return action->sa_flags & ~0x04000000; }

static void sees(int signal) { seen = signal; }

static void kept(int signal) {
	struct sigaction now;
	seen = 0;
	CHECK(sigaction(signal, NULL, &now) == 0 && now.sa_handler == sees && flags_of(&now) == SA_NODEFER);
	CHECK(raise(signal) == 0 && seen == signal);
}

/* What a child does about signals before it executes another program. Python's `subprocess` does the first. */
static int childs_actions(void *arg) {
	struct sigaction none = {.sa_handler = SIG_DFL}, was, own = {.sa_handler = sees, .sa_flags = SA_RESETHAND};
	if (sigaction(SIGTERM, &none, &was) != 0 || was.sa_handler != sees || flags_of(&was) != SA_NODEFER)
		_exit(1);
	if (sigaction(SIGTERM, NULL, &was) != 0 || was.sa_handler != SIG_DFL)
		_exit(2);
	if (signal(SIGINT, SIG_IGN) != sees || raise(SIGINT) != 0 || sigset(SIGHUP, SIG_DFL) != sees)
		_exit(3);
	if (sigaction(SIGUSR1, &own, &was) != 0 || was.sa_handler != sees || raise(SIGUSR1) != 0)
		_exit(4);
	if (sigaction(SIGUSR1, NULL, &was) != 0 || was.sa_handler != SIG_DFL)
		_exit(5);
	/* Its parent's handler, once, and then no more. */
	if (sigaction(SIGUSR2, NULL, &was) != 0 || was.sa_handler != sees || raise(SIGUSR2) != 0)
		_exit(6);
	if (sigaction(SIGSEGV, &own, &was) != 0 || was.sa_handler != SIG_DFL)
		_exit(7);
	if (arg) {
		execl("/bin/true", "true", NULL);
		_exit(8);
	}
	_exit(0);
}

static void after_vfork(int fd, pid_t child) {
	static const int all[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1};
	struct sigaction now;
	int status;
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		kept(all[i]);
	CHECK(sigaction(SIGUSR2, NULL, &now) == 0 && now.sa_handler == sees && flags_of(&now) == (SA_NODEFER | SA_RESETHAND));
	CHECK(sigaction(SIGSEGV, NULL, &now) == 0 && now.sa_handler == SIG_DFL);
	CHECK(write(fd, (void *)8, 1) == -1 && errno == EFAULT && write(fd, "parent", 6) == 6);
}

static void handlers_outlive_a_vfork(void) {
	static const int all[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1};
	struct sigaction act = {.sa_handler = sees, .sa_flags = SA_NODEFER};
	char *stack = malloc(1 << 16);
	int fd = fresh(O_RDWR | O_CLOEXEC);
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		CHECK(sigaction(all[i], &act, NULL) == 0);
	act.sa_flags |= SA_RESETHAND;
	CHECK(sigaction(SIGUSR2, &act, NULL) == 0 && write(fd, "parent", 6) == 6);
	for (int executes = 0; executes < 2; executes++) {
		pid_t child = vfork();
		if (child == 0)
			childs_actions(executes ? stack : NULL);
		after_vfork(fd, child);
		child = clone(childs_actions, stack + (1 << 16), CLONE_VM | CLONE_VFORK | SIGCHLD, executes ? stack : NULL);
		after_vfork(fd, child);
	}
	/* A child that goes on beside its parent, with actions of its own. */
	after_vfork(fd, clone(childs_actions, stack + (1 << 16), CLONE_VM | SIGCHLD, NULL));
}

static void a_fork_follows_a_vfork(void) {
	int status;
	pid_t child = vfork();
	if (child == 0)
		_exit(0);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	child = fork();
	if (child == 0) {
		int fd = fresh(O_RDWR);
		CHECK(write(fd, "child", 5) == 5);
		exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	holds("child");
}

TRAPS({"vfork_and_fork", a_fork_follows_a_vfork}, {"vfork", handlers_outlive_a_vfork})
