//! Page sizes of an image in memory: reported at a mount and by `heddle stat`.

use heddle_console::size::Size;
use heddle_pmem::{HUGE_FROM_BYTES, Region};
use std::path::Path;

/// A directory that exists if the kernel has huge pages.
const KERNEL_HAS_THEM: &str = "/sys/kernel/mm/transparent_hugepage";

const ADVICE: &str = "the image lies in pages of 4 KiB. With pages of 2 MiB a mount, first stores and random reads are faster. heddle \
    mkfs makes them on Linux 6.1 and later; a tmpfs mounted with -o huge=always has them";

/// Advice in one line, if there is any.
pub fn advice(region: &Region) -> Option<&'static str> {
    small(region.huge_bytes()?, region.len_bytes())
}

fn small(huge_bytes: u64, bytes: u64) -> Option<&'static str> {
    (bytes >= HUGE_FROM_BYTES && huge_bytes < bytes / 2 && Path::new(KERNEL_HAS_THEM).exists())
        .then_some(ADVICE)
}

/// The same for `heddle stat`, with figures. `huge_bytes` is `None` if it is not known.
pub fn shown(huge_bytes: Option<u64>, bytes: u64) -> String {
    let Some(huge_bytes) = huge_bytes else { return String::new() };
    match small(huge_bytes, bytes) {
        Some(advice) => format!("\n{advice}"),
        None => format!("; {} of it in pages of 2 MiB", Size(huge_bytes.min(bytes))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_image_in_small_pages_is_told_what_is_faster() {
        match Path::new(KERNEL_HAS_THEM).exists() {
            true => assert!(shown(Some(0), HUGE_FROM_BYTES).contains("huge=always")),
            false => eprintln!("SKIPPED: this kernel has no large pages"),
        }
        assert!(shown(Some(0), HUGE_FROM_BYTES - 4096).ends_with(" of it in pages of 2 MiB"));
        assert!(shown(Some(HUGE_FROM_BYTES), HUGE_FROM_BYTES).contains("128 MiB of it in pages of 2 MiB"));
        assert_eq!(shown(None, HUGE_FROM_BYTES), "");
        assert_eq!(advice(&Region::anonymous(1 << 20).unwrap()), None);
    }
}
