/* A process that gives up rights has no image in its memory any more, and its descriptors go on where they were. */
#include "traps.h"
#include "filters.h"
#include <grp.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/fsuid.h>

#define NOBODY 65534

/* No header has it. */
int pivot_root(const char *new_root, const char *put_old);

/* Is an image, or what belongs to it, mapped here? Only under the bypass. */
static int mapped(void) {
	char line[4096];
	int found = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	CHECK(maps);
	while (fgets(line, sizeof line, maps))
		found |= strstr(line, "heddle-arena") != NULL || strstr(line, "/image\n") != NULL;
	fclose(maps);
	return found;
}

static int capset_nothing(int by_number) {
	struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct data[2] = {{0}};
	return by_number ? syscall(SYS_capset, &header, data) : capset(&header, data);
}

static int filter_nothing(int by_number) {
	struct sock_filter all[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
	struct sock_fprog program = {1, all};
	return by_number ? syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) :
			   prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0);
}

static void give_up(int way) {
	gid_t groups[] = {NOBODY};
	switch (way) {
	case 0: CHECK(setuid(NOBODY) == 0); return;
	case 1: CHECK(setgid(NOBODY) == 0); return;
	case 2: CHECK(seteuid(NOBODY) == 0); return;
	case 3: CHECK(setegid(NOBODY) == 0); return;
	case 4: CHECK(setreuid(-1, NOBODY) == 0); return;
	case 5: CHECK(setregid(-1, NOBODY) == 0); return;
	case 6: CHECK(setresuid(-1, NOBODY, -1) == 0); return;
	case 7: CHECK(setresgid(-1, NOBODY, -1) == 0); return;
	case 8: CHECK(setfsuid(NOBODY) == 0); return;
	case 9: CHECK(setfsgid(NOBODY) == 0); return;
	case 10: CHECK(setgroups(1, groups) == 0); return;
	case 11: CHECK(capset_nothing(0) == 0); return;
	case 12: CHECK(syscall(SYS_setresuid, NOBODY, NOBODY, NOBODY) == 0); return;
	case 13: CHECK(capset_nothing(1) == 0); return;
	case 14: CHECK(filter_nothing(0) == 0); return;
	case 15: CHECK(filter_nothing(1) == 0); return;
	case 16: CHECK(chroot("/") == 0); return;
	case 17: CHECK(unshare(CLONE_NEWUSER) == -1); return; /* it has a second thread */
	case 18: CHECK(initgroups("root", NOBODY) == 0); return;
	case 19: CHECK(pivot_root("/", "/no directory") == -1); return;
	case 20: CHECK(syscall(SYS_pivot_root, "/", "/no directory") == -1); return;
	default: _exit(3);
	}
}

static int fd, second;
static volatile int stop, has_read;

static void *reads(void *arg) {
	char b[4];
	for (; !stop; has_read = 1)
		CHECK(pread(fd, b, 4, 0) == 4 && memcmp(b, "read", 4) == 0);
	return arg;
}

static int one_way(int way) {
	pthread_t thread;
	int had = mapped();
	CHECK(setuid(0) == 0 && setgroups(0, NULL) == 0 && mapped() == had);
	CHECK(write(fd, "child ", 6) == 6 && pwrite(second, "x", 1, way) == 1);
	CHECK(pthread_create(&thread, NULL, reads, NULL) == 0);
	give_up(way);
	CHECK(!mapped());
	CHECK(write(fd, "less ", 5) == 5 && pwrite(second, "y", 1, way) == 1);
	stop = 1;
	CHECK(pthread_join(thread, NULL) == 0);
	if (setuid(0) == 0) {
		/* What comes back does not bring the image back. */
		int again = open(file, O_RDONLY);
		CHECK(again >= 0 && !mapped());
	}
	return 0;
}

