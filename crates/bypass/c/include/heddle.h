/* heddle.h: files of a heddle mount, read and written without the kernel.
 *
 * Link with -lheddle. Every function is safe to call from any thread. Functions that give a number give -1, those that give a
 * pointer NULL, when they fail; errno then says what the corresponding system call would have said, and heddle_error() says it in
 * words.
 *
 * A heddle_file has a descriptor of the mount underneath (heddle_fd), so other processes, and other calls of this one, see what is
 * done here at once, and the other way round. A write is durable when it returns, and atomic: others see all of it or nothing. Two
 * kinds of write are not atomic: one to a file that a process has mapped, and one over several pages on a full image. Names are
 * made, renamed and removed with the ordinary system calls, on the mount.
 */
#ifndef HEDDLE_H
#define HEDDLE_H

#include <stddef.h>
#include <sys/stat.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An attached process has the whole image mapped, for reading and writing, until it ends: setuid(2) takes nothing of that away. A program
 * that gives up rights executes another one then, or uses the mount. */

/* An open file. */
typedef struct heddle_file heddle_file;

/* Attaches to the file system that is mounted at or above `path`; needed only to learn early whether that is possible.
 * ENODEV: that is no heddle mount. EACCES: its engine is out of reach (heddle_error says why: another user's, mounted with
 * no_attach, a variant that works in one process). */
int heddle_attach(const char *path);

/* Opens a regular file, as open(2): O_RDONLY, O_WRONLY or O_RDWR, O_CREAT with `mode`, O_EXCL, O_TRUNC, O_APPEND. The descriptor
 * is closed on exec. Errors of open(2) and of heddle_attach; EINVAL: no regular file. */
heddle_file *heddle_open(const char *path, int flags, mode_t mode);

/* Gives the file back, also when it fails. NULL is no file and no error. */
int heddle_close(heddle_file *file);

/* As pread(2), of at most 0x7ffff000 bytes: else short only at the end of the file. */
ssize_t heddle_pread(heddle_file *file, void *buf, size_t len, off_t offset);

/* As pwrite(2), of at most 0x7ffff000 bytes: else short only across the largest size of a file, and where a full image has no more
 * room. What is left then fails when it is written next: EFBIG, ENOSPC. With O_APPEND at the end of the file, whatever `offset` is. */
ssize_t heddle_pwrite(heddle_file *file, const void *buf, size_t len, off_t offset);

/* As fsync(2). Writes are durable when they return: this tells whether the memory has failed meanwhile. */
int heddle_fsync(heddle_file *file);

/* As ftruncate(2). */
int heddle_truncate(heddle_file *file, off_t len);

/* As fstat(2). */
int heddle_fstat(heddle_file *file, struct stat *into);

/* As stat(2): through the mount, the same answer. */
int heddle_stat(const char *path, struct stat *into);

/* The descriptor underneath, for what is not here: locks, mappings, attributes. Do not close it. */
int heddle_fd(const heddle_file *file);

/* The last failure of this thread in words; "" if there was none. Valid until the thread's next call. */
const char *heddle_error(void);

#ifdef __cplusplus
}
#endif

#endif
