//! State that this process got from its parent and passes on unchanged: whether SIGPIPE is ignored, and which
//! of the descriptors 0 to 2 are closed. The language's runtime changes both before `main`, so they are read
//! before that.

use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::SeqCst};

static PIPE_IGNORED: AtomicBool = AtomicBool::new(false);
/// One bit for each of the descriptors 0 to 2.
static CLOSED: AtomicU8 = AtomicU8::new(0);

#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    // SAFETY: plain numbers and sets, for which zero is valid.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: null, and a live local.
    unsafe { libc::sigaction(libc::SIGPIPE, std::ptr::null(), &mut action) };
    PIPE_IGNORED.store(action.sa_sigaction == libc::SIG_IGN, SeqCst);
    // SAFETY: no pointer is involved.
    let closed = (0..3).filter(|fd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } < 0);
    CLOSED.store(closed.fold(0, |bits, fd| bits | 1 << fd), SeqCst);
}

/// Returns true if the parent process had closed that descriptor. Output to it is lost.
pub fn is_closed(fd: u8) -> bool {
    CLOSED.load(SeqCst) & 1 << fd != 0
}

/// Replaces this process by the program, as execvp(3). Returns the error if that fails.
pub fn become_program(command: &[OsString]) -> io::Error {
    let words: Result<Vec<CString>, _> =
        command.iter().map(|word| CString::new(word.clone().into_vec())).collect();
    let Ok(words) = words else { return io::Error::from(io::ErrorKind::InvalidInput) };
    let Some(program) = words.first() else { return io::Error::from(io::ErrorKind::InvalidInput) };
    let mut argv: Vec<*const libc::c_char> = words.iter().map(|word| word.as_ptr()).collect();
    argv.push(std::ptr::null());
    let pipe = if PIPE_IGNORED.load(SeqCst) { libc::SIG_IGN } else { libc::SIG_DFL };
    // SAFETY: no pointer is involved; no code here has opened one of these numbers since.
    unsafe {
        libc::signal(libc::SIGPIPE, pipe);
        for fd in (0..3).filter(|fd| CLOSED.load(SeqCst) & 1 << fd != 0) {
            libc::close(fd);
        }
    }
    // SAFETY: strings that live on, and null at the end.
    unsafe { libc::execvp(program.as_ptr(), argv.as_ptr()) };
    io::Error::last_os_error()
}
