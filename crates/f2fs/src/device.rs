//! The device: a file or a block device, read in whole blocks.
//!
//! It is held under a shared lock (flock(2)) for as long as it is open, so that two readers may have it and a writer may not.

use crate::error::OpenError;
use crate::format::{BLOCK_BYTES, Block};
use crate::ids::BlockAddr;
use heddle_vfs::{Error, Result};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// An open image.
#[derive(Debug)]
pub(crate) struct Device {
    file: File,
    path: PathBuf,
    blocks: u64,
}

impl Device {
    /// Opens an image for reading.
    pub(crate) fn open(path: &Path) -> std::result::Result<Device, OpenError> {
        let fail = |what| move |source| OpenError::System { image: path.into(), what, source };
        let mut file = File::open(path).map_err(fail("open"))?;
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) => return Err(OpenError::InUse { image: path.into() }),
            done => done.map_err(|errno| fail("lock")(errno.into()))?,
        }
        // Works for block devices too, of which the inode has no size.
        let bytes = file.seek(SeekFrom::End(0)).map_err(fail("find the size of"))?;
        Ok(Device { file, path: path.into(), blocks: bytes / BLOCK_BYTES as u64 })
    }

    /// Whole blocks that it has.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Its path, for messages.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads from byte `skip_bytes` of a block on.
    pub(crate) fn read(&self, addr: BlockAddr, skip_bytes: usize, into: &mut [u8]) -> Result<()> {
        let at = u64::from(addr.0) * BLOCK_BYTES as u64 + skip_bytes as u64;
        self.file.read_exact_at(into, at).map_err(|error| {
            Error::Io(format!("block {} of {} cannot be read: {error}", addr.0, self.path.display()))
        })
    }

    /// Reads a block.
    pub(crate) fn block(&self, addr: BlockAddr) -> Result<Box<Block>> {
        let mut block = Box::new([0; BLOCK_BYTES]);
        self.read(addr, 0, &mut block[..])?;
        Ok(block)
    }
}
