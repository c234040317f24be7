//! Arguments of a call: which are served, and which go to the kernel. Only the kernel knows which of several
//! errors comes first.

use rustix::io::Errno;

/// The longest single call, as in the kernel.
pub const CALL_BYTES_MAX: usize = 0x7fff_f000;
/// No buffer of a program ends after this address: the kernel refuses such a buffer before any other check.
const BUFFERS_END: usize = if cfg!(target_arch = "x86_64") {
    (1 << 47) - 4096
} else {
    // aarch64. Some kernels have higher addresses, for programs that ask for them. Such a call goes to the kernel.
    1 << 48
};

/// The start and length of a transfer. Returns `None` if the kernel must report what is wrong with it.
#[inline]
pub fn transfer(buf: usize, len: usize, offset: i64) -> Option<(u64, usize)> {
    let from = u64::try_from(offset).ok()?;
    if len <= CALL_BYTES_MAX && offset <= i64::MAX - CALL_BYTES_MAX as i64 {
        return Some((from, len));
    }
    large(buf, len, offset).then_some((from, len.min(CALL_BYTES_MAX)))
}

/// Returns true if a buffer of a program may lie there. The kernel refuses any other before its other checks,
/// whatever the length.
#[inline]
pub fn may_be_there(buf: usize, len: usize) -> bool {
    buf.checked_add(len).is_some_and(|end| end <= BUFFERS_END)
}

/// The result of a call that moves nothing. Returns `None` if the kernel must report what is wrong with it.
#[cold]
pub fn nothing(buf: usize) -> Option<usize> {
    may_be_there(buf, 0).then_some(0)
}

#[cold]
fn large(buf: usize, len: usize, offset: i64) -> bool {
    may_be_there(buf, len) && i64::try_from(len).is_ok_and(|len| offset.checked_add(len).is_some())
}

/// The offset that lseek(2) reaches from `base`: 0, the present offset or the end.
pub fn seek_to(base: u64, offset: i64) -> Result<u64, Errno> {
    let to = i128::from(base) + i128::from(offset);
    i64::try_from(to).ok().and_then(|to| u64::try_from(to).ok()).ok_or(Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_refuses_is_left_to_it() {
        assert_eq!(transfer(4096, 10, 7), Some((7, 10)));
        assert_eq!(transfer(4096, 0, i64::MAX), Some((i64::MAX as u64, 0)));
        assert_eq!(transfer(4096, 10, -1), None, "a negative offset");
        assert_eq!(transfer(4096, 10, i64::MAX - 9), None, "an end that is no offset");
        assert_eq!(transfer(4096, 9, i64::MAX - 9), Some((i64::MAX as u64 - 9, 9)));
        assert_eq!(transfer(4096, usize::MAX, 0), None, "a length that is negative as ssize_t");
        assert_eq!(
            transfer(BUFFERS_END - 4096, CALL_BYTES_MAX + 1, 0),
            None,
            "a buffer that ends in the kernel"
        );
    }

    #[test]
    fn buffers_end_a_page_before_the_kernels_addresses() {
        let end = if cfg!(target_arch = "x86_64") { 0x7fff_ffff_f000 } else { 0x1_0000_0000_0000 };
        assert!(may_be_there(end, 0) && may_be_there(end - 1, 1));
        assert!(!may_be_there(end, 1) && !may_be_there(end + 1, 0));
    }

    #[test]
    fn buffers_of_this_program_may_be_there() {
        let (on_stack, on_heap) = ([0_u8; 8], vec![0_u8; 8 << 20]);
        for buffer in [&on_stack[..], &on_heap] {
            assert!(may_be_there(buffer.as_ptr().addr(), buffer.len()), "{:p}", buffer.as_ptr());
        }
    }

    #[test]
    fn of_an_address_that_cannot_be_not_even_nothing_is_moved() {
        assert_eq!((nothing(8), nothing(BUFFERS_END - 1)), (Some(0), Some(0)));
        assert_eq!((nothing(BUFFERS_END + 1), nothing(usize::MAX)), (None, None));
        assert!(
            may_be_there(BUFFERS_END - 5, 5)
                && !may_be_there(BUFFERS_END - 5, 6)
                && !may_be_there(usize::MAX, 2)
        );
    }

    #[test]
    fn a_huge_count_is_cut_to_what_one_call_moves() {
        assert_eq!(transfer(4096, 1 << 40, 5), Some((5, CALL_BYTES_MAX)));
        assert_eq!(transfer(4096, CALL_BYTES_MAX, 5), Some((5, CALL_BYTES_MAX)));
    }

    #[test]
    fn seeks_end_at_offsets_that_a_file_can_have() {
        assert_eq!(seek_to(10, -10), Ok(0));
        assert_eq!(seek_to(10, -11), Err(Errno::INVAL));
        assert_eq!(seek_to(0, i64::MAX), Ok(i64::MAX as u64));
        assert_eq!(seek_to(1, i64::MAX), Err(Errno::INVAL));
        assert_eq!(seek_to(1, i64::MIN), Err(Errno::INVAL));
    }

    #[test]
    fn only_what_is_unusual_is_looked_at_closely() {
        let most = i64::MAX - CALL_BYTES_MAX as i64;
        assert_eq!(transfer(BUFFERS_END, CALL_BYTES_MAX, most), Some((most as u64, CALL_BYTES_MAX)));
        assert_eq!(transfer(BUFFERS_END, 1, most + 1), None);
        assert_eq!(
            transfer(BUFFERS_END - 1, 1, most + 1),
            Some((most as u64 + 1, 1)),
            "it ends where it may"
        );
        assert_eq!(transfer(BUFFERS_END, CALL_BYTES_MAX + 1, 0), None);
        let before = BUFFERS_END - CALL_BYTES_MAX - 1;
        assert_eq!(transfer(before, CALL_BYTES_MAX + 1, 0), Some((0, CALL_BYTES_MAX)));
        assert_eq!(transfer(usize::MAX, CALL_BYTES_MAX + 1, 0), None, "it ends nowhere");
        assert_eq!(CALL_BYTES_MAX, 0x7fff_f000);
    }
}
