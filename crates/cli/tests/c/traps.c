/* What ordinary programs do with descriptors. */
#include "traps.h"

static void plain(void) {
	char buf[64];
	int fd = fresh(O_RDWR);
	CHECK(write(fd, "hello ", 6) == 6 && write(fd, "world", 5) == 5);
	CHECK(lseek(fd, 0, SEEK_CUR) == 11 && lseek(fd, -5, SEEK_END) == 6);
	CHECK(read(fd, buf, sizeof buf) == 5 && memcmp(buf, "world", 5) == 0 && read(fd, buf, 1) == 0);
	CHECK(pwrite(fd, "J", 1, 0) == 1 && pread(fd, buf, 5, 0) == 5 && memcmp(buf, "Jello", 5) == 0);
	struct iovec v[3] = {{"a", 1}, {"", 0}, {"bc", 2}};
	CHECK(pwritev(fd, v, 3, 11) == 3);
	char x[2], y[20];
	struct iovec r[2] = {{x, 2}, {y, 20}};
	CHECK(preadv(fd, r, 2, 10) == 4 && memcmp(x, "da", 2) == 0 && memcmp(y, "bc", 2) == 0);
	CHECK(preadv2(fd, r, 2, 10, 0) == 4 && pwritev2(fd, v, 1, 0, RWF_APPEND) == 1);
	struct stat st, by_path;
	CHECK(fstat(fd, &st) == 0 && st.st_size == 15 && S_ISREG(st.st_mode) && st.st_nlink == 1);
	CHECK(stat(file, &by_path) == 0 && by_path.st_size == 15 && by_path.st_ino == st.st_ino && by_path.st_dev == st.st_dev);
	CHECK(by_path.st_mtim.tv_sec == st.st_mtim.tv_sec && by_path.st_mtim.tv_nsec == st.st_mtim.tv_nsec);
	CHECK(ftruncate(fd, 5) == 0 && stat(file, &by_path) == 0 && by_path.st_size == 5);
	CHECK(posix_fallocate(fd, 0, 10) == 0 && stat(file, &by_path) == 0 && by_path.st_size == 10);
	CHECK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 2) == 0);
	CHECK(fsync(fd) == 0 && fdatasync(fd) == 0 && sync_file_range(fd, 0, 0, 0) == 0);
	CHECK(ftruncate(fd, 4) == 0 && pread(fd, buf, 9, 0) == 4 && memcmp(buf, "\0\0ll", 4) == 0);
	CHECK(close(fd) == 0 && close(fd) == -1 && errno == EBADF);
}

static void errors(void) {
	char buf[8];
	int fd = fresh(O_RDONLY);
	CHECK(write(fd, "x", 1) == -1 && errno == EBADF);
	CHECK(ftruncate(fd, 1) == -1 && errno == EINVAL);
	CHECK(pread(fd, buf, 1, -1) == -1 && errno == EINVAL);
	CHECK(lseek(fd, -1, SEEK_SET) == -1 && errno == EINVAL && lseek(fd, 0, 77) == -1 && errno == EINVAL);
	close(fd);
	fd = fresh(O_WRONLY);
	CHECK(read(fd, buf, 1) == -1 && errno == EBADF);
	CHECK(pwrite(fd, "x", 1, -1) == -1 && errno == EINVAL);
	close(fd);
	CHECK(open(file, O_CREAT | O_EXCL | O_RDWR, 0600) == -1 && errno == EEXIST);
	errno = 0;
	fd = open(file, O_RDWR);
	CHECK(fd >= 0 && write(fd, "x", 1) == 1 && errno == 0);
}

static void bad_buffers(void) {
	int fd = fresh(O_RDWR);
	char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	/* Not unmapped: somebody else's mapping would take its place. */
	CHECK(mprotect(page + 4096, 4096, PROT_NONE) == 0);
	CHECK(write(fd, "kept", 4) == 4);
	CHECK(write(fd, (void *)8, 10) == -1 && errno == EFAULT);
	CHECK(pwrite(fd, page + 4096, 10, 0) == -1 && errno == EFAULT);
	CHECK(pread(fd, (void *)8, 4, 0) == -1 && errno == EFAULT);
	CHECK(pread(fd, (void *)"read only", 4, 0) == -1 && errno == EFAULT);
	CHECK(readv(fd, (void *)16, 2) == -1 && errno == EFAULT);
	CHECK(pread(fd, page + 4092, 4, 0) == 4 && memcmp(page + 4092, "kept", 4) == 0);
	holds("kept");
	/* A hole, and what ends in a page that is not there. */
	struct iovec one = {page + 4096, 10};
	CHECK(ftruncate(fd, 100000) == 0);
	CHECK(pread(fd, page + 4096, 100, 50000) == -1 && errno == EFAULT);
	CHECK(preadv(fd, &one, 1, 0) == -1 && errno == EFAULT);
	CHECK(lseek(fd, 0, SEEK_SET) == 0 && read(fd, page + 4096, 10) == -1 && errno == EFAULT);
	CHECK(lseek(fd, 0, SEEK_CUR) == 0 && read(fd, page, 4) == 4 && memcmp(page, "kept", 4) == 0);
}

