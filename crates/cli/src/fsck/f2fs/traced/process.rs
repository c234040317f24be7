//! ptrace(2) and /proc, as far as a tracer of one program needs them.

use super::calls::Call;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid, getppid, set_parent_process_death_signal};
use std::fs::{File, Metadata};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// `__WALL | __WNOTHREAD`: tasks of any kind, of this thread alone.
const WAIT: u32 = 0x4000_0000 | 0x2000_0000;
const OPTIONS: libc::c_int = libc::PTRACE_O_TRACESYSGOOD
    | libc::PTRACE_O_EXITKILL
    | libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACEEXEC;
/// Set in the signal of a stop at a system call.
const AT_CALL: libc::c_int = 0x80;

/// Why a traced task does not run.
pub(super) enum Stop {
    /// At a system call, or behind it.
    Call,
    /// Before this signal is delivered.
    Signal(i32),
    /// It has forked, or executed a program.
    Event,
    Exited(i32),
    Signalled(i32),
}

/// A traced task.
#[derive(Clone, Copy)]
pub(super) struct Process(pub(super) Pid);

/// Starts a program that this thread traces. It stops before its first instruction.
pub(super) fn spawn_traced(command: &mut Command) -> io::Result<Pid> {
    let parent = getpid();
    let be_traced = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        if getppid() != Some(parent) {
            // Its parent has ended. Nothing is allocated here: another thread may have held the allocator at the fork.
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        request(libc::PTRACE_TRACEME, 0, 0, 0).map(drop)
    };
    // SAFETY: between fork and exec it makes system calls alone.
    unsafe { command.pre_exec(be_traced) };
    // This thread waits for it; as a `Child` it is not needed.
    let child = command.spawn()?;
    Pid::from_raw(child.id() as i32).ok_or_else(|| io::Error::other("it has no number"))
}

/// Waits for a change of any traced task, also one that has left this process' group.
pub(super) fn wait() -> Result<(Pid, Stop), Errno> {
    let options = WaitOptions::from_bits_retain(WAIT);
    let (pid, status) = rustix::process::wait(options)?.ok_or(Errno::CHILD)?;
    let raw = status.as_raw();
    let stop = if libc::WIFEXITED(raw) {
        Stop::Exited(libc::WEXITSTATUS(raw))
    } else if libc::WIFSIGNALED(raw) {
        Stop::Signalled(libc::WTERMSIG(raw))
    } else if raw >> 16 != 0 {
        Stop::Event
    } else {
        match libc::WSTOPSIG(raw) {
            signal if signal == libc::SIGTRAP | AT_CALL => Stop::Call,
            signal => Stop::Signal(signal),
        }
    };
    Ok((pid, stop))
}

impl Process {
    /// It and all that it starts from now on are stopped at system calls, and killed when this process ends.
    pub(super) fn follow_all(self) -> io::Result<()> {
        self.request(libc::PTRACE_SETOPTIONS, 0, OPTIONS as usize).map(drop)
    }

    /// Lets it run to its next system call.
    pub(super) fn resume(self, signal: i32) -> io::Result<()> {
        self.request(libc::PTRACE_SYSCALL, 0, signal as usize).map(drop)
    }

    /// The system call that it is about to make; `None`: it has made it.
    pub(super) fn call(self) -> io::Result<Option<Call>> {
        let mut info = MaybeUninit::<libc::ptrace_syscall_info>::zeroed();
        let size = size_of::<libc::ptrace_syscall_info>();
        self.request(libc::PTRACE_GET_SYSCALL_INFO as _, size, info.as_mut_ptr().expose_provenance())?;
        // SAFETY: all of it is integers, for which zeros and whatever the kernel wrote are values.
        let info = unsafe { info.assume_init() };
        if info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
            return Ok(None);
        }
        // SAFETY: the kernel has filled this part, as `op` says.
        let entry = unsafe { info.u.entry };
        Ok(Some(Call { arch: info.arch, number: entry.nr, args: entry.args }))
    }

    fn request(self, what: u32, addr: usize, data: usize) -> io::Result<libc::c_long> {
        request(what, self.0.as_raw_nonzero().get(), addr, data)
    }

    fn path(self, below: &str) -> PathBuf {
        format!("/proc/{}/{below}", self.0.as_raw_nonzero()).into()
    }

    /// What a descriptor leads to; `None`: it has no such descriptor.
    pub(super) fn descriptor(self, fd: u64) -> io::Result<Option<Metadata>> {
        match std::fs::metadata(self.path(&format!("fd/{}", fd as i32))) {
            Ok(meta) => Ok(Some(meta)),
            // Without /proc nobody knows.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                std::fs::metadata(self.path("fd")).map(|_| None)
            }
            Err(error) => Err(error),
        }
    }

    /// The offset of a descriptor, and whether each write to it goes to the end.
    pub(super) fn offset(self, fd: u64) -> io::Result<(u64, bool)> {
        let text = std::fs::read_to_string(self.path(&format!("fdinfo/{}", fd as i32)))?;
        let field = |name: &str| text.lines().find_map(|line| Some(line.strip_prefix(name)?.trim()));
        let offset = field("pos:").and_then(|offset| offset.parse().ok());
        let flags = field("flags:").and_then(|flags| i32::from_str_radix(flags, 8).ok());
        let both = offset.zip(flags).map(|(offset, flags)| (offset, flags & libc::O_APPEND != 0));
        both.ok_or_else(|| io::Error::other("its descriptor has no offset"))
    }

    /// Bytes of its memory.
    pub(super) fn memory(self, at: u64, into: &mut [u8]) -> io::Result<()> {
        File::open(self.path("mem"))?.read_exact_at(into, at)
    }

    /// A path as it gives it to a call, as this process reaches it.
    pub(super) fn path_at(self, dir_fd: u64, at: u64) -> io::Result<PathBuf> {
        use std::os::unix::ffi::OsStringExt;
        let memory = File::open(self.path("mem"))?;
        let mut text = Vec::new();
        // Its end may lie before the end of a page that cannot be read.
        while text.len() < libc::PATH_MAX as usize {
            let mut byte = [0];
            memory.read_exact_at(&mut byte, at + text.len() as u64)?;
            match byte {
                [0] => break,
                [byte] => text.push(byte),
            }
        }
        let text = PathBuf::from(std::ffi::OsString::from_vec(text));
        let above = match dir_fd as i32 {
            libc::AT_FDCWD => self.path("cwd"),
            fd => self.path(&format!("fd/{fd}")),
        };
        let root = self.path("root");
        Ok(match text.strip_prefix("/") {
            Ok(below) => root.join(below),
            Err(_) => above.join(text),
        })
    }
}

fn request(what: u32, pid: i32, addr: usize, data: usize) -> io::Result<libc::c_long> {
    // SAFETY: `data` is a number, or the place of a structure of `addr` bytes that the caller owns and that the kernel fills.
    let done = unsafe { libc::ptrace(what, pid, addr, data) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done) }
}
