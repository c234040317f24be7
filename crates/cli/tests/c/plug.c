/* A library that a program loads while it runs. */
#include <fcntl.h>
#include <unistd.h>

long plug_write(int fd, const char *text, long len) { return write(fd, text, len); }
int plug_close(int fd) { return close(fd); }
int plug_open(const char *path) { return open(path, O_RDWR | O_CREAT | O_TRUNC, 0600); }

static __thread int number;
int *plug_number(void) { return &number; }