static void ids_and_capabilities(void) {
	char name[4096], b[64];
	snprintf(name, sizeof name, "%s-second", file);
	for (int way = 0; way <= 20; way++) {
		int status;
		fd = fresh(O_RDWR), second = open(name, O_CREAT | O_RDWR, 0600);
		CHECK(setgroups(0, NULL) == 0 && second >= 0 && write(fd, "read ", 5) == 5);
		int had = mapped();
		CHECK(had == (getenv("LD_PRELOAD") != NULL));
		pid_t child = fork();
		if (child == 0)
			exit(one_way(way));
		CHECK(waitpid(child, &status, 0) == child);
		if (status != 0)
			fprintf(stderr, "way %d\n", way);
		CHECK(status == 0 && mapped() == had);
		CHECK(write(fd, "end", 3) == 3 && pread(second, b, 1, way) == 1 && *b == 'y');
		holds("read child less end");
		CHECK(close(fd) == 0 && close(second) == 0);
	}
}

static volatile int in_handler;

static void gives_up(int signal) {
	(void)signal;
	CHECK(seteuid(NOBODY) == 0 && write(fd, "handler ", 8) == 8);
	in_handler = 1;
}

static void in_a_handler(void) {
	fd = fresh(O_RDWR);
	struct sigaction act = {.sa_handler = gives_up};
	CHECK(write(fd, "before ", 7) == 7 && sigaction(SIGUSR1, &act, NULL) == 0 && mapped() == (getenv("LD_PRELOAD") != NULL));
	CHECK(raise(SIGUSR1) == 0 && in_handler);
	CHECK(write(fd, "after", 5) == 5);
	CHECK(close(open("/dev/null", O_RDONLY)) == 0 && !mapped());
	CHECK(seteuid(0) == 0);
	holds("before handler after");
}

/* A thread that may read, write and end, and nothing else. */
static void *is_strict(void *arg) {
	char b[6];
	CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0);
	if (write(fd, "strict ", 7) == 7 && read(second, b, 6) == 6 && memcmp(b, "second", 6) == 0)
		stop = 1;
	syscall(SYS_exit, 0);
	return arg;
}

static void strict(void) {
	char name[4096];
	pthread_t thread;
	snprintf(name, sizeof name, "%s-second", file);
	fd = fresh(O_RDWR), second = open(name, O_CREAT | O_RDWR, 0600);
	CHECK(second >= 0 && write(fd, "before ", 7) == 7 && write(second, "first second", 12) == 12);
	CHECK(lseek(second, 6, SEEK_SET) == 6 && mapped() == (getenv("LD_PRELOAD") != NULL));
	CHECK(pthread_create(&thread, NULL, is_strict, NULL) == 0 && pthread_join(thread, NULL) == 0);
	CHECK(stop && !mapped());
	CHECK(write(fd, "after", 5) == 5);
	holds("before strict after");
}

#define KILLED(call) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)

/* So does a child. */
static void writes_as_a_file(void) {
	int status;
	for (int i = 0; i < 2; i++) {
		fd = fresh(O_RDWR);
		CHECK(write(fd, "filtered ", 9) == 9);
		pid_t child = fork();
		if (child == 0)
			_exit(write(fd, "child", 5) != 5);
		CHECK(waitpid(child, &status, 0) == child && status == 0 && close(fd) == 0);
		holds("filtered child");
	}
}

/* Under a filter that ends a program for what attaching to a mount takes, files of the mount are files. */
static void filtered(void) {
	struct sock_filter all[] = {
	    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), /* the number of the call */
	    KILLED(SYS_socket), KILLED(SYS_ioctl), KILLED(SYS_statx), KILLED(SYS_membarrier),
	    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
	struct sock_fprog program = {sizeof all / sizeof *all, all};
	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
	writes_as_a_file();
	CHECK(!mapped());
}

