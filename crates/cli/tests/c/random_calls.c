/* A random program of calls on files: `random_calls SEED CALLS DIR` does the same calls in every run with the same seed, and says on its
 * standard output what each of them gave: result, errno, offset, bytes. What it says on a file system is what it says on any other.
 *
 * Threads and children work one after the other, so that what they give has one order; what runs side by side (`race`,
 * `children_side_by_side`) is judged here. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 8, FILES = 3, BYTES_MAX = 20000 };

static int slots[SLOTS];
static uint64_t state;
static long number;
static int depth;
static char in[BYTES_MAX + 16], out[BYTES_MAX];
static char *half;

static unsigned draw(unsigned below) {
	state = state * 6364136223846793005u + 1442695040888963407u;
	return (unsigned)(state >> 33) % below;
}

/* Lines are written by one system call each: children go on where their parent stopped. */
static void say(const char *format, ...) {
	char line[300];
	va_list args;
	va_start(args, format);
	int len = vsnprintf(line, sizeof line, format, args);
	va_end(args);
	if (syscall(SYS_write, 1, line, len) != len)
		_exit(99);
}

static unsigned long hash(const char *bytes, long len) {
	unsigned long sum = 1469598103934665603u;
	for (long i = 0; i < len; i++)
		sum = (sum ^ (unsigned char)bytes[i]) * 1099511628211u;
	return len > 0 ? sum : 0;
}

static void told(const char *call, int slot, long result, const char *bytes) {
	int number_of_error = result < 0 ? errno : 0;
	long at = slot < 0 ? -1 : lseek(slots[slot], 0, SEEK_CUR);
	say("%*s%ld %s %d = %ld errno %d at %ld bytes %lx\n", depth, "", number, call, slot, result, number_of_error, at,
	    bytes ? hash(bytes, result) : 0);
}

static char *fill(void) {
	for (int i = 0; i < BYTES_MAX; i++)
		out[i] = (char)('a' + (number * 7 + i / 5) % 26);
	return out;
}

static const char *name(unsigned file) {
	static char text[8];
	snprintf(text, sizeof text, "f%u", file);
	return text;
}

static volatile int handler_slot;

static void handler(int signal) {
	(void)signal;
	long done = draw(2) ? write(slots[handler_slot], "by a handler", 12) : pwrite(slots[handler_slot], "H", 1, 3);
	told("handler", handler_slot, done, NULL);
}

static void calls(int count);

static void *in_a_thread(void *count) {
	calls((int)(intptr_t)count);
	return NULL;
}

static void run_thread(int count) {
	pthread_t thread;
	if (pthread_create(&thread, NULL, in_a_thread, (void *)(intptr_t)count) || pthread_join(thread, NULL))
		_exit(98);
}

