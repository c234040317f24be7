/* Threads and handlers with the smallest stacks that a program may give them. */
#include "traps.h"

/* PTHREAD_STACK_MIN of most processors; a page that may not be touched lies below. */
#define SMALLEST 16384

static int fd, appended;
static char bytes[4096];
static pthread_t threads[2];
static volatile int done;
static volatile sig_atomic_t handled;

static void handles(int signal) {
	CHECK(write(appended, "h", 1) == 1);
	handled++;
}

static void *opens(void *how) {
	/* The first file of the mount that the program opens. */
	fd = fresh(O_RDWR);
	CHECK(write(fd, bytes, 100) == 100 && pread(fd, bytes, 50, 0) == 50);
	appended = open(other, O_CREAT | O_TRUNC | O_WRONLY | O_APPEND, 0600);
	CHECK(appended >= 0);
	return how;
}

static void *appends(void *how) {
	int log = open(file, O_WRONLY | O_APPEND);
	for (int i = 0; i < 4000; i++)
		CHECK(write(log, bytes, 300) == 300);
	CHECK(close(log) == 0);
	return how;
}

static void *overwrites(void *how) {
	for (int i = 0; i < 8000; i++)
		CHECK(pwrite(fd, bytes, sizeof bytes, i % 61 * 4096) == sizeof bytes);
	for (int i = 0; i < 4000; i++)
		CHECK(pwrite(fd, bytes, 100, i * 977 % 250000) == 100 && pread(fd, bytes, 500, i * 97) == 500);
	return how;
}

static void *resizes(void *how) {
	struct iovec parts[8] = {{bytes, 10}, {bytes, 20}, {bytes, 30}, {bytes, 40}, {bytes, 1}, {bytes, 2}, {bytes, 3}, {bytes, 4}};
	struct stat now;
	for (int i = 0; i < 100; i++) {
		CHECK(ftruncate(fd, 1 << 20) == 0 && fallocate(fd, 0, 0, 1 << 19) == 0 && pwrite(fd, bytes, 4096, 8192) == 4096);
		CHECK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 8192) == 0 && ftruncate(fd, 5000) == 0);
		CHECK(pwritev(fd, parts, 8, 100) == 110 && preadv(fd, parts, 8, 100) == 110 && fsync(fd) == 0);
		CHECK(fstat(fd, &now) == 0 && now.st_size == 5000 && lseek(fd, 0, SEEK_END) == 5000);
		CHECK(write(fd, (void *)8, 10) == -1 && errno == EFAULT);
	}
	return how;
}

static void *forks(void *how) {
	int status;
	for (int i = 0; i < 10; i++) {
		pid_t child = fork();
		if (child == 0)
			_exit(write(fd, "c", 1) == 1 && pwrite(fd, "c", 1, 0) == 1 ? 0 : 1);
		CHECK(waitpid(child, &status, 0) == child && status == 0 && write(fd, "p", 1) == 1);
	}
	return how;
}

static void *is_interrupted(void *how) {
	for (int i = 0; i < 3000 || handled < 100; i++)
		CHECK(pwrite(fd, bytes, sizeof bytes, i % 61 * 4096) == sizeof bytes && pread(fd, bytes, 100, 0) == 100);
	done = 1;
	return how;
}

static void *interrupts(void *how) {
	while (!done) {
		CHECK(pthread_kill(threads[0], SIGUSR1) == 0);
		usleep(50);
	}
	return how;
}

static void start(int at, void *(*what)(void *)) {
	pthread_attr_t small;
	CHECK(pthread_attr_init(&small) == 0 && pthread_attr_setstacksize(&small, SMALLEST) == 0);
	CHECK(pthread_create(&threads[at], &small, what, NULL) == 0);
}

static void small_threads(void) {
	struct sigaction act = {.sa_handler = handles, .sa_flags = SA_RESTART};
	void *(*const all[])(void *) = {opens, appends, overwrites, resizes, forks};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		start(0, all[i]);
		CHECK(pthread_join(threads[0], NULL) == 0);
	}
	CHECK(sigaction(SIGUSR1, &act, NULL) == 0);
	start(0, is_interrupted);
	start(1, interrupts);
	CHECK(pthread_join(threads[0], NULL) == 0 && pthread_join(threads[1], NULL) == 0);
}

/* What the kernel puts there itself, and 1 KiB for the handler. Below lies memory that nobody may touch. */
static void *has_a_small_stack_for_handlers(void *how) {
	enum { BELOW = 8192 };
	size_t size = MINSIGSTKSZ + 1024;
	char *memory = malloc(BELOW + size);
	stack_t own = {.ss_sp = memory + BELOW, .ss_size = size}, none = {.ss_flags = SS_DISABLE};
	memset(memory, 'u', BELOW);
	CHECK(sigaltstack(&own, NULL) == 0);
	threads[0] = pthread_self();
	start(1, interrupts);
	is_interrupted(NULL);
	CHECK(pthread_join(threads[1], NULL) == 0 && sigaltstack(&none, NULL) == 0);
	for (int i = 0; i < BELOW; i++)
		CHECK(memory[i] == 'u');
	return how;
}

static void small_stacks_of_handlers(void) {
	struct sigaction act = {.sa_handler = handles, .sa_flags = SA_RESTART | SA_ONSTACK};
	opens(NULL);
	CHECK(sigaction(SIGUSR1, &act, NULL) == 0);
	has_a_small_stack_for_handlers(NULL);
}

TRAPS({"threads", small_threads}, {"handlers", small_stacks_of_handlers})
