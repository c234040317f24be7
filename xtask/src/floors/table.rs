//! What is measured and what must come out. A new row needs its cells in a campaign; a test sees to that.

use std::fmt;

/// One run of `heddle fxmark`: all its targets are interleaved.
pub struct Campaign {
    pub workloads: &'static [&'static str],
    pub targets: &'static [&'static str],
    pub cores: &'static [u32],
    /// With `O_DIRECT`.
    pub direct: bool,
}

/// A bound on a ratio of medians: of one cell to another, or to the best of several.
pub struct Floor {
    pub workload: &'static str,
    /// Target and workers above the line.
    pub of: (&'static str, u32),
    /// Targets, of which the best counts, and workers below the line.
    pub to: (&'static [&'static str], u32),
    pub bound: Bound,
}

#[derive(Clone, Copy)]
pub enum Bound {
    AtLeast(f64),
    AtMost(f64),
    Below(f64),
}

impl Bound {
    pub fn holds(self, ratio: f64) -> bool {
        match self {
            Bound::AtLeast(bound) => ratio >= bound,
            Bound::AtMost(bound) => ratio <= bound,
            Bound::Below(bound) => ratio < bound,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::AtLeast(bound) => write!(f, ">= {bound}"),
            Bound::AtMost(bound) => write!(f, "<= {bound}"),
            Bound::Below(bound) => write!(f, "< {bound}"),
        }
    }
}

impl Floor {
    /// The row's name: `DWOM heddle@2 / best of tmpfs ext4@2`.
    pub fn row(&self) -> String {
        let best = if self.to.0.len() > 1 { "best of " } else { "" };
        format!("{} {}@{} / {best}{}@{}", self.workload, self.of.0, self.of.1, self.to.0.join(" "), self.to.1)
    }
}

const PEERS: &[&str] = &["tmpfs", "ext4", "xfs", "btrfs"];

pub const CAMPAIGNS: &[Campaign] = &[
    Campaign {
        workloads: &["DRBL", "DRBM", "DRBH", "DWOL", "DWOM", "DWAL", "DWTL"],
        targets: &["heddle", "tmpfs", "ext4", "xfs", "btrfs"],
        cores: &[2],
        direct: false,
    },
    Campaign {
        workloads: &["MRPL", "MRPM", "MRPH", "MRDL", "MRDM", "MWCL", "MWCM", "MWUL", "MWUM", "MWRL", "MWRM"],
        targets: &["heddle", "tmpfs", "ext4", "xfs", "btrfs"],
        cores: &[2],
        direct: false,
    },
    Campaign {
        workloads: &["DWOM", "DRBM"],
        targets: &["nova", "nova-interval", "nova-array", "nova-tree"],
        cores: &[1, 2],
        direct: false,
    },
    Campaign { workloads: &["DWOM"], targets: &["f2fs", "f2fs-rl"], cores: &[2], direct: true },
    Campaign {
        workloads: &["DWSL"],
        targets: &["heddle", "tmpfs", "ext4", "xfs", "f2fs", "f2fs-rl", "f2fs-nl", "f2fs-integrated"],
        cores: &[2],
        direct: false,
    },
];

pub const FLOORS: &[Floor] = &[
    beside_peers("DRBL", PEERS, 5.0),
    beside_peers("DRBM", PEERS, 5.0),
    beside_peers("DRBH", PEERS, 5.0),
    beside_peers("DWOL", PEERS, 1.5),
    beside_peers("DWOM", PEERS, 2.5),
    beside_peers("DWAL", PEERS, 4.0),
    beside_peers("DWTL", PEERS, 4.0),
    beside_peers("DWSL", &["tmpfs"], 1.5),
    beside_peers("DWSL", &["ext4", "xfs"], 20.0),
    beside_peers("MRPL", PEERS, 5.0),
    beside_peers("MRPM", PEERS, 5.0),
    beside_peers("MRPH", PEERS, 5.0),
    beside_peers("MRDL", PEERS, 5.0),
    beside_peers("MRDM", PEERS, 5.0),
    beside_peers("MWCL", PEERS, 5.0),
    beside_peers("MWCM", PEERS, 5.0),
    beside_peers("MWUL", PEERS, 5.0),
    beside_peers("MWUM", PEERS, 5.0),
    beside_peers("MWRL", PEERS, 4.0),
    beside_peers("MWRM", PEERS, 4.0),
    // One lock an inode: a second worker on the shared file brings next to nothing.
    scaling("nova", &["nova"], Bound::AtMost(1.15)),
    scaling("nova-interval", &["nova-interval"], Bound::AtLeast(1.5)),
    scaling("nova-array", &["nova-array"], Bound::AtLeast(1.5)),
    scaling("nova-tree", &["nova-tree"], Bound::AtLeast(1.5)),
    beside("DWOM", "nova-interval", &["nova"], Bound::AtLeast(1.3)),
    beside("DWOM", "nova-array", &["nova"], Bound::AtLeast(1.3)),
    beside("DWOM", "nova-tree", &["nova"], Bound::AtLeast(1.3)),
    // Readers: a mutex is worse than a shared counter, and that worse than a word a segment.
    beside("DRBM", "nova-interval", &["nova"], Bound::Below(1.0)),
    beside("DRBM", "nova", &["nova-array"], Bound::Below(1.0)),
    beside("DRBM", "nova-tree", &["nova-array"], Bound::AtLeast(0.9)),
    // Past the page cache: the lock of a file is held while the device works.
    beside("DWOM", "f2fs-rl", &["f2fs"], Bound::AtLeast(1.5)),
    // The device is memory: what an fsync saves is one call that writes, one that flushes, and a checksum. The page itself is the rest.
    beside("DWSL", "f2fs-nl", &["f2fs"], Bound::AtLeast(1.3)),
    beside("DWSL", "f2fs-integrated", &["f2fs-rl"], Bound::AtLeast(1.3)),
    beside("DWSL", "f2fs-nl", &["ext4", "xfs"], Bound::AtLeast(3.0)),
];

const fn beside_peers(workload: &'static str, peers: &'static [&'static str], ratio: f64) -> Floor {
    beside(workload, "heddle", peers, Bound::AtLeast(ratio))
}

const fn beside(
    workload: &'static str,
    of: &'static str,
    to: &'static [&'static str],
    bound: Bound,
) -> Floor {
    Floor { workload, of: (of, 2), to: (to, 2), bound }
}

/// Two workers over one, on the shared file.
const fn scaling(of: &'static str, same: &'static [&'static str], bound: Bound) -> Floor {
    Floor { workload: "DWOM", of: (of, 2), to: (same, 1), bound }
}