/* The state goes on as if the child had drawn nothing. */
static void run_child(int way) {
	pid_t child = way == 0 ? fork() : way == 1 ? _Fork() : (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	if (child == 0) {
		state ^= 0x9e3779b97f4a7c15u;
		int count = 1 + draw(8);
		if (draw(2))
			run_thread(count);
		else
			calls(count);
		_exit(0);
	}
	int status;
	if (child < 0 || waitpid(child, &status, __WALL) != child || status != 0)
		say("a child ended with %x\n", status);
}

static void *reads_once(void *fd) {
	char byte;
	return (void *)(intptr_t)pread((int)(intptr_t)fd, &byte, 1, 0);
}

/* What was opened here and unlinked is read in two children by threads, closed by their first ones, and is here still. */
static void inherited_and_unlinked(void) {
	int status, fd = open("gone", O_RDWR | O_CREAT | O_TRUNC, 0600);
	long done = write(fd, fill(), 5000), removed = unlink("gone");
	for (int i = 0; i < 2; i++) {
		pid_t child = fork();
		if (child == 0) {
			pthread_t thread;
			pthread_create(&thread, NULL, reads_once, (void *)(intptr_t)fd);
			pthread_join(thread, NULL);
			close(fd);
			_exit(0);
		}
		waitpid(child, &status, 0);
	}
	/* So long, and a bit, the dead may stay unsettled. */
	usleep(1200000);
	struct stat st;
	long size = fstat(fd, &st) ? -1 : st.st_size, back = pread(fd, in, 5000, 0);
	say("%ld inherited %ld %ld: %ld, %ld bytes %lx, %d\n", number, done, removed, size, back, hash(in, back), close(fd));
}

/* A temporary file is left open at the end of a process. */
static void left_open_at_the_end(void) {
	pid_t child = fork();
	int status;
	if (child == 0) {
		int fd = open("temporary", O_RDWR | O_CREAT | O_EXCL, 0600);
		long done = pwrite(fd, fill(), BYTES_MAX, 1 << 20);
		exit(done != BYTES_MAX || unlink("temporary") != 0);
	}
	waitpid(child, &status, 0);
	say("%ld left open: %x\n", number, status);
}

static volatile int *enough;

static int racing;

/* A page that all write, and one of its own: a writer that was held up there is passed by the others. */
static void *writes_pages(void *page) {
	char bytes[64] = "side by side";
	while (!*enough)
		for (int i = 0; i < 2; i++)
			if (pwrite(racing, bytes, sizeof bytes, i * (intptr_t)page * 4096) != sizeof bytes)
				return "failed";
	return NULL;
}

static int is_before(struct timespec a, struct timespec b) {
	return a.tv_sec < b.tv_sec || (a.tv_sec == b.tv_sec && a.tv_nsec < b.tv_nsec);
}

static long now_ms(void) {
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Two threads and a child write one file: times never go back. */
static void race(void) {
	pthread_t threads[2];
	void *said[2];
	int fd = racing = open("race", O_RDWR | O_CREAT, 0600), back = 0, status = -1;
	struct stat before, now;
	*enough = 0;
	pid_t child = fork();
	if (child == 0)
		_exit(writes_pages((void *)3) != NULL);
	for (int i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, writes_pages, (void *)(intptr_t)(i + 1));
	fstat(fd, &before);
	for (long end = now_ms() + 80; now_ms() < end; before = now) {
		fstat(fd, &now);
		back += is_before(now.st_mtim, before.st_mtim) || is_before(now.st_ctim, before.st_ctim);
	}
	*enough = 1;
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], &said[i]);
	waitpid(child, &status, 0);
	int gone = close(fd) | unlink("race");
	say("%ld race: %d times back, %s, %d, %d\n", number, back, said[0] || said[1] ? "failed" : "ok", status, gone);
}

enum { CHILDREN = 4, RECORDS = 40, RECORD = 50 };

/* One of several children: its own file, an inherited one of which it writes its own part, and one to which all append. */
static int works_beside_others(int me, int common, int log) {
	char path[16], record[RECORD], byte;
	snprintf(path, sizeof path, "own%d", me);
	int own = open(path, O_RDWR | O_CREAT | O_EXCL, 0600), copy = fcntl(own, F_DUPFD_CLOEXEC, 70), failed = own < 0 || copy < 0;
	memset(record, 'A' + me, sizeof record);
	for (int i = 0; i < RECORDS; i++) {
		failed |= write(i % 2 ? own : copy, record, sizeof record) != sizeof record;
		failed |= write(log, record, sizeof record) != sizeof record;
		failed |= pwrite(common, record, sizeof record, (i * CHILDREN + me) * RECORD) != sizeof record;
		failed |= lseek(own, 0, SEEK_CUR) != (i + 1) * RECORD || pread(own, &byte, 1, i * RECORD) != 1 || byte != 'A' + me;
		if (i == RECORDS / 2)
			failed |= close_range(copy, copy, 0) != 0 || (copy = dup(own)) < 0;
	}
	failed |= unlink(path) != 0 || pread(own, &byte, 1, 7) != 1 || byte != 'A' + me;
	return failed;
}

/* Of a file of records: how many each child wrote whole. */
static void count_records(const char *what, int fd) {
	int counts[CHILDREN] = {0}, torn = 0;
	char record[RECORD];
	for (long at = 0; pread(fd, record, RECORD, at) == RECORD; at += RECORD) {
		int whole = record[0] >= 'A' && record[0] < 'A' + CHILDREN && !memcmp(record, record + 1, RECORD - 1);
		whole ? (void)counts[record[0] - 'A']++ : (void)torn++;
	}
	say("%ld %s: %d %d %d %d, torn %d, at %ld\n", number, what, counts[0], counts[1], counts[2], counts[3], torn,
	    (long)lseek(fd, 0, SEEK_END));
}

