//! Many processes on one file system.
//!
//! The daemon (whoever mounted the image and started a [`server::Server`]) hands region and arena to other processes as
//! descriptors; from then on they work as its own threads do, through the same code, and need the daemon no more. What is
//! argued about death and delay: docs/processes.md.
//!
//! State       [`bell`]: how a mount says where its door is, and the door knows who has asked; [`wire`]: what is said there;
//!             [`server`], [`door`], [`client`]: the two ends; [`place`]: whom a client trusts; [`notes`]: what a daemon leaves for
//!             the one after it; [`adopt`]: after a daemon's death; [`fork`]: forked children, who have the descriptors already.
//! Invariants  I1  nothing is believed that comes from the socket: lengths and numbers are checked, descriptors are looked at.
//!             I2  an arena is taken for what it says only if boot, image and mount epoch are those of the welcome (L6).
//! Source      protocol review L1, L6; fuse-and-bypass 4.

pub mod adopt;
pub mod bell;
pub mod client;
mod door;
pub mod fork;
pub mod notes;
pub mod place;
pub mod server;
pub mod wire;

use rustix::fs::{FileType, fstat};
use std::os::fd::AsFd;

/// Which file an image is: device and inode, or `u64::MAX` and the number of the device that it is.
pub(crate) fn image_id(file: impl AsFd) -> rustix::io::Result<[u64; 2]> {
    let stat = fstat(file)?;
    Ok(match FileType::from_raw_mode(stat.st_mode) {
        FileType::BlockDevice | FileType::CharacterDevice => [u64::MAX, stat.st_rdev],
        _ => [stat.st_dev, stat.st_ino],
    })
}