/* A filter that was there before the program ends it for one of the calls that attaching takes. */
static void born_filtered(void) {
	static const int calls[] = {SYS_membarrier, SYS_socket, SYS_statx, SYS_ioctl, SYS_fstatfs, SYS_connect, SYS_setsockopt,
				    SYS_getsockopt, SYS_sendmsg, SYS_recvmsg};
	char text[16];
	int status;
	if (getenv("FILTERED")) {
		writes_as_a_file();
		CHECK(!mapped());
		return;
	}
	for (int i = 0; i < (int)(sizeof calls / sizeof *calls); i++) {
		pid_t child = fork();
		if (child == 0) {
			snprintf(text, sizeof text, "%d", calls[i]);
			under_a_filter("born_filtered", text, i % 2 ? SECCOMP_RET_KILL_THREAD : SECCOMP_RET_KILL_PROCESS);
		}
		CHECK(waitpid(child, &status, 0) == child);
		if (status != 0)
			fprintf(stderr, "call %d: status %d\n", calls[i], status);
		CHECK(status == 0);
	}
}

/* The first child is process 1 of a new namespace: with its end the program can make no other. */
static void born_outside_of_its_childrens_namespace(void) {
	char text[16], byte;
	int line[2], status;
	if (!getenv("FILTERED")) {
		snprintf(text, sizeof text, "%d", SYS_membarrier);
		CHECK(unshare(CLONE_NEWPID) == 0);
		under_a_filter("born_outside", text, SECCOMP_RET_ERRNO | EPERM);
	}
	CHECK(pipe(line) == 0);
	pid_t first = fork();
	if (first == 0)
		_exit(getpid() != 1 || close(line[1]) != 0 || read(line[0], &byte, 1) != 0);
	CHECK(first > 0);
	pid_t next = fork();
	if (next == 0)
		_exit(getpid() != 2);
	CHECK(next > 0 && waitpid(next, &status, 0) == next && status == 0 && close(line[1]) == 0);
	CHECK(waitpid(first, &status, 0) == first && status == 0);
	fd = fresh(O_RDWR);
	CHECK(write(fd, "x", 1) == 1 && !mapped());
}

static void *writes_elsewhere(void *arg) {
	while (!stop)
		CHECK(pwrite(second, "x", 1, 0) == 1);
	return arg;
}

/* A filter that was there before the program only refuses what orders its threads. */
static void born_without_barriers(void) {
	char name[4096], text[16];
	pthread_t thread;
	snprintf(text, sizeof text, "%d", SYS_membarrier);
	if (!getenv("FILTERED"))
		under_a_filter("born_without_barriers", text, SECCOMP_RET_ERRNO | EPERM);
	snprintf(name, sizeof name, "%s-second", file);
	second = open(name, O_CREAT | O_RDWR, 0600);
	CHECK(second >= 0 && pthread_create(&thread, NULL, writes_elsewhere, NULL) == 0);
	for (int i = 0; i < 200; i++) {
		fd = fresh(O_RDWR);
		CHECK(write(fd, "x", 1) == 1 && close(fd) == 0);
	}
	CHECK(mapped() == (getenv("LD_PRELOAD") != NULL));
	stop = 1;
	CHECK(pthread_join(thread, NULL) == 0 && close(second) == 0);
	writes_as_a_file();
}

/* A filter that was there before refuses to close ranges of numbers, as an old kernel does. */
static void born_without_ranges(void) {
	char text[16];
	snprintf(text, sizeof text, "%d", SYS_close_range);
	if (!getenv("FILTERED"))
		under_a_filter("born_without_ranges", text, SECCOMP_RET_ERRNO | EPERM);
	fd = fresh(O_RDWR);
	CHECK(write(fd, "one ", 4) == 4 && close_range(fd, fd, 0) == -1 && errno == EPERM && write(fd, "two ", 4) == 4);
	CHECK(syscall(SYS_close_range, fd, ~0U, 0) == -1 && errno == EPERM && write(fd, "three", 5) == 5);
	holds("one two three");
}

