//! A path of a workload, relative to the root of what is measured: inline and NUL-terminated, so that thousands of
//! them made before the clock starts lie in one array, for both worlds.

use std::fmt::{self, Write};

/// Longest path with its NUL: `share/4095.4294967295.2` and more.
const ROOM_BYTES: usize = 40;

/// A relative path such as `3/0/0/0/0`.
///
/// Workloads look at random ones of many: its beginning lies in one cache line.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
pub(crate) struct RelPath {
    len: u8,
    bytes: [u8; ROOM_BYTES],
}

impl RelPath {
    /// From `format_args!`; panics on a path too long, which only a workload could make.
    pub fn new(text: fmt::Arguments<'_>) -> RelPath {
        let mut path = RelPath { bytes: [0; ROOM_BYTES], len: 0 };
        path.write_fmt(text).expect("workload paths fit");
        path
    }

    /// Without the NUL.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Prefetches its beginning for a walk that comes soon.
    #[inline]
    pub fn prefetch(&self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint, which faults at no address.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(
                std::ptr::from_ref(self).cast(),
            )
        };
    }

    /// For calls of the C library.
    pub fn as_ptr(&self) -> *const libc::c_char {
        self.bytes.as_ptr().cast()
    }
}

impl Write for RelPath {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let at = usize::from(self.len);
        let room = self.bytes[..ROOM_BYTES - 1].get_mut(at..at + s.len()).ok_or(fmt::Error)?;
        room.copy_from_slice(s.as_bytes());
        self.len += s.len() as u8;
        Ok(())
    }
}

impl fmt::Display for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.bytes()))
    }
}