static volatile int enough;

static void *takes_away(void *page) {
	while (!enough)
		if (mprotect(page, 4096, PROT_NONE) || mprotect(page, 4096, PROT_READ | PROT_WRITE))
			return page;
	return NULL;
}

static void buffers_taken_away(void) {
	/* In the middle of a read another thread takes its buffer away: the read fails or not, and all goes on. */
	static char text[4096];
	int fd = fresh(O_RDWR), failed = 0, done = 0;
	memset(text, 'x', sizeof text);
	CHECK(write(fd, text, sizeof text) == sizeof text);
	char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_t thread;
	void *problem;
	CHECK(pthread_create(&thread, NULL, takes_away, page) == 0);
	time_t began = time(NULL);
	while (failed < 50 || done < 50) {
		ssize_t n = pread(fd, page, sizeof text, 0);
		CHECK(n > 0 || (n == -1 && errno == EFAULT));
		n > 0 ? done++ : failed++;
		CHECK(time(NULL) - began < 60);
	}
	enough = 1;
	CHECK(pthread_join(thread, &problem) == 0 && problem == NULL);
	CHECK(pread(fd, page, sizeof text, 0) == sizeof text && memcmp(page, text, sizeof text) == 0);
	CHECK(pwrite(fd, "y", 1, 0) == 1);
}

static void dup_shares_the_offset(void) {
	int fd = fresh(O_RDWR);
	int two = dup(fd), three = fcntl(fd, F_DUPFD_CLOEXEC, 100), four = dup2(fd, 200);
	CHECK(two >= 0 && three >= 100 && four == 200);
	CHECK(write(fd, "a", 1) == 1 && write(two, "b", 1) == 1 && write(three, "c", 1) == 1);
	CHECK(close(fd) == 0 && write(four, "d", 1) == 1 && lseek(two, 0, SEEK_CUR) == 4);
	/* Another description of the same file has its own. */
	int own = open(file, O_RDWR);
	CHECK(own >= 0 && write(own, "A", 1) == 1 && lseek(own, 0, SEEK_CUR) == 1);
	holds("Abcd");
}

static void fork_shares_the_offset(void) {
	int fd = fresh(O_RDWR | O_CLOEXEC), status;
	CHECK(write(fd, "parent ", 7) == 7);
	pid_t child = fork();
	if (child == 0) {
		CHECK(write(fd, "child ", 6) == 6);
		CHECK(pwrite(fd, "P", 1, 0) == 1);
		close(fd);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(write(fd, "again", 5) == 5);
	holds("Parent child again");
	/* What is opened after the fork is the child's own. */
	child = fork();
	if (child == 0) {
		int own = open(file, O_RDWR);
		char b;
		CHECK(read(own, &b, 1) == 1 && b == 'P' && write(own, "A", 1) == 1);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	holds("PArent child again");
}

static void exec_shares_the_offset(void) {
	int fd = fresh(O_RDWR);
	CHECK(write(fd, "one ", 4) == 4);
	char command[100];
	snprintf(command, sizeof command, "printf 'two ' >&%d", fd);
	CHECK(system(command) == 0);
	CHECK(write(fd, "three ", 6) == 6);
	snprintf(command, sizeof command, "/proc/self/fd/%d", fd);
	posix_spawn_file_actions_t actions;
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, fd, 1);
	char *argv[] = {"printf", "four ", NULL};
	pid_t pid;
	int status;
	CHECK(posix_spawnp(&pid, "printf", &actions, NULL, argv, environ) == 0);
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	CHECK(write(fd, "five", 4) == 4);
	holds("one two three four five");
}

static void vfork_child_closes_its_own(void) {
	int fd = fresh(O_RDWR), status;
	CHECK(write(fd, "before ", 7) == 7);
	pid_t child = vfork();
	if (child == 0) {
		dup2(fd, 1);
		close(fd);
		closefrom(3);
		execlp("printf", "printf", "child ", NULL);
		_exit(9);
	}
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	CHECK(write(fd, "after", 5) == 5);
	char b[4];
	CHECK(pread(fd, b, 4, 0) == 4);
	holds("before child after");
}

static void stale_numbers(void) {
	/* stdio closes where nobody sees it, and opens so. */
	int fd = fresh(O_RDWR);
	CHECK(write(fd, "ours", 4) == 4);
	FILE *stream = fdopen(fd, "r+");
	CHECK(stream && fclose(stream) == 0);
	FILE *another = fopen(other, "w+");
	CHECK(another && fileno(another) == fd && fputs("other", another) >= 0 && fflush(another) == 0);
	char buf[8] = {0};
	CHECK(pread(fd, buf, 8, 0) == 5 && strcmp(buf, "other") == 0);
	fclose(another);
	/* Closed by a system call of the program's own; the number becomes a socket. */
	fd = fresh(O_RDWR);
	CHECK(write(fd, "ours", 4) == 4 && syscall(SYS_close, fd) == 0);
	int pair[2];
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && pair[0] == fd);
	CHECK(write(pair[1], "socket", 6) == 6 && read(fd, buf, 8) == 6);
	close(pair[0]), close(pair[1]);
	/* close_range, and the same number again for another file. */
	fd = fresh(O_RDWR);
	CHECK(close_range(fd, ~0U, 0) == 0 && pwrite(fd, "x", 1, 0) == -1 && errno == EBADF);
	int again = open(other, O_RDWR);
	CHECK(again == fd && pread(again, buf, 8, 0) == 5);
	/* dup2 over one of ours. */
	fd = fresh(O_RDWR);
	CHECK(dup2(again, fd) == fd && pread(fd, buf, 8, 0) == 5);
	holds("");
}

