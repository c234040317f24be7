//! What the kernel is asked and told: a filter of system calls counts it.

use super::*;
use crate::tests::Scene;
use crate::words::Words;
use heddle_vfs::ioctl::THROUGH_KERNEL;
use heddle_vfs::{FileSystem, Openers};
use std::ffi::{c_int, c_void};
use std::sync::atomic::AtomicU32;

/// Calls that make the kernel ask the mount for a size.
static ASKS: AtomicU32 = AtomicU32::new(0);
/// Announcements that calls go through the kernel.
static TELLS: AtomicU32 = AtomicU32::new(0);

/// Counts a call, which the filter has stopped, and fails it.
extern "C" fn count(_signal: c_int, _info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's, for this call of the handler. The register has the call's number, and its result afterwards.
    let result =
        unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_RAX as usize] };
    let counter = if *result == libc::SYS_statx { &ASKS } else { &TELLS };
    counter.fetch_add(1, SeqCst);
    *result = -i64::from(libc::EIO);
}

/// The calling thread's calls of the two kinds are counted from now on. Returns false if there are no such filters here.
fn are_counted() -> bool {
    const FORCE_SYNC: u32 = 0x2000;
    let statement = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let jump = libc::BPF_JMP | libc::BPF_K;
    // The number of the call is the first word, its arguments begin at byte 16.
    let mut all = [
        statement(load, 0, 0, 0),
        statement(jump | libc::BPF_JEQ, 0, 2, libc::SYS_statx as u32),
        statement(load, 0, 0, 16 + 2 * 8),
        statement(jump | libc::BPF_JSET, 4, 3, FORCE_SYNC),
        statement(jump | libc::BPF_JEQ, 0, 2, libc::SYS_ioctl as u32),
        statement(load, 0, 0, 16 + 8),
        statement(jump | libc::BPF_JEQ, 1, 0, THROUGH_KERNEL),
        statement(libc::BPF_RET, 0, 0, libc::SECCOMP_RET_ALLOW),
        statement(libc::BPF_RET, 0, 0, libc::SECCOMP_RET_TRAP),
    ];
    let program = libc::sock_fprog { len: all.len() as u16, filter: all.as_mut_ptr() };
    // SAFETY: a handler of a signal that no other test gets; the filter is this thread's, and lives as long as the call that sets it.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGSYS, &action, std::ptr::null_mut()) == 0
            && libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) == 0
    }
}

/// How often `call` has the kernel ask, and tell.
fn of(call: impl FnOnce()) -> (u32, u32) {
    let before = (ASKS.load(SeqCst), TELLS.load(SeqCst));
    call();
    (ASKS.load(SeqCst) - before.0, TELLS.load(SeqCst) - before.1)
}

/// Runs a test in a thread whose calls are counted.
fn counting(test: fn(&Scene)) {
    let in_thread = move || {
        let scene = Scene::new();
        if are_counted() {
            test(&scene);
        } else {
            eprintln!("SKIPPED, NOT TESTED: there are no filters of system calls here");
        }
    };
    std::thread::spawn(in_thread).join().unwrap();
}

#[test]
fn a_descriptor_that_is_given_away_is_announced_as_needed() {
    counting(|scene| {
        let give = |file: &File| of(|| file.give_offset_away(scene.fd()));
        let [unused, used, announced, shared] = [(); 4].map(|()| scene.open(libc::O_RDWR));
        assert_eq!(give(&unused), (0, 0), "nobody was told anything of it");
        assert_eq!(used.sync(true), Ok(Ok(())));
        assert_eq!(give(&used), (0, 0), "the kernel has the size");
        assert_eq!(used.truncate(scene.fd(), 9), Ok(Ok(())));
        assert_eq!(give(&used), (1, 0), "it has grown since");
        announced.announced.to_mount.store(ANNOUNCED, SeqCst);
        assert_eq!(give(&announced), (0, 1));
        assert_eq!(give(&announced), (0, 0), "once is for ever");
        shared.share_with_child(scene.fd(), &mut Words::default());
        assert_eq!(give(&shared), (1, 1), "a child may have announced and changed it");
        shared.close();
    });
}

#[test]
fn a_descriptor_that_a_program_is_told_is_announced_once() {
    counting(|scene| {
        let file = scene.open(libc::O_RDWR);
        let tell = || of(|| file.is_told(scene.fd()));
        assert_eq!((tell(), tell()), ((1, 1), (0, 0)));
    });
}

#[test]
fn the_kernel_asks_before_it_appends_or_maps() {
    counting(|scene| {
        let [plain, appends] = [0, libc::O_APPEND].map(|flag| scene.open(libc::O_RDWR | flag));
        let calls = |file: &File| of(|| assert_eq!(file.with_kernel_offset(scene.fd(), || 5), Some(5)));
        assert_eq!((calls(&plain), calls(&appends)), ((0, 0), (1, 0)));
        assert_eq!(of(|| KernelStat::refresh_for_mapping(scene.fd())), (1, 0));
        let again = of(|| assert_eq!(appends.write_again(scene.fd(), b"x", 0, true), Ok(())));
        assert_eq!(again, (1, 0), "what was appended under a mapping");
    });
}

#[test]
fn beside_others_the_kernel_asks_only_for_what_it_lacks() {
    counting(|scene| {
        let file = scene.open(libc::O_RDWR);
        scene.fs.note_openers(&scene.theirs, Openers { open: 2, past_kernel: 0 });
        for (kernels, asks) in [(0, 1), (2, 1), (3, 0), (4, 0), (9, 0)] {
            scene.kernels.set_len(kernels).unwrap();
            // SAFETY: one byte.
            let write = || unsafe { file.write_at(scene.fd(), b"x".as_ptr(), 1, 2, false) };
            assert_eq!(of(|| assert_eq!(write(), Ok(Ok((1, 3))))), (asks, 0), "of {kernels} bytes");
        }
        for (kernels, asks) in [(4, 1), (5, 0), (6, 1)] {
            scene.kernels.set_len(kernels).unwrap();
            let cut = || assert_eq!(file.truncate(scene.fd(), 5), Ok(Ok(())));
            assert_eq!(of(cut), (asks, 0), "of {kernels} bytes");
        }
    });
}
