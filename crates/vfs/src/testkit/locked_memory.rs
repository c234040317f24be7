//! A process of another user whose mappings nobody can read: a reader waits for ever.
//!
//! The process has stored to a mapped file of a FUSE server, and executes a program. While it gives up its old memory, the kernel keeps
//! the process's mappings locked, and waits for the server to take the page. The server, a thread of the test, never answers that.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const PAGE_BYTES: usize = 4096;
/// The user of the process.
const STRANGER: libc::uid_t = 54_321;
/// How long the kernel may take to bring the process there.
const BEGIN_MAX: Duration = Duration::from_secs(60);

/// The process, and the server. Dropped, both end.
pub struct LockedMemory {
    pid: libc::pid_t,
    server: Option<(Sender<()>, JoinHandle<()>)>,
}

impl LockedMemory {
    /// `None`, said loudly, where mounting is not possible.
    ///
    /// # Panics
    /// The process does not come as far as that.
    pub fn new() -> Option<LockedMemory> {
        let device = File::options().read(true).write(true).open("/dev/fuse").ok();
        // SAFETY: takes no pointers.
        let Some(device) = device.filter(|_| unsafe { libc::geteuid() } == 0) else {
            eprintln!("SKIPPED, NOT TESTED: mounting needs root and /dev/fuse");
            return None;
        };
        let number = device.as_raw_fd();
        // The mount covers a file that is there in any case, in a namespace of the process's own.
        let covered = CString::new(std::env::current_exe().ok()?.as_os_str().as_bytes()).ok()?;
        let words = CString::new(format!("fd={number},rootmode=100666,user_id=0,group_id=0")).ok()?;
        // SAFETY: the child makes plain calls alone, and never returns.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            // SAFETY: as above; both texts end with a zero, and the number is that of the device.
            unsafe { lock(&covered, &words, number) }
        }
        let ((tell, locked), (goes_on, ends)) = (channel(), channel());
        let server = std::thread::spawn(move || serve(device, &tell, &ends));
        let process = LockedMemory { pid, server: Some((goes_on, server)) };
        locked.recv_timeout(BEGIN_MAX).expect("the process does not come as far as that");
        Some(process)
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.pid as u32
    }
}

impl Drop for LockedMemory {
    fn drop(&mut self) {
        // SAFETY: a child of this process, which has not been waited for.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
        if let Some((goes_on, server)) = self.server.take() {
            drop(goes_on);
            let _ = server.join();
        }
        // SAFETY: as above.
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) };
    }
}

/// Mounts, stores to the file, and executes a program.
///
/// # Safety
/// In a forked child alone: it never returns.
unsafe fn lock(covered: &CStr, words: &CStr, device: RawFd) -> ! {
    let fuse = c"fuse".as_ptr();
    // SAFETY: all texts end with a zero; the store is to a page that is mapped. The process is the caller's to end.
    unsafe {
        let root = c"/".as_ptr();
        let private = libc::MS_REC | libc::MS_PRIVATE;
        let done = libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(c"none".as_ptr(), root, std::ptr::null(), private, std::ptr::null()) == 0
            && libc::mount(fuse, covered.as_ptr(), fuse, 0, words.as_ptr().cast()) == 0;
        let file = libc::open(covered.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        libc::close(device);
        // The kernel learns the length.
        let mut stat = MaybeUninit::uninit();
        if !done
            || libc::fstat(file, stat.as_mut_ptr()) != 0
            || libc::setresuid(STRANGER, STRANGER, STRANGER) != 0
        {
            libc::_exit(1);
        }
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let page = libc::mmap(std::ptr::null_mut(), PAGE_BYTES, both, libc::MAP_SHARED, file, 0);
        if page == libc::MAP_FAILED {
            libc::_exit(2);
        }
        page.cast::<u8>().write_volatile(1);
        let program = c"/bin/true".as_ptr();
        libc::execv(program, [program, std::ptr::null()].as_ptr());
        libc::_exit(3)
    }
}

/// Answers until the kernel writes the page back, tells that, and does nothing until the other end is dropped.
fn serve(mut device: File, tell: &Sender<()>, ends: &Receiver<()>) {
    const GETATTR: u32 = 3;
    const OPEN: u32 = 14;
    const READ: u32 = 15;
    const WRITE: u32 = 16;
    const INIT: u32 = 26;
    /// Of each question and each answer.
    const HEADER_BYTES: usize = 16;
    let mut question = vec![0; 1 << 20];
    let began = Instant::now();
    loop {
        // Until it is mounted there is nothing to read.
        let len = match device.read(&mut question) {
            Ok(len) => len,
            Err(_) if began.elapsed() < BEGIN_MAX => {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            Err(_) => return,
        };
        let code = question[..len].get(4..8).map(|code| u32::from_ne_bytes(code.try_into().unwrap()));
        let body: Result<Vec<u8>, i32> = match code {
            Some(WRITE) => break,
            // Version, and bytes of a write.
            Some(INIT) => Ok(words(&[7, 31, 0, 0, 0, PAGE_BYTES as u32], 64)),
            // A file of one page. Before its attributes stand 16 bytes for how long they may be kept.
            Some(GETATTR) => {
                let mut body = words(&[], 104);
                body[16] = 1;
                body[24..28].copy_from_slice(&(PAGE_BYTES as u32).to_ne_bytes());
                body[76..80].copy_from_slice(&0o100_666_u32.to_ne_bytes());
                body[80] = 1;
                Ok(body)
            }
            Some(OPEN) => Ok(words(&[], 16)),
            Some(READ) => Ok(vec![0; PAGE_BYTES]),
            _ => Err(-libc::ENOSYS),
        };
        let (errno, body) = body.map_or_else(|errno| (errno, Vec::new()), |body| (0, body));
        let mut answer = Vec::from(((HEADER_BYTES + body.len()) as u32).to_ne_bytes());
        answer.extend(errno.to_ne_bytes());
        answer.extend(&question[8..16]);
        answer.extend(body);
        // One that is not waited for is refused.
        let _ = device.write_all(&answer);
    }
    let _ = tell.send(());
    let _ = ends.recv();
}

/// So many bytes, which begin with these numbers.
fn words(numbers: &[u32], bytes: usize) -> Vec<u8> {
    let mut body: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
    body.resize(bytes, 0);
    body
}