static void stdio_and_descriptors_mix(void) {
	int fd = fresh(O_RDWR);
	CHECK(write(fd, "one ", 4) == 4);
	CHECK(dprintf(fd, "%s %d ", "two", 2) == 6);
	CHECK(write(fd, "three ", 6) == 6);
	FILE *stream = fdopen(fd, "r+");
	CHECK(stream && fputs("four ", stream) >= 0 && fflush(stream) == 0);
	CHECK(write(fd, "five", 4) == 4);
	holds("one two 2 three four five");
	/* stdout is stdio's. */
	fflush(stdout);
	int out = fresh(O_RDWR);
	CHECK(write(out, "first ", 6) == 6 && dup2(out, 1) == 1);
	printf("second ");
	fflush(stdout);
	CHECK(write(out, "third", 5) == 5);
	holds("first second third");
}

static void appends(void) {
	int fd = fresh(O_RDWR), status;
	close(fd);
	fd = open(file, O_WRONLY | O_APPEND);
	pid_t children[4];
	for (int i = 0; i < 4; i++) {
		children[i] = fork();
		if (children[i] == 0) {
			/* Half through a descriptor that was inherited, half through one's own. */
			int own = open(file, O_WRONLY | O_APPEND);
			for (int n = 0; n < 500; n++) {
				char line[32];
				int len = snprintf(line, sizeof line, "%d %06d\n", i, n);
				CHECK(write(n % 2 ? own : fd, line, len) == len);
			}
			_exit(0);
		}
	}
	for (int i = 0; i < 4; i++)
		CHECK(waitpid(children[i], &status, 0) == children[i] && status == 0);
	struct stat st;
	CHECK(stat(file, &st) == 0 && st.st_size == 4 * 500 * 9);
	FILE *f = fopen(file, "r");
	int seen[4] = {0}, who, number;
	while (fscanf(f, "%d %d", &who, &number) == 2) {
		CHECK(who >= 0 && who < 4 && number == seen[who]);
		seen[who]++;
	}
	CHECK(seen[0] == 500 && seen[3] == 500);
	/* Set afterwards. */
	int late = open(file, O_RDWR | O_TRUNC);
	CHECK(write(late, "abc", 3) == 3 && lseek(late, 0, SEEK_SET) == 0);
	CHECK(fcntl(late, F_SETFL, O_APPEND) == 0 && write(late, "d", 1) == 1 && lseek(late, 0, SEEK_CUR) == 4);
	holds("abcd");
}

