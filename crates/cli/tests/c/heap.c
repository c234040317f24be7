/* Code that must not need the heap: functions of forks behind an allocator's lock, and handlers of signals. Linked with `at_fork.c`. */
#include "traps.h"
#include <dlfcn.h>
#include <sched.h>
#include <setjmp.h>

extern void (*at_fork)(int when);
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void __libc_free(void *);

/* The program's own allocator. */
static pthread_mutex_t heap = PTHREAD_MUTEX_INITIALIZER;
static volatile int needs, is_in_handler, waiting;

static void lock_heap(void) {
	__atomic_add_fetch(&waiting, 1, __ATOMIC_SEQ_CST);
	pthread_mutex_lock(&heap);
	__atomic_sub_fetch(&waiting, 1, __ATOMIC_SEQ_CST);
}
static void unlock_heap(void) { pthread_mutex_unlock(&heap); }
static void fresh_heap(void) { pthread_mutex_init(&heap, NULL); }

#define LOCKED(type, call)                                                                          \
	{                                                                                           \
		needs += is_in_handler;                                                             \
		lock_heap();                                                                        \
		type made = call;                                                                   \
		unlock_heap();                                                                      \
		return made;                                                                        \
	}
void *malloc(size_t n) LOCKED(void *, __libc_malloc(n))
void *calloc(size_t n, size_t each) LOCKED(void *, __libc_calloc(n, each))
void *realloc(void *old, size_t n) LOCKED(void *, __libc_realloc(old, n))
void free(void *old) {
	needs += is_in_handler;
	lock_heap();
	__libc_free(old);
	unlock_heap();
}

static int shared, other_file;

static void writes_to_files(int when) {
	static const char *const texts[] = {"before ", "parent ", "child "};
	char byte;
	/* The parent is the last to write. */
	if (when == 1)
		usleep(200000);
	CHECK(write(shared, texts[when], strlen(texts[when])) == (ssize_t)strlen(texts[when]));
	CHECK(pwrite(other_file, "x", 1, when) == 1 && pread(other_file, &byte, 1, when) == 1 && byte == 'x');
	int twin = dup(other_file), fd = open(file, O_RDONLY);
	CHECK(twin >= 0 && fd >= 0 && read(fd, &byte, 1) == 1 && byte == '-' && close(fd) == 0 && close(twin) == 0);
	CHECK(ftruncate(other_file, when + 5) == 0 && lseek(other_file, 0, SEEK_END) == when + 5);
}

/* It has not used any file before. */
static void *forks(void *nothing) {
	int status;
	pid_t child = fork();
	if (child == 0)
		_exit(write(shared, "ends ", 5) == 5 ? 0 : 1);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	return nothing;
}

static void functions_of_forks_need_no_heap(void) {
	pthread_t thread;
	char name[4096];
	alarm(30);
	snprintf(name, sizeof name, "%s.other", file);
	shared = fresh(O_RDWR), other_file = open(name, O_CREAT | O_RDWR, 0600);
	CHECK(other_file >= 0 && write(shared, "-", 1) == 1 && write(other_file, "other", 5) == 5);
	CHECK(pthread_atfork(lock_heap, unlock_heap, fresh_heap) == 0);
	at_fork = writes_to_files;
	CHECK(pthread_create(&thread, NULL, forks, NULL) == 0 && pthread_join(thread, NULL) == 0);
	at_fork = NULL;
	CHECK(write(shared, "end", 3) == 3);
	holds("-before child ends parent end");
}

static volatile int step;

static void *uses_files(void *number) {
	char name[4096];
	snprintf(name, sizeof name, "%s.%ld", file, (long)number);
	while (!step) {
		int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
		for (int i = 0; i < 30; i++) {
			int twin = dup(fd);
			CHECK(fd >= 0 && twin >= 0 && write(fd, "0123456789", 10) == 10 && close(twin) == 0);
		}
		CHECK(lseek(fd, 0, SEEK_CUR) == 300 && close(fd) == 0);
	}
	return NULL;
}

static void writes_where_it_forks(int when) { CHECK(write(shared, "x", 1) == 1); }

static void *forks_often(void *nothing) {
	int status;
	for (int i = 0; i < 150; i++) {
		pid_t child = fork();
		if (child == 0)
			_exit(write(shared, "x", 1) == 1 ? 0 : 1);
		CHECK(waitpid(child, &status, 0) == child && status == 0);
	}
	return nothing;
}

