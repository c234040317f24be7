//! An F2FS image, served for reading.
//!
//! No other process attaches to it, and what is recovered is recovered in memory: nothing is written.

use super::options::Options;
use super::{Args, ended, say_ended, say_ready, shown_as};
use crate::output::talk;
use anyhow::{Result, bail};
use heddle_f2fs::F2fs;
use signal_hook::iterator::Signals;
use std::sync::Arc;

/// Mounts it and serves it until it is unmounted.
pub fn serve(args: &Args, options: &Options, signals: Signals) -> Result<()> {
    let image = args.image.display();
    if options.variant.is_some() {
        bail!("{image} is an F2FS image: the variants of heddle mkfs are other systems. Leave out --variant");
    }
    if !options.read_only {
        bail!("{image} is an F2FS image, which can be read so far, not written: add -o ro");
    }
    let fs = F2fs::open(&args.image)?;
    let info = fs.info();
    talk(&format!("{image}: F2FS, checkpoint {}; inodes: {}", info.checkpoint_version, info.inodes));
    if info.fsynced_inodes > 0 {
        talk(&format!(
            "{image}: was not unmounted; of {} files what was fsynced after that checkpoint is shown too",
            info.fsynced_inodes
        ));
    }
    let mounted = heddle_fuse::mount(Arc::new(fs), &args.dir, &shown_as(args, options))?;
    say_ready(args, options, &mounted, signals)?;
    let served = ended(mounted.wait());
    say_ended(args, &served);
    served
}
