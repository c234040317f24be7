/* Ways of making children and threads, and of giving a number another file, that a table of numbers can miss. */
#include "traps.h"
#include <malloc.h>
#include <sched.h>
#include <sys/mount.h>

static volatile int fd, step;

/* A log is turned over beneath its stream. */
static void streams_get_other_files(void) {
	for (int reused = 0; reused < 2; reused++) {
		FILE *log = fopen(other, "w");
		CHECK(log && fprintf(log, "old\n") == 4 && fflush(log) == 0);
		int number = fileno(log);
		if (reused)
			CHECK(close(number) == 0);
		int fresh_one = fresh(O_RDWR);
		CHECK(!reused || fresh_one == number);
		CHECK(write(fresh_one, "header\n", 7) == 7);
		if (!reused)
			CHECK(dup2(fresh_one, number) == number && close(fresh_one) == 0);
		CHECK(fprintf(log, "line\n") == 5 && fclose(log) == 0);
		holds("header\nline\n");
	}
	/* A number that no stream has any more is an ordinary one. */
	FILE *command = popen("true", "r");
	CHECK(command && pclose(command) == 0);
	int served = fresh(O_RDWR);
	for (int i = 0; i < 10; i++)
		CHECK(write(served, "x", 1) == 1);
	holds("xxxxxxxxxx");
}

static void ones_own_descriptor_is_fetched(void) {
	fd = fresh(O_RDWR);
	CHECK(write(fd, "0123456789", 10) == 10);
	int process = syscall(SYS_pidfd_open, getpid(), 0);
	int twin = syscall(SYS_pidfd_getfd, process, fd, 0);
	CHECK(process >= 0 && twin >= 0 && fcntl(twin, F_SETFL, O_APPEND) == 0 && write(fd, "abc", 3) == 3);
	CHECK(lseek(fd, 0, SEEK_CUR) == 13);
	holds("0123456789abc");
}

static void *closes_when_cancelled(void *nothing) {
	CHECK(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL) == 0);
	step = 1;
	while (step != 2)
		sched_yield();
	CHECK(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL) == 0);
	close(fd);
	return nothing;
}

static void a_cancelled_close_closes_nothing(void) {
	pthread_t thread;
	void *end;
	fd = fresh(O_RDWR);
	CHECK(write(fd, "0123456789", 10) == 10 && pthread_create(&thread, NULL, closes_when_cancelled, NULL) == 0);
	while (step != 1)
		sched_yield();
	CHECK(pthread_cancel(thread) == 0);
	step = 2;
	CHECK(pthread_join(thread, &end) == 0 && end == PTHREAD_CANCELED && write(fd, "abc", 3) == 3);
	holds("0123456789abc");
}

static int line[2];

static void *opens_and_tells(void *nothing) {
	usleep(100000);
	int own = open(file, O_RDWR);
	CHECK(own >= 0 && pwrite(own, "x", 1, 0) == 1 && close(own) == 0 && write(line[1], "x", 1) == 1);
	return nothing;
}

/* Only the thread that makes the child waits for it; the child waits for another one. */
static void a_child_waits_for_a_thread_of_its_parent(void) {
	pthread_t thread;
	int status;
	fd = fresh(O_RDWR);
	CHECK(pipe(line) == 0 && pthread_create(&thread, NULL, opens_and_tells, NULL) == 0);
	pid_t child = syscall(SYS_clone, CLONE_VFORK | SIGCHLD, 0, 0, 0, 0);
	if (child == 0) {
		char byte;
		alarm(20);
		CHECK(read(line[0], &byte, 1) == 1);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0 && pthread_join(thread, NULL) == 0);
}

static void *opens_meanwhile(void *nothing) {
	while (step != 1)
		sched_yield();
	fd = fresh(O_RDWR);
	CHECK(write(fd, "0123456789", 10) == 10);
	step = 2;
	return nothing;
}

static void the_child_of_a_vfork_forks(void) {
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, opens_meanwhile, NULL) == 0);
	pid_t child = vfork();
	if (child == 0) {
		step = 1;
		while (step != 2)
			sched_yield();
		if (fork() == 0)
			_exit(0);
		wait(NULL);
		_exit(0);
	}
	CHECK(waitpid(child, NULL, 0) == child && pthread_join(thread, NULL) == 0 && write(fd, "abc", 3) == 3);
	holds("0123456789abc");
}

