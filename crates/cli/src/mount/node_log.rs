//! The node log of a mount: its own, a new one, or none of our business.

use super::options::Options;
use crate::failure::usage;
use crate::progress::Bar;
use crate::size::Size;
use crate::taking::{Force, Ground, node_log_ground};
use crate::{image, output::talk};
use anyhow::{Result, anyhow};
use heddle_f2fs::{F2fs, LogRegion, LogState, Variant};
use heddle_pmem::{Durability, OpenOptions, Region};
use std::path::Path;

/// Opens the image with the node log in `nvm`. A log file that this call made goes again if the mount fails.
pub fn open(image: &Path, variant: Variant, nvm: &Path, options: &Options) -> Result<F2fs> {
    let force = if options.force_nvm { Force::Yes } else { Force::No };
    let ground = node_log_ground(nvm, force)?;
    let is_new = ground.taken.is_new();
    let opened = region(nvm, ground, options.nvm_bytes, options.durability).and_then(|(region, state)| {
        let log = LogRegion { region, state, discard: options.discard_nvm };
        Ok(F2fs::open_with_log(image, variant, log)?)
    });
    if opened.is_err() && is_new {
        let _ = std::fs::remove_file(nvm);
    }
    opened
}

/// The node log that a mount left.
pub fn left(nvm: &Path) -> Result<LogRegion> {
    if !nvm.exists() {
        return Err(usage(format!("{}: no such file; name the node log of the last mount", nvm.display())));
    }
    let ground = node_log_ground(nvm, Force::No)?;
    let (region, state) = region(nvm, ground, None, None)?;
    match state {
        LogState::Made => Ok(LogRegion { region, state, discard: false }),
        LogState::Free => Err(anyhow!("{} holds no node log: name that of the last mount", nvm.display())),
    }
}

/// Maps it. Only what is made here gets a size.
fn region(
    nvm: &Path,
    ground: Ground,
    bytes: Option<u64>,
    durability: Option<Durability>,
) -> Result<(Region, LogState)> {
    /// Of one that is made without a size asked for.
    const LOG_BYTES: u64 = 64 << 20;
    let bar = Bar::of_bytes("node log");
    let progress = |done, total| bar.at(done, total);
    let how = OpenOptions { progress: Some(&progress), durability, ..OpenOptions::default() };
    let (is_new, is_log) = (ground.taken.is_new(), ground.is_node_log());
    if let (false, Some(bytes)) = (is_new, bytes) {
        let have = Size(ground.taken.len_bytes()?);
        talk(&format!(
            "heddle: {} is there already, with {have}: nvm-size={} is not used",
            nvm.display(),
            Size(bytes)
        ));
    }
    let region = match (is_new, is_log) {
        (true, _) => image::create(nvm, ground, bytes.unwrap_or(LOG_BYTES), &how)?,
        (false, true) => ground.taken.open(&how).map_err(|error| image::explain(nvm, error))?,
        (false, false) => ground.clear()?.open(&how).map_err(|error| image::explain(nvm, error))?,
    };
    let (shown, size) = (nvm.display(), Size(region.len_bytes()));
    talk(&format!("{shown}: node log, {size}, durable by {}", crate::mkfs::durable_by(&region)));
    Ok((region, if is_log { LogState::Made } else { LogState::Free }))
}
