//! Writes from memory that is not there, in a process that handles faults: nothing has changed, and nothing is missing.

mod common;

use common::{Disk, Short, each_variant};
use heddle_vfs::{Error, FileSystem, Handle, Ino, RangeOp};
use std::ptr::null_mut;
use std::sync::Once;

const PAGE: usize = 4096;
/// Those of a buffer that are there; one more is not.
const THERE: usize = 3;

/// Goes on after a copy of a caller's buffer, as the bypass does.
extern "C" fn goes_on(_: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives both to a handler with SA_SIGINFO.
    let (address, machine) =
        unsafe { ((*info).si_addr() as usize, &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext) };
    #[cfg(target_arch = "x86_64")]
    let at = &mut machine.gregs[libc::REG_RIP as usize];
    #[cfg(target_arch = "aarch64")]
    let at = &mut machine.pc;
    match heddle_nvmfs::after_fault(*at as usize, address) {
        Some(next) => *at = next as _,
        // SAFETY: ends the process.
        None => unsafe { libc::_exit(42) },
    }
}

/// Full of 7, but for the last page, which is not there.
fn buffer() -> &'static [u8] {
    buffer_of(THERE)
}

/// The same, of so many pages that are there.
fn buffer_of(there: usize) -> &'static [u8] {
    static HANDLED: Once = Once::new();
    HANDLED.call_once(|| {
        let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = goes_on;
        // SAFETY: plain numbers for which zero is valid; a handler that touches its arguments alone.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            (action.sa_sigaction, action.sa_flags) = (handler as usize, libc::SA_SIGINFO);
            assert_eq!(libc::sigaction(libc::SIGSEGV, &action, null_mut()), 0);
        }
    });
    let len = (there + 1) * PAGE;
    let (access, how) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, never unmapped; what is not there is reached through copies that may fault.
    unsafe {
        let at = libc::mmap(null_mut(), len, access, how, -1, 0).cast::<u8>();
        assert_ne!(at.cast(), libc::MAP_FAILED);
        at.write_bytes(7, there * PAGE);
        assert_eq!(libc::mprotect(at.add(there * PAGE).cast(), PAGE, libc::PROT_NONE), 0);
        std::slice::from_raw_parts(at, len)
    }
}

/// From which byte of the buffer to which, and to where in a file of two pages and a half.
const WRITES: [(usize, usize, u64); 7] = [
    // A page, whole and not there.
    (THERE * PAGE, (THERE + 1) * PAGE, 0),
    (PAGE * THERE - 1, PAGE * (THERE + 1) - 1, 4096),
    // Less than a word, and a ragged end.
    (THERE * PAGE, THERE * PAGE + 3, 5),
    (THERE * PAGE - 2, THERE * PAGE + 2, 4094),
    // Several pages, beyond the end, and far beyond it.
    (0, THERE * PAGE + 1, 1),
    (100, THERE * PAGE + 100, 4096),
    (PAGE, THERE * PAGE + 1, 4 << 20),
];

