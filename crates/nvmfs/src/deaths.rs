//! Access for the rig of processes that die between two stores (`tests/deaths.rs`): the daemon's work, and
//! paths of calls that need concurrent callers.

use crate::file::{deferred, read};
use crate::fs::NvmFs;
use crate::state::inode::Phase;
use crate::state::lease;
use crate::upkeep::settle;
use heddle_vfs::{Handle, Result};

/// Settles all lanes whose holders have died. Returns their number.
pub fn settle_all(fs: &NvmFs) -> u64 {
    settle::sweep(&fs.core)
}

/// Reads with the blocks pinned, as a reader does that writers have disturbed.
///
/// # Errors
/// As of a read.
pub fn read_pinned(fs: &NvmFs, handle: &Handle, into: &mut [u8]) -> Result<usize> {
    let mut guard = lease::enter(&fs.core)?;
    read::read_pinned(&fs.core, &mut guard, fs.core.inode(handle.ino)?, 0, into)
}

/// A pin of the calling thread.
pub struct Pin(Phase);

/// Pins a file's blocks.
///
/// # Errors
/// As of a read.
pub fn pin(fs: &NvmFs, handle: &Handle) -> Result<Pin> {
    let guard = lease::enter(&fs.core)?;
    Ok(Pin(deferred::pin(&guard, fs.core.inode(handle.ino)?)))
}

/// Returns the pin. The result is true if the pin still existed.
///
/// # Errors
/// As of a read.
pub fn unpin(fs: &NvmFs, handle: &Handle, pin: Pin) -> Result<bool> {
    let mut guard = lease::enter(&fs.core)?;
    let inode = fs.core.inode(handle.ino)?;
    let there = !inode.volatile.pins.now().over(pin.0);
    if there {
        deferred::unpin(&fs.core, &mut guard, inode, pin.0);
    }
    Ok(there)
}
