/* Programs that start under a filter of system calls. */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

/* Executes itself under a filter that has this answer to this call. */
static void under_a_filter(const char *name, const char *calls, unsigned answer) {
	struct sock_filter all[] = {
	    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
	    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, atoi(calls), 0, 1),
	    BPF_STMT(BPF_RET | BPF_K, answer),
	    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
	struct sock_fprog program = {sizeof all / sizeof *all, all};
	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
	CHECK(setenv("FILTERED", calls, 1) == 0);
	execl("/proc/self/exe", "itself", name, file, other, NULL);
	CHECK(!"executed");
}