#[test]
fn a_write_from_a_bad_buffer_changes_and_takes_nothing() {
    each_variant(|variant| {
        let (disk, buffer) = (Disk::new(variant, 16 << 20), buffer());
        let volume = disk.mount();
        let fs = volume.fs();
        let handle = fs.new_file(Ino::ROOT, "f");
        let old: Vec<u8> = (0..PAGE as u32 * 5 / 2).map(|at| (at % 251) as u8).collect();
        fs.write(&handle, 0, &old).unwrap();
        fs.append(&handle, &old[..PAGE]).unwrap();
        fs.setattr(
            &common::root(),
            handle.ino,
            None,
            &heddle_vfs::SetAttr { size_bytes: Some(old.len() as u64), ..Default::default() },
        )
        .unwrap();
        let bad = |handle: &Handle, (from, to, at): (usize, usize, u64)| {
            let (written, appended) =
                (fs.write(handle, at, &buffer[from..to]), fs.append(handle, &buffer[from..to]));
            assert!(matches!(written, Err(Error::BadBuffer)), "{from}..{to} to {at}: {written:?}");
            assert!(matches!(appended, Err(Error::BadBuffer)), "{from}..{to} appended: {appended:?}");
        };
        // The first of them gives the lane what it keeps.
        WRITES.into_iter().for_each(|it| bad(&handle, it));
        let (attr, free) = (fs.getattr(handle.ino).unwrap(), fs.statfs().unwrap().blocks_free);
        for _ in 0..100 {
            WRITES.into_iter().for_each(|it| bad(&handle, it));
        }
        assert_eq!(fs.getattr(handle.ino).unwrap(), attr);
        assert_eq!(fs.statfs().unwrap().blocks_free, free, "blocks are missing");
        assert_eq!(fs.read_vec(&handle, 0, 1 << 20), old);
        // The same calls, of what is there.
        fs.write(&handle, 0, &buffer[..THERE * PAGE]).unwrap();
        assert_eq!(fs.read_vec(&handle, 0, 1 << 20), vec![7; THERE * PAGE]);
        drop(fs);
        volume.abandon();
        let volume = disk.mount();
        let fs = volume.fs();
        let handle = fs.open_file(Ino::ROOT, "f");
        assert_eq!(fs.read_vec(&handle, 0, 1 << 20), vec![7; THERE * PAGE]);
        drop(fs);
        volume.unmount();
        common::sound(disk.region()).unwrap();
    });
}

/// Free space in single blocks: such a write has an extent list. It is the first of its file, which has a log page prepared then.
#[test]
fn a_first_write_from_a_bad_buffer_leaves_no_block_taken() {
    each_variant(|variant| {
        let (disk, buffer) = (Disk::new(variant, 4 << 20), buffer_of(40));
        let volume = disk.mount();
        let fs = volume.fs();
        let ballast = fs.new_file(Ino::ROOT, "ballast");
        while fs.append(&ballast, &[1; PAGE]).is_ok() {}
        for page in (0..fs.size(&ballast)).step_by(2 * PAGE) {
            fs.fallocate(&ballast, RangeOp::Punch, page, PAGE as u64).unwrap();
        }
        let round = || {
            let handle = fs.new_file(Ino::ROOT, "f");
            let written = fs.write(&handle, 0, buffer);
            assert!(matches!(written, Err(Error::BadBuffer)), "{written:?}");
            fs.release(handle);
            fs.remove(Ino::ROOT, "f").unwrap();
        };
        // The first of them give the lane what it keeps.
        (0..10).for_each(|_| round());
        let free = fs.statfs().unwrap().blocks_free;
        (0..40).for_each(|_| round());
        let missing = free.saturating_sub(fs.statfs().unwrap().blocks_free);
        assert!(missing < 10, "{missing} blocks are missing");
        drop(fs);
        volume.unmount();
        common::sound(disk.region()).unwrap();
    });
}

/// On a full image a long write is made page by page.
#[test]
fn on_a_full_image_a_write_ends_before_a_missing_page() {
    each_variant(|variant| {
        let (disk, buffer) = (Disk::new(variant, 16 << 20), buffer());
        let volume = disk.mount();
        let fs = volume.fs();
        let handle = fs.new_file(Ino::ROOT, "f");
        while fs.append(&handle, &[1; 64 * PAGE]).is_ok() {}
        while fs.append(&handle, &[1; PAGE]).is_ok() {}
        let size = fs.size(&handle);
        assert!(size > 4 << 20, "{size}");
        let from_there = fs.write(&handle, 0, buffer);
        assert!(
            matches!(from_there, Ok(n) if n == THERE * PAGE) || matches!(from_there, Err(Error::BadBuffer)),
            "{from_there:?}"
        );
        let all = fs.read_vec(&handle, 0, size as usize);
        let n = from_there.unwrap_or(0);
        assert!(all[..n].iter().all(|byte| *byte == 7) && all[n..].iter().all(|byte| *byte == 1));
        drop(fs);
        volume.unmount();
        common::sound(disk.region()).unwrap();
    });
}