static void two_threads_fork_beside_others(void) {
	pthread_t users[4], forkers[2];
	alarm(100);
	shared = fresh(O_RDWR | O_APPEND);
	CHECK(pthread_atfork(lock_heap, unlock_heap, fresh_heap) == 0);
	at_fork = writes_where_it_forks;
	for (long i = 0; i < 4; i++)
		CHECK(pthread_create(&users[i], NULL, uses_files, (void *)i) == 0);
	for (int i = 0; i < 2; i++)
		CHECK(pthread_create(&forkers[i], NULL, forks_often, NULL) == 0);
	for (int i = 0; i < 2; i++)
		CHECK(pthread_join(forkers[i], NULL) == 0);
	step = 1;
	for (int i = 0; i < 4; i++)
		CHECK(pthread_join(users[i], NULL) == 0);
	CHECK(lseek(shared, 0, SEEK_END) == 2 * 150 * 4);
}

/* sched_yield(2) tells the compiler that it calls nothing here: without `volatile` it reads them once. */
static volatile pthread_t stoppers[2];
static volatile int stops[2], ended;

static void stops_here(int signal) { stops[pthread_equal(pthread_self(), stoppers[1])]++; }

/* As the collectors of garbage do: before a fork the other thread is stopped, wherever it is. */
static void stops_the_other(int when) {
	int other_one = pthread_equal(pthread_self(), stoppers[0]);
	int before = stops[other_one];
	if (when != 0 || ended)
		return;
	CHECK(pthread_kill(stoppers[other_one], SIGUSR1) == 0);
	while (stops[other_one] == before && !ended)
		sched_yield();
}

static void *forks_and_is_stopped(void *nothing) {
	while (!stoppers[0] || !stoppers[1])
		sched_yield();
	for (int i = 0; i < 60; i++) {
		pid_t child = fork();
		if (child == 0)
			_exit(0);
		while (waitpid(child, NULL, 0) != child)
			CHECK(errno == EINTR);
	}
	ended = 1;
	usleep(100000);
	return nothing;
}

static void two_threads_stop_each_other_before_a_fork(void) {
	struct timespec began, now;
	pthread_t made[2];
	shared = fresh(O_RDWR);
	CHECK(write(shared, "-", 1) == 1 && signal(SIGUSR1, stops_here) != SIG_ERR && clock_gettime(CLOCK_MONOTONIC, &began) == 0);
	at_fork = stops_the_other;
	for (int i = 0; i < 2; i++)
		CHECK(pthread_create(&made[i], NULL, forks_and_is_stopped, NULL) == 0);
	stoppers[0] = made[0], stoppers[1] = made[1];
	for (int i = 0; i < 2; i++)
		CHECK(pthread_join(made[i], NULL) == 0);
	at_fork = NULL;
	CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0 && now.tv_sec - began.tv_sec < 10);
}

static sigjmp_buf probe;
static volatile int probes, way;

static void leaves_a_probe(int signal) { siglongjmp(probe, 1); }

/* As the handlers of crash reporters do: is this address mapped? */
static void probes_and_logs(int signal) {
	char byte;
	if (sigsetjmp(probe, 1) == 0)
		*(volatile int *)8 = 1;
	int log = open(other, O_CREAT | O_RDWR | O_APPEND, 0600), fd = open(file, O_RDWR);
	CHECK(log >= 0 && fd >= 0 && write(log, "probe", 5) == 5 && close(log) == 0);
	CHECK(write(shared, "h", 1) == 1 && pread(fd, &byte, 1, 0) == 1 && byte == '-' && close(fd) == 0);
	if (++probes % 3 == 0)
		CHECK(raise(SIGUSR2) == 0);
}

static void returns_at_once(int signal) { CHECK(write(shared, "n", 1) == 1); }

static void handlers_probe(char *own_stack, size_t size) {
	struct sigaction act = {.sa_handler = probes_and_logs};
	stack_t own = {.ss_sp = own_stack, .ss_size = size};
	CHECK(sigaltstack(&own, NULL) == 0 && sigaction(SIGUSR1, &act, NULL) == 0 && signal(SIGUSR2, returns_at_once) != SIG_ERR);
	for (way = 0; way < 6; way++) {
		/* The fault's handler has the same stack, or its own. */
		act = (struct sigaction){.sa_handler = leaves_a_probe, .sa_flags = way & 1 ? SA_ONSTACK : 0};
		CHECK(sigaction(SIGSEGV, &act, NULL) == 0);
		is_in_handler = 1;
		CHECK(raise(SIGUSR1) == 0);
		is_in_handler = 0;
		CHECK(write(shared, ".", 1) == 1);
	}
	CHECK(needs == 0);
}