static void children_side_by_side(void) {
	pid_t children[CHILDREN];
	int failed = 0, status, common = open("common", O_RDWR | O_CREAT | O_TRUNC, 0600);
	int log = open("log", O_RDWR | O_APPEND | O_CREAT | O_TRUNC, 0600), removed = unlink("log");
	for (int i = 0; i < CHILDREN; i++)
		if ((children[i] = i % 2 ? fork() : _Fork()) == 0)
			_exit(works_beside_others(i, common, log));
	for (int i = 0; i < CHILDREN; i++)
		failed |= waitpid(children[i], &status, 0) != children[i] || status != 0;
	say("%ld side by side: %s, %d\n", number, failed ? "failed" : "ok", removed);
	count_records("common", common);
	count_records("log", log);
	close(common), close(log), unlink("common");
}

static void map(int slot) {
	struct stat st;
	if (fstat(slots[slot], &st) || st.st_size < 100) {
		told("too short to map", slot, 0, NULL);
		return;
	}
	char *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, slots[slot], 0);
	if (at == MAP_FAILED) {
		told("map", slot, -1, NULL);
		return;
	}
	told("map", slot, 100, at);
	memcpy(at + 10, "by a mapping", 12);
	told("write beside", slot, pwrite(slots[slot], "beside", 6, 40), NULL);
	told("mapped", slot, 100, at);
	told("unmap", slot, munmap(at, 4096), NULL);
}

static void vector(int slot) {
	int len = draw(300);
	long at = (long)draw(9000) - 1;
	struct iovec parts[3] = {{fill(), len}, {out + 10, draw(9)}, {out + 40, draw(5000)}};
	int append = draw(2) ? RWF_APPEND : 0;
	switch (draw(4)) {
	case 0: told("pwritev2", slot, pwritev2(slots[slot], parts, 3, at, append), NULL); break;
	case 1: told("pwritev2 here", slot, pwritev2(slots[slot], parts, 2, -1, append), NULL); break;
	case 2: told("writev", slot, writev(slots[slot], parts, 3), NULL); break;
	default:
		parts[0].iov_base = in, parts[1].iov_base = in + len, parts[2].iov_base = in + len + parts[1].iov_len;
		told("preadv2", slot, preadv2(slots[slot], parts, 3, at, 0), in);
	}
}

static long size_of(int slot) {
	struct stat st;
	return fstat(slots[slot], &st) ? 0 : st.st_size;
}

static void mistake(int slot) {
	switch (draw(7)) {
	case 0: told("negative", slot, pread(slots[slot], in, 5, -7), NULL); break;
	/* At 0: tmpfs moves the end of a file to where it could write nothing. */
	case 1: told("no buffer", slot, pwrite(slots[slot], (void *)8, 5, 0), NULL); break;
	case 2:
		/* At the end of a file the mount's kernel asks for all of the buffer, others for none. */
		if (slots[slot] >= 0 && lseek(slots[slot], 0, SEEK_CUR) + 1 < size_of(slot))
			told("half a buffer", slot, read(slots[slot], half, 8192), half);
		break;
	case 3: told("half a buffer out", slot, pwrite(slots[slot], half, 8192, draw(3000)), NULL); break;
	case 4: told("last offset", slot, pread(slots[slot], in, 9, INT64_MAX - 4), NULL); break;
	case 5: told("beyond", slot, lseek(slots[slot], -1, SEEK_SET), NULL); break;
	default: told("nothing", slot, pwrite(slots[slot], in, 0, 1 << 30), NULL);
	}
}

static void another_number(int slot) {
	int to = draw(SLOTS), fd = -1;
	switch (draw(5)) {
	case 0: fd = dup(slots[slot]); break;
	case 1: fd = fcntl(slots[slot], F_DUPFD_CLOEXEC, 100); break;
	case 2: fd = syscall(SYS_fcntl, slots[slot], F_DUPFD, 60); break;
	case 3:
		fd = dup2(slots[slot], slots[to]);
		told("dup2", to, fd < 0 ? -1 : 0, NULL);
		return;
	default:
		told("close_range", to, close_range(slots[to], slots[to], 0), NULL);
		slots[to] = -1;
		return;
	}
	close(slots[to]);
	slots[to] = fd;
	told("dup", to, fd < 0 ? -1 : 0, NULL);
}

