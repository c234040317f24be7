/* Calls on a number beside another thread that closes it, or puts another file under it. */
#include "traps.h"
#include <sys/vfs.h>

enum { FILES = 60, RECORDS = 200000 };
static volatile int number, over;
static char names[FILES][4096];
static char seen[RECORDS];
static volatile int written;
static pthread_barrier_t together;

static int open_one(int i, int flags) {
	int fd = open(names[i], O_RDWR | O_CREAT | flags, 0600);
	CHECK(fd >= 0);
	return fd;
}

static void name_files(void) {
	written = over = 0;
	for (int i = 0; i < FILES; i++) {
		snprintf(names[i], sizeof names[i], "%s.%d", file, i);
		unlink(names[i]);
	}
}

/* A record says which it is. */
static int writes_one(int fd) {
	char record[16] = {0};
	snprintf(record, sizeof record, "%d", written + 1);
	struct iovec parts[2] = {{record, 5}, {record + 5, 11}};
	ssize_t n = written % 3 == 0 ? writev(fd, parts, 2) : write(fd, record, 16);
	CHECK(n == 16 || (n == -1 && errno == EBADF));
	written += n == 16;
	return n == 16;
}

static void *writes_records(void *nothing) {
	while (!over && written < RECORDS)
		writes_one(number);
	return nothing;
}

/* Writes by a duplicate, which means what the number means at some moment of the call. */
static void *duplicates(void *nothing) {
	while (!over && written < RECORDS) {
		int again = written % 2 ? dup(number) : fcntl(number, F_DUPFD_CLOEXEC, 200);
		CHECK(again >= 0 && writes_one(again) && writes_one(again) && close(again) == 0);
	}
	return nothing;
}

/* Each record is in one of the files, once, and nothing else is. */
static void all_are_there_once(void) {
	int found = 0;
	memset(seen, 0, sizeof seen);
	for (int i = 0; i < FILES; i++) {
		char record[16];
		FILE *f = fopen(names[i], "r");
		CHECK(f);
		while (fread(record, 1, 16, f) == 16) {
			int which = atoi(record) - 1;
			CHECK(which >= 0 && which < written && !seen[which]++);
			found++;
		}
		CHECK(ftell(f) % 16 == 0);
		fclose(f);
		unlink(names[i]);
	}
	CHECK(found == written && found > FILES);
}

static void replaced_under(void *(*user)(void *)) {
	pthread_t thread;
	name_files();
	int fd = open_one(0, 0);
	number = fcntl(fd, F_DUPFD, 100);
	CHECK(number >= 100 && pthread_create(&thread, NULL, user, NULL) == 0);
	for (int i = 1; i < FILES; i++) {
		/* Each goes on by its old number too, with the same offset. */
		CHECK(lseek(fd, 0, SEEK_CUR) % 16 == 0 && close(fd) == 0);
		fd = open_one(i, 0);
		CHECK((i % 2 ? dup2(fd, number) : dup3(fd, number, O_CLOEXEC)) == number);
		for (int before = written; written < before + 10 && written < RECORDS;)
			usleep(50);
	}
	over = 1;
	CHECK(pthread_join(thread, NULL) == 0);
	all_are_there_once();
}

static void replaced(void) { replaced_under(writes_records); }
static void duplicated(void) { replaced_under(duplicates); }

/* Its child has the files too: their offsets are the kernel's. */
static void replaced_with_shared_offsets(void) {
	int fds[FILES];
	pthread_t thread;
	name_files();
	for (int i = 0; i < FILES; i++)
		fds[i] = open_one(i, 0);
	pid_t child = fork();
	if (child == 0)
		for (;;)
			pause();
	number = fcntl(fds[0], F_DUPFD, 100);
	CHECK(number >= 100 && pthread_create(&thread, NULL, writes_records, NULL) == 0);
	for (int i = 0; i < 20 * FILES; i++)
		CHECK(dup2(fds[i % FILES], number) == number);
	for (int i = 0; written <= FILES; i++)
		CHECK(dup2(fds[i % FILES], number) == number);
	over = 1;
	CHECK(pthread_join(thread, NULL) == 0 && kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
	all_are_there_once();
}

/* What takes the number is appended to: what is written by the old one's caller is beside nothing. */
static void closed(void) {
	pthread_t thread;
	name_files();
	int fd = open_one(0, O_APPEND);
	number = fd;
	CHECK(pthread_create(&thread, NULL, writes_records, NULL) == 0);
	for (int i = 1; i < FILES; i++) {
		usleep(i * 10);
		CHECK((i % 2 ? close(fd) : close_range(fd, fd, 0)) == 0);
		fd = open_one(i, O_APPEND);
		CHECK(fd == number);
	}
	while (written <= FILES)
		usleep(100);
	over = 1;
	CHECK(pthread_join(thread, NULL) == 0);
	all_are_there_once();
}

enum { LARGE = 1 << 20 };
static char large[LARGE];

static void *writes_much(void *arg) {
	long at = (long)arg * LARGE;
	pthread_barrier_wait(&together);
	while (pwrite(number, large, LARGE, at) == LARGE)
		;
	return NULL;
}

/* Others use tmpfs too. */
static long free_blocks(void) {
	const long fuse = 0x65735546;
	struct statfs said;
	char folder[4096];
	snprintf(folder, sizeof folder, "%s", file);
	*strrchr(folder, '/') = 0;
	CHECK(statfs(folder, &said) == 0);
	return said.f_type == fuse ? said.f_bfree : 0;
}

/* Two threads begin with the file at once, and it is closed and unlinked under them: its blocks are free soon, whatever else the program
 * does or leaves. */
static void closed_and_gone(void) {
	for (int round = 0; round < 30; round++) {
		pthread_t threads[2];
		number = fresh(O_RDWR);
		long before = free_blocks();
		CHECK(pthread_barrier_init(&together, NULL, 3) == 0);
		for (long i = 0; i < 2; i++)
			CHECK(pthread_create(&threads[i], NULL, writes_much, (void *)i) == 0);
		pthread_barrier_wait(&together);
		usleep(500 * (round % 5) + 200);
		CHECK(close(number) == 0 && unlink(file) == 0);
		for (int i = 0; i < 2; i++)
			CHECK(pthread_join(threads[i], NULL) == 0);
		for (int looks = 0; free_blocks() < before - LARGE / 4096 / 4; looks++) {
			CHECK(looks < 6000);
			usleep(10000);
		}
	}
}

TRAPS({"replaced", replaced}, {"shared", replaced_with_shared_offsets}, {"closed", closed}, {"dup", duplicated}, {"gone", closed_and_gone})
