/* Handlers, children and threads. */
#include "traps.h"
#include <execinfo.h>
#include <sched.h>
#include <setjmp.h>

static volatile sig_atomic_t seen;

/* Without the one that the C library adds on some processors. */
static int flags_of(const struct sigaction *action) { return action->sa_flags & ~0x04000000; }

static void sees(int signal) { seen = signal; }

static void kept(int signal) {
	struct sigaction now;
	seen = 0;
	CHECK(sigaction(signal, NULL, &now) == 0 && now.sa_handler == sees && flags_of(&now) == SA_NODEFER);
#ifdef __x86_64__
	CHECK(now.sa_flags & 0x04000000 && now.sa_restorer);
#endif
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

static pthread_t first_thread;
static pid_t first_process;
static volatile int done;
static volatile sig_atomic_t in_parent, in_child;

static void says_where(int signal) {
	if (getpid() == first_process)
		in_parent++;
	else
		in_child++;
}

static void *sends_one_again_and_again(void *nothing) {
	while (!done) {
		CHECK(pthread_kill(first_thread, SIGUSR1) == 0);
		usleep(20);
	}
	return nothing;
}

static void childs_end(void) {
	sigset_t blocked;
	if (in_child != 0 || sigprocmask(SIG_BLOCK, NULL, &blocked) != 0 || sigismember(&blocked, SIGUSR1) != 0)
		_exit(1);
	_exit(raise(SIGUSR1) == 0 && in_child == 1 ? 0 : 2);
}

static void a_child_handles_what_came_to_itself(void) {
	struct sigaction act = {.sa_handler = says_where, .sa_flags = SA_RESTART};
	pthread_t sender;
	char name[4096];
	int status;
	/* Each has its part in a fork. */
	for (int i = 0; i < 20; i++) {
		snprintf(name, sizeof name, "%s.%d", file, i);
		int fd = open(name, O_CREAT | O_TRUNC | O_RDWR, 0644);
		CHECK(fd >= 0 && write(fd, "open", 4) == 4 && unlink(name) == 0);
	}
	first_thread = pthread_self(), first_process = getpid();
	CHECK(sigaction(SIGUSR1, &act, NULL) == 0 && pthread_create(&sender, NULL, sends_one_again_and_again, NULL) == 0);
	for (int round = 0; round < 300; round++) {
		pid_t child = round % 2 ? fork() : _Fork();
		if (child == 0)
			childs_end();
		CHECK(waitpid(child, &status, 0) == child && status == 0);
	}
	done = 1;
	CHECK(pthread_join(sender, NULL) == 0 && in_parent > 0);
}

static volatile int appends_to;

static void appends_one(int signal) { CHECK(write(appends_to, "h", 1) == 1 && ++in_parent); }

static void *sends_many_at_once(void *nothing) {
	for (int round = 0; round < 100; round++) {
		int before = in_parent;
		for (int signal = SIGRTMIN; signal <= SIGRTMAX; signal++)
			CHECK(pthread_kill(first_thread, signal) == 0);
		while (in_parent < before + SIGRTMAX - SIGRTMIN + 1)
			usleep(20);
	}
	done = 1;
	return nothing;
}

/* On one processor they come while the thread is interrupted in the middle of a call, all in one instant. */
static void many_come(int are_masked) {
	static char bytes[1 << 16];
	struct sigaction act = {.sa_handler = appends_one};
	pthread_t sender;
	struct stat now;
	int calls = 0, signals = SIGRTMAX - SIGRTMIN + 1;
	appends_to = fresh(O_RDWR | O_APPEND);
	first_thread = pthread_self(), done = 0, in_parent = 0;
	CHECK((are_masked ? sigfillset : sigemptyset)(&act.sa_mask) == 0);
	for (int signal = SIGRTMIN; signal <= SIGRTMAX; signal++)
		CHECK(sigaction(signal, &act, NULL) == 0);
	CHECK(pthread_create(&sender, NULL, sends_many_at_once, NULL) == 0);
	for (; !done; calls++) {
		if (calls % 16 == 0)
			CHECK(ftruncate(appends_to, 0) == 0);
		CHECK(write(appends_to, bytes, sizeof bytes) == sizeof bytes);
	}
	CHECK(pthread_join(sender, NULL) == 0 && in_parent == 100 * signals && fstat(appends_to, &now) == 0);
	/* Several rounds may be handled between two calls. */
	CHECK(now.st_size % sizeof bytes <= in_parent && calls > 0 && close(appends_to) == 0);
}

static void many_signals_come_in_one_call(void) {
	cpu_set_t one;
	many_come(1);
	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
	many_come(1);
	many_come(0);
}

static volatile int handled[2];
static void counts_its_own(int signal) { handled[signal == SIGUSR2]++; }

static void *sends_the_next_when_one_was_handled(void *signal) {
	volatile int *own = &handled[(long)signal == SIGUSR2];
	for (int count = 1; !done; count++) {
		CHECK(pthread_kill(first_thread, (long)signal) == 0);
		for (int looks = 0; *own < count && !done; looks++) {
			CHECK(looks < 5000000);
			sched_yield();
		}
	}
	return NULL;
}

/* One comes while the library puts the other aside. */
static void a_signal_comes_in_the_middle_of_another(void) {
	struct sigaction act = {.sa_handler = counts_its_own, .sa_flags = SA_RESTART};
	time_t ends = time(NULL) + (getenv("LD_PRELOAD") ? 12 : 2);
	pthread_t senders[2];
	sigset_t blocked;
	int fd = fresh(O_RDWR);
	first_thread = pthread_self();
	for (long i = 0; i < 2; i++) {
		long signal = i ? SIGUSR2 : SIGUSR1;
		CHECK(sigaction(signal, &act, NULL) == 0);
		CHECK(pthread_create(&senders[i], NULL, sends_the_next_when_one_was_handled, (void *)signal) == 0);
	}
	while (time(NULL) < ends)
		for (int i = 0; i < 500; i++) {
			CHECK(pwrite(fd, "word", 4, i) == 4);
			if (i % 100)
				continue;
			CHECK(sigprocmask(SIG_BLOCK, NULL, &blocked) == 0);
			CHECK(!sigismember(&blocked, SIGUSR1) && !sigismember(&blocked, SIGUSR2));
		}
	done = 1;
	CHECK(pthread_join(senders[0], NULL) == 0 && pthread_join(senders[1], NULL) == 0 && handled[0] && handled[1]);
}

/* What the program has blocked itself stays blocked. */
static void blocked_signals_of_faults_stay_blocked(void) {
	struct itimerval soon = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
	sigset_t faults, blocked;
	int fd = fresh(O_RDWR);
	CHECK(sigemptyset(&faults) == 0 && sigaddset(&faults, SIGSEGV) == 0 && sigaddset(&faults, SIGBUS) == 0);
	CHECK(signal(SIGALRM, sees) != SIG_ERR && sigprocmask(SIG_BLOCK, &faults, NULL) == 0);
	CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
	for (int i = 0; i < 300000; i++) {
		CHECK(pwrite(fd, "x", 1, 0) == 1);
		if (i % 100)
			continue;
		CHECK(sigprocmask(SIG_BLOCK, NULL, &blocked) == 0);
		CHECK(sigismember(&blocked, SIGSEGV) && sigismember(&blocked, SIGBUS) && !sigismember(&blocked, SIGALRM));
	}
	CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
}

static void calls_are_interrupted(void) {
	struct sigaction act = {.sa_handler = sees, .sa_flags = SA_RESTART}, now;
	int ends[2], fd = fresh(O_RDWR);
	char byte;
	pthread_t sender;
	first_thread = pthread_self();
	CHECK(write(fd, "x", 1) == 1 && pipe(ends) == 0 && sigaction(SIGUSR1, &act, NULL) == 0);
	CHECK(siginterrupt(SIGUSR1, 1) == 0 && sigaction(SIGUSR1, NULL, &now) == 0);
	CHECK(now.sa_handler == sees && flags_of(&now) == 0 && pthread_create(&sender, NULL, sends_one_again_and_again, NULL) == 0);
	CHECK(read(ends[0], &byte, 1) == -1 && errno == EINTR);
	done = 1;
	CHECK(pthread_join(sender, NULL) == 0);
	CHECK(siginterrupt(SIGUSR1, 0) == 0 && sigaction(SIGUSR1, NULL, &now) == 0 && flags_of(&now) == SA_RESTART);
	CHECK(now.sa_handler == sees && siginterrupt(0, 1) == -1 && errno == EINVAL);
}

static sigjmp_buf out_of_open;
static volatile int opens;

static void leaves_open(int signal) {
	if (opens) {
		opens = 0;
		siglongjmp(out_of_open, 1);
	}
}

static void a_handler_leaves_open(void) {
	struct sigaction act = {.sa_handler = leaves_open};
	pthread_t sender;
	char path[] = "/";
	int fd = fresh(O_RDWR);
	alarm(100);
	first_thread = pthread_self();
	CHECK(write(fd, "before ", 7) == 7 && sigaction(SIGUSR1, &act, NULL) == 0);
	CHECK(pthread_create(&sender, NULL, sends_one_again_and_again, NULL) == 0);
	/* A number that `open` has got, and not given yet, is closed with all others. */
	for (int round = 0; round < 2000; round++) {
		if (sigsetjmp(out_of_open, 1) == 0) {
			opens = 1;
			open(file, O_RDONLY);
			opens = 0;
		}
		closefrom(fd + 1);
	}
	done = 1;
	CHECK(pthread_join(sender, NULL) == 0 && write(fd, "between ", 8) == 8);
	/* Waits until nobody is inside. */
	CHECK((chroot(path) == 0 || errno == EPERM) && write(fd, "after", 5) == 5);
	holds("before between after");
}

void __backtrace_symbols_fd(void *const *, int, int);
static void (*const traces[])(void *const *, int, int) = {backtrace_symbols_fd, __backtrace_symbols_fd};
static volatile int traced_by;

static void writes_a_trace(int signal) {
	void *frames[1] = {(void *)traces};
	traces[traced_by](frames, 1, appends_to);
}

/* "before[0x…]\n" of one frame, then "after". */
static void trace_lies_between(const char *before, const char *after) {
	char text[200] = {0};
	ssize_t n = pread(appends_to, text, sizeof text - 1, 0);
	size_t head = strlen(before), tail = strlen(after);
	CHECK(n > (ssize_t)(head + tail) && memcmp(text, before, head) == 0 && strcmp(text + n - tail, after) == 0);
	CHECK(text[n - tail - 1] == '\n' && strstr(text, "[0x") && lseek(appends_to, 0, SEEK_CUR) == n);
}

static void traces_lie_between(void) {
	struct sigaction act = {.sa_handler = writes_a_trace};
	CHECK(sigaction(SIGUSR1, &act, NULL) == 0);
	for (traced_by = 0; traced_by < 2; traced_by++)
		for (int way = 0; way < 4; way++) {
			/* Called by itself, or by a handler; where a descriptor appends, or not. */
			appends_to = fresh(O_RDWR | (way & 1 ? O_APPEND : 0));
			CHECK(write(appends_to, "before", 6) == 6);
			if (way & 2)
				CHECK(raise(SIGUSR1) == 0);
			else
				writes_a_trace(0);
			CHECK(write(appends_to, "after", 5) == 5);
			trace_lies_between("before", "after");
			CHECK(close(appends_to) == 0);
		}
}

/* A handler that nobody knows of: the C library has no part in its installation. */
#ifdef __x86_64__
static long bare(long n, long a, long b, long c, long d) {
	register long fourth __asm__("r10") = d;
	long done;
	__asm__ volatile("syscall" : "=a"(done) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(fourth) : "rcx", "r11", "memory");
	return done;
}
__asm__(".text\nreturns: mov $15, %eax\nsyscall\n");
extern void returns(void);

struct action {
	void (*handler)(int);
	unsigned long flags;
	void (*restorer)(void);
	unsigned long mask;
};

static int appended, is_bare;
static volatile int runs, refused;

static long through_the_library(int which) {
	char byte;
	long done;
	switch (which) {
	case 0: done = write(appended, "h", 1); break;
	case 1: done = pread(appended, &byte, 1, 0); break;
	case 2: done = pwrite(appended, "p", 1, 0); break;
	default: done = ftruncate(appended, 0);
	}
	return done < 0 ? -errno : done;
}

static long without_the_library(int which) {
	char byte;
	switch (which) {
	case 0: return bare(SYS_write, appended, (long)"h", 1, 0);
	case 1: return bare(SYS_pread64, appended, (long)&byte, 1, 0);
	case 2: return bare(SYS_pwrite64, appended, (long)"p", 1, 0);
	default: return bare(SYS_ftruncate, appended, 0, 0, 0);
	}
}

static void uses_the_same_file(int signal) {
	int before = errno, which = runs++ % 4;
	long done = (is_bare ? without_the_library : through_the_library)(which);
	CHECK(done == 0 || done == 1 || done == -EDEADLK);
	refused += done == -EDEADLK;
	errno = before;
}

static void a_handler_that_nobody_knows_uses_the_same_file(void) {
	enum { LONG = 1 << 19 };
	struct action act = {uses_the_same_file, 0x04000000, returns, 0};
	struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
	int is_bypassed = getenv("LD_PRELOAD") != NULL;
	time_t ends = time(NULL) + (is_bypassed ? 60 : 2);
	char *buf = calloc(1, LONG);
	appended = fresh(O_RDWR | O_APPEND);
	CHECK(bare(SYS_rt_sigaction, SIGVTALRM, (long)&act, 0, 8) == 0);
	/* In the time of the program itself: while the kernel makes a call, no signal comes. */
	CHECK(setitimer(ITIMER_VIRTUAL, &often, NULL) == 0);
	while (time(NULL) < ends && !(is_bypassed && runs >= 100 && refused >= 4)) {
		for (int i = 0; i < 8; i++)
			CHECK(write(appended, buf, LONG) == LONG);
		CHECK(ftruncate(appended, 0) == 0);
	}
	CHECK(setitimer(ITIMER_VIRTUAL, &never, NULL) == 0);
	CHECK(is_bypassed ? refused >= 4 : refused == 0);
	CHECK(ftruncate(appended, 0) == 0 && write(appended, "end", 3) == 3);
	holds("end");
}

static void a_handler_without_the_library_uses_the_same_file(void) {
	is_bare = 1;
	a_handler_that_nobody_knows_uses_the_same_file();
}
#else
static void a_handler_that_nobody_knows_uses_the_same_file(void) { CHECK(write(fresh(O_RDWR), "end", 3) == 3); }
static void a_handler_without_the_library_uses_the_same_file(void) { a_handler_that_nobody_knows_uses_the_same_file(); }
#endif

/* A fork waits for the C library's list of streams, which the thread of the handler has. */
static int lines[2], used;
static volatile int is_handled;

static void duplicates(int signal) {
	/* The fork has come to the list meanwhile. */
	usleep(500000);
	int twin = dup(used);
	CHECK(twin >= 0 && close(twin) == 0);
	is_handled = 1;
}

static void *forks_beside_it(void *main) {
	int status;
	usleep(200000);
	CHECK(pthread_kill(*(pthread_t *)main, SIGUSR1) == 0);
	pid_t child = fork();
	if (child == 0) {
		alarm(10);
		_exit(write(used, "child", 5) != 5);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	return main;
}

static void *drains(void *nothing) {
	static char some[65536];
	while (!is_handled)
		usleep(1000);
	while (read(lines[0], some, sizeof some) > 0)
		;
	return nothing;
}

static void handled_in_a_flush_beside_a_fork(void) {
	static char text[300000];
	pthread_t forker, drainer, main = pthread_self();
	struct sigaction act = {.sa_handler = duplicates, .sa_flags = SA_RESTART};
	alarm(30);
	used = fresh(O_RDWR);
	CHECK(write(used, "parent ", 7) == 7 && sigaction(SIGUSR1, &act, NULL) == 0 && pipe(lines) == 0);
	FILE *stream = fdopen(lines[1], "w");
	CHECK(stream && setvbuf(stream, text, _IOFBF, sizeof text) == 0);
	/* More than a pipe holds, and less than the buffer. */
	for (int i = 0; i < 200000; i++)
		CHECK(fputc('x', stream) == 'x');
	CHECK(pthread_create(&forker, NULL, forks_beside_it, &main) == 0 && pthread_create(&drainer, NULL, drains, NULL) == 0);
	CHECK(fflush(NULL) == 0 && is_handled);
	CHECK(pthread_join(forker, NULL) == 0 && fclose(stream) == 0 && pthread_join(drainer, NULL) == 0);
	holds("parent child");
}

TRAPS({"flushes", handled_in_a_flush_beside_a_fork},
      {"undelayed", a_handler_that_nobody_knows_uses_the_same_file}, {"bare", a_handler_without_the_library_uses_the_same_file},
      {"interrupts", calls_are_interrupted}, {"opens", a_handler_leaves_open}, {"traces", traces_lie_between},
      {"between", a_signal_comes_in_the_middle_of_another}, {"faults", blocked_signals_of_faults_stay_blocked},
      {"forks", a_child_handles_what_came_to_itself},
      {"many", many_signals_come_in_one_call}, {"vfork_and_fork", a_fork_follows_a_vfork}, {"vfork", handlers_outlive_a_vfork})
