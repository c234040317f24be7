/* A library whose constructor opens a file and forks. It runs before libraries are started that the program was not linked with. */
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* Of the child that wrote; -1: there was none. */
int status_early = -1;

__attribute__((constructor)) static void opens_and_forks(void) {
	const char *path = getenv("EARLY");
	if (!path || pthread_atfork(NULL, NULL, NULL) != 0)
		return;
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
	pid_t child = fork();
	if (child == 0)
		_exit(write(fd, "early", 5) != 5);
	if (waitpid(child, &status_early, 0) != child || close(fd) != 0)
		status_early = -1;
}
