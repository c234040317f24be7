//! `heddle umount`: unmounts, and waits until the process behind the mount has let go of the image.

use crate::image::{mounted_at, mounted_image};
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

/// Waits for the image's lock; true if nobody has it. An image that cannot be looked at is nobody's business here, nor is
/// one that is still mounted elsewhere (read-only).
fn let_go(image: &Path) -> bool {
    if mounted_at(image).is_some() {
        return true;
    }
    let Ok(file) = File::open(image) else { return true };
    let began = Instant::now();
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) if began.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(rustix::io::Errno::WOULDBLOCK) => return false,
            _ => return true,
        }
    }
}