static void mappings(void) {
	int fd = fresh(O_RDWR);
	char page[4096], buf[16];
	memset(page, 'a', sizeof page);
	CHECK(write(fd, page, 4096) == 4096 && pwrite(fd, "first", 5, 0) == 5);
	char *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(map != MAP_FAILED && memcmp(map, "first", 5) == 0);
	/* A dirty page, and a write beside it in the same page: neither is lost. */
	memcpy(map + 100, "mapped", 6);
	CHECK(pwrite(fd, "second", 6, 0) == 6 && memcmp(map, "second", 6) == 0);
	CHECK(pread(fd, buf, 6, 100) == 6 && memcmp(buf, "mapped", 6) == 0);
	CHECK(lseek(fd, 4090, SEEK_SET) == 4090 && write(fd, "across", 6) == 6);
	CHECK(memcmp(map + 4090, "across", 6) == 0);
	memcpy(map, "third ", 6);
	CHECK(msync(map, 4096, MS_SYNC) == 0 && pread(fd, buf, 6, 0) == 6 && memcmp(buf, "third ", 6) == 0);
	munmap(map, 4096);
	CHECK(pwrite(fd, "fourth", 6, 0) == 6);
	map = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
	CHECK(map != MAP_FAILED && memcmp(map, "fourth", 6) == 0 && memcmp(map + 100, "mapped", 6) == 0);
}

static volatile sig_atomic_t ticks, wrote;
static int handler_fd;

static void tick(int signal) {
	(void)signal;
	ticks++;
	if (pwrite(handler_fd, "handler", 7, 1 << 20) == 7)
		wrote++;
}

static void handlers_in_the_middle(void) {
	int fd = fresh(O_RDWR);
	handler_fd = fd;
	struct sigaction act = {.sa_handler = tick}, now;
	CHECK(sigaction(SIGALRM, &act, NULL) == 0 && sigaction(SIGALRM, NULL, &now) == 0 && now.sa_handler == tick);
	struct itimerval often = {{0, 200}, {0, 200}};
	CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
	char page[4096];
	long calls = 0;
	while (ticks < 500 || calls < 500) {
		memset(page, 'a' + calls % 26, sizeof page);
		CHECK(pwrite(fd, page, 4096, (calls % 64) * 4096) == 4096);
		CHECK(pread(fd, page, 4096, (calls % 64) * 4096) == 4096 && page[0] == page[4095]);
		calls++;
	}
	struct itimerval never = {0};
	CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
	CHECK(wrote == ticks);
}

static void *writer(void *arg) {
	int fd = *(int *)arg;
	char page[4096];
	for (int i = 0; i < 2000; i++)
		if (pwrite(fd, page, 4096, (i % 16) * 4096) != 4096 && errno != EBADF)
			return "write failed";
	return NULL;
}

static void closed_under_writers(void) {
	pthread_t threads[3];
	for (int round = 0; round < 20; round++) {
		int fd = fresh(O_RDWR);
		for (int i = 0; i < 3; i++)
			CHECK(pthread_create(&threads[i], NULL, writer, &fd) == 0);
		usleep(1000);
		int number = fd;
		CHECK(close(number) == 0);
		for (int i = 0; i < 3; i++) {
			void *said;
			CHECK(pthread_join(threads[i], &said) == 0 && said == NULL);
		}
	}
}

