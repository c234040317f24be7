//! An F2FS image, served for reading and writing; or for reading alone: then what is recovered is recovered in memory, and
//! nothing is written.
//!
//! No other process attaches to it.

use super::options::Options;
use super::{Args, ended, say_ended, say_ready, shown_as};
use crate::output::talk;
use anyhow::{Context, Result, bail};
use heddle_f2fs::F2fs;
use signal_hook::iterator::Signals;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// What was changed is durable after this time, also if nobody asks for it; in Linux a minute.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(30);

/// Mounts it and serves it until it is unmounted.
pub fn serve(args: &Args, options: &Options, signals: Signals) -> Result<()> {
    let image = args.image.display();
    if options.variant.is_some() {
        bail!("{image} is an F2FS image: the variants of heddle mkfs are other systems. Leave out --variant");
    }
    let fs = if options.read_only { F2fs::open(&args.image)? } else { F2fs::open_for_writing(&args.image)? };
    let fs = Arc::new(fs);
    let info = fs.info();
    talk(&format!("{image}: F2FS, checkpoint {}; inodes: {}", info.checkpoint_version, info.inodes));
    if info.fsynced_inodes > 0 {
        talk(&format!(
            "{image}: was not unmounted; of {} files what was fsynced after that checkpoint is shown too",
            info.fsynced_inodes
        ));
    }
    let mounted = heddle_fuse::mount(Arc::clone(&fs) as _, &args.dir, &shown_as(args, options))?;
    say_ready(args, options, &mounted, signals)?;
    let (ends, end) = mpsc::channel::<()>();
    let writer = Arc::clone(&fs);
    let keeper = std::thread::spawn(move || {
        // An error stays, and is told by the next call that changes something.
        while end.recv_timeout(CHECKPOINT_EVERY) == Err(RecvTimeoutError::Timeout) {
            let _ = writer.checkpoint_if_changed();
        }
    });
    let served = ended(mounted.wait());
    drop(ends);
    let _ = keeper.join();
    let written = fs.unmount().with_context(|| format!("{image}: the last checkpoint"));
    say_ended(args, &served);
    served.and(written)
}
