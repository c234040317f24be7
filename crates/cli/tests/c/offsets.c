/* Offsets and O_APPEND, shared by ways that are easily missed. */
#include "traps.h"
#include <sched.h>
#include <setjmp.h>

static volatile int shared_fd;
static sigjmp_buf out_of_it;

static void writes_a_line(int signal) {
	(void)signal;
	CHECK(write(shared_fd, "handler ", 8) == 8);
}

static void handlers_use_the_offset(void) {
	char b[8];
	shared_fd = fresh(O_RDWR);
	struct sigaction act = {.sa_handler = writes_a_line};
	CHECK(sigaction(SIGUSR1, &act, NULL) == 0);
	CHECK(write(shared_fd, "before ", 7) == 7 && raise(SIGUSR1) == 0 && write(shared_fd, "after", 5) == 5);
	CHECK(lseek(shared_fd, 0, SEEK_CUR) == 20);
	holds("before handler after");
	CHECK(pread(shared_fd, b, 3, 17) == 3 && memcmp(b, "ter", 3) == 0);
}

/* A handler of one of these does not wait by itself: it appended while its thread held the end of the file, and waited for that. */
static sighandler_t (*const sets[])(int, sighandler_t) = {sigset, ssignal, sysv_signal};
static volatile int way, handled;

/* The next one comes when this one is set again: what System V sets is for one signal, and a second would end the program. */
static void appends_a_byte(int signal) {
	struct itimerval soon = {{0, 0}, {0, 200}};
	CHECK(sets[way](signal, appends_a_byte) != SIG_ERR && write(shared_fd, "h", 1) == 1);
	handled++;
	CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
}

static void handlers_set_in_older_ways_append(void) {
	static char record[256];
	struct itimerval soon = {{0, 0}, {0, 200}}, never = {{0, 0}, {0, 0}};
	struct stat now;
	sigset_t alarm;
	CHECK(sigemptyset(&alarm) == 0 && sigaddset(&alarm, SIGALRM) == 0);
	for (way = 0; way < 3; way++) {
		handled = 0;
		shared_fd = fresh(O_RDWR | O_APPEND);
		CHECK(sets[way](SIGALRM, appends_a_byte) != SIG_ERR && setitimer(ITIMER_REAL, &soon, NULL) == 0);
		int records = 0;
		for (; records < 1000 || handled < 50; records++)
			CHECK(write(shared_fd, record, sizeof record) == sizeof record);
		CHECK(sigprocmask(SIG_BLOCK, &alarm, NULL) == 0 && setitimer(ITIMER_REAL, &never, NULL) == 0);
		CHECK(fstat(shared_fd, &now) == 0 && now.st_size == (off_t)records * 256 + handled && close(shared_fd) == 0);
		/* Takes away one that waits. */
		CHECK(signal(SIGALRM, SIG_IGN) != SIG_ERR && sigprocmask(SIG_UNBLOCK, &alarm, NULL) == 0);
	}
}

static void leaves(int signal) {
	(void)signal;
	CHECK(write(shared_fd, "handler ", 8) == 8);
	siglongjmp(out_of_it, 1);
}

static void *thread_that_jumps(void *arg) {
	/* Its alternate stack lies above its own one: what runs after the jump lies below the handler's frame. */
	size_t size = 1 << 16;
	stack_t own = {.ss_sp = arg, .ss_size = size};
	CHECK(sigaltstack(&own, NULL) == 0);
	if (sigsetjmp(out_of_it, 1) == 0)
		CHECK(pthread_kill(pthread_self(), SIGUSR2) == 0);
	for (int i = 0; i < 1000; i++)
		CHECK(write(shared_fd, "x", 1) == 1);
	CHECK(lseek(shared_fd, 0, SEEK_CUR) == 1015);
	return NULL;
}

