//! An F2FS image as a killed mount leaves it: one file of it is in its node log alone.

use heddle_f2fs::{F2fs, LogRegion, LogState, Variant};
use heddle_pmem::{OpenOptions, Region};
use heddle_vfs::{Cred, FileSystem, Ino, Name, OpenFlags};
use std::path::Path;

pub const LOG_BYTES: u64 = 8 << 20;

/// Makes an image of 64 MiB and its log.
pub fn killed(image: &str, nvm: &str) {
    crate::common::heddle(&["mkfs", "--variant", "f2fs", "--size", "64M", "--force", image]).ok();
    let _none = std::fs::remove_file(nvm);
    let region = Region::create(Path::new(nvm), LOG_BYTES, &OpenOptions::default()).unwrap();
    let log = LogRegion { region, state: LogState::Free, discard: false };
    let fs = F2fs::open_with_log(Path::new(image), Variant::NodeLog, log).unwrap();
    let name = Name::new(b"file").unwrap();
    let (_, file) = fs.create(&Cred::root(), Ino::ROOT, name, 0o644, OpenFlags::READ_WRITE).unwrap();
    fs.write(&file, 0, b"fsynced").unwrap();
    fs.fsync(&file, false).unwrap();
    // No unmount.
    drop(fs);
}
