/* What Linux is asked to write into an F2FS image, mounted at /mnt of a guest. tests/linux.rs knows what must be there.
 *
 * `guest files`: one of each kind of thing.  `guest fsync`: what is fsynced after the last checkpoint. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <unistd.h>

static void must(long result, const char *what)
{
	if (result < 0) {
		printf("GUEST FAILED: %s: %s\n", what, strerror(errno));
		exit(1);
	}
}

static int make(const char *name)
{
	int fd = open(name, O_CREAT | O_RDWR, 0644);

	must(fd, name);
	return fd;
}

static void put(int fd, off_t at, int byte, size_t len)
{
	char *bytes = malloc(len);

	memset(bytes, byte, len);
	must(pwrite(fd, bytes, len, at) - (ssize_t)len, "pwrite");
	free(bytes);
}

static void attributes(void)
{
	static char large[3000];
	int fd = make("attributes");

	memset(large, 'L', sizeof large);
	must(setxattr("attributes", "user.small", "value", 5, 0), "user.small");
	must(setxattr("attributes", "user.large", large, sizeof large, 0), "user.large");
	must(setxattr("attributes", "trusted.t", "T", 1, 0), "trusted.t");
	must(setxattr("attributes", "security.s", "", 0, 0), "security.s");
	must(setxattr("attributes", "user.gone", "x", 1, 0), "user.gone");
	must(removexattr("attributes", "user.gone"), "removexattr");
	close(fd);
}

static void lists(void)
{
	/* Version 2; owner rw, user 1000 r, group r, mask rw, others none. */
	static const unsigned char list[] = {
		2, 0, 0, 0,
		1, 0, 6, 0, 255, 255, 255, 255,
		2, 0, 4, 0, 0xe8, 3, 0, 0,
		4, 0, 4, 0, 255, 255, 255, 255,
		16, 0, 6, 0, 255, 255, 255, 255,
		32, 0, 0, 0, 255, 255, 255, 255,
	};

	close(make("listed"));
	must(setxattr("listed", "system.posix_acl_access", list, sizeof list, 0), "access list");
	must(mkdir("heirs", 0755), "heirs");
	must(setxattr("heirs", "system.posix_acl_default", list, sizeof list, 0), "default list");
	close(make("heirs/heir"));
}

static void contents(void)
{
	int fd = make("sparse");

	/* In the inode, under a direct, an indirect and the double indirect node. */
	put(fd, 0, 'a', 10);
	put(fd, 4L << 20, 'b', 4096);
	put(fd, 100L << 20, 'c', 5000);
	put(fd, 9L << 30, 'd', 1);
	close(fd);
	fd = make("reserved");
	must(fallocate(fd, 0, 0, 1 << 20), "fallocate");
	put(fd, 500000, 'r', 1000);
	close(fd);
	fd = make("punched");
	put(fd, 0, 'p', 64 << 10);
	must(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 8192, 8192), "punch");
	close(fd);
	fd = make("cut");
	put(fd, 0, 'q', 8 << 20);
	must(ftruncate(fd, 5000), "ftruncate");
	close(fd);
	fd = make("inline");
	put(fd, 0, 'i', 3000);
	close(fd);
	fd = make("once inline");
	put(fd, 0, 'j', 3000);
	put(fd, 3000, 'k', 3000);
	close(fd);
	fd = make("over and over");
	for (int i = 0; i < 200; i++) {
		put(fd, 0, 'A' + i % 26, 20000);
		if (i % 20 == 0)
			must(fsync(fd), "fsync");
	}
	close(fd);
}

static void names(void)
{
	char name[300], other[300];

	must(mkdir("many", 0711), "many");
	for (int i = 0; i < 1000; i++) {
		int at = snprintf(name, sizeof name, "many/%d-", i);

		memset(name + at, 'n', (size_t)(i % 240));
		name[at + i % 240] = 0;
		close(make(name));
		if (i % 3 == 0)
			must(unlink(name), "unlink");
		if (i % 3 == 1) {
			snprintf(other, sizeof other, "many/moved %d", i);
			must(rename(name, other), "rename");
		}
	}
	close(make("first"));
	must(link("first", "second"), "link");
	must(symlink("first", "symbolic"), "symlink");
	must(mknod("null", S_IFCHR | 0666, makedev(1, 3)), "null");
	must(mknod("large device", S_IFBLK | 0600, makedev(259, 70000)), "large device");
	must(mkfifo("pipe", 0640), "pipe");
	memset(name, 0xff, 255);
	name[255] = 0;
	close(make(name));
	must(mkdir("set", 0755), "set");
	must(chown("set", 12, 34), "chown");
	must(chmod("set", 07751), "chmod");

	struct timespec times[2] = { { 1, 2 }, { 1000000000, 987654321 } };

	must(utimensat(AT_FDCWD, "first", times, 0), "utimensat");
}

static void synced(void)
{
	int fd = make("cut");

	put(fd, 0, 'S', 4096);
	must(fsync(fd), "fsync");
	close(fd);
	fd = make("fresh");
	put(fd, 0, 'F', 100);
	must(fsync(fd), "fsync");
	close(fd);
}

int main(int argc, char **argv)
{
	must(chdir("/mnt"), "chdir");
	if (argc > 1 && !strcmp(argv[1], "fsync")) {
		synced();
	} else {
		umask(0);
		attributes();
		lists();
		contents();
		names();
	}
	printf("GUEST DONE\n");
	return 0;
}
