/* Programs that are executed or started: what they find of this one's offsets and of what it ignores. And siginterrupt(3). */
#include "traps.h"
#include <dlfcn.h>
#include <pty.h>
#include <wordexp.h>

static void nothing_happens(int signal) { (void)signal; }

static int flags_of(int signal) {
	struct sigaction now;
	CHECK(sigaction(signal, NULL, &now) == 0);
	return now.sa_flags & SA_RESTART;
}

static void interrupting(void) {
	CHECK(fresh(O_RDWR) >= 0 && signal(SIGUSR1, nothing_happens) == SIG_DFL && flags_of(SIGUSR1));
	CHECK(siginterrupt(SIGUSR1, 1) == 0 && !flags_of(SIGUSR1));
	CHECK(signal(SIGUSR1, nothing_happens) == nothing_happens && !flags_of(SIGUSR1));
	CHECK(siginterrupt(SIGUSR1, 0) == 0 && flags_of(SIGUSR1));
	CHECK(signal(SIGUSR1, nothing_happens) == nothing_happens && flags_of(SIGUSR1));
	CHECK(siginterrupt(9999, 1) == -1 && errno == EINVAL && siginterrupt(SIGKILL, 1) == -1 && errno == EINVAL);
	int pipes[2];
	char byte;
	struct itimerval soon = {{0, 0}, {0, 1000}};
	CHECK(signal(SIGALRM, nothing_happens) == SIG_DFL && siginterrupt(SIGALRM, 1) == 0 && pipe(pipes) == 0);
	CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0 && read(pipes[0], &byte, 1) == -1 && errno == EINTR);
}

/* What the program that is executed says of itself: both faults are ignored, and of the first 20 signals no other. */
static const char finds[] = "while read name bits rest; do case $name$bits in SigIgn:*00440) exit 7;; esac; done < /proc/self/status";

static void same_after_a_failure(int fd) {
	CHECK(execl("/no/such/program", "none", NULL) == -1 && errno == ENOENT);
	CHECK(write(fd, (void *)8, 4) == -1 && errno == EFAULT);
	CHECK(signal(SIGSEGV, SIG_IGN) == SIG_IGN && signal(SIGBUS, SIG_IGN) == SIG_IGN);
}

static char *arguments[] = {"sh", "-c", (char *)finds, NULL};

static void execute(int way) {
	char *none[] = {NULL};
	switch (way) {
	case 0: execl("/bin/sh", "sh", "-c", finds, NULL);
	case 1: execlp("sh", "sh", "-c", finds, NULL);
	case 2: execle("/bin/sh", "sh", "-c", finds, NULL, environ);
	case 3: execv("/bin/sh", arguments);
	case 4: execvp("sh", arguments);
	case 5: execvpe("sh", arguments, environ);
	case 6: execve("/bin/sh", arguments, environ);
	case 7: fexecve(open("/bin/sh", O_RDONLY), arguments, environ);
	case 8: execl("/bin/sh", "sh", "-c", finds, "3", "4", "5", "6", "7", "8", "9", NULL);
	}
}

static void ignoring(void) {
	int status, fd = fresh(O_RDWR);
	/* The caller of the tests may ignore some: nohup(1) ignores SIGHUP. */
	for (int number = 1; number <= 20; number++)
		signal(number, SIG_DFL);
	/* A library in the other program would catch them again. */
	CHECK(unsetenv("LD_PRELOAD") == 0);
	CHECK(write(fd, "x", 1) == 1 && signal(SIGSEGV, SIG_IGN) != SIG_ERR && signal(SIGBUS, SIG_IGN) != SIG_ERR);
	same_after_a_failure(fd);
	for (int way = 0; way < 18; way++) {
		pid_t child = way < 9 ? fork() : vfork();
		if (child == 0) {
			execute(way % 9);
			_exit(9);
		}
		CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 7 << 8);
	}
	CHECK(system(finds) == 7 << 8);
	pid_t child;
	CHECK(posix_spawn(&child, "/bin/sh", NULL, NULL, arguments, environ) == 0);
	CHECK(waitpid(child, &status, 0) == child && status == 7 << 8);
	CHECK(posix_spawnp(&child, "sh", NULL, NULL, arguments, environ) == 0);
	CHECK(waitpid(child, &status, 0) == child && status == 7 << 8);
	CHECK(pclose(popen(finds, "w")) == 7 << 8);
	same_after_a_failure(fd);
}

static void starting(void) {
	char command[200], b[64];
	wordexp_t words;
	int status, master, fd = fresh(O_RDWR);
	CHECK(write(fd, "one ", 4) == 4 && wordexp("~", &words, 0) == 0);
	snprintf(command, sizeof command, "$(printf 'two ' >&%d; echo said)", fd);
	CHECK(wordexp(command, &words, 0) == 0 && words.we_wordc == 1 && strcmp(words.we_wordv[0], "said") == 0);
	CHECK(write(fd, "three ", 6) == 6 && wordexp("`x", &words, 0) != 0 && wordexp("$(true)", &words, WRDE_NOCMD) == WRDE_CMDSUB);
	pid_t child = forkpty(&master, NULL, NULL, NULL);
	if (child == 0) {
		CHECK(isatty(0) && isatty(1) && write(fd, "four ", 5) == 5 && write(1, "said", 4) == 4);
		_exit(0);
	}
	CHECK(child > 0 && read(master, b, 4) == 4 && memcmp(b, "said", 4) == 0);
	CHECK(waitpid(child, &status, 0) == child && status == 0 && close(master) == 0 && write(fd, "five ", 5) == 5);
	snprintf(command, sizeof command, "read word; printf \"$word \" >&%d", fd);
	FILE *to = popen(command, "w");
	CHECK(to && fputs("six\n", to) >= 0 && pclose(to) == 0 && write(fd, "seven", 5) == 5 && fcloseall() == 0);
	CHECK(lseek(fd, 0, SEEK_CUR) == 33 && pread(fd, b, 33, 0) == 33 && memcmp(b, "one two three four five six seven", 33) == 0);
}

