/* As at_fork.c, in a library from before 2003: its pthread_atfork is a function of the C library, of the first version. */
#include <pthread.h>
#ifdef __x86_64__
int first_atfork(void (*)(void), void (*)(void), void (*)(void));
__asm__(".symver first_atfork, pthread_atfork@GLIBC_2.2.5");
#define pthread_atfork first_atfork
#endif
#include "at_fork.c"
