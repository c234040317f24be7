//! `heddle umount`: unmounts.

use anyhow::Result;
use std::path::PathBuf;

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

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    Ok(heddle_fuse::umount(&args.dir)?)
}