static void handlers_are_left_by_longjmp(void) {
	char buf[1015], *memory = malloc(1 << 20);
	shared_fd = fresh(O_RDWR);
	struct sigaction act = {.sa_handler = leaves, .sa_flags = SA_ONSTACK};
	CHECK(sigaction(SIGUSR2, &act, NULL) == 0 && write(shared_fd, "before ", 7) == 7);
	char *low = mmap(NULL, 2 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_attr_t attributes;
	pthread_t thread;
	CHECK(low != MAP_FAILED && pthread_attr_init(&attributes) == 0);
	CHECK(pthread_attr_setstack(&attributes, low, 1 << 20) == 0);
	CHECK(pthread_create(&thread, &attributes, thread_that_jumps, low + (1 << 20)) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(pread(shared_fd, buf, 1015, 0) == 1015 && memcmp(buf, "before handler x", 16) == 0);
	free(memory);
}

static void closes(int signal) {
	(void)signal;
	CHECK(close(shared_fd) == 0);
	shared_fd = -1;
}

static void handlers_close_in_the_middle_of_malloc(void) {
	struct sigaction act = {.sa_handler = closes};
	CHECK(sigaction(SIGALRM, &act, NULL) == 0);
	for (int round = 0; round < 200; round++) {
		shared_fd = fresh(O_RDWR);
		CHECK(write(shared_fd, "x", 1) == 1);
		struct itimerval soon = {{0, 0}, {0, 50 + round}};
		CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
		while (shared_fd >= 0)
			free(malloc(rand() % 5000));
	}
	shared_fd = fresh(O_RDWR);
	CHECK(write(shared_fd, "x", 1) == 1);
}

/* A child made in any way writes "child " and ends; its parent goes on after that. */
static int child_writes(void *arg) {
	CHECK(write(shared_fd, "child ", 6) == 6);
	return 0;
}

static void after_child(pid_t child) {
	int status;
	CHECK(child > 0 && waitpid(child, &status, __WALL) == child && status == 0);
	CHECK(write(shared_fd, "after", 5) == 5 && lseek(shared_fd, 0, SEEK_CUR) == 18);
	holds("before child after");
	close(shared_fd);
}

static void before_child(void) {
	shared_fd = fresh(O_RDWR | O_CLOEXEC);
	CHECK(write(shared_fd, "before ", 7) == 7);
}

static void children_made_in_other_ways(void) {
	before_child();
	pid_t child = _Fork();
	if (child == 0)
		_exit(child_writes(NULL));
	after_child(child);

	before_child();
	child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	if (child == 0)
		_exit(child_writes(NULL));
	after_child(child);

	before_child();
	char *stack = malloc(1 << 16);
	after_child(clone(child_writes, stack + (1 << 16), SIGCHLD, NULL));

	before_child();
	after_child(clone(child_writes, stack + (1 << 16), CLONE_VM | CLONE_VFORK | SIGCHLD, NULL));
	free(stack);
}

static void descriptors_sent_away(void) {
	int pair[2];
	CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
	pid_t child = fork();
	if (child == 0) {
		/* It was made before the file was opened. */
		char byte, control[CMSG_SPACE(sizeof(int))];
		struct iovec one = {&byte, 1};
		struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
		CHECK(recvmsg(pair[1], &message, 0) == 1);
		shared_fd = *(int *)CMSG_DATA(CMSG_FIRSTHDR(&message));
		_exit(child_writes(NULL));
	}
	before_child();
	char control[CMSG_SPACE(sizeof(int))] = {0};
	struct iovec one = {"!", 1};
	struct mmsghdr messages[1] = {{.msg_hdr = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control}}};
	struct cmsghdr *head = CMSG_FIRSTHDR(&messages[0].msg_hdr);
	head->cmsg_level = SOL_SOCKET, head->cmsg_type = SCM_RIGHTS, head->cmsg_len = CMSG_LEN(sizeof(int));
	*(int *)CMSG_DATA(head) = shared_fd;
	CHECK(sendmmsg(pair[0], messages, 1, 0) == 1);
	after_child(child);
}

static void numbers_made_in_other_ways(void) {
	int fd = fresh(O_RDWR);
	CHECK(write(fd, "one ", 4) == 4);
	int two = syscall(SYS_fcntl, fd, F_DUPFD, 50);
	CHECK(two >= 50 && write(two, "two ", 4) == 4 && write(fd, "three ", 6) == 6);
#ifdef SYS_pidfd_getfd
	int me = syscall(SYS_pidfd_open, getpid(), 0), four = me < 0 ? -1 : syscall(SYS_pidfd_getfd, me, fd, 0);
	if (four < 0)
		four = dup(fd);
	CHECK(write(four, "four ", 5) == 5 && write(fd, "five", 4) == 4);
#endif
	holds("one two three four five");
}

static void appends_leave_the_right_offset(void) {
	char buf[16];
	struct iovec tail = {"tail", 4};
	int fd = fresh(O_RDWR);
	CHECK(write(fd, "0123456789", 10) == 10 && lseek(fd, 2, SEEK_SET) == 2);
	CHECK(pwritev2(fd, &tail, 1, -1, RWF_APPEND) == 4 && lseek(fd, 0, SEEK_CUR) == 14);
	CHECK(pwritev2(fd, &tail, 1, 3, RWF_APPEND) == 4 && lseek(fd, 0, SEEK_CUR) == 14);
	holds("0123456789tailtail");
	/* The kernel has the offset of one that a child shares. */
	int own = open(file, O_RDWR), status;
	pid_t child = fork();
	if (child == 0)
		_exit(0);
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(write(own, "x", 1) == 1 && pwritev2(fd, &tail, 1, -1, RWF_APPEND) == 4 && lseek(fd, 0, SEEK_CUR) == 22);
	close(own);
	close(fd);
	fd = open(file, O_RDWR | O_APPEND);
	child = fork();
	if (child == 0)
		_exit(0);
	CHECK(waitpid(child, &status, 0) == child);
	int another = open(file, O_WRONLY | O_APPEND);
	CHECK(write(another, "other", 5) == 5 && write(fd, "mine", 4) == 4 && lseek(fd, 0, SEEK_CUR) == 31);
	CHECK(read(fd, buf, 1) == 0 && lseek(fd, -9, SEEK_CUR) == 22 && read(fd, buf, 9) == 9 && memcmp(buf, "othermine", 9) == 0);
}

static void what_one_sets_others_see(void) {
	int fd = fresh(O_RDWR), status, ways = 0;
	CHECK(write(fd, "0123456789", 10) == 10);
	pid_t child = fork();
	if (child == 0)
		_exit(fcntl(fd, F_SETFL, O_APPEND));
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(pwrite(fd, "A", 1, 0) == 1 && lseek(fd, 0, SEEK_SET) == 0 && write(fd, "B", 1) == 1 && lseek(fd, 0, SEEK_CUR) == 12);
	holds("0123456789AB");
	child = fork();
	if (child == 0)
		_exit(fcntl(fd, F_SETFL, 0));
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(pwrite(fd, "C", 1, 0) == 1);
	/* By a program that knows nothing of any library. */
	char command[200];
	snprintf(command, sizeof command,
		 "unset LD_PRELOAD; exec python3 -c 'import fcntl,os; fcntl.fcntl(%d, fcntl.F_SETFL, os.O_APPEND)'", fd);
	CHECK(system(command) == 0 && pwrite(fd, "D", 1, 0) == 1);
	holds("C123456789ABD");
}

static void *parts(void *closes_too) {
	if (closes_too)
		CHECK(close_range(shared_fd, shared_fd, CLOSE_RANGE_UNSHARE) == 0);
	else
		CHECK(unshare(CLONE_FILES) == 0 && close(shared_fd) == 0);
	return NULL;
}

static void threads_with_numbers_of_their_own(int closes_too) {
	pthread_t thread;
	before_child();
	CHECK(pthread_create(&thread, NULL, parts, closes_too ? &thread : NULL) == 0 && pthread_join(thread, NULL) == 0);
	CHECK(write(shared_fd, "after", 5) == 5 && close(open(file, O_RDONLY)) == 0);
	holds("before after");
}

static void a_thread_unshares(void) { threads_with_numbers_of_their_own(0); }
static void a_thread_closes_for_itself(void) { threads_with_numbers_of_their_own(1); }

static int swaps(void *nothing) {
	CHECK(close(shared_fd) == 0 && open(other, O_CREAT | O_TRUNC | O_RDWR, 0600) == shared_fd);
	CHECK(write(shared_fd, "child ", 6) == 6);
	_exit(0);
}

static void a_child_shares_the_numbers(void) {
	before_child();
	int status;
	char *stack = malloc(1 << 16), buf[20];
	pid_t child = clone(swaps, stack + (1 << 16), CLONE_FILES | SIGCHLD, NULL);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(write(shared_fd, "parent", 6) == 6 && pread(shared_fd, buf, 20, 0) == 12 && memcmp(buf, "child parent", 12) == 0);
	holds("before ");
}

/* Before the program meets the mount, one number means two files. */
static pthread_barrier_t both;

static void *writes_apart(void *nothing) {
	char buf[8];
	CHECK(unshare(CLONE_FILES) == 0);
	int fd = memfd_create("apart", 0);
	pthread_barrier_wait(&both);
	pthread_barrier_wait(&both);
	CHECK(fd == shared_fd && write(fd, "apart", 5) == 5 && pread(fd, buf, 8, 0) == 5 && memcmp(buf, "apart", 5) == 0);
	return nothing;
}

static void numbers_part_before_the_mount_is_met(void) {
	pthread_t thread;
	CHECK(pthread_barrier_init(&both, NULL, 2) == 0 && pthread_create(&thread, NULL, writes_apart, NULL) == 0);
	pthread_barrier_wait(&both);
	shared_fd = fresh(O_RDWR);
	CHECK(write(shared_fd, "mount", 5) == 5);
	pthread_barrier_wait(&both);
	CHECK(pthread_join(thread, NULL) == 0);
	holds("mount");
}

static char stack_of_child[1 << 16];
static volatile int step;

static int replaces(void *nothing) {
	(void)nothing;
	CHECK(close(shared_fd) == 0 && memfd_create("other", 0) == shared_fd);
	step = 1;
	while (step != 2)
		;
	syscall(SYS_exit, 0);
	return 0;
}

/* A thread that clone(2) made with descriptors of its own: what it closes stays open here. */
static void a_thread_is_made_with_numbers_of_its_own(void) {
	before_child();
	int flags = CLONE_VM | CLONE_FS | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
	CHECK(clone(replaces, stack_of_child + sizeof stack_of_child, flags, NULL) > 0);
	while (step != 1)
		;
	CHECK(write(shared_fd, "after", 5) == 5);
	step = 2;
	holds("before after");
}

static int swaps_for_both(void *nothing) {
	(void)nothing;
	CHECK(close(shared_fd) == 0 && memfd_create("other", 0) == shared_fd);
	_exit(0);
}

/* A child that shares memory and descriptors, and is no thread: what it opens means the same here. */
static void a_child_shares_memory_and_numbers(void) {
	char buf[8];
	int status;
	before_child();
	pid_t child = clone(swaps_for_both, stack_of_child + sizeof stack_of_child, CLONE_VM | CLONE_FILES | CLONE_VFORK | SIGCHLD, NULL);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(pwrite(shared_fd, "parent", 6, 0) == 6 && pread(shared_fd, buf, 8, 0) == 6);
	holds("before ");
}

static void what_the_kernel_counts_from_the_end(void) {
	int fd = fresh(O_RDWR), more = -1, status;
	CHECK(write(fd, "0123456789", 10) == 10 && ioctl(fd, FIONREAD, &more) == 0 && more == 0);
	CHECK(lseek(fd, 4, SEEK_SET) == 4 && ioctl(fd, FIONREAD, &more) == 0 && more == 6);
	CHECK(write(fd, "XX", 2) == 2 && syscall(SYS_ioctl, fd, FIONREAD, &more) == 0 && more == 4);
	struct flock last = {.l_type = F_WRLCK, .l_whence = SEEK_END, .l_start = -3, .l_len = 3};
	CHECK(fcntl(fd, F_SETLK, &last) == 0);
	pid_t child = fork();
	if (child == 0) {
		struct flock any = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
		CHECK(fcntl(fd, F_GETLK, &any) == 0 && any.l_type == F_WRLCK && any.l_start == 7 && any.l_len == 3);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void calls_that_fail_change_no_number(void) {
	int fd = fresh(O_RDWR), spare = dup(0);
	CHECK(close(spare) == 0 && write(fd, "1", 1) == 1);
	CHECK(syscall(SYS_close_range, fd, fd, 0x4000) == -1 && errno == EINVAL && write(fd, "2", 1) == 1);
	CHECK(close_range(fd, fd, 0x4000) == -1 && errno == EINVAL && write(fd, "3", 1) == 1);
	CHECK(close_range(fd, 0, 0) == -1 && errno == EINVAL && write(fd, "4", 1) == 1);
	CHECK(dup2(spare, fd) == -1 && errno == EBADF && write(fd, "5", 1) == 1);
	CHECK(dup3(0, fd, 0x4000) == -1 && errno == EINVAL && write(fd, "6", 1) == 1);
	CHECK(dup3(fd, fd, 0) == -1 && errno == EINVAL && dup2(fd, fd) == fd && write(fd, "7", 1) == 1);
	CHECK(syscall(SYS_dup3, spare, fd, 0) == -1 && errno == EBADF && write(fd, "8", 1) == 1);
	holds("12345678");
	/* The number is above the limit by now, and stays what it is. */
	struct rlimit limit;
	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_max > (rlim_t)fd);
	limit.rlim_cur = fd;
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0 && dup2(0, fd) == -1 && errno == EBADF && write(fd, "9", 1) == 1);
	limit.rlim_cur = limit.rlim_max;
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	holds("123456789");
}

static volatile int all_replaced;

static void *thread_that_forks(void *nothing) {
	while (!all_replaced) {
		pid_t child = fork();
		if (child == 0)
			_exit(0);
		CHECK(waitpid(child, NULL, 0) == child);
	}
	return nothing;
}

static void a_fork_moves_no_offset_of_what_replaces_a_file(void) {
	pthread_t forks;
	int stays = open(other, O_CREAT | O_TRUNC | O_RDWR, 0600);
	CHECK(stays >= 0 && write(stays, "stays", 5) == 5 && pthread_create(&forks, NULL, thread_that_forks, NULL) == 0);
	for (int i = 0; i < 500; i++) {
		int fd = fresh(O_RDWR);
		CHECK(write(fd, "0123456789", 10) == 10 && dup2(stays, fd) == fd);
		CHECK(lseek(stays, 0, SEEK_CUR) == 5 && close(fd) == 0);
	}
	all_replaced = 1;
	CHECK(pthread_join(forks, NULL) == 0);
}

TRAPS({"older", handlers_set_in_older_ways_append},
      {"refused", calls_that_fail_change_no_number}, {"replaced", a_fork_moves_no_offset_of_what_replaces_a_file},
      {"unshared", a_thread_unshares}, {"closed_apart", a_thread_closes_for_itself}, {"swapped", a_child_shares_the_numbers},
      {"apart_before", numbers_part_before_the_mount_is_met}, {"apart_thread", a_thread_is_made_with_numbers_of_its_own},
      {"swapped_for_both", a_child_shares_memory_and_numbers},
      {"from_the_end", what_the_kernel_counts_from_the_end}, {"handlers", handlers_use_the_offset}, {"jumps", handlers_are_left_by_longjmp},
      {"closing", handlers_close_in_the_middle_of_malloc}, {"children", children_made_in_other_ways},
      {"sent", descriptors_sent_away}, {"numbers", numbers_made_in_other_ways},
      {"appending", appends_leave_the_right_offset}, {"setting", what_one_sets_others_see})
