//! An F2FS image is made: a file that takes no space until it is written, or a device.

use super::{Args, SIZE_DEFAULT, is_device};
use crate::failure::usage;
use crate::progress::Bar;
use anyhow::{Context, Result};
use heddle_f2fs::{IMAGE_BYTES_MAX, IMAGE_BYTES_MIN, OpenError};
use std::fs::File;

/// What stands for "durable by" where the engine asks the device.
pub const DURABLE_BY: &str = "fsync, and a checkpoint every 30 seconds";

/// Makes it; its size in bytes.
pub fn make(args: &Args) -> Result<u64> {
    let image = args.image.as_path();
    let cannot = || format!("cannot make {}", image.display());
    if !is_device(image) {
        let size = args.size.unwrap_or(SIZE_DEFAULT);
        // Before anything of what is there goes.
        if !(IMAGE_BYTES_MIN..=IMAGE_BYTES_MAX).contains(&size.0) {
            return Err(OpenError::Size { image: image.into(), bytes: size.0 }.into());
        }
        let file =
            File::options().create(true).write(true).truncate(false).open(image).with_context(cannot)?;
        // What it held is given back first, so that nothing of it comes up where nothing was written.
        rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| OpenError::InUse { image: image.into() })?;
        file.set_len(0).and_then(|()| file.set_len(size.0)).with_context(cannot)?;
    } else if args.size.is_some() {
        return Err(usage("--size is for files: of a device all is taken"));
    }
    let bar = Bar::of_bytes("making");
    heddle_f2fs::make_image(image, args.label.as_deref().unwrap_or_default(), &|done, total| {
        bar.at(done, total)
    })?;
    let info = heddle_f2fs::F2fs::open(image)?.info();
    Ok(info.geometry.blocks * heddle_f2fs::format::BLOCK_BYTES as u64)
}
