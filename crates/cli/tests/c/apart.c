/* Libraries whose calls of the C library another library does not see. `plug.c` lies beside this program, which is not linked with it. */
#include "traps.h"
#include <dlfcn.h>
#include <libgen.h>

static void uses_plug(int is_apart) {
	/* Only the loader knows what this means. */
	const char *path = "$ORIGIN/plug";
	char twin[4096];
	int fd = fresh(O_RDWR);
	CHECK(write(fd, "hello ", 6) == 6);
	void *plug = is_apart ? dlmopen(LM_ID_NEWLM, path, RTLD_NOW) : dlopen(path, RTLD_NOW | RTLD_DEEPBIND);
	if (!plug)
		fprintf(stderr, "%s\n", dlerror());
	CHECK(plug);
	long (*write_by)(int, const char *, long) = dlsym(plug, "plug_write");
	int (*close_by)(int) = dlsym(plug, "plug_close");
	int (*open_by)(const char *) = dlsym(plug, "plug_open");
	CHECK(write_by(fd, "plug ", 5) == 5 && write(fd, "again", 5) == 5 && lseek(fd, 0, SEEK_CUR) == 16);
	snprintf(twin, sizeof twin, "%s.twin", file);
	/* The same number, without a word to anybody. */
	CHECK(close_by(fd) == 0 && open_by(twin) == fd && write(fd, "twin", 4) == 4);
	holds("hello plug again");
	file = twin;
	holds("twin");
}

static void a_library_that_prefers_its_own(void) { uses_plug(0); }
static void a_library_apart(void) { uses_plug(1); }

TRAPS({"prefers", a_library_that_prefers_its_own}, {"apart", a_library_apart})