static void between(int slot) {
	int to = draw(SLOTS);
	off_t at = draw(5000);
	struct stat from, into;
	if (slots[slot] < 0 || slots[to] < 0 || fstat(slots[slot], &from) || fstat(slots[to], &into))
		return;
	/* Within a file what is read may be what was just sent: that is each kernel file system's own affair. */
	if (draw(2) && from.st_ino != into.st_ino)
		told("sendfile", to, sendfile(slots[to], slots[slot], draw(2) ? &at : NULL, draw(7000)), NULL);
	else
		told("copy_file_range", to, copy_file_range(slots[slot], draw(2) ? &at : NULL, slots[to], NULL, draw(7000), 0), NULL);
	told("from", slot, at, NULL);
}

static void open_one(int slot) {
	static const int ways[] = {O_RDWR, O_RDWR, O_RDWR | O_APPEND, O_RDONLY, O_WRONLY | O_APPEND, O_RDWR | O_TRUNC, O_WRONLY};
	close(slots[slot]);
	slots[slot] = open(name(draw(FILES)), ways[draw(7)] | O_CREAT | (draw(2) ? O_CLOEXEC : 0), 0644);
	told("open", slot, slots[slot] < 0 ? -1 : 0, NULL);
}

static void one(void) {
	int slot = draw(SLOTS), fd = slots[slot], len = draw(draw(4) ? 600 : BYTES_MAX);
	long at = draw(12000);
	struct stat st;
	switch (draw(24)) {
	case 0: case 1: open_one(slot); break;
	case 2: close(fd); slots[slot] = -1; break;
	case 3: case 4: told("read", slot, read(fd, in, len), in); break;
	case 5: case 6: case 7: told("write", slot, write(fd, fill(), len), NULL); break;
	case 8: told("pread", slot, pread(fd, in, len, at), in); break;
	case 9: told("pwrite", slot, pwrite(fd, fill(), len, at), NULL); break;
	case 10: told("seek", slot, lseek(fd, at - (draw(3) ? 0 : 6000), (int)draw(3)), NULL); break;
	case 11: told("ftruncate", slot, ftruncate(fd, at), NULL); break;
	case 12: told("fallocate", slot, fallocate(fd, draw(2) ? 0 : FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, len), NULL); break;
	case 13:
		told("links", slot, fstat(fd, &st) ? -1 : (long)st.st_nlink, NULL);
		told("size", slot, fd < 0 ? -1 : st.st_size, NULL);
		break;
	case 14: another_number(slot); break;
	case 15:
		told("F_SETFL", slot, fcntl(fd, F_SETFL, draw(2) ? O_APPEND : 0), NULL);
		told("F_GETFL", slot, fcntl(fd, F_GETFL) & O_APPEND, NULL);
		break;
	case 16: told("unlink", -1, unlink(name(draw(FILES))), NULL); break;
	case 17: map(slot); break;
	case 18: vector(slot); break;
	case 19: mistake(slot); break;
	case 20: between(slot); break;
	case 21: handler_slot = slot; raise(SIGUSR1); break;
	case 22: if (depth < 2) { depth++; run_child(draw(3)); depth--; } break;
	default: if (depth < 2) { depth++; run_thread(1 + draw(4)); depth--; }
	}
}

static void calls(int count) {
	for (int i = 0; i < count; i++) {
		number++;
		one();
	}
}

int main(int argc, char **argv) {
	if (argc != 4 || chdir(argv[3]))
		return 2;
	state = strtoull(argv[1], NULL, 10) * 2654435761u + 1;
	half = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	enough = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct sigaction act = {.sa_handler = handler};
	if (half == MAP_FAILED || enough == MAP_FAILED || mprotect(half + 4096, 4096, PROT_NONE) || sigaction(SIGUSR1, &act, NULL))
		return 2;
	for (int i = 0; i < SLOTS; i++) {
		slots[i] = -1;
		open_one(i);
	}
	calls(atoi(argv[2]));
	if (draw(3) == 0)
		left_open_at_the_end();
	if (draw(3) == 0)
		race();
	if (draw(4) == 0)
		children_side_by_side();
	if (draw(8) == 0)
		inherited_and_unlinked();
	for (int i = 0; i < SLOTS; i++)
		close(slots[i]);
	return 0;
}
