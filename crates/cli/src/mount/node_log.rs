//! The node log of a mount: an existing or a new one.

use super::options::Options;
use anyhow::{Result, anyhow};
use heddle_console::failure::usage;
use heddle_console::overwrite::{Force, Target, log_not_opened, node_log_target, present_node_log};
use heddle_console::progress::Bar;
use heddle_console::size::Size;
use heddle_console::{open_error::explain, output::talk};
use heddle_f2fs::{F2fs, LOG_BYTES_MAX, LOG_BYTES_MIN, LogRegion, LogState, Variant};
use heddle_pmem::{Durability, OpenOptions, Region};
use std::io::{Error, ErrorKind};
use std::path::Path;

/// Refuses a size that is too small or too large for a node log.
fn check_size(bytes: u64) -> Result<()> {
    if (LOG_BYTES_MIN..=LOG_BYTES_MAX).contains(&bytes) {
        return Ok(());
    }
    let [asked, least, most] = [bytes, LOG_BYTES_MIN, LOG_BYTES_MAX].map(Size);
    Err(usage(format!(
        "-o nvm-size={bytes}: a node log of {asked} cannot be; it has at least {least} and at most {most}"
    )))
}

/// Opens the image with the node log in `nvm`. The content of `nvm` stays until the image is open. A new log
/// file gets its name only once the image is open with it. So a mount that fails leaves no file, and removes
/// none that another mount has made under this name. A file that was resized gets its old size back.
pub fn open(image: &Path, variant: Variant, nvm: &Path, options: &Options) -> Result<F2fs> {
    options.nvm_bytes.map_or(Ok(()), check_size)?;
    let force = if options.force_nvm { Force::Yes } else { Force::No };
    let needs_log = heddle_f2fs::needs_log(image).unwrap_or(false);
    let mut target = node_log_target(nvm, force, needs_log)?;
    if target.has_bytes_of(image) {
        let (image, nvm) = (image.display(), nvm.display());
        return Err(usage(format!(
            "{nvm} is the image {image} itself: name another file or device for the node log"
        )));
    }
    let size_before = (target.locked_file.is_file() && !target.locked_file.is_new())
        .then_some(target.locked_file.stat().st_size);
    let opened = open_in(&mut target, image, variant, nvm, options);
    if let (Err(_), Some(bytes)) = (&opened, size_before) {
        // An error here is less important than the error that is reported.
        let _ = target.locked_file.resize(bytes as u64);
    }
    opened
}

fn open_in(
    target: &mut Target,
    image: &Path,
    variant: Variant,
    nvm: &Path,
    options: &Options,
) -> Result<F2fs> {
    let (region, state) = region(nvm, target, options.nvm_bytes, options.durability)?;
    let found = described(nvm, &region);
    let log = LogRegion { region, state, discard: options.discard_nvm };
    let mut clear = || {
        if state != LogState::HoldsLog {
            target.tell_what_is_lost(nvm);
            target.clear().map_err(|error| format!("{error:#}"))?;
        }
        Ok(())
    };
    let fs = F2fs::open_with_log_in(image, variant, log, &mut clear)?;
    target.locked_file.keep().map_err(|error| explain(nvm, error))?;
    // Not before: a mount that is refused has no node log.
    talk(&found);
    Ok(fs)
}

/// The remedy if there is no node log.
const GIVE_UP: &str = "If it is lost, the image goes on from its last checkpoint, without --nvm, with: heddle mount -o discard-nvm";

/// Opens the node log that a mount has left.
pub fn left(nvm: &Path) -> Result<LogRegion> {
    let is_missing = |error: &Error| error.kind() == ErrorKind::NotFound;
    if nvm.symlink_metadata().is_err_and(|error| is_missing(&error)) {
        return Err(usage(format!(
            "{}: no such file; name the node log of the last mount. {GIVE_UP}",
            nvm.display()
        )));
    }
    let mut target = present_node_log(nvm, GIVE_UP)?;
    let (region, state) = region(nvm, &mut target, None, None)?;
    talk(&described(nvm, &region));
    Ok(LogRegion { region, state, discard: false })
}

/// The line that tells the user of a node log.
fn described(nvm: &Path, region: &Region) -> String {
    let (shown, size) = (nvm.display(), Size(region.len_bytes()));
    format!("{shown}: node log, {size}, durable by {}", crate::mkfs::durable_by(region))
}

/// Maps the node log. Only a new one is resized.
fn region(
    nvm: &Path,
    target: &mut Target,
    bytes: Option<u64>,
    durability: Option<Durability>,
) -> Result<(Region, LogState)> {
    /// Size of a new node log without a requested size.
    const LOG_BYTES: u64 = 64 << 20;
    let bar = Bar::of_bytes("node log");
    let progress = |done, total| bar.set_position(done, total);
    let how = OpenOptions { progress: Some(&progress), durability, ..OpenOptions::default() };
    let (is_made, is_log) = (target.locked_file.is_new() || target.is_empty_file(), target.is_node_log());
    let is_grown = !is_made && target.is_forced() && target.locked_file.is_file() && {
        let has = target.locked_file.len_bytes()?;
        let wanted = bytes.unwrap_or(if has < LOG_BYTES_MIN { LOG_BYTES } else { has });
        if wanted > has {
            // Its content stays until the image is open.
            target.locked_file.resize(wanted).map_err(|error| explain(nvm, error))?;
        }
        wanted >= has
    };
    let len_bytes = if is_made { LOG_BYTES_MIN } else { target.locked_file.len_bytes()? };
    if is_log && len_bytes < LOG_BYTES_MIN {
        return Err(anyhow!(
            "{} has {}, and a node log at least {}: it was cut short, and what only it had is lost. To go on without it, make another one: \
             heddle mount -o force-nvm,discard-nvm",
            nvm.display(),
            Size(len_bytes),
            Size(LOG_BYTES_MIN)
        ));
    }
    if let (false, false, Some(bytes)) = (is_made, is_grown, bytes) {
        let have = Size(target.locked_file.len_bytes()?);
        talk(&format!(
            "heddle: {} is there already, with {have}: nvm-size={} is not used",
            nvm.display(),
            Size(bytes)
        ));
    }
    let region = match is_made {
        true => target.locked_file.create_unnamed(bytes.unwrap_or(LOG_BYTES), &how),
        false => target.locked_file.open(&how),
    };
    let region = region.map_err(|error| log_not_opened(nvm, error))?;
    let state = match (is_log, target.is_forced()) {
        (true, _) => LogState::HoldsLog,
        (_, true) => LogState::GivenUp,
        _ => LogState::Free,
    };
    Ok((region, state))
}
