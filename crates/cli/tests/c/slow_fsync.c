/* A disk that takes 50 ms to make anything durable. */
#include <sys/syscall.h>
#include <unistd.h>

int fsync(int fd) { usleep(50000); return (int)syscall(SYS_fsync, fd); }
int fdatasync(int fd) { usleep(50000); return (int)syscall(SYS_fdatasync, fd); }
