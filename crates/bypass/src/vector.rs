//! Calls with a vector of buffers: each is one call of the engine, through a buffer of our own, so that it is seen as a whole.
//!
//! A bad vector, and a buffer that is not there, are left to the kernel.

use crate::args::{CALL_BYTES_MAX, may_be_there};
use crate::file::{Passed, Served};
use heddle_nvmfs::{BadBuffer, copy_of_callers};
use libc::{c_int, c_void, iovec};
use std::ptr::null_mut;

/// Most elements of a vector, as the kernel's.
const VECTOR_MAX: usize = 1024;

/// A vector with at most so many elements needs no memory from the heap, as in the kernel.
const FEW: usize = 8;

/// A buffer of zeros. For a long one the kernel provides only the pages that are written: a vector may be far
/// longer than the file.
fn zeros(len: usize) -> Result<Vec<u8>, Passed> {
    let layout = std::alloc::Layout::array::<u8>(len.max(1)).map_err(|_| Passed::Unserved)?;
    // SAFETY: a layout of at least one byte.
    let first = unsafe { std::alloc::alloc_zeroed(layout) };
    if first.is_null() {
        // The kernel makes the call.
        return Err(Passed::Unserved);
    }
    // SAFETY: of the global allocator, of this layout, and all of it is written: zeros.
    Ok(unsafe { Vec::from_raw_parts(first, len, layout.size()) })
}

/// Serves a call with a copy of its vector, because another thread may change the vector meanwhile; also
/// passes how many bytes the call moves at most.
fn with_elements(
    vector: *const iovec,
    n: c_int,
    serve: impl FnOnce(&[iovec], usize) -> Served<usize>,
) -> Served<usize> {
    let n = usize::try_from(n).ok().filter(|n| *n <= VECTOR_MAX).ok_or(Passed::Unserved)?;
    let none = iovec { iov_base: null_mut(), iov_len: 0 };
    let (mut few, mut many) = ([none; FEW], Vec::new());
    let parts = match few.get_mut(..n) {
        Some(few) => few,
        None => {
            many.try_reserve_exact(n).map_err(|_| Passed::Unserved)?;
            many.resize(n, none);
            &mut many[..]
        }
    };
    // SAFETY: the target has room; a vector that is not mapped ends the copy.
    unsafe { copy_of_callers(parts.as_mut_ptr().cast(), vector.cast(), size_of_val(parts)) }.or_else(bad)?;
    if !parts.iter().all(|part| may_be_there(part.iov_base.addr(), part.iov_len)) {
        return Err(Passed::Unserved);
    }
    let sum = parts.iter().try_fold(0_usize, |sum, part| sum.checked_add(part.iov_len));
    let sum = sum.filter(|sum| isize::try_from(*sum).is_ok()).ok_or(Passed::Unserved)?;
    serve(parts, sum.min(CALL_BYTES_MAX))
}

#[cold]
fn bad<T>(BadBuffer: BadBuffer) -> Result<T, Passed> {
    Err(Passed::Unserved)
}

/// The buffers of a vector, with one of our own before them if there are several.
pub struct VectorBuffer<'v> {
    parts: &'v [iovec],
    whole: Vec<u8>,
}

impl VectorBuffer<'_> {
    /// Reads into the buffers. If one is not mapped, the kernel repeats the read, so the caller must not move the offset.
    pub fn fill(&mut self, read: impl FnOnce(*mut c_void, usize) -> Served<usize>) -> Served<usize> {
        if let [one] = self.parts {
            return read(one.iov_base, one.iov_len);
        }
        let done = read(self.whole.as_mut_ptr().cast(), self.whole.len())?;
        if let Ok(n) = done {
            let mut rest = &self.whole[..n];
            for part in self.parts {
                let (now, later) = rest.split_at(part.iov_len.min(rest.len()));
                // SAFETY: the caller's promise; a buffer that is not mapped ends the copy to it.
                unsafe { copy_of_callers(part.iov_base.cast(), now.as_ptr(), now.len()) }.or_else(bad)?;
                rest = later;
            }
        }
        Ok(done)
    }
}