static void kernel_copies(void) {
	int fd = fresh(O_RDWR), to = open(other, O_RDWR | O_CREAT | O_TRUNC, 0600);
	CHECK(write(fd, "0123456789", 10) == 10 && lseek(fd, 2, SEEK_SET) == 2);
	CHECK(sendfile(to, fd, NULL, 3) == 3 && lseek(fd, 0, SEEK_CUR) == 5);
	off_t at = 7;
	CHECK(sendfile(to, fd, &at, 3) == 3 && at == 10);
	char buf[16] = {0};
	CHECK(pread(to, buf, 16, 0) == 6 && strcmp(buf, "234789") == 0);
	CHECK(lseek(to, 0, SEEK_SET) == 0 && sendfile(fd, to, NULL, 2) == 2);
	CHECK(write(fd, "X", 1) == 1);
	holds("0123423X89");
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_CUR, .l_start = 1, .l_len = 1};
	CHECK(fcntl(fd, F_SETLK, &lock) == 0);
	pid_t child = fork();
	if (child == 0) {
		struct flock look = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 0};
		CHECK(fcntl(fd, F_GETLK, &look) == 0 && look.l_type == F_WRLCK && look.l_start == 9 && look.l_len == 1);
		_exit(0);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void ranges_are_copied(void) {
	static char text[300000], back[sizeof text + 10];
	char name[4096];
	for (size_t i = 0; i < sizeof text; i++)
		text[i] = 'a' + i % 23;
	int fd = fresh(O_RDWR);
	CHECK(write(fd, text, sizeof text) == sizeof text);
	snprintf(name, sizeof name, "%s.copy", file);
	int to = open(name, O_CREAT | O_TRUNC | O_RDWR, 0644);
	CHECK(to >= 0 && write(to, "head", 4) == 4);
	/* From a place that is given, to the offset; then from offset to offset. */
	off_t at = 10;
	CHECK(copy_file_range(fd, &at, to, NULL, 5, 0) == 5 && at == 15 && lseek(to, 0, SEEK_CUR) == 9);
	CHECK(lseek(fd, 15, SEEK_SET) == 15);
	size_t sum = 5;
	for (ssize_t n; (n = copy_file_range(fd, NULL, to, NULL, 1 << 30, 0)) != 0; sum += n)
		CHECK(n > 0);
	CHECK(sum == sizeof text - 10 && lseek(fd, 0, SEEK_CUR) == sizeof text && write(to, "tail", 4) == 4);
	CHECK(pread(to, back, sizeof back, 0) == sum + 8 && memcmp(back, "head", 4) == 0);
	CHECK(memcmp(back + 4, text + 10, sum) == 0 && memcmp(back + 4 + sum, "tail", 4) == 0);
	/* What is no copy. */
	at = 0;
	CHECK(copy_file_range(fd, (void *)8, to, NULL, 5, 0) == -1 && errno == EFAULT);
	CHECK(copy_file_range(fd, &at, fd, &(off_t){3}, 5, 0) == -1 && errno == EINVAL);
	CHECK(copy_file_range(fd, &at, fd, &(off_t){30}, 5, 0) == 5 && at == 5);
	int reads = open(name, O_RDONLY), appends = open(name, O_WRONLY | O_APPEND);
	at = 0;
	CHECK(copy_file_range(fd, &at, reads, NULL, 5, 0) == -1 && errno == EBADF);
	CHECK(copy_file_range(fd, &at, appends, NULL, 5, 0) == -1 && errno == EBADF && at == 0);
	/* Another file system's: it may refuse, and the offsets stay right. */
	int out = open(other, O_CREAT | O_TRUNC | O_RDWR, 0644);
	CHECK(out >= 0 && write(out, "0123456789", 10) == 10 && lseek(out, 2, SEEK_SET) == 2 && lseek(to, 4, SEEK_SET) == 4);
	ssize_t n = copy_file_range(out, NULL, to, NULL, 3, 0);
	CHECK(n == 3 || (n == -1 && (errno == EXDEV || errno == EOPNOTSUPP)));
	CHECK(lseek(to, 0, SEEK_CUR) == 4 + (n > 0 ? n : 0));
	CHECK(write(to, "!", 1) == 1 && pread(to, back, 1, 4 + (n > 0 ? n : 0)) == 1 && back[0] == '!');
	CHECK(close(to) == 0 && close(reads) == 0 && close(appends) == 0);
	unlink(name);
}

static void limits(void) {
	int fd = fresh(O_RDWR);
	signal(SIGXFSZ, SIG_IGN);
	CHECK(pwrite(fd, "x", 1, 500) == 1);
	struct rlimit small = {1000, RLIM_INFINITY};
	CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
	CHECK(pwrite(fd, "x", 1, 2000) == -1 && errno == EFBIG && ftruncate(fd, 2000) == -1 && errno == EFBIG);
	CHECK(pwrite(fd, "x", 1, 100) == 1);
	/* A limit that comes and goes between calls counts for the very next one, however it is set. */
	for (int round = 0; round < 3; round++) {
		struct rlimit none = {RLIM_INFINITY, RLIM_INFINITY};
		CHECK((round == 1 ? prlimit(0, RLIMIT_FSIZE, &none, NULL) : setrlimit(RLIMIT_FSIZE, &none)) == 0);
		CHECK(pwrite(fd, "xy", 2, 5000) == 2 && fallocate(fd, 0, 0, 8000) == 0);
		CHECK((round == 2 ? prlimit(getpid(), RLIMIT_FSIZE, &small, NULL) : setrlimit(RLIMIT_FSIZE, &small)) == 0);
		CHECK(pwrite(fd, "x", 1, 2000) == -1 && errno == EFBIG);
		CHECK(fallocate(fd, 0, 0, 9000) == -1 && errno == EFBIG);
	}
}

TRAPS({"plain", plain}, {"errors", errors}, {"bad_buffers", bad_buffers}, {"dup", dup_shares_the_offset},
      {"fork", fork_shares_the_offset}, {"exec", exec_shares_the_offset}, {"vfork", vfork_child_closes_its_own},
      {"stale", stale_numbers}, {"stdio", stdio_and_descriptors_mix}, {"appends", appends}, {"mappings", mappings},
      {"handlers", handlers_in_the_middle}, {"closed", closed_under_writers}, {"copies", kernel_copies},
      {"ranges", ranges_are_copied},
      {"limits", limits}, {"taken_away", buffers_taken_away})
