/* Arguments at their ends, and threads that are cancelled. */
#include "traps.h"
#include <limits.h>
#include <stdint.h>

#define FAILS(call, number) CHECK((call) == -1 && errno == (number))

static void wrong_in_two_ways(void) {
	char buf[8];
	struct iovec one = {buf, 8};
	void *nowhere = (void *)8;
	int fd = fresh(O_WRONLY), in = open(file, O_RDONLY);
	CHECK(write(fd, "01234567", 8) == 8 && in >= 0);
	FAILS(read(fd, nowhere, 4), EBADF);
	FAILS(pread(fd, buf, 4, -1), EINVAL);
	FAILS(write(in, nowhere, 4), EBADF);
	FAILS(pwrite(in, nowhere, 4, -1), EINVAL);
	FAILS(readv(fd, nowhere, 2), EBADF);
	FAILS(preadv(in, &one, 1, -5), EINVAL);
	FAILS(readv(in, &one, 1025), EINVAL);
	FAILS(readv(in, &one, -1), EINVAL);
	FAILS(pread(in, (void *)-4096, 8, 0), EFAULT);
	CHECK(pread(in, buf, 0, 0) == 0 && pwrite(fd, nowhere, 0, 0) == 0);
	FAILS(ftruncate(in, 3), EINVAL);
	FAILS(ftruncate(fd, -1), EINVAL);
	FAILS(fallocate(in, 0, 0, 5), EBADF);
	FAILS(fallocate(fd, 0, -1, 5), EINVAL);
	FAILS(fallocate(fd, 0, 0, 0), EINVAL);
	FAILS(fstat(in, nowhere), EFAULT);
	FAILS(lseek(in, -9, SEEK_END), EINVAL);
	FAILS(sync_file_range(fd, 0, 0, 0xff), EINVAL);
	FAILS(sync_file_range(fd, INT64_MAX, 10, 0), EINVAL);
	FAILS(readahead(fd, 0, 5), EBADF);
	FAILS(readahead(in, 0, SIZE_MAX), EINVAL);
	/* Neither for reading nor for writing. */
	int neither = open(file, O_ACCMODE);
	CHECK(neither >= 0);
	FAILS(read(neither, buf, 1), EBADF);
	FAILS(pread(neither, buf, 1, 0), EBADF);
	FAILS(pwrite(neither, buf, 1, 0), EBADF);
	FAILS(ftruncate(neither, 0), EINVAL);
}

/* The kernel looks at all addresses first, how little there is to move. */
static void addresses_that_cannot_be(void) {
	char b[8];
	void *never = (void *)-4096, *nowhere = (void *)8;
	struct iovec last[2] = {{b, 8}, {never, 4}}, nothing[2] = {{b, 2}, {never, 0}}, first[2] = {{never, 0}, {b, 2}};
	struct iovec unmapped[2] = {{b, 8}, {nowhere, 4}};
	int fd = fresh(O_RDWR);
	CHECK(write(fd, "0123", 4) == 4 && lseek(fd, 1, SEEK_SET) == 1);
	FAILS(read(fd, never, 0), EFAULT);
	FAILS(write(fd, never, 0), EFAULT);
	FAILS(pread(fd, never, 0, 0), EFAULT);
	FAILS(pwrite(fd, never, 0, 0), EFAULT);
	FAILS(readv(fd, last, 2), EFAULT);
	FAILS(readv(fd, nothing, 2), EFAULT);
	FAILS(preadv(fd, first, 2, 0), EFAULT);
	FAILS(writev(fd, nothing, 2), EFAULT);
	FAILS(pwritev(fd, last, 2, 0), EFAULT);
	FAILS(pwritev(fd, first, 2, 0), EFAULT);
	CHECK(read(fd, nowhere, 0) == 0 && pwrite(fd, nowhere, 0, 0) == 0 && preadv(fd, unmapped, 2, 0) == 4);
	CHECK(lseek(fd, 0, SEEK_CUR) == 1);
	holds("0123");
}

