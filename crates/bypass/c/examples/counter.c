/* Four processes count in one file of a heddle mount, each in its own eight bytes, and the parent adds up.
 *
 *   cc -o counter counter.c -lheddle && ./counter /mnt/h/counts
 */
#include <heddle.h>

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORKERS 4
#define ROUNDS 1000

static int fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, heddle_error());
	return 1;
}

static int count(const char *path, int worker)
{
	heddle_file *file = heddle_open(path, O_RDWR, 0);
	if (!file)
		return fail("open");
	for (int round = 0; round < ROUNDS; round++) {
		uint64_t number;
		if (heddle_pread(file, &number, sizeof number, worker * 8) != sizeof number)
			return fail("pread");
		number++;
		if (heddle_pwrite(file, &number, sizeof number, worker * 8) != sizeof number)
			return fail("pwrite");
	}
	return heddle_close(file) == 0 ? 0 : fail("close");
}

int main(int argc, char **argv)
{
	if (argc != 2) {
		fprintf(stderr, "usage: counter FILE\n");
		return 2;
	}
	heddle_file *file = heddle_open(argv[1], O_CREAT | O_TRUNC | O_RDWR, 0600);
	if (!file)
		return fail("open");
	if (heddle_truncate(file, WORKERS * 8) != 0)
		return fail("truncate");
	for (int worker = 0; worker < WORKERS; worker++)
		if (fork() == 0)
			_exit(count(argv[1], worker));
	int status, failed = 0;
	while (wait(&status) > 0)
		failed |= status;
	uint64_t numbers[WORKERS], sum = 0;
	struct stat told, by_path;
	if (heddle_pread(file, numbers, sizeof numbers, 0) != sizeof numbers || heddle_fsync(file) != 0)
		return fail("pread");
	if (heddle_fstat(file, &told) != 0 || heddle_stat(argv[1], &by_path) != 0)
		return fail("stat");
	for (int worker = 0; worker < WORKERS; worker++)
		sum += numbers[worker];
	printf("%llu of %d, %lld bytes, descriptor %s\n", (unsigned long long)sum, WORKERS * ROUNDS,
	       (long long)told.st_size, heddle_fd(file) >= 0 ? "open" : "missing");
	if (told.st_ino != by_path.st_ino || told.st_size != by_path.st_size)
		return 1;
	/* An error has a number and words. */
	if (heddle_pread(file, numbers, 8, -1) != -1 || errno != EINVAL || strlen(heddle_error()) == 0)
		return 1;
	if (heddle_attach("/proc") != -1 || errno != ENODEV)
		return 1;
	return heddle_close(file) == 0 && !failed && sum == WORKERS * ROUNDS ? 0 : 1;
}
