//! What tells processes and boots apart. The generation is checked at every call: a forked child must not use its parent's leases.

pub use heddle_pmem::process::generation;
#[cfg(not(loom))]
pub use heddle_pmem::process::{begin_anew, may_begin_anew};

/// Identity of this boot of the machine: an arena of another boot is not valid.
#[cfg(not(loom))]
pub(crate) fn boot_id() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|d| d as u8).collect();
    let mut id = [0; 16];
    for (to, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
        *to = pair[0] << 4 | pair[1];
    }
    id
}

/// Process and thread in their own numbering: for messages, never to decide whether they live.
pub fn for_people() -> u64 {
    u64::from(std::process::id()) << 32 | u64::from(rustix::thread::gettid().as_raw_nonzero().get() as u32)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn boot_and_thread_are_those_of_the_kernel() {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        let said: String = boot_id().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(said, text.trim().replace('-', ""));
        // SAFETY: reads a number, cannot fail.
        let thread = unsafe { libc::gettid() } as u64;
        assert_eq!((for_people() >> 32, for_people() % (1 << 32)), (std::process::id().into(), thread));
    }
}
