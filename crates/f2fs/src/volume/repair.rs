//! What a repair by another program needs: the image to itself, an end of its node log, and of the note that a check is needed.
//!
//! Only superblock and checkpoint are read: what is damaged behind them hinders nothing here.
//!
//! Crash order each block is written whole, and says the same as before but for the mark, or the note: a cut leaves either.

use crate::checkpoint::Checkpoint;
use crate::device::{Access, Device};
use crate::error::OpenError;
use crate::format::checkpoint_flag;
use crate::node_log::mark;
use crate::superblock;
use heddle_vfs::Error;
use std::path::Path;

/// Says the image that its node log may have what it has not? Only its superblock is read.
///
/// # Errors
/// See [`OpenError`].
pub fn needs_log(path: &Path) -> Result<bool, OpenError> {
    let device = Device::open(path, Access::Read)?;
    superblock::read(&device).map(|(superblock, _)| mark::of(&superblock).is_some())
}

/// An image that nobody else uses, by whatever name, as long as this is there.
pub struct Alone {
    device: Device,
}

impl Alone {
    /// Takes it.
    ///
    /// # Errors
    /// [`OpenError::InUse`], with the one that uses it, also if that only reads; others if it cannot be written.
    pub fn with(path: &Path) -> Result<Alone, OpenError> {
        Device::open(path, Access::Write).map(|device| Alone { device })
    }

    /// What only the node log has is given up: the image is what its last checkpoint says. Durable when this returns.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn give_up_log(&self) -> Result<(), OpenError> {
        let failed = |error: Error| self.failed(&error);
        superblock::read(&self.device)?;
        superblock::repair(&self.device).map_err(failed)?;
        mark::write(&self.device, None).map_err(failed)
    }

    /// The checkpoint says no more that a check is needed: one was made, and found nothing wrong. Durable when this returns.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn note_checked(&self) -> Result<(), OpenError> {
        let (_, geometry) = superblock::read(&self.device)?;
        let checkpoint = Checkpoint::read(&self.device, &geometry)?;
        let note = checkpoint_flag::FSCK | checkpoint_flag::ERROR;
        checkpoint.without_flags(&self.device, note).map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &Error) -> OpenError {
        OpenError::Damaged { image: self.device.path().into(), what: error.to_string() }
    }
}