static void near_the_last_offset(void) {
	char buf[16];
	int fd = fresh(O_RDWR);
	CHECK(write(fd, "01234567", 8) == 8);
	FAILS(pread(fd, buf, 10, INT64_MAX - 5), EINVAL);
	FAILS(pwrite(fd, buf, 10, INT64_MAX - 5), EINVAL);
	CHECK(pread(fd, buf, 5, INT64_MAX - 5) == 0 && pread(fd, buf, 5, INT64_MAX - 10) == 0);
	CHECK(lseek(fd, INT64_MAX, SEEK_SET) == INT64_MAX && read(fd, buf, 0) == 0);
	FAILS(read(fd, buf, 1), EINVAL);
	FAILS(lseek(fd, 1, SEEK_CUR), EINVAL);
	FAILS(lseek(fd, INT64_MAX, SEEK_END), EINVAL);
	CHECK(lseek(fd, 0, SEEK_CUR) == INT64_MAX);
	FAILS(lseek(fd, 8, SEEK_DATA), ENXIO);
	FAILS(lseek(fd, -1, SEEK_HOLE), ENXIO);
}

static void more_than_there_is(void) {
	int fd = fresh(O_RDWR);
	char *page = mmap(NULL, 12288, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(mprotect(page + 4096, 4096, PROT_NONE) == 0 && write(fd, "kept", 4) == 4);
	/* A count beyond the buffer, which the file's end keeps from being used. */
	CHECK(pread(fd, page, 1 << 30, 0) == 4 && memcmp(page, "kept", 4) == 0);
	FAILS(pread(fd, page, (size_t)1 << 47, 0), EFAULT);
	FAILS(pread(fd, page, (size_t)SSIZE_MAX + 1, 0), EFAULT);
	/* Half of the buffer is there: what fits is read and written. */
	CHECK(ftruncate(fd, 8192) == 0 && lseek(fd, 0, SEEK_SET) == 0);
	CHECK(read(fd, page, 8192) == 4096 && lseek(fd, 0, SEEK_CUR) == 4096);
	struct iovec parts[2] = {{page, 100}, {page + 4096, 100}};
	CHECK(preadv(fd, parts, 2, 0) == 100 && memcmp(page, "kept", 4) == 0);
	memset(page, 'w', 4096);
	CHECK(pwrite(fd, page, 8192, 0) == 4096 && pwritev(fd, parts, 2, 4096) == 100);
	CHECK(pread(fd, page, 1, 4195) == 1 && page[0] == 'w' && pread(fd, page, 1, 4196) == 1 && page[0] == 0);
}

static void limits_and_appends(void) {
	signal(SIGXFSZ, SIG_IGN);
	int fd = fresh(O_RDWR | O_APPEND);
	CHECK(write(fd, "0123456789", 10) == 10);
	struct rlimit small = {12, RLIM_INFINITY};
	CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
	CHECK(pwrite(fd, "ab", 2, 0) == 2);
	FAILS(pwrite(fd, "c", 1, 0), EFBIG);
	FAILS(write(fd, "c", 1), EFBIG);
	struct stat st;
	CHECK(fstat(fd, &st) == 0 && st.st_size == 12);
	/* The report is longer. */
	small.rlim_cur = RLIM_INFINITY;
	CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
}

static int limited;
static volatile int handlers_result, handlers_errno;

static void limit(rlim_t bytes) {
	struct rlimit small = {bytes, RLIM_INFINITY};
	CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
}

/* The kernel knows a size of 10,000 bytes, and the file has `size`. */
static int of_size(int flags, off_t size) {
	int fd = fresh(O_RDWR | flags), left;
	CHECK(ftruncate(fd, 10000) == 0 && ioctl(fd, FIONREAD, &left) == 0 && left == 10000 && ftruncate(fd, size) == 0);
	return fd;
}

static void writes_at_the_start(int signal) {
	handlers_result = pwrite(limited, "x", 1, 0);
	handlers_errno = errno;
}

static void limits_and_handlers(void) {
	signal(SIGXFSZ, SIG_IGN);
	CHECK(signal(SIGUSR1, writes_at_the_start) != SIG_ERR);
	for (int raw = 0; raw < 2; raw++)
		for (off_t size = 70; size <= 20000; size += 19930) {
			limited = of_size(O_APPEND, size);
			limit(size == 70 ? 2000 : 15000);
			if (raw)
				handlers_result = syscall(SYS_pwrite64, limited, "x", 1L, 0L), handlers_errno = errno;
			else
				CHECK(raise(SIGUSR1) == 0);
			CHECK(size == 70 ? handlers_result == 1 : handlers_result == -1 && handlers_errno == EFBIG);
			limit(RLIM_INFINITY);
			/* Beside a second descriptor the kernel is told each size. */
			CHECK(close(limited) == 0);
		}
}

static void changes_size(int signal) {
	handlers_result = ftruncate(limited, 5000);
	handlers_errno = errno;
}

static void limits_and_sizes(void) {
	signal(SIGXFSZ, SIG_IGN);
	CHECK(signal(SIGUSR1, changes_size) != SIG_ERR);
	/* A file may grow no more, and shrink to a size beyond the limit. */
	for (int way = 0; way < 5; way++)
		for (off_t size = 70; size <= 20000; size += 19930) {
			limited = of_size(0, size);
			limit(2000);
			if (way == 2)
				CHECK(raise(SIGUSR1) == 0);
			else
				handlers_result = way == 0   ? ftruncate(limited, 5000)
						  : way == 1 ? syscall(SYS_ftruncate, limited, 5000L)
						  : way == 3 ? fallocate(limited, 0, 0, 5000)
							     : syscall(SYS_fallocate, limited, 0, 0L, 5000L);
			CHECK(handlers_result == (size == 70 ? -1 : 0) && (size != 70 || errno == EFBIG));
			limit(RLIM_INFINITY);
			CHECK(close(limited) == 0);
		}
}

static void limits_and_copies(void) {
	char name[4200];
	off_t from = 4, to = 100;
	signal(SIGXFSZ, SIG_IGN);
	snprintf(name, sizeof name, "%s.second", file);
	int source = fresh(O_RDWR), target = open(name, O_CREAT | O_TRUNC | O_RDWR, 0600);
	CHECK(target >= 0 && write(source, "0123", 4) == 4 && write(target, "01", 2) == 2);
	limit(10);
	FAILS(copy_file_range(source, &from, target, &to, 100, 0), EFBIG);
	to = 10;
	FAILS(copy_file_range(source, &from, target, &to, 100, 0), EFBIG);
	to = 9;
	CHECK(copy_file_range(source, &from, target, &to, 100, 0) == 0);
	from = 0;
	CHECK(copy_file_range(source, &from, target, &to, 100, 0) == 1 && to == 10);
	limit(RLIM_INFINITY);
}

static void cutting_out_is_refused_always(void) {
	/* Who probes once must be able to rely on the answer: while somebody has the file mapped it cannot be done. */
	int fd = fresh(O_RDWR), first, second;
	CHECK(ftruncate(fd, 3 * 4096) == 0);
	first = fallocate(fd, FALLOC_FL_COLLAPSE_RANGE, 4096, 4096);
	volatile char *map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
	CHECK(map != MAP_FAILED && map[0] == 0);
	second = fallocate(fd, FALLOC_FL_COLLAPSE_RANGE, 0, 4096);
	CHECK(first == second && pwrite(fd, "x", 1, 0) == 1);
}

static void by_truncating(int fd) { CHECK(ftruncate(fd, 65536) == 0); }
static void by_allocating(int fd) { CHECK(fallocate(fd, 0, 0, 65536) == 0); }
static void by_writing(int fd) {
	static char page[65536];
	CHECK(pwrite(fd, page, sizeof page, 0) == sizeof page);
}
static void by_appending(int fd) {
	CHECK(lseek(fd, 65535, SEEK_SET) == 65535 && write(fd, "", 1) == 1);
}
static void by_another(int fd) {
	pid_t child = fork();
	int status;
	if (child == 0) {
		by_truncating(open(file, O_RDWR));
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}
static void (*const grows[])(int fd) = {by_truncating, by_allocating, by_writing, by_appending, by_another};

static char *map_by_call(int fd) {
	return (char *)syscall(SYS_mmap, 0, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

static void grown_under_its_mapping(void) {
	/* Mapped while it is empty or short, grown before a page of it was touched. */
	for (size_t way = 0; way < sizeof grows / sizeof *grows; way++)
		for (int kind = 0; kind < 4; kind++) {
			char read;
			int fd = fresh(O_RDWR), through = kind == 3 ? open(file, O_RDONLY) : fd;
			CHECK(pwrite(fd, "short", kind, 0) == kind && ftruncate(fd, kind) == 0);
			int rights = kind == 3 ? PROT_READ : PROT_READ | PROT_WRITE;
			int flags = kind == 1 ? MAP_PRIVATE : MAP_SHARED;
			char *map = kind == 2 ? map_by_call(fd) : mmap(NULL, 65536, rights, flags, through, 0);
			CHECK(map != MAP_FAILED);
			grows[way](fd);
			CHECK(map[60000] == 0);
			if (kind != 3)
				map[60001] = 'm';
			if (kind == 0 || kind == 2)
				CHECK(pread(fd, &read, 1, 60001) == 1 && read == 'm');
			CHECK(munmap(map, 65536) == 0 && close(fd) == 0);
			CHECK(through == fd || close(through) == 0);
		}
}

static int cancel_fd;
static volatile int started;

static void *writes_for_ever(void *type) {
	static __thread char page[4096];
	CHECK(pthread_setcanceltype(type ? PTHREAD_CANCEL_ASYNCHRONOUS : PTHREAD_CANCEL_DEFERRED, NULL) == 0);
	for (;;) {
		CHECK(pwrite(cancel_fd, page, sizeof page, 0) == sizeof page);
		CHECK(pread(cancel_fd, page, sizeof page, 0) == sizeof page);
		started = 1;
	}
}

static void cancelled_threads(void) {
	cancel_fd = fresh(O_RDWR);
	for (int round = 0; round < 100; round++) {
		pthread_t thread;
		void *said;
		started = 0;
		CHECK(pthread_create(&thread, NULL, writes_for_ever, (void *)(intptr_t)(round % 2)) == 0);
		while (!started)
			usleep(10);
		usleep(round * 7);
		CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &said) == 0 && said == PTHREAD_CANCELED);
	}
	CHECK(pwrite(cancel_fd, "x", 1, 0) == 1);
}

static int never_opened;

static void *reads_nothing(void *arg) {
	char byte;
	started = 1;
	read(never_opened, &byte, 1);
	return NULL;
}

static void cancelled_in_the_kernel(void) {
	int pipes[2], fd = fresh(O_RDWR);
	pthread_t thread;
	void *said;
	CHECK(pipe(pipes) == 0 && pwrite(fd, "x", 1, 0) == 1);
	never_opened = pipes[0];
	CHECK(pthread_create(&thread, NULL, reads_nothing, NULL) == 0);
	while (!started)
		usleep(10);
	usleep(1000);
	CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &said) == 0 && said == PTHREAD_CANCELED);
	CHECK(pwrite(fd, "x", 1, 0) == 1);
}

/* What is stored to a mapping is data at once. */
static void data_in_a_mapping(void) {
	int fd = fresh(O_RDWR), at = 5 * 4096;
	CHECK(ftruncate(fd, 64 * 4096) == 0 && pwrite(fd, "x", 1, 0) == 1);
	char *mapped = mmap(NULL, 64 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(mapped != MAP_FAILED);
	mapped[at] = 'y';
	CHECK(lseek(fd, at, SEEK_DATA) == at && lseek(fd, 0, SEEK_CUR) == at && lseek(fd, at, SEEK_HOLE) > at);
	CHECK(munmap(mapped, 64 * 4096) == 0);
}

TRAPS({"mapped_data", data_in_a_mapping},
      {"errors", wrong_in_two_ways}, {"never", addresses_that_cannot_be}, {"ends", near_the_last_offset}, {"more", more_than_there_is},
      {"limits", limits_and_appends}, {"handlers", limits_and_handlers}, {"sizes", limits_and_sizes}, {"copies", limits_and_copies},
      {"cutting", cutting_out_is_refused_always}, {"grown", grown_under_its_mapping},
      {"cancelled", cancelled_threads},
      {"cancelled_in_the_kernel", cancelled_in_the_kernel})