static void a_handler_probes_and_logs(void) {
	static char below[1 << 16];
	shared = fresh(O_RDWR);
	CHECK(write(shared, "-", 1) == 1);
	handlers_probe(below, sizeof below);
	holds("-h.h.hn.h.h.hn.");
}

/* It lies above the stack of its thread. */
static __thread char above[1 << 16];
static volatile int are_loaded;

static void *probes_in_a_thread(void *nothing) {
	char local;
	while (!are_loaded)
		sched_yield();
	CHECK(above > &local);
	handlers_probe(above, sizeof above);
	return nothing;
}

/* The libraries have memory of each thread. */
static void libraries_are_loaded_in(void) {
	static char bytes[1 << 20];
	char path[4096], copy[4200];
	ssize_t n = readlink("/proc/self/exe", path, sizeof path - 6);
	CHECK(n > 0);
	path[n] = 0;
	strcpy(strrchr(path, '/'), "/plug");
	int from = open(path, O_RDONLY);
	CHECK(from >= 0 && (n = read(from, bytes, sizeof bytes)) > 0 && close(from) == 0);
	for (int i = 0; i < 40; i++) {
		snprintf(copy, sizeof copy, "%s.%d", path, i);
		int to = open(copy, O_WRONLY | O_CREAT | O_TRUNC, 0700);
		CHECK(to >= 0 && write(to, bytes, n) == n && close(to) == 0);
		void *plug = dlopen(copy, RTLD_NOW);
		CHECK(plug && unlink(copy) == 0);
		int *(*number)(void) = dlsym(plug, "plug_number");
		CHECK(number && ++*number() == 1);
	}
}

static void a_handler_probes_in_a_thread(void) {
	pthread_t thread;
	shared = fresh(O_RDWR);
	CHECK(write(shared, "-", 1) == 1 && pthread_create(&thread, NULL, probes_in_a_thread, NULL) == 0);
	libraries_are_loaded_in();
	are_loaded = 1;
	CHECK(pthread_join(thread, NULL) == 0);
	holds("-h.h.hn.h.h.hn.");
}

/* A signal comes in the middle of malloc, while another thread needs the heap in a call. Its handler does not wait for that for ever. */
static int own_file;
static volatile int handled_beside;
static char bytes[1 << 20];

static void begins(void) {
	while (!step)
		sched_yield();
}

static void *closes_its_file(void *nothing) {
	CHECK(pwrite(own_file, "x", 1, 0) == 1);
	begins();
	CHECK(close(own_file) == 0);
	return nothing;
}

static void *reads_a_vector(void *nothing) {
	struct iovec parts[2] = {{bytes, 3}, {bytes + 3, 3}};
	CHECK(pread(shared, bytes, 1, 0) == 1);
	begins();
	CHECK(readv(shared, parts, 2) == 6);
	return nothing;
}

/* The thread has used another file, but nobody has used this one. */
static void *reads_a_new_file(void *nothing) {
	CHECK(pwrite(own_file, "x", 1, 0) == 1);
	begins();
	CHECK(read(shared, bytes, 6) == 6);
	return nothing;
}

/* The file was used, but not by this thread, whose other calls needed no lane. */
static void *reads_first(void *nothing) {
	CHECK(lseek(own_file, 0, SEEK_CUR) == 0);
	begins();
	CHECK(read(shared, bytes, 6) == 6);
	return nothing;
}

static void *writes_pages(void *nothing) {
	CHECK(pwrite(own_file, bytes, 4096, 0) == 4096);
	begins();
	for (int i = 0; i < 200; i++)
		CHECK(write(shared, bytes, 4096) == 4096);
	return nothing;
}

static void *reads_much(void *nothing) {
	CHECK(pread(shared, bytes, 1, 0) == 1);
	begins();
	CHECK(read(shared, bytes, sizeof bytes) == sizeof bytes);
	return nothing;
}

/* If the other thread needs the heap in its call, the handler is told that it cannot have the offset. */
static void goes_on_beside_it(int signal) {
	char byte;
	step = 1;
	for (int i = 0; waiting == 0 && i < 200; i++)
		usleep(5000);
	usleep(200000);
	int twin = dup(shared);
	CHECK(twin >= 0 && close(twin) == 0 && close(other_file) == 0);
	ssize_t done = read(shared, &byte, 1);
	CHECK(done >= 0 || (done == -1 && errno == EDEADLK));
	handled_beside = done + 2;
}