/* A core of the program is no copy of the image, nor of the mount's memory: each such mapping has "dd" among its flags. */
static void undumped(void) {
	char line[4096];
	int ours = 0, seen = 0, left_out = 0;
	fd = fresh(O_RDWR);
	CHECK(write(fd, "x", 1) == 1);
	FILE *maps = fopen("/proc/self/smaps", "r");
	CHECK(maps);
	while (fgets(line, sizeof line, maps)) {
		unsigned long from, to;
		if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
			ours = strstr(line, "heddle-arena") || strstr(line, "/image");
		else if (strncmp(line, "VmFlags:", 8) == 0)
			seen += ours && strstr(line, " rd"), left_out += ours && strstr(line, " rd") && strstr(line, " dd");
	}
	fclose(maps);
	CHECK(seen == left_out && (seen > 0) == (getenv("LD_PRELOAD") != NULL));
}

/* Locked memory is made where it is none: a mount's memory is 64 GiB long. Here it would only be counted. */
static void locked(void) {
	char line[4096];
	long kib = -1;
	fd = fresh(O_RDWR);
	CHECK(write(fd, "before ", 7) == 7 && mlockall(MCL_CURRENT | MCL_ONFAULT) == 0);
	FILE *status = fopen("/proc/self/status", "r");
	CHECK(status && !mapped());
	while (fgets(line, sizeof line, status))
		sscanf(line, "VmLck: %ld", &kib);
	CHECK(fclose(status) == 0 && kib > 0 && kib < 1 << 20 && munlockall() == 0);
	CHECK(write(fd, "after", 5) == 5 && close(open(file, O_RDONLY)) == 0);
	holds("before after");
}

static volatile int shuts_in;

/* By which a handler shuts its program in. */
static int shut_in(int way) {
	switch (way) {
	case 0: return mlockall(MCL_CURRENT | MCL_ONFAULT);
	case 1: return syscall(SYS_mlockall, MCL_CURRENT | MCL_ONFAULT);
	case 2: return filter_nothing(0);
	default: return filter_nothing(1);
	}
}

static void shuts_the_program_in(int signal) {
	CHECK(shut_in(shuts_in) == 0 && !mapped() && write(fd, "handler ", 8) == 8);
	in_handler = 1;
}

static int shut_in_by_a_handler(void) {
	pthread_t thread;
	struct sigaction act = {.sa_handler = shuts_the_program_in};
	CHECK(write(fd, "read ", 5) == 5 && mapped() == (getenv("LD_PRELOAD") != NULL));
	CHECK(sigaction(SIGUSR1, &act, NULL) == 0 && pthread_create(&thread, NULL, reads, NULL) == 0);
	/* Its reads are served until the handler runs. */
	while (!has_read)
		usleep(1000);
	CHECK(raise(SIGUSR1) == 0 && in_handler && write(fd, "after", 5) == 5);
	stop = 1;
	CHECK(pthread_join(thread, NULL) == 0 && close(second) == 0 && close(open(file, O_RDONLY)) == 0 && !mapped());
	return 0;
}

static void by_handlers(void) {
	int status;
	for (shuts_in = 0; shuts_in < 4; shuts_in++) {
		fd = fresh(O_RDWR), second = open(file, O_RDWR);
		CHECK(second >= 0 && pwrite(second, "x", 1, 0) == 1);
		pid_t child = fork();
		if (child == 0)
			exit(shut_in_by_a_handler());
		CHECK(waitpid(child, &status, 0) == child && status == 0);
		CHECK(write(fd, " end", 4) == 4 && close(fd) == 0 && close(second) == 0);
		holds("read handler after end");
	}
}

#define CLOSED_FILES 16
#define CLOSED_BYTES (512 << 10)
static int closed[CLOSED_FILES];

static void *reads_much(void *arg) {
	static __thread char b[CLOSED_BYTES];
	for (;;)
		CHECK(pread(closed[0], b, sizeof b, 0) == sizeof b);
	return arg;
}

static void only_gives_up(int signal) { CHECK(seteuid(NOBODY) == 0); }