static void *allocates(void *nothing) {
	for (;;) {
		void *a = malloc(5000), *b = malloc(50000);
		free(a);
		free(b);
	}
	return nothing;
}

/* Does this process have the image of the mount in its memory? */
static int maps_an_image(void) {
	static char maps[1 << 18];
	ssize_t n = 0, got;
	int from = syscall(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY);
	CHECK(from >= 0);
	while ((got = syscall(SYS_read, from, maps + n, sizeof maps - 1 - n)) > 0)
		n += got;
	maps[n] = 0;
	CHECK(syscall(SYS_close, from) == 0);
	return strstr(maps, "/image\n") != NULL || strstr(maps, "heddle-arena") != NULL;
}

/* Such a child may have the heap locked for ever. It may call what a signal handler may. */
static void children_without_handlers_need_no_heap(void) {
	pthread_t thread;
	int status;
	fd = fresh(O_RDWR);
	CHECK(mallopt(M_ARENA_MAX, 1) == 1 && pwrite(fd, "x", 1, 0) == 1);
	CHECK(pthread_create(&thread, NULL, allocates, NULL) == 0);
	for (int i = 0; i < 100; i++) {
		pid_t child = i % 2 ? _Fork() : syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
		if (child == 0) {
			alarm(20);
			CHECK(!maps_an_image());
			int own = open(file, O_WRONLY);
			_exit(own >= 0 && write(fd, "y", 1) == 1 && pwrite(own, "z", 1, 0) == 1 ? 0 : 1);
		}
		CHECK(waitpid(child, &status, 0) == child && status == 0);
		CHECK(lseek(fd, 0, SEEK_CUR) == i + 1);
	}
	exit(0);
}

static pthread_mutex_t heap;
static void lock(void), unlock(void);

static void *holds_the_heap(void *nothing) {
	fd = fresh(O_RDWR);
	CHECK(pwrite(fd, "x", 1, 0) == 1);
	lock();
	step = 1;
	while (step != 2)
		sched_yield();
	unlock();
	return nothing;
}

/* The thread that makes the child has used no file yet: what the library keeps of a thread is not there. */
static void a_first_open_in_a_child_needs_no_heap(void) {
	pthread_t thread;
	int status, went_well = 1;
	CHECK(pthread_create(&thread, NULL, holds_the_heap, NULL) == 0);
	while (step != 1)
		sched_yield();
	for (int i = 0; i < 2; i++) {
		pid_t child = i ? _Fork() : syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
		if (child == 0) {
			alarm(20);
			int own = open(file, O_WRONLY);
			_exit(own >= 0 && pwrite(own, "y", 1, i) == 1 ? 0 : 1);
		}
		went_well &= waitpid(child, &status, 0) == child && status == 0;
	}
	step = 2;
	CHECK(pthread_join(thread, NULL) == 0 && went_well);
	holds("yy");
}

static int replaces_a_number(void *nothing) {
	int own = open(other, O_CREAT | O_TRUNC | O_RDWR, 0600);
	_exit(own >= 0 && dup2(own, fd) == fd ? 0 : 1);
}

/* The first process of a namespace and that of another one have the same number. */
static void two_first_processes_share_memory(void) {
	char *stack = malloc(1 << 16);
	int status;
	CHECK(unshare(CLONE_NEWPID) == 0);
	pid_t first = fork();
	if (first == 0) {
		CHECK(getpid() == 1);
		fd = fresh(O_RDWR);
		CHECK(write(fd, "0123456789", 10) == 10);
		int flags = CLONE_VM | CLONE_VFORK | CLONE_NEWPID | SIGCHLD;
		pid_t child = clone(replaces_a_number, stack + (1 << 16), flags, NULL);
		CHECK(waitpid(child, &status, 0) == child && status == 0 && write(fd, "abc", 3) == 3);
		holds("0123456789abc");
		exit(0);
	}
	CHECK(waitpid(first, &status, 0) == first && status == 0);
}

static int second;

static int writes_beside(void *nothing) {
	step = 1;
	for (int i = 0; i < 20000; i++)
		CHECK(write(second, "y", 1) == 1);
	step = 2;
	for (;;)
		pause();
}

