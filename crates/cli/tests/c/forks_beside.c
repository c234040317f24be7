/* Threads that write through one descriptor while others fork, or close a duplicate of it. */
#include "traps.h"
#include <stdatomic.h>

/* All of them are less than the image has. */
enum { RECORD = 4, WRITERS = 3, RECORDS_MAX = 1000000 };

static int shared_fd;
static atomic_int over;
static atomic_long written;

static void *writes(void *unused) {
	static const char record[RECORD] = {1};
	for (; !over && written < RECORDS_MAX; written++)
		CHECK(write(shared_fd, record, RECORD) == RECORD);
	return unused;
}

static void beside_writers(void (*work)(void)) {
	pthread_t writers[WRITERS];
	struct stat now;
	shared_fd = fresh(O_RDWR);
	for (int i = 0; i < WRITERS; i++)
		CHECK(pthread_create(&writers[i], NULL, writes, NULL) == 0);
	work();
	over = 1;
	for (int i = 0; i < WRITERS; i++)
		CHECK(pthread_join(writers[i], NULL) == 0);
	CHECK(fstat(shared_fd, &now) == 0);
	CHECK(now.st_size == written * RECORD && lseek(shared_fd, 0, SEEK_CUR) == now.st_size);
}

static void forks(void) {
	time_t end = time(NULL) + 3;
	do {
		pid_t child = fork();
		if (child == 0)
			_exit(0);
		CHECK(child > 0 && waitpid(child, NULL, 0) == child);
		usleep(300);
	} while (time(NULL) < end && written < RECORDS_MAX);
}

static void each_record_is_there_whoever_forks(void) {
	beside_writers(forks);
}

/* The kernel has the offset for good: so each write is a call by number. */
static void closes(void) {
	FILE *stream = fdopen(dup(shared_fd), "r+");
	CHECK(stream != NULL && fclose(stream) == 0);
	for (int i = 0; i < 200; i++)
		CHECK(close(dup(shared_fd)) == 0);
}

static void duplicates_close_while_others_write(void) {
	beside_writers(closes);
}

TRAPS({"forks", each_record_is_there_whoever_forks}, {"closes", duplicates_close_while_others_write})
