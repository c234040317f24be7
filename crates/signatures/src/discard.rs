//! The request by which a device learns that nobody will read a range again.
//!
//! `fallocate` with `PUNCH_HOLE` asks a device for zeros instead. Devices that can discard and not zero refuse that: SD cards, many
//! SSDs and virtual disks.

use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::AsRawFd;

const BLKDISCARD: libc::c_ulong = 0x1277;

/// Discards `len` bytes from `start` on. Both are multiples of the device's sector.
///
/// # Errors
/// `EOPNOTSUPP` of a device that discards nothing, `ENOTTY` of what is no block device, and errors of the device.
pub fn discard(device: &File, start: u64, len: u64) -> Result<()> {
    let range = [start, len];
    // SAFETY: an open descriptor; the kernel reads two words from a live local.
    match unsafe { libc::ioctl(device.as_raw_fd(), BLKDISCARD as _, &raw const range) } {
        0 => Ok(()),
        _ => Err(Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::MetadataExt;
    use std::process::Command;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_discarded_range_of_a_device_takes_no_space_of_its_file() {
        let mut backing = tempfile::NamedTempFile::new().unwrap();
        backing.write_all(&vec![7; 4 * MIB as usize]).unwrap();
        backing.as_file().sync_all().unwrap();
        let Ok(made) = Command::new("losetup").args(["-f", "--show"]).arg(backing.path()).output() else {
            return println!("SKIPPED: there is no losetup");
        };
        if !made.status.success() {
            return println!("SKIPPED: {}", String::from_utf8_lossy(&made.stderr).trim());
        }
        let node = String::from_utf8(made.stdout).unwrap();
        let device = File::options().read(true).write(true).open(node.trim()).unwrap();
        let before = backing.as_file().metadata().unwrap().blocks();
        let done = discard(&device, MIB, 2 * MIB);
        drop(device);
        Command::new("losetup").args(["-d", node.trim()]).status().unwrap();
        done.unwrap();
        let after = backing.as_file().metadata().unwrap().blocks();
        assert!(after + 2 * MIB / 512 <= before, "{before} sectors, then {after}");
        assert_eq!(discard(backing.as_file(), 0, MIB).unwrap_err().raw_os_error(), Some(libc::ENOTTY));
    }
}
