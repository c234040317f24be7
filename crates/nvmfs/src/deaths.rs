//! For the rig of processes that die between two stores (`tests/deaths.rs`): what a daemon does, and what a call does only beside others.

use crate::file::{deferred, read};
use crate::fs::NvmFs;
use crate::state::inode::Phase;
use crate::state::lease;
use crate::upkeep::settle;
use heddle_vfs::{Handle, Result};

/// Settles all lanes whose holders have died: so many.
pub fn settle_all(fs: &NvmFs) -> u64 {
    settle::sweep(&fs.core)
}

/// Reads as one does whom writers have disturbed: its blocks pinned.
///
/// # Errors
/// As of a read.
pub fn read_pinned(fs: &NvmFs, handle: &Handle, into: &mut [u8]) -> Result<usize> {
    let mut guard = lease::enter(&fs.core)?;
    read::read_pinned(&fs.core, &mut guard, fs.core.inode(handle.ino)?, 0, into)
}

/// A pin of the calling thread's.
pub struct Pin(Phase);

/// Pins a file's blocks.
///
/// # Errors
/// As of a read.
pub fn pin(fs: &NvmFs, handle: &Handle) -> Result<Pin> {
    let guard = lease::enter(&fs.core)?;
    Ok(Pin(deferred::pin(&guard, fs.core.inode(handle.ino)?)))
}

/// Gives the pin back; was it still there?
///
/// # Errors
/// As of a read.
pub fn unpin(fs: &NvmFs, handle: &Handle, pin: Pin) -> Result<bool> {
    let mut guard = lease::enter(&fs.core)?;
    let inode = fs.core.inode(handle.ino)?;
    let there = !inode.vi.pins.now().over(pin.0);
    if there {
        deferred::unpin(&fs.core, &mut guard, inode, pin.0);
    }
    Ok(there)
}
