/* The C library's other names for its functions. */
#include "traps.h"

int __open(const char *, int, ...), __fcntl(int, int, ...), __close(int), __dup2(int, int);
ssize_t __read(int, void *, size_t), __write(int, const void *, size_t);
ssize_t __pread64(int, void *, size_t, off_t), __pwrite64(int, const void *, size_t, off_t);
off_t __lseek(int, off_t, int);
pid_t __vfork(void);
FILE *_IO_fdopen(int, const char *);

static void by_other_names(void) {
	char b[8];
	int status, fd = fresh(O_RDWR);
	CHECK(write(fd, "one ", 4) == 4 && __write(fd, "two ", 4) == 4 && write(fd, "three ", 6) == 6);
	CHECK(__lseek(fd, 4, SEEK_SET) == 4 && read(fd, b, 1) == 1 && __read(fd, b + 1, 2) == 2 && memcmp(b, "two", 3) == 0);
	CHECK(__lseek(fd, 0, SEEK_END) == 14 && __pwrite64(fd, "T", 1, 4) == 1 && __pread64(fd, b, 3, 4) == 3 && memcmp(b, "Two", 3) == 0);
	int two = __fcntl(fd, F_DUPFD, 50);
	CHECK(two >= 50 && write(two, "four ", 5) == 5);
	int zero = dup(0);
	CHECK(zero >= 0 && __dup2(zero, two) == two && __close(zero) == 0 && __close(two) == 0 && write(fd, "five ", 5) == 5);
	int opened = __open(file, O_RDWR);
	CHECK(opened >= 0 && read(opened, b, 3) == 3 && __read(opened, b + 3, 5) == 5 && memcmp(b, "one Two ", 8) == 0);
	CHECK(__close(opened) == 0);
	pid_t child = __vfork();
	if (child == 0) {
		write(fd, "six ", 4);
		_exit(0);
	}
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0 && write(fd, "seven ", 6) == 6);
	FILE *stream = _IO_fdopen(fd, "r+");
	CHECK(stream && fputs("eight", stream) >= 0 && fflush(stream) == 0);
	holds("one Two three four five six seven eight");
}

TRAPS({"names", by_other_names})
