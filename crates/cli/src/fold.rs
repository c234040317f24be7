//! `heddle fold`: writes a node log into its image, as the next mount would.

use anyhow::{Context, Result};
use heddle_console::failure::usage;
use heddle_console::output::{self, Sink};
use heddle_f2fs::{F2fs, Variant};
use serde::Serialize;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

/// Write a node log into its F2FS image, so that Linux or another machine can mount the image without the log
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The node log, the one of the last mount
    #[arg(long, value_name = "FILE")]
    nvm: PathBuf,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// The image, not mounted
    image: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  heddle fold --nvm /dev/pmem0 /dev/sdb1 && mount -t f2fs /dev/sdb1 /mnt/h

An unmount does the same. Use this after the mount's process was killed or the machine lost power.";

#[derive(Serialize)]
struct Folded {
    output_version: u32,
    image: String,
    /// The image tells that its node log may have newer changes.
    had_log: bool,
    /// Files that were fsynced but are in no checkpoint and no log checkpoint yet.
    fsynced_inodes: u64,
    checkpoint_version: u64,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let image = args.image.display().to_string();
    // NONBLOCK: a pipe must be refused, not waited for.
    File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(&args.image)
        .with_context(|| format!("cannot open {image}"))?;
    if !heddle_f2fs::is_f2fs(&args.image) {
        return Err(usage(format!("{image} is not an F2FS image: only those have node logs")));
    }
    crate::mount::f2fs::limit_of_files(&args.image)?;
    let log = crate::mount::node_log::left(&args.nvm)?;
    let had_log = F2fs::open(&args.image)?.info().is_logged;
    let fs = F2fs::open_with_log(&args.image, Variant::NodeLog, log)?;
    fs.unmount()?;
    let info = fs.info();
    let folded = Folded {
        output_version: 1,
        image,
        had_log,
        fsynced_inodes: info.fsynced_inodes,
        checkpoint_version: info.checkpoint_version,
    };
    if args.json {
        return output::json(&Sink::Stdout, &folded);
    }
    let Folded { image, fsynced_inodes, checkpoint_version, .. } = &folded;
    output::data(&match had_log {
        true => format!(
            "{image}: complete without its log; checkpoint {checkpoint_version}, {fsynced_inodes} files fsynced since the last \
             log checkpoint"
        ),
        false => format!("{image}: was complete without its log; checkpoint {checkpoint_version}"),
    })
}
