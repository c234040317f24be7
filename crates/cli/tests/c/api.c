/* What heddle.h says of short writes and of errors, on a file of a mount whose largest size is 2^48. */
#include <heddle.h>

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WANT(what) do { if (!(what)) { fprintf(stderr, "line %d: %s: %s\n", __LINE__, #what, heddle_error()); exit(1); } } while (0)

#define LARGEST ((off_t)1 << 48)
#define PAGE 4096

static char bytes[4 * PAGE], back[4 * PAGE];

int main(int argc, char **argv)
{
	WANT(argc == 2 && strcmp(heddle_error(), "") == 0);
	heddle_file *file = heddle_open(argv[1], O_CREAT | O_RDWR, 0600);
	WANT(file);
	memset(bytes, 7, sizeof bytes);
	/* Across the largest size, as much as there is room for; what is left fails. */
	WANT(heddle_pwrite(file, bytes, 2 * PAGE, LARGEST - PAGE) == PAGE);
	WANT(heddle_pwrite(file, bytes, PAGE, LARGEST) == -1 && errno == EFBIG);
	WANT(strlen(heddle_error()) > 0);
	/* A read is short at the end alone. */
	WANT(heddle_pread(file, back, sizeof back, LARGEST - PAGE) == PAGE && memcmp(bytes, back, PAGE) == 0);
	WANT(heddle_pread(file, back, sizeof back, LARGEST) == 0);
	WANT(heddle_truncate(file, 10) == 0 && heddle_pread(file, back, sizeof back, 3) == 7);
	/* A length that no call has is none that is cut. */
	WANT(heddle_pwrite(file, bytes, SIZE_MAX, 0) == -1 && heddle_pread(file, back, SIZE_MAX, 0) == -1);
	WANT(heddle_pwrite(file, NULL, 1, 0) == -1 && errno == EFAULT);
	WANT(heddle_pwrite(NULL, bytes, 1, 0) == -1 && errno == EBADF);
	heddle_file *reader = heddle_open(argv[1], O_RDONLY, 0);
	WANT(reader && heddle_pwrite(reader, bytes, 1, 0) == -1 && errno == EBADF);
	WANT(heddle_close(reader) == 0 && heddle_close(file) == 0 && heddle_close(NULL) == 0);
	/* On a full image nothing is written where nothing is free, and what has space may be written anew. */
	WANT(file = heddle_open(argv[1], O_RDWR | O_APPEND, 0));
	ssize_t wrote;
	while ((wrote = heddle_pwrite(file, bytes, sizeof bytes, 0)) == (ssize_t)sizeof bytes)
		;
	WANT(wrote == -1 && errno == ENOSPC);
	struct stat told;
	WANT(heddle_fstat(file, &told) == 0 && told.st_size % PAGE == 10 && told.st_size > 100 * PAGE);
	heddle_file *over = heddle_open(argv[1], O_RDWR, 0);
	WANT(over && heddle_pwrite(over, bytes, sizeof bytes, 0) == (ssize_t)sizeof bytes);
	WANT(heddle_close(over) == 0 && heddle_close(file) == 0);
	return 0;
}
