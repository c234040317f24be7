//! Memory of a caller: a program's buffer, which may not be mapped.
//!
//! For such a buffer the kernel returns EFAULT. A library in the kernel's place has to find out by itself. A
//! check before the copy is neither reliable (another thread may unmap the buffer meanwhile) nor cheap (a
//! store that changes nothing has to be a locked one). So copies from and to callers use instructions at
//! known addresses, and a handler of SIGSEGV and SIGBUS calls [`after_fault`].

use crate::{cpu, fault_handler};

/// The caller's buffer is not mapped, or only in part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadBuffer;

#[inline]
pub(crate) fn all(left_bytes: usize) -> Result<(), BadBuffer> {
    if left_bytes == 0 { Ok(()) } else { Err(BadBuffer) }
}

/// Copies between our memory and a caller's, which may not be mapped.
///
/// # Errors
/// [`BadBuffer`], in a process that handles faults with [`after_fault`]; otherwise the process gets the
/// fault.
///
/// # Safety
/// `from` is readable and `to` writable for `len_bytes`, unless faults are handled; no overlap.
pub unsafe fn copy_of_callers(to: *mut u8, from: *const u8, len_bytes: usize) -> Result<(), BadBuffer> {
    // SAFETY: the caller's promise.
    all(unsafe { cpu::copy(to, from, len_bytes) })
}

/// For a handler of SIGSEGV and SIGBUS: checks whether this fault, at `instruction` and of `address`, is that
/// of a caller's buffer. If so, the program must continue at the returned instruction, with all other
/// registers unchanged: the copy ends with [`BadBuffer`]. A fault in a region is not a caller's fault.
pub fn after_fault(instruction: usize, address: usize) -> Option<usize> {
    cpu::after_fault(instruction).filter(|_| !fault_handler::is_of_a_region(address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Pos, Region};
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
    use std::process::{Command, Stdio};

    extern "C" fn goes_on(_: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the kernel gives both to a handler with SA_SIGINFO.
        let (address, machine) =
            unsafe { ((*info).si_addr() as usize, &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext) };
        #[cfg(target_arch = "x86_64")]
        let at = &mut machine.gregs[libc::REG_RIP as usize];
        #[cfg(target_arch = "aarch64")]
        let at = &mut machine.pc;
        match after_fault(*at as usize, address) {
            Some(next) => *at = next as _,
            // SAFETY: ends the process.
            None => unsafe { libc::_exit(42) },
        }
    }

    #[test]
    fn an_unmapped_buffer_is_an_error_where_faults_are_handled() {
        const CHILD: &str = "HEDDLE_TEST_CALLER_CHILD";
        const PAGE: usize = 4096;
        if std::env::var_os(CHILD).is_some() {
            let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = goes_on;
            // SAFETY: plain numbers for which zero is valid; a handler that touches its arguments alone.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                (action.sa_sigaction, action.sa_flags) = (handler as usize, libc::SA_SIGINFO);
                libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut());
            }
            let region = Region::anonymous(1 << 20).unwrap();
            region.nt_write(Pos(0), &[7; 3 * PAGE]);
            let access = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a new mapping; the slices made of it below are used only by copies that may fault.
            let buffer = unsafe {
                let at = mmap_anonymous(std::ptr::null_mut(), 3 * PAGE, access, MapFlags::PRIVATE).unwrap();
                mprotect(at.byte_add(PAGE), PAGE, MprotectFlags::READ).unwrap();
                std::slice::from_raw_parts_mut(at.cast::<u8>(), 3 * PAGE)
            };
            for (from, to, there) in
                [(0, PAGE, true), (0, PAGE + 1, false), (PAGE, PAGE + 1, false), (2 * PAGE, 3 * PAGE, true)]
            {
                let into = &mut buffer[from..to];
                assert_eq!(region.read_out(Pos(1), into).is_ok(), there, "{from}..{to}");
                assert_eq!(region.zero_out(into).is_ok(), there, "zeros, {from}..{to}");
            }
            region.read(Pos(0), &mut buffer[..10]);
            assert_eq!(buffer[..10], [7; 10]);
            // The first two pages are mapped. Copies are short and long, at any position, and past the cache
            // too. SAFETY: as above.
            unsafe {
                mprotect(buffer.as_mut_ptr().add(2 * PAGE).cast(), PAGE, MprotectFlags::empty()).unwrap()
            };
            for durability in crate::Durability::ALL {
                let region = Region::anonymous_as(1 << 20, durability).unwrap();
                for (from, to, there) in [
                    (0, 2 * PAGE, true),
                    (0, 2 * PAGE + 1, false),
                    (2 * PAGE - 3, 2 * PAGE, true),
                    (2 * PAGE - 3, 2 * PAGE + 2, false),
                    (2 * PAGE - 24, 2 * PAGE + 8, false),
                    (2 * PAGE - 3000, 2 * PAGE + 96, false),
                    (2 * PAGE, 3 * PAGE, false),
                ] {
                    for at in [0, 3, 8] {
                        for whole in [0, 1 << 20] {
                            let taken = region.nt_write_user(Pos(at), &buffer[from..to], whole);
                            assert_eq!(
                                taken.is_ok(),
                                there,
                                "{durability}: {from}..{to} to {at}, of {whole}"
                            );
                        }
                    }
                }
                region.nt_write(Pos(1), &[9; 100]);
                assert_eq!(region.load_u64(Pos(88)), 0x0909_0909_0909_0909);
            }
            // A fault of any other instruction is not handled. SAFETY: the fault is what is tested: the
            // handler ends the process.
            unsafe { (PAGE as *mut u8).write_volatile(1) };
            unreachable!();
        }
        let name = "caller::tests::an_unmapped_buffer_is_an_error_where_faults_are_handled";
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args([name, "--exact", "--nocapture"]).env(CHILD, "1").stdout(Stdio::null());
        assert_eq!(child.status().unwrap().code(), Some(42));
    }
}