/* The files are given back by a thread whose call ends, after the handler has found no call. */
static void gives_up_beside_calls(int round) {
	static char b[CLOSED_BYTES];
	pthread_t thread;
	CHECK(signal(SIGUSR1, only_gives_up) != SIG_ERR);
	for (int i = 0; i < CLOSED_FILES; i++)
		CHECK((closed[i] = open(file, O_RDWR)) >= 0 && pread(closed[i], b, sizeof b, 0) == sizeof b);
	for (int i = 0; i < 3; i++)
		CHECK(pthread_create(&thread, NULL, reads_much, NULL) == 0);
	usleep(500 + round * 37 % 1000);
	CHECK(raise(SIGUSR1) == 0);
	usleep(9000);
	_exit(mapped());
}

static void by_handlers_beside_calls(void) {
	static char b[CLOSED_BYTES];
	int status;
	fd = fresh(O_RDWR);
	CHECK(write(fd, b, sizeof b) == sizeof b);
	for (int round = 0; round < 100; round++) {
		pid_t child = fork();
		if (child == 0)
			gives_up_beside_calls(round);
		CHECK(waitpid(child, &status, 0) == child && status == 0);
	}
}

static volatile int starts;

static void *opens_its_first(void *arg) {
	while (!starts)
		;
	close(open(file, O_RDONLY));
	return arg;
}

static void changes_beside_an_open(int round) {
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, opens_its_first, NULL) == 0);
	starts = 1;
	usleep(round % 15 * 100);
	CHECK(round % 2 ? mlockall(MCL_CURRENT | MCL_ONFAULT) == 0 : seteuid(NOBODY) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	exit(mapped());
}

/* Another thread is about to map the image of the first file that it opens. */
static void beside(void) {
	int status;
	close(fresh(O_RDWR));
	for (int round = 0; round < 60; round++) {
		pid_t child = fork();
		if (child == 0)
			execl("/proc/self/exe", "rights", "opens", file, round % 2 ? "1" : "0", NULL);
		CHECK(waitpid(child, &status, 0) == child && status == 0);
	}
}

static volatile int has_replaced;

static void *replaces(void *arg) {
	int plain = open("/dev/null", O_RDONLY), one;
	while (!stop && (one = open(file, O_RDWR)) >= 0) {
		CHECK(write(one, "x", 1) == 1 && dup2(plain, one) == one && close(one) == 0);
		has_replaced = 1;
	}
	return arg;
}

static void changes_beside_a_replacement(void) {
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, replaces, NULL) == 0);
	while (!has_replaced)
		;
	usleep(getpid() % 15 * 100);
	CHECK(seteuid(NOBODY) == 0);
	stop = 1;
	CHECK(pthread_join(thread, NULL) == 0);
	exit(mapped());
}

/* Another thread is about to put another file under a number of one of the image. */
static void beside_replacements(void) {
	int status, first = fresh(O_RDWR);
	CHECK(write(first, "x", 1) == 1 && close(first) == 0);
	for (int round = 0; round < 60; round++) {
		pid_t child = fork();
		if (child == 0)
			execl("/proc/self/exe", "rights", "replaces", file, other, NULL);
		CHECK(waitpid(child, &status, 0) == child && status == 0);
	}
}

static void opens(void) { changes_beside_an_open(getpid() * 2 + (*other == '1')); }

TRAPS({"by_handlers", by_handlers}, {"by_handlers_beside_calls", by_handlers_beside_calls}, {"born_without_ranges", born_without_ranges},
      {"beside", beside}, {"opens", opens},
      {"beside_replacements", beside_replacements}, {"replaces", changes_beside_a_replacement}, {"undumped", undumped}, {"locked", locked},
      {"ids", ids_and_capabilities},
      {"handler", in_a_handler}, {"strict", strict}, {"filtered", filtered},
      {"born_filtered", born_filtered}, {"born_outside", born_outside_of_its_childrens_namespace},
      {"born_without_barriers", born_without_barriers})
