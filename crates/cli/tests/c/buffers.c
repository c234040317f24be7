/* Buffers that are not there when the call comes to them. */
#include "traps.h"
#include <setjmp.h>

#define PAGE 4096
#define LEN (256 << 10)

static volatile int enough;
static int cut_file;

/* Two ways to take the last page of a buffer away, and give it back. */
static void *forbids(void *page) {
	while (!enough)
		if (mprotect(page, PAGE, PROT_NONE) || mprotect(page, PAGE, PROT_READ | PROT_WRITE))
			return page;
	return NULL;
}

static void *cuts(void *page) {
	static char x[PAGE];
	memset(x, 'x', PAGE);
	while (!enough)
		if (ftruncate(cut_file, LEN - PAGE) || pwrite(cut_file, x, PAGE, LEN - PAGE) != PAGE)
			return page;
	return NULL;
}

/* Memory full of 'x', whose last page comes and goes until `enough`. */
static char *unsteady(void *(*how)(void *), pthread_t *thread) {
	cut_file = memfd_create("buffer", 0);
	CHECK(cut_file >= 0 && ftruncate(cut_file, LEN) == 0);
	char *pages = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, cut_file, 0);
	CHECK(pages != MAP_FAILED);
	memset(pages, 'x', LEN);
	enough = 0;
	CHECK(pthread_create(thread, NULL, how, pages + LEN - PAGE) == 0);
	return pages;
}

static void steady(pthread_t thread) {
	void *problem;
	enough = 1;
	CHECK(pthread_join(thread, &problem) == 0 && problem == NULL);
	close(cut_file);
}

/* What a call gave: all, a part, or the error of a bad buffer. */
static int whole(ssize_t n) {
	CHECK((n > 0 && n <= LEN) || (n == -1 && errno == EFAULT));
	return n == LEN;
}

static void write_from(void *(*how)(void *)) {
	static char found[LEN + 2];
	pthread_t thread;
	int fd = fresh(O_RDWR), end = open(file, O_WRONLY | O_APPEND), failed = 0, done = 0;
	memset(found, 'x', LEN + 1);
	CHECK(write(fd, found, LEN + 1) == LEN + 1);
	char *pages = unsteady(how, &thread);
	struct iovec parts[2] = {{pages, LEN / 2}, {pages + LEN / 2, LEN / 2}};
	time_t began = time(NULL);
	for (int i = 0; i < 2000 || failed < 25 || done < 5; i++) {
		ssize_t n;
		switch (i % 5) {
		case 0: n = pwritev(fd, parts, 2, 1); break;
		case 1: n = pwrite(fd, pages, LEN, 1); break;
		case 2: n = write(end, pages, LEN); CHECK(ftruncate(fd, LEN + 1) == 0); break;
		case 3: n = pwrite(fd, pages + LEN - PAGE, PAGE, PAGE); n = n == PAGE ? LEN : n; break;
		default:
			CHECK(lseek(fd, 1, SEEK_SET) == 1);
			n = writev(fd, parts, 2);
			/* The offset says what was written. */
			CHECK(lseek(fd, 0, SEEK_CUR) == 1 + (n > 0 ? n : 0));
		}
		whole(n) ? done++ : failed++;
		CHECK(time(NULL) - began < 60);
	}
	steady(thread);
	CHECK(pread(fd, found, sizeof found, 0) == LEN + 1);
	for (size_t i = 0; i <= LEN; i++)
		CHECK(found[i] == 'x');
}

static void taken_from_writes(void) {
	write_from(forbids);
}

static void cut_from_writes(void) {
	write_from(cuts);
}

static void taken_from_vectors(void) {
	/* A read into several buffers moves the offset by what it read, or not at all. */
	static char text[LEN];
	pthread_t thread;
	int fd = fresh(O_RDWR), failed = 0, done = 0;
	for (size_t i = 0; i < LEN; i++)
		text[i] = "abcdefghijklm"[i % 13];
	CHECK(write(fd, text, LEN) == LEN);
	char *pages = unsteady(forbids, &thread);
	struct iovec parts[2] = {{pages, LEN / 2}, {pages + LEN / 2, LEN / 2}};
	time_t began = time(NULL);
	while (failed < 15 || done < 5) {
		memset(pages, 0, LEN - PAGE);
		CHECK(lseek(fd, 0, SEEK_SET) == 0);
		ssize_t n = readv(fd, parts, 2);
		CHECK(lseek(fd, 0, SEEK_CUR) == (n > 0 ? n : 0));
		CHECK(n <= 0 || memcmp(pages, text, n < LEN - PAGE ? n : LEN - PAGE) == 0);
		whole(n) ? done++ : failed++;
		CHECK(time(NULL) - began < 60);
	}
	steady(thread);
}

