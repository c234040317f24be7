//! `heddle stat`: what a mounted file system has done since it was mounted.

use super::figures::Stretch;
use anyhow::Result;
use heddle_console::output::{self, Sink};
use std::path::PathBuf;

/// Show the work of a mounted file system since it was mounted: calls, bytes, times, waits for locks, by process
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

One call of a kind in 64 is timed. Times are those of the engine, without the kernel's part of calls through a mount. Calls that the
kernel answers by itself are not seen. A wait is a time that a call slept for a lock; the papers' variants estimate waits from timed calls,
F2FS images count none. A process is shown for as long as it has the file system open; the sums keep the calls of processes that
have gone. The user who mounted, root, and members of the mount's attach-group may ask.";

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let reading = super::reading(&args.path)?;
    let since_mount = Stretch::until(&reading);
    if args.json {
        return output::json(&Sink::Stdout, &since_mount.json());
    }
    output::data(&format!("{}: since it was mounted\n{}", super::name_of(&args.path), since_mount.text()))
}
