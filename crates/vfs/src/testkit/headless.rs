//! A child whose first thread has ended, while another one lives: the kernel shows it by that alone.

use std::time::{Duration, Instant};

/// It has what the caller had open and mapped when it was made. Dropped, it is killed.
pub struct Headless {
    pid: libc::pid_t,
}

impl Headless {
    /// Makes it.
    ///
    /// # Panics
    /// Its first thread does not end.
    #[allow(clippy::new_without_default)] // it is a process
    pub fn new() -> Headless {
        extern "C" fn wait(_: *mut libc::c_void) -> *mut libc::c_void {
            loop {
                // SAFETY: it only waits for a signal.
                unsafe { libc::pause() };
            }
        }
        // SAFETY: the child makes plain calls alone, and ends with its parent.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            // SAFETY: as above; the thread lives until the process is killed.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                let mut thread = 0;
                libc::pthread_create(&raw mut thread, std::ptr::null(), wait, std::ptr::null_mut());
                libc::syscall(libc::SYS_exit, 0);
            }
        }
        let (child, began) = (Headless { pid }, Instant::now());
        let stat = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        while !stat().contains(") Z ") {
            assert!(began.elapsed() < Duration::from_secs(60), "its first thread does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
        child
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.pid as u32
    }
}

impl Drop for Headless {
    fn drop(&mut self) {
        // SAFETY: a child of this process, which has not been waited for.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), 0);
        }
    }
}