static void cut_short(void) {
	/* Half of the mapping is there. The file it is of has nothing for the rest. */
	int fd = fresh(O_RDWR), memory = memfd_create("short", 0);
	CHECK(ftruncate(memory, PAGE) == 0);
	char *pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	CHECK(pages != MAP_FAILED);
	memset(pages, 'x', PAGE);
	CHECK(pwrite(fd, pages + PAGE, 10, 0) == -1 && errno == EFAULT);
	CHECK(pwrite(fd, pages, 2 * PAGE, 0) == PAGE);
	struct iovec parts[2] = {{pages, PAGE}, {pages + PAGE, PAGE}};
	CHECK(pwritev(fd, parts, 2, 0) == PAGE && preadv(fd, parts, 2, 0) == PAGE);
	CHECK(ftruncate(fd, 2 * PAGE) == 0 && preadv(fd, parts, 2, 0) == PAGE);
	CHECK(preadv(fd, parts + 1, 1, 0) == -1 && errno == EFAULT);
	/* A vector that ends behind the end of its page. */
	struct iovec *last = (struct iovec *)(pages + PAGE) - 1;
	last->iov_base = "abc", last->iov_len = 3;
	CHECK(pwritev(fd, last, 1, 0) == 3);
	CHECK(pwritev(fd, last, 2, 0) == -1 && errno == EFAULT);
	/* Places of numbers. */
	struct stat *nowhere = (struct stat *)(pages + PAGE);
	CHECK(fstat(fd, nowhere) == -1 && errno == EFAULT);
	char name[4096];
	snprintf(name, sizeof name, "%s-copy", file);
	int target = open(name, O_CREAT | O_RDWR, 0600);
	CHECK(copy_file_range(fd, (off_t *)nowhere, target, NULL, 3, 0) == -1 && errno == EFAULT);
	/* In a child that has its parent's memory, and in one that has a copy. */
	for (int copied = 0; copied < 2; copied++) {
		int status;
		pid_t child = copied ? fork() : vfork();
		if (child == 0)
			_exit(pwrite(fd, pages + PAGE, 10, 0) == -1 && errno == EFAULT ? 0 : 1);
		CHECK(waitpid(child, &status, 0) == child && status == 0);
	}
	CHECK(pwrite(fd, "z", 1, 0) == 1);
}

static sigjmp_buf back;

static void jumps(int number) {
	siglongjmp(back, number);
}

static int ends_by(int number, void (*what)(void)) {
	int status;
	pid_t child = fork();
	if (child == 0) {
		struct rlimit none = {0, 0};
		setrlimit(RLIMIT_CORE, &none);
		what();
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child);
	return WIFSIGNALED(status) && WTERMSIG(status) == number;
}

static void faults(void) {
	*(volatile char *)8 = 1;
}

static void ignores_and_faults(void) {
	alarm(10);
	signal(SIGSEGV, SIG_IGN);
	faults();
}

static void handlers(void) {
	/* What the program has set for its own faults is not asked, and stays as it was. */
	int fd = fresh(O_RDWR);
	CHECK(ends_by(SIGSEGV, faults) && ends_by(SIGSEGV, ignores_and_faults));
	struct sigaction once = {.sa_handler = jumps, .sa_flags = SA_RESETHAND}, now;
	CHECK(sigaction(SIGSEGV, &once, NULL) == 0);
	CHECK(pwrite(fd, (void *)8, 10, 0) == -1 && errno == EFAULT);
	CHECK(sigaction(SIGSEGV, NULL, &now) == 0 && now.sa_handler == jumps);
	if (sigsetjmp(back, 1) == 0)
		faults();
	CHECK(sigaction(SIGSEGV, NULL, &now) == 0 && now.sa_handler == SIG_DFL);
	CHECK(pwrite(fd, (void *)8, 10, 0) == -1 && errno == EFAULT);
	CHECK(ends_by(SIGSEGV, faults));
	CHECK(signal(SIGSEGV, SIG_IGN) == SIG_DFL && pwrite(fd, (void *)8, 10, 0) == -1 && errno == EFAULT);
	CHECK(pwrite(fd, "z", 1, 0) == 1);
}

static void handlers_set_in_older_ways(void) {
	int fd = fresh(O_RDWR);
	CHECK(sigset(SIGSEGV, jumps) == SIG_DFL && pwrite(fd, (void *)8, 10, 0) == -1 && errno == EFAULT);
	CHECK(sigset(SIGSEGV, SIG_HOLD) == jumps && sigset(SIGSEGV, jumps) == SIG_HOLD);
	CHECK(pwrite(fd, (void *)8, 10, 0) == -1 && errno == EFAULT);
	if (sigsetjmp(back, 1) == 0)
		faults();
	CHECK(sigignore(SIGSEGV) == 0 && sigset(SIGSEGV, SIG_DFL) == SIG_IGN);
	CHECK(pwrite(fd, (void *)8, 10, 0) == -1 && errno == EFAULT && ends_by(SIGSEGV, faults));
	CHECK(pwrite(fd, "z", 1, 0) == 1);
}

static void vectors_longer_than_the_file(void) {
	struct rusage before, after;
	size_t len = 400 << 20;
	int fd = fresh(O_RDWR);
	char *room = mmap(NULL, 2 * len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	struct iovec parts[2] = {{room, len}, {room + len, len}};
	CHECK(room != MAP_FAILED && write(fd, "short", 5) == 5 && getrusage(RUSAGE_SELF, &before) == 0);
	CHECK(preadv(fd, parts, 2, 0) == 5 && memcmp(room, "short", 5) == 0 && getrusage(RUSAGE_SELF, &after) == 0);
	CHECK(after.ru_maxrss - before.ru_maxrss < 50 << 10);
}

TRAPS({"set", handlers_set_in_older_ways}, {"long", vectors_longer_than_the_file},
      {"taken_from_writes", taken_from_writes}, {"cut_from_writes", cut_from_writes},
      {"taken_from_vectors", taken_from_vectors}, {"cut_short", cut_short}, {"handlers", handlers})