/* As the manual page of clone(2) makes one: without memory of its own for the C library. */
static void a_thread_shares_the_words_of_its_maker(void) {
	char *stack = malloc(1 << 16), byte;
	fd = fresh(O_RDWR), second = open(other, O_CREAT | O_TRUNC | O_RDWR, 0600);
	int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
	CHECK(second >= 0 && write(fd, "x", 1) == 1 && clone(writes_beside, stack + (1 << 16), flags, NULL) > 0);
	while (step == 0)
		sched_yield();
	for (int i = 0; i < 20000; i++)
		CHECK(write(fd, "x", 1) == 1);
	while (step != 2)
		sched_yield();
	CHECK(lseek(fd, 0, SEEK_END) == 20001 && lseek(second, 0, SEEK_END) == 20000);
	CHECK(pread(fd, &byte, 1, 20000) == 1 && byte == 'x');
	_exit(0);
}

extern void *__libc_malloc(size_t), __libc_free(void *), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
static pthread_mutex_t heap = PTHREAD_MUTEX_INITIALIZER;
static void lock(void) { pthread_mutex_lock(&heap); }
static void unlock(void) { pthread_mutex_unlock(&heap); }

/* An allocator with a lock, which it takes before a fork. */
void *malloc(size_t n) {
	lock();
	void *p = __libc_malloc(n);
	unlock();
	return p;
}

void free(void *p) {
	lock();
	__libc_free(p);
	unlock();
}

void *calloc(size_t a, size_t b) {
	lock();
	void *p = __libc_calloc(a, b);
	unlock();
	return p;
}

void *realloc(void *q, size_t n) {
	lock();
	void *p = __libc_realloc(q, n);
	unlock();
	return p;
}

static void *uses_files(void *nothing) {
	struct iovec parts[2] = {{"ab", 2}, {"cd", 2}};
	while (step == 0) {
		int own = open(file, O_CREAT | O_RDWR, 0600);
		CHECK(own >= 0 && write(own, "x", 1) == 1 && writev(own, parts, 2) == 4 && close(own) == 0);
	}
	return nothing;
}

static void *forks(void *nothing) {
	int status;
	for (int i = 0; i < 250; i++) {
		pid_t child = fork();
		if (child == 0)
			_exit(0);
		CHECK(waitpid(child, &status, 0) == child && status == 0);
	}
	return nothing;
}

static void forks_beside_an_allocator_with_a_lock(void) {
	pthread_t threads[3], other_fork;
	alarm(100);
	CHECK(pthread_atfork(lock, unlock, unlock) == 0);
	fd = fresh(O_RDWR);
	CHECK(write(fd, "x", 1) == 1);
	for (int i = 0; i < 3; i++)
		CHECK(pthread_create(&threads[i], NULL, uses_files, NULL) == 0);
	/* Two at once. */
	CHECK(pthread_create(&other_fork, NULL, forks, NULL) == 0);
	forks(NULL);
	CHECK(pthread_join(other_fork, NULL) == 0);
	step = 1;
	for (int i = 0; i < 3; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
}

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static void lock_log(void) { pthread_mutex_lock(&log_lock); }
static void unlock_log(void) { pthread_mutex_unlock(&log_lock); }

static void *logs(void *nothing) {
	while (step == 0) {
		lock_log();
		CHECK(write(fd, "line\n", 5) == 5);
		unlock_log();
		usleep(200);
	}
	return nothing;
}

/* Before a fork it waits for a thread that is about to write. */
static void forks_beside_a_log_with_a_lock(void) {
	pthread_t thread;
	int status;
	alarm(100);
	fd = fresh(O_RDWR);
	CHECK(pthread_atfork(lock_log, unlock_log, unlock_log) == 0 && pthread_create(&thread, NULL, logs, NULL) == 0);
	for (int i = 0; i < 100; i++) {
		pid_t child = fork();
		if (child == 0)
			_exit(write(fd, "fork\n", 5) == 5 ? 0 : 1);
		CHECK(waitpid(child, &status, 0) == child && status == 0);
	}
	step = 1;
	CHECK(pthread_join(thread, NULL) == 0 && lseek(fd, 0, SEEK_CUR) == lseek(fd, 0, SEEK_END));
}

static volatile int counts[2];
static void counts_signals(int signal) { counts[signal == SIGRTMIN]++; }

/* Two signals that come at once stayed blocked. */
static void two_signals_come_at_once(void) {
	sigset_t blocked;
	int status;
	fd = fresh(O_RDWR);
	CHECK(signal(SIGRTMIN, counts_signals) != SIG_ERR && signal(SIGRTMIN + 3, counts_signals) != SIG_ERR);
	pid_t parent = getpid(), child = fork();
	if (child == 0) {
		for (int i = 0; i < 10000; i++)
			while (sigqueue(parent, i % 2 ? SIGRTMIN : SIGRTMIN + 3, (union sigval){i}) < 0)
				sched_yield();
		_exit(0);
	}
	while (waitpid(child, &status, WNOHANG) != child)
		CHECK(pwrite(fd, "x", 1, 0) == 1);
	for (int i = 0; i < 2000 && counts[0] + counts[1] < 10000; i++)
		usleep(1000);
	CHECK(sigprocmask(SIG_BLOCK, NULL, &blocked) == 0);
	CHECK(!sigismember(&blocked, SIGRTMIN) && !sigismember(&blocked, SIGRTMIN + 3));
	CHECK(counts[0] == 5000 && counts[1] == 5000);
}

/* A fault at a buffer and a signal at once: the signal of the fault stayed blocked, and the next bad buffer was the end. */
static void faults_and_signals_come_at_once(void) {
	struct itimerval soon = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
	sigset_t blocked;
	fd = fresh(O_RDWR);
	CHECK(signal(SIGALRM, counts_signals) != SIG_ERR && setitimer(ITIMER_REAL, &soon, NULL) == 0);
	for (int i = 0; i < 30000; i++)
		CHECK(pwrite(fd, (char *)0x1000, 100, 0) == -1 && errno == EFAULT);
	CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0 && sigprocmask(SIG_BLOCK, NULL, &blocked) == 0);
	CHECK(!sigismember(&blocked, SIGSEGV) && !sigismember(&blocked, SIGALRM));
	CHECK(pwrite(fd, "x", 1, 0) == 1);
}