/// Makes what a read into a vector needs of the heap, before `serve` takes a lock: a signal handler may wait for that lock, in the middle
/// of its thread's malloc(3).
pub fn with_vector_buffer(
    vector: *const iovec,
    n: c_int,
    serve: impl FnOnce(&mut VectorBuffer<'_>) -> Served<usize>,
) -> Served<usize> {
    with_elements(vector, n, |parts, len| {
        let whole = if parts.len() == 1 { Vec::new() } else { zeros(len)? };
        serve(&mut VectorBuffer { parts, whole })
    })
}

/// Reads into the buffers of a vector. If a buffer is not mapped, the kernel repeats the read.
pub fn read_vector(
    vector: *const iovec,
    n: c_int,
    read: impl FnOnce(*mut c_void, usize) -> Served<usize>,
) -> Served<usize> {
    with_vector_buffer(vector, n, |buffer| buffer.fill(read))
}

/// Writes from the buffers of a vector, if each is `readable`.
pub fn write_vector(
    vector: *const iovec,
    n: c_int,
    readable: impl Fn(&iovec) -> bool,
    write: impl FnOnce(*const c_void, usize) -> Served<usize>,
) -> Served<usize> {
    with_elements(vector, n, |parts, len| {
        if let [one] = parts {
            return write(one.iov_base, one.iov_len);
        }
        if !parts.iter().all(readable) {
            return bad(BadBuffer);
        }
        let mut whole: Vec<u8> = Vec::new();
        whole.try_reserve_exact(len).map_err(|_| Passed::Unserved)?;
        for part in parts {
            let done = whole.len();
            let room = &mut whole.spare_capacity_mut()[..len - done];
            let now = part.iov_len.min(room.len());
            // SAFETY: the target has room; a buffer that is not mapped ends the copy.
            unsafe { copy_of_callers(room.as_mut_ptr().cast(), part.iov_base.cast(), now) }.or_else(bad)?;
            // SAFETY: they were just copied there.
            unsafe { whole.set_len(done + now) };
        }
        write(whole.as_ptr().cast(), whole.len())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: usize = 3 << 19;

    /// A vector of this many elements of 1.5 MiB, all in one buffer.
    fn of_one_buffer(buffer: &mut [u8], n: usize) -> Vec<iovec> {
        vec![iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() }; n]
    }

    fn most_memory_kib() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().split(' ').next().unwrap().parse().unwrap()
    }

    #[test]
    fn vectors_of_more_than_a_gibibyte_are_moved_whole() {
        let mut buffer = vec![7; PART];
        let vector = of_one_buffer(&mut buffer, VECTOR_MAX);
        let before = most_memory_kib();
        let read = |_, len| Ok(Ok(len));
        assert_eq!(read_vector(vector.as_ptr(), VECTOR_MAX as c_int, read), Ok(Ok(PART * VECTOR_MAX)));
        assert!(buffer.iter().all(|byte| *byte == 0), "what was read came into the buffer");
        let mut twice = vec![7; 2 * PART];
        let vector = of_one_buffer(&mut twice, VECTOR_MAX);
        let read = |_, len| if len == CALL_BYTES_MAX { Ok(Ok(5)) } else { Err(Passed::Unserved) };
        assert_eq!(read_vector(vector.as_ptr(), VECTOR_MAX as c_int, read), Ok(Ok(5)), "the kernel's limit");
        assert_eq!(twice[..6], [0, 0, 0, 0, 0, 7]);
        assert!(most_memory_kib() - before < 100 << 10, "{} KiB more", most_memory_kib() - before);
    }

    #[test]
    fn a_vector_is_written_as_one_piece_in_its_order() {
        let mut bytes = *b"one, two";
        let parts = [(5, 3), (3, 2), (0, 0), (0, 3)]
            .map(|(at, len)| iovec { iov_base: bytes[at..].as_mut_ptr().cast(), iov_len: len });
        let n = parts.len() as c_int;
        let write = |at: *const c_void, len| {
            // SAFETY: the bytes that are to be written.
            assert_eq!(unsafe { std::slice::from_raw_parts(at.cast::<u8>(), len) }, b"two, one");
            Ok(Ok(len))
        };
        assert_eq!(write_vector(parts.as_ptr(), n, |_| true, write), Ok(Ok(8)));
        let none = |_, _| panic!("it is the kernel's");
        assert_eq!(write_vector(parts.as_ptr(), n, |part| part.iov_len != 2, none), Err(Passed::Unserved));
        assert_eq!(write_vector(parts.as_ptr(), -1, |_| true, none), Err(Passed::Unserved));
        assert_eq!(read_vector(parts.as_ptr(), 1025, |_, _| panic!("nor this")), Err(Passed::Unserved));
    }
}
