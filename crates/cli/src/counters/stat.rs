//! `heddle stat`: the activity of a mounted file system since its mount.

use super::figures::Stretch;
use anyhow::Result;
use heddle_console::output::{self, Sink};
use std::path::PathBuf;

/// Show statistics of a mounted file system since its mount: calls, bytes, times and lock waits, per process
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// As JSON
    #[arg(long)]
    json: bool,
    /// A directory of the mount, or its image
    path: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  heddle stat /mnt/h
  heddle stat --json /mnt/h
  heddle stat --json /dev/shm/my.img | jq .calls.write

Of each kind of call, a thread times one in 64. Times are the engine's, without the kernel's part of calls through a mount. Calls that the
kernel answers itself are not counted. A wait is the time that a call slept for a lock; waits for the papers' range locks are estimated
from timed calls, and F2FS images count none. A process is listed while it is attached and holds a lane; calls through the mount count for
the mount's process. The sums keep the calls of processes that have ended. The user who mounted, root, and members of the group of heddle
mount -o attach-group=G may read statistics; on another user's mount only with allow_other.";

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let reading = super::reading(&args.path)?;
    let since_mount = Stretch::until(&reading);
    if args.json {
        return output::json(&Sink::Stdout, &since_mount.json());
    }
    output::data(&format!("{}: since it was mounted\n{}", super::name_of(&args.path), since_mount.text()))
}
