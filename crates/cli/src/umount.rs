//! `heddle umount`: unmounts, and waits until the process behind the mount has let go of the image.

use crate::image::{mounted_at, mounted_image};
use crate::info::of_file;
use crate::output::talk;
use anyhow::Result;
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Unmount; returns when the image is unmounted cleanly
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Where it is mounted
    dir: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  heddle umount /mnt/h

It works as well when the process behind the mount has died, and only on heddle's own mounts.";

const PATIENCE: Duration = Duration::from_secs(30);
/// An image that is marked clean is waited for no longer than this.
const LINGER: Duration = Duration::from_secs(1);

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let image = mounted_image(&args.dir);
    heddle_fuse::umount(&args.dir)?;
    if image.as_deref().is_some_and(|image| !let_go(image)) {
        talk(
            "heddle: unmounted, but the process behind the mount still has the image: it is busy, or stopped",
        );
    }
    Ok(())
}

/// Waits until nobody has the image; false: somebody keeps it, and it is not marked clean. An image that cannot be looked at is
/// nobody's business here, nor is one that is still mounted elsewhere (read-only).
fn let_go(image: &Path) -> bool {
    if mounted_at(image).is_some() {
        return true;
    }
    let (Ok(file), Ok(meta)) = (File::open(image), image.metadata()) else { return true };
    let taken = || {
        flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(rustix::io::Errno::WOULDBLOCK)
            || heddle_pmem::has_holders(&file)
    };
    // Processes that attached through an earlier mount's door may keep the locks of one that has ended.
    let clean = || of_file(image, meta.len()).is_ok_and(|found| found.clean);
    let began = Instant::now();
    while taken() {
        if began.elapsed() > PATIENCE || (began.elapsed() > LINGER && clean()) {
            return clean();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}
