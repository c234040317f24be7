//! Makes an F2FS image: a device, or a sparse file.

use super::{Args, SIZE_DEFAULT};
use anyhow::{Context, Result};
use heddle_console::failure::usage;
use heddle_console::overwrite::Target;
use heddle_console::progress::Bar;
use heddle_f2fs::{IMAGE_BYTES_MAX, IMAGE_BYTES_MIN, LABEL_UNITS_MAX, OpenError};
use std::path::Path;

/// The value of "durable by" for an engine that uses a device.
pub const DURABLE_BY: &str = "fsync, and a checkpoint every 30 seconds";

/// Refuses wrong arguments before the image is touched.
pub fn check(args: &Args) -> Result<()> {
    let units = args.label.as_deref().unwrap_or_default().encode_utf16().count();
    if units > LABEL_UNITS_MAX {
        return Err(usage(format!(
            "--label: a name of {units} UTF-16 units, where an image holds {LABEL_UNITS_MAX}"
        )));
    }
    // That is a wrong command line, with exit code 2.
    args.size.map_or(Ok(()), |size| check_size(&args.image, size.0).map_err(usage))
}

fn check_size(image: &Path, bytes: u64) -> Result<()> {
    match (IMAGE_BYTES_MIN..=IMAGE_BYTES_MAX).contains(&bytes) {
        true => Ok(()),
        false => Err(OpenError::Size { image: image.into(), bytes }.into()),
    }
}

/// Makes the image. Returns its size in bytes.
pub fn make(args: &Args, target: Target) -> Result<u64> {
    let image = args.image.as_path();
    let cannot = || format!("cannot make {}", image.display());
    let is_file = target.locked_file.is_file();
    if !is_file && args.size.is_some() {
        return Err(usage("--size is for files: of a device all is taken"));
    }
    if !is_file {
        let bytes = target.locked_file.len_bytes()?;
        check_size(image, bytes)?;
    }
    target.clear()?;
    let mut locked_file = target.locked_file;
    let (file, claim) = locked_file.file_unnamed()?;
    if is_file {
        // Old content is discarded first, so that blocks not written now read as zeros.
        let size = args.size.unwrap_or(SIZE_DEFAULT);
        file.set_len(0).and_then(|()| file.set_len(size.0)).with_context(cannot)?;
    }
    let bar = Bar::of_bytes("making");
    let progress = |done, total| bar.set_position(done, total);
    let label = args.label.as_deref().unwrap_or_default();
    heddle_f2fs::make_image_in((file, claim), image, label, &progress)?;
    // A file that was made here gets its name now.
    locked_file.keep()?;
    drop(locked_file);
    let info = heddle_f2fs::F2fs::open(image)?.info();
    Ok(info.geometry.blocks * heddle_f2fs::format::BLOCK_BYTES as u64)
}