static void *goes_on(void *unused) {
	char stat[200] = "", b[64], command[] = "printf 'three '";
	while (!strstr(stat, ") Z ")) {
		int own = open("/proc/self/stat", O_RDONLY);
		CHECK(own >= 0 && read(own, stat, sizeof stat - 1) > 0 && close(own) == 0);
	}
	int status, fd = fresh(O_RDWR);
	CHECK(write(fd, "one ", 4) == 4);
	pid_t child = fork();
	if (child == 0) {
		CHECK(write(fd, "two ", 4) == 4);
		_exit(0);
	}
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	char *arguments[] = {"sh", "-c", command, NULL};
	posix_spawn_file_actions_t actions;
	CHECK(posix_spawn_file_actions_init(&actions) == 0 && posix_spawn_file_actions_adddup2(&actions, fd, 1) == 0);
	CHECK(posix_spawn(&child, "/bin/sh", &actions, NULL, arguments, environ) == 0);
	CHECK(waitpid(child, &status, 0) == child && status == 0 && write(fd, "four", 4) == 4);
	CHECK(pread(fd, b, sizeof b, 0) == 18 && memcmp(b, "one two three four", 18) == 0 && close(fd) == 0);
	exit(0);
}

/* The kernel shows such a process in /proc below its other threads alone. */
static void headless(void) {
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, goes_on, NULL) == 0);
	pthread_exit(NULL);
}

typedef int spawns(int *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *, char *const[], char *const[]);

/* A program looks these functions up, for older C libraries have none. */
static void spawning(void) {
	char *echoes[] = {"echo", "child", NULL}, *none[] = {"none", NULL};
	static const char *const names[] = {"pidfd_spawn", "pidfd_spawnp"}, *const paths[] = {"/bin/echo", "echo"};
	for (int way = 0; way < 2; way++) {
		int pidfd = -1, fd = fresh(O_RDWR);
		siginfo_t ended;
		posix_spawn_file_actions_t actions;
		spawns *spawn = (spawns *)dlsym(RTLD_DEFAULT, names[way]);
		if (!spawn && !getenv("LD_PRELOAD"))
			return;
		CHECK(spawn && posix_spawn_file_actions_init(&actions) == 0 && posix_spawn_file_actions_adddup2(&actions, fd, 1) == 0);
		CHECK(write(fd, "0123456789", 10) == 10);
		CHECK(spawn(&pidfd, "/no/such/program", &actions, NULL, none, environ) == ENOENT && pidfd == -1);
		CHECK(spawn(&pidfd, paths[way], &actions, NULL, echoes, environ) == 0 && pidfd > fd);
		CHECK(fcntl(pidfd, F_GETFD) == FD_CLOEXEC && waitid(P_PIDFD, pidfd, &ended, WEXITED) == 0 && ended.si_status == 0);
		CHECK(write(fd, "abc", 3) == 3 && close(pidfd) == 0);
		CHECK(spawn(NULL, paths[way], NULL, NULL, none, environ) == 0 && waitpid(-1, NULL, 0) > 0);
		holds("0123456789child\nabc");
		/* No number is free: no child is left. */
		struct rlimit all, few;
		CHECK(getrlimit(RLIMIT_NOFILE, &all) == 0);
		few = all, few.rlim_cur = fd + 1;
		CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0 && spawn(&pidfd, paths[way], NULL, NULL, echoes, environ) == EMFILE);
		CHECK(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD && setrlimit(RLIMIT_NOFILE, &all) == 0 && close(fd) == 0);
	}
}

/* It takes each number that becomes free, for a moment. */
static void *takes_numbers(void *nothing) {
	for (;;) {
		int taken = dup(0);
		if (taken >= 0) {
			usleep(1000);
			close(taken);
			usleep(1000);
		}
	}
	return nothing;
}

/* If the last number is taken meanwhile, no child is left. */
static void spawning_beside(void) {
	char *ends[] = {"true", NULL};
	pthread_t thread;
	struct rlimit few;
	spawns *spawn = (spawns *)dlsym(RTLD_DEFAULT, "pidfd_spawnp");
	int pidfd, started = 0, refused = 0, fd = fresh(O_RDWR);
	CHECK(write(fd, "x", 1) == 1);
	if (!spawn)
		return;
	CHECK(getrlimit(RLIMIT_NOFILE, &few) == 0);
	few.rlim_cur = fd + 2;
	CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0 && pthread_create(&thread, NULL, takes_numbers, NULL) == 0);
	for (int i = 0; i < 2000 && started + refused < 200; i++) {
		int answer = spawn(&pidfd, "true", NULL, NULL, ends, environ);
		if (answer == 0) {
			siginfo_t ended;
			started++;
			CHECK(pidfd >= 0 && waitid(P_PIDFD, pidfd, &ended, WEXITED) == 0 && close(pidfd) == 0);
			continue;
		}
		refused++;
		CHECK(answer == EMFILE && waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
		usleep(100);
	}
}

TRAPS({"spawning_beside", spawning_beside},
      {"spawning", spawning}, {"interrupting", interrupting}, {"ignoring", ignoring}, {"starting", starting}, {"headless", headless})