static void one_file_is_copied_within_through_two_places(void) {
	static char bytes[200000];
	char place[4096], twin[4200], byte;
	off_t from = 0, to = 70000;
	for (int i = 0; i < (int)sizeof bytes; i++)
		bytes[i] = i / 1000;
	fd = fresh(O_RDWR);
	CHECK(write(fd, bytes, sizeof bytes) == sizeof bytes);
	snprintf(place, sizeof place, "%s", file);
	*strrchr(place, '/') = 0;
	char *below = strdup(place);
	snprintf(place, sizeof place, "%s.place", file);
	CHECK(mkdir(place, 0700) == 0 && unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
	CHECK(mount(below, place, NULL, MS_BIND, NULL) == 0);
	snprintf(twin, sizeof twin, "%s/%s", place, strrchr(file, '/') + 1);
	int other_fd = open(twin, O_RDWR);
	CHECK(other_fd >= 0 && copy_file_range(fd, &from, other_fd, &to, 100000, 0) == -1 && errno == EINVAL);
	CHECK(pread(fd, &byte, 1, 150000) == 1 && byte == (char)150);
	CHECK(umount2(place, MNT_DETACH) == 0);
}

static void a_stream_that_appends_sets_o_append(void) {
	fd = fresh(O_RDWR);
	CHECK(write(fd, "0123456789", 10) == 10);
	FILE *stream = fdopen(dup(fd), "a");
	CHECK(stream && pwrite(fd, "abc", 3, 0) == 3 && fputs("line", stream) >= 0 && fclose(stream) == 0);
	holds("0123456789abcline");
}

/* The first message gives both files away; the second file grows before it is sent itself. */
static void files_are_sent_one_after_the_other(void) {
	int pair[2], status;
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	pid_t child = fork();
	if (child == 0) {
		for (int i = 0; i < 2; i++) {
			union { char bytes[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } control;
			char byte;
			struct iovec part = {&byte, 1};
			struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
			CHECK(recvmsg(pair[1], &message, 0) == 1);
			int got = *(int *)CMSG_DATA(CMSG_FIRSTHDR(&message));
			/* As a program without the library: by the kernel alone. */
			char *at = (char *)syscall(SYS_mmap, NULL, 4096, PROT_READ, MAP_SHARED, got, 0);
			CHECK(at != MAP_FAILED && at[4000] == 'A' + i);
		}
		_exit(0);
	}
	int files[2] = {fresh(O_RDWR)};
	char name[4200];
	snprintf(name, sizeof name, "%s.second", file);
	files[1] = open(name, O_CREAT | O_TRUNC | O_RDWR, 0600);
	for (int i = 0; i < 2; i++) {
		char page[4096];
		memset(page, 'A' + i, sizeof page);
		CHECK(ftruncate(files[i], 4096) == 0 && pwrite(files[i], page, sizeof page, 0) == sizeof page);
		union { char bytes[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } control = {0};
		struct iovec part = {"x", 1};
		struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
		struct cmsghdr *head = CMSG_FIRSTHDR(&message);
		head->cmsg_level = SOL_SOCKET, head->cmsg_type = SCM_RIGHTS, head->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(head), &files[i], sizeof(int));
		CHECK(sendmsg(pair[0], &message, 0) == 1);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* A program that is started after the file has grown. */
static void who_is_started_later_finds_the_end(void) {
	pid_t child;
	int status;
	char *args[5] = {"python3", "-c", "import os, sys; os.pwritev(int(sys.argv[1]), [b'APPEND'], 0, 0x10)"};
	char number[20], *nothing[] = {"true", NULL};
	fd = fresh(O_RDWR);
	CHECK(write(fd, "0", 1) == 1);
	CHECK(posix_spawnp(&child, "true", NULL, NULL, nothing, environ) == 0 && waitpid(child, &status, 0) == child);
	CHECK(pwrite(fd, "123456789", 9, 1) == 9);
	snprintf(number, sizeof number, "%d", fd);
	args[3] = number;
	unsetenv("LD_PRELOAD");
	CHECK(posix_spawnp(&child, "python3", NULL, NULL, args, environ) == 0);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	holds("0123456789APPEND");
}

/* The same open file under a number that comes from nowhere. The descriptor is not the first thing that the message carries. */
static int sent_to_itself(int number) {
	int ends[2], got;
	char byte = 0;
	struct iovec one = {&byte, 1};
	struct ucred self = {getpid(), getuid(), getgid()};
	union { char bytes[CMSG_SPACE(sizeof self) + CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } control = {0};
	struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
	CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0);
	struct cmsghdr *head = CMSG_FIRSTHDR(&message);
	head->cmsg_level = SOL_SOCKET, head->cmsg_type = SCM_CREDENTIALS, head->cmsg_len = CMSG_LEN(sizeof self);
	memcpy(CMSG_DATA(head), &self, sizeof self);
	head = CMSG_NXTHDR(&message, head);
	head->cmsg_level = SOL_SOCKET, head->cmsg_type = SCM_RIGHTS, head->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(head), &number, sizeof number);
	CHECK(sendmsg(ends[0], &message, 0) == 1 && recvmsg(ends[1], &message, 0) == 1);
	memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof got);
	CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
	return got;
}

static int received;

static void appends_by_flag(int signal) {
	struct iovec one = {"H", 1};
	CHECK(pwritev2(fd, &one, 1, 0, RWF_APPEND) == 1);
}

static void a_process_sends_itself_a_descriptor(void) {
	struct iovec one = {"F", 1};
	char name[4096], text[64] = {0};
	int end, served;
	fd = fresh(O_RDWR | O_APPEND);
	CHECK(write(fd, "0123456789", 10) == 10);
	received = sent_to_itself(fd);
	snprintf(name, sizeof name, "%s.copy", file);
	served = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	end = open(other, O_RDWR | O_CREAT | O_TRUNC, 0600);
	CHECK(received > fd && served >= 0 && end >= 0);
	/* To a file that is served, to one that is not, by each way of copying. */
	CHECK(write(fd, "abc", 3) == 3 && lseek(received, 10, SEEK_SET) == 10 && copy_file_range(received, NULL, served, NULL, 30, 0) == 3);
	CHECK(write(fd, "def", 3) == 3 && lseek(received, 13, SEEK_SET) == 13 && sendfile(served, received, NULL, 30) == 3);
	CHECK(write(fd, "ghi", 3) == 3 && lseek(received, 16, SEEK_SET) == 16 && sendfile(end, received, NULL, 30) == 3);
	CHECK(pread(served, text, 9, 0) == 6 && memcmp(text, "abcdef", 6) == 0 && pread(end, text, 9, 0) == 3 && memcmp(text, "ghi", 3) == 0);
	int left = -1;
	CHECK(write(fd, "jkl", 3) == 3 && lseek(received, 19, SEEK_SET) == 19 && ioctl(received, FIONREAD, &left) == 0 && left == 3);
	/* The flag appends, also where the descriptor does not. */
	CHECK(fcntl(fd, F_SETFL, 0) == 0 && pwrite(fd, "mno", 3, 22) == 3 && pwritev2(received, &one, 1, 0, RWF_APPEND) == 1);
	CHECK(pwrite(fd, "pqr", 3, 26) == 3 && signal(SIGUSR1, appends_by_flag) != SIG_ERR && raise(SIGUSR1) == 0);
	CHECK(close(served) == 0);
	char *mapped = mmap(NULL, 4096, PROT_READ, MAP_SHARED, received, 0);
	CHECK(mapped != MAP_FAILED && memcmp(mapped, "0123456789abcdefghijklmnoFpqrH", 31) == 0);
	holds("0123456789abcdefghijklmnoFpqrH");
}

/* The library does not know the number that appends. */
static void an_end_is_found_through_ones_own_message(void) {
	char page[4096] = {0};
	fd = fresh(O_RDWR);
	received = sent_to_itself(fd);
	CHECK(received > fd && fcntl(received, F_SETFL, O_APPEND) == 0);
	CHECK(fallocate(fd, 0, 50000, 4096) == 0 && write(received, page, 10) == 10 && lseek(received, 0, SEEK_CUR) == 54106);
	CHECK(ftruncate(fd, 3641) == 0 && write(received, page, 10) == 10 && lseek(received, 0, SEEK_CUR) == 3651);
	CHECK(write(fd, page, 4096) == 4096 && write(received, page, 10) == 10 && lseek(received, 0, SEEK_CUR) == 7757);
	CHECK(fcntl(fd, F_SETFL, 0) == 0 && pwrite(fd, page, 4096, 10000) == 4096);
	CHECK(fcntl(received, F_SETFL, O_APPEND) == 0 && write(received, page, 10) == 10 && lseek(received, 0, SEEK_CUR) == 14106);
}

static volatile long words_at;
static volatile int waits_for_end = 1;

static void *lends_its_words(void *nothing) {
	words_at = (long)__builtin_thread_pointer();
	while (waits_for_end)
		syscall(SYS_sched_yield);
	return nothing;
}

static int changes_all_that_is_its_own(void *nothing) {
	if (close(fd) != 0 || open(other, O_RDWR | O_CREAT, 0600) != fd || write(fd, "child", 5) != 5)
		_exit(1);
	_exit(signal(SIGRTMIN, SIG_IGN) == counts_signals ? 0 : 2);
}

/* It has memory for the C library, which a thread has lent; descriptors and actions of its own. */
static void a_child_has_words_of_its_own(void) {
	static char stack[1 << 17];
	pthread_t lender;
	int status;
	fd = fresh(O_RDWR);
	CHECK(write(fd, "0123456789", 10) == 10 && signal(SIGRTMIN, counts_signals) != SIG_ERR);
	CHECK(pthread_create(&lender, NULL, lends_its_words, NULL) == 0);
	while (!words_at)
		sched_yield();
	int flags = CLONE_VM | CLONE_SETTLS | SIGCHLD;
	pid_t child = clone(changes_all_that_is_its_own, stack + sizeof stack, flags, NULL, NULL, (void *)words_at, NULL);
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	waits_for_end = 0;
	CHECK(pthread_join(lender, NULL) == 0 && write(fd, "abc", 3) == 3 && raise(SIGRTMIN) == 0 && counts[1] == 1);
	CHECK(signal(SIGRTMIN, SIG_DFL) == counts_signals);
	holds("0123456789abc");
}

TRAPS({"words", a_child_has_words_of_its_own},
      {"faults", faults_and_signals_come_at_once}, {"appends", a_stream_that_appends_sets_o_append},
      {"sent_to_itself", a_process_sends_itself_a_descriptor}, {"sent_end", an_end_is_found_through_ones_own_message},
      {"sent_later", files_are_sent_one_after_the_other}, {"started_later", who_is_started_later_finds_the_end},
      {"at_once", two_signals_come_at_once}, {"copied", one_file_is_copied_within_through_two_places},
      {"allocator", forks_beside_an_allocator_with_a_lock}, {"log", forks_beside_a_log_with_a_lock},
      {"streams", streams_get_other_files}, {"fetched", ones_own_descriptor_is_fetched},
      {"cancelled_close", a_cancelled_close_closes_nothing}, {"waits", a_child_waits_for_a_thread_of_its_parent},
      {"forks_again", the_child_of_a_vfork_forks}, {"heapless", children_without_handlers_need_no_heap},
      {"first_open", a_first_open_in_a_child_needs_no_heap},
      {"first", two_first_processes_share_memory}, {"wordless", a_thread_shares_the_words_of_its_maker})
