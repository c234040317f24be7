//! `heddle stat`: what a mounted file system has done since it was mounted.

use super::figures::Stretch;
use anyhow::Result;
use heddle_console::output::{self, Sink};
use std::path::PathBuf;

/// Tell what a mounted file system has done since it was mounted: calls, bytes, times, waits for locks, by process
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// As JSON
    #[arg(long)]
    json: bool,
    /// Where it is mounted (any directory in it), or its image
    path: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  heddle stat /mnt/h
  heddle stat --json /mnt/h
  heddle stat --json /dev/shm/my.img | jq .calls.write

One call of a kind in 64 is timed; times are those of the engine, without what the kernel adds to calls through a mount. Calls that the
kernel answers by itself are not seen. Waits are times that a call slept for a lock (of the papers' variants: estimated from timed calls).
A process is shown for as long as it has the file system open; the sums keep what those have done that have gone. For the user who
mounted, root, and members of the mount's attach-group.";

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let reading = super::reading(&args.path)?;
    let since_mount = Stretch::until(&reading);
    if args.json {
        return output::json(&Sink::Stdout, &since_mount.json());
    }
    output::data(&format!("{}: since it was mounted\n{}", super::name_of(&args.path), since_mount.text()))
}