/* Returns the number of bytes that the handler has read, or -1. */
static int handled_in_malloc_beside(void *(*call)(void *), off_t moved) {
	pthread_t thread;
	char name[4096];
	alarm(30);
	shared = fresh(O_RDWR);
	CHECK(write(shared, "0123456789", 10) == 10 && signal(SIGUSR1, goes_on_beside_it) != SIG_ERR);
	if (call == reads_much)
		CHECK(pwrite(shared, bytes, sizeof bytes, 0) == sizeof bytes);
	if (call == reads_a_new_file)
		CHECK(close(shared) == 0 && (shared = open(file, O_RDWR)) >= 0);
	CHECK(lseek(shared, 0, SEEK_SET) == 0);
	snprintf(name, sizeof name, "%s.own", file);
	own_file = open(name, O_CREAT | O_RDWR, 0600);
	snprintf(name, sizeof name, "%s.other", file);
	other_file = open(name, O_CREAT | O_RDWR, 0600);
	CHECK(own_file >= 0 && other_file >= 0 && write(other_file, "x", 1) == 1);
	CHECK(pthread_create(&thread, NULL, call, NULL) == 0);
	usleep(200000);
	lock_heap();
	CHECK(raise(SIGUSR1) == 0 && handled_beside);
	unlock_heap();
	CHECK(pthread_join(thread, NULL) == 0);
	int has_read = handled_beside - 2;
	CHECK(lseek(shared, 0, SEEK_CUR) == moved + (has_read == 1));
	return has_read;
}

static void a_handler_beside_a_close(void) { CHECK(handled_in_malloc_beside(closes_its_file, 0) == 1); }
static void a_handler_beside_a_vector(void) { CHECK(handled_in_malloc_beside(reads_a_vector, 6) == 1); }
static void a_handler_beside_a_new_file(void) { CHECK(handled_in_malloc_beside(reads_a_new_file, 6) == 1); }
static void a_handler_beside_a_first_call(void) { CHECK(handled_in_malloc_beside(reads_first, 6) == 1); }
static void a_handler_beside_pages(void) { CHECK(handled_in_malloc_beside(writes_pages, 200 * 4096) == 0); }
static void a_handler_beside_a_long_read(void) { handled_in_malloc_beside(reads_much, sizeof bytes); }

/* It has the lock of all descriptors, and waits for the offset, which the read has. */
static void *starts_a_program(void *nothing) {
	while (waiting == 0 && !handled_beside)
		sched_yield();
	usleep(50000);
	CHECK(system("true") == 0);
	return nothing;
}

static void a_handler_beside_a_start_of_a_program(void) {
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, starts_a_program, NULL) == 0);
	handled_in_malloc_beside(reads_much, sizeof bytes);
	CHECK(pthread_join(thread, NULL) == 0);
}

/* A child that is forked while another thread closes a file does not wait for that thread. */
static void a_fork_beside_a_close(void) {
	pthread_t thread;
	int status;
	own_file = fresh(O_RDWR);
	CHECK(pthread_create(&thread, NULL, closes_its_file, NULL) == 0);
	usleep(200000);
	lock_heap();
	step = 1;
	for (int i = 0; waiting == 0 && i < 200; i++)
		usleep(5000);
	pid_t child = fork();
	if (child == 0) {
		alarm(10);
		fresh_heap();
		_exit(seteuid(65534) != 0);
	}
	unlock_heap();
	CHECK(pthread_join(thread, NULL) == 0 && waitpid(child, &status, 0) == child && status == 0);
}

TRAPS({"beside_closes", a_handler_beside_a_close}, {"beside_vectors", a_handler_beside_a_vector},
      {"beside_new_files", a_handler_beside_a_new_file}, {"beside_first_calls", a_handler_beside_a_first_call},
      {"beside_pages", a_handler_beside_pages}, {"beside_long_reads", a_handler_beside_a_long_read},
      {"beside_starts", a_handler_beside_a_start_of_a_program}, {"forks_beside_closes", a_fork_beside_a_close},
      {"forks", functions_of_forks_need_no_heap}, {"two_forks", two_threads_fork_beside_others},
      {"stops", two_threads_stop_each_other_before_a_fork},
      {"probes", a_handler_probes_and_logs},
      {"threads_probes", a_handler_probes_in_a_thread})
