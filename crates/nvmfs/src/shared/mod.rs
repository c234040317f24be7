//! Many processes on one file system.
//!
//! The daemon (whoever mounted the image and started a [`server::Server`]) hands region and arena to other processes as
//! descriptors; from then on they work as its own threads do, through the same code, and need the daemon no more. What is
//! argued about death and delay: docs/processes.md.
//!
//! State       [`place`]: where the socket is; [`wire`]: what is said on it; [`server`], [`client`]: the two ends; [`adopt`]: after a
//!             daemon's death; [`heir`]: forked children, who have the descriptors already.
//! Invariants  I1  nothing is believed that comes from the socket: lengths and numbers are checked, descriptors are looked at.
//!             I2  an arena is taken for what it says only if boot, image and mount epoch are those of the welcome (L6).
//! Source      protocol review L1, L6; fuse-and-bypass 4.

pub mod adopt;
pub mod client;
pub mod heir;
pub mod place;
pub mod server;
pub mod wire;

use std::fs;

/// Identity of this boot of the machine: an arena of another one is not to be believed.
pub(crate) fn boot_id() -> [u8; 16] {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|d| d as u8).collect();
    let mut id = [0; 16];
    for (to, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
        *to = pair[0] << 4 | pair[1];
    }
    id
}
