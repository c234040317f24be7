//! What is measured and what must come out. A new row needs its cells in a campaign; a test sees to that.

use std::fmt;

use Durability::{Power, Process};

/// What writes to the engines survive while they are measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Durability {
    /// The death of processes, as in tmpfs.
    Process,
    /// Power cuts, as in the papers.
    Power,
}

impl Durability {
    /// As `heddle fxmark --durability` calls it.
    pub fn name(self) -> &'static str {
        match self {
            Durability::Process => "process",
            Durability::Power => "power",
        }
    }
}

/// How the workloads are run, where it is not as they stand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Form {
    /// What rows call it; empty: as they stand.
    pub name: &'static str,
    /// Options of `heddle fxmark`.
    pub args: &'static [&'static str],
}

/// One run of `heddle fxmark`: all its targets are interleaved.
pub struct Campaign {
    pub durability: Durability,
    pub form: Form,
    pub workloads: &'static [&'static str],
    pub targets: &'static [&'static str],
    pub cores: &'static [u32],
}

/// A bound on a ratio of medians: of one cell to another, or to the best of several.
pub struct Floor {
    pub durability: Durability,
    pub form: Form,
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

/// What the machine itself cannot do faster than, as far as it is measured beside a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// A copy of each page, with a fence after it where that survives a power cut: target [`COPY`] with as many workers.
    Copy,
    /// A cache line passes between two processors for each operation.
    Line,
}

/// The target that is no file system.
pub const COPY: &str = "copy";

impl Floor {
    /// The limit of what stands above the line.
    pub fn limit(&self) -> Option<Limit> {
        let in_memory = !self.of.0.starts_with("f2fs");
        let pages = self.form == PLAIN || self.form == CALLS[1] || self.form == CALLS[2];
        match self.workload {
            _ if self.form == NEIGHBOURS || self.of.0 == "nova" && self.of.1 > 1 => Some(Limit::Line),
            "DRBL" | "DRBM" | "DRBH" | "DWOL" | "DWOM" | "DWAL" | "DWSL" if pages && in_memory => {
                Some(Limit::Copy)
            }
            _ => None,
        }
    }

    /// The row's name: `DWOM heddle@2 / best of tmpfs ext4@2`, with `(power)` if that is what writes survive.
    pub fn row(&self) -> String {
        let best = if self.to.0.len() > 1 { "best of " } else { "" };
        let survives = if self.durability == Durability::Power { " (power)" } else { "" };
        let (of, to, form) = (self.of, self.to, self.form.name);
        let comma = if form.is_empty() { "" } else { ", " };
        format!(
            "{} {}@{} / {best}{}@{}{comma}{form}{survives}",
            self.workload,
            of.0,
            of.1,
            to.0.join(" "),
            to.1
        )
    }
}

const PLAIN: Form = Form { name: "", args: &[] };
const DIRECT: Form = Form { name: "O_DIRECT", args: &["--direct"] };
const NEIGHBOURS: Form = Form { name: "neighbouring pages", args: &["--stride", "4K"] };
const MANY_FILES: Form = Form { name: "524,288 files a worker", args: &["--files", "524288"] };

/// Calls at random places of a file, by their length and the file's.
const CALLS: [Form; 5] = [
    calls("512 B, file of 1 MiB", &["--access", "random", "--call", "512", "--file-size", "1M"]),
    calls("4 KiB, file of 1 MiB", &["--access", "random", "--file-size", "1M"]),
    calls("4 KiB, file of 512 MiB", &["--access", "random", "--file-size", "512M"]),
    calls("64 KiB, file of 64 MiB", &["--access", "random", "--call", "64K", "--file-size", "64M"]),
    calls("1 MiB, file of 1 GiB", &["--access", "random", "--call", "1M", "--file-size", "1G"]),
];

const fn calls(name: &'static str, args: &'static [&'static str]) -> Form {
    Form { name, args }
}

const SEEN_BY_PROGRAMS: &[&str] = &["DRBL", "DRBM", "DWOL", "DWOM", "DWAL", "MRPL", "MWCL"];

const PEERS: &[&str] = &["tmpfs", "ext4", "xfs", "btrfs"];

pub const CAMPAIGNS: &[Campaign] = &[
    Campaign {
        durability: Process,
        form: PLAIN,
        workloads: &["DRBL", "DRBM", "DRBH", "DWOL", "DWOM", "DWAL", "DWTL", "DWSL"],
        targets: &["heddle", "tmpfs", "ext4", "xfs", "btrfs"],
        cores: &[2],
    },
    Campaign {
        durability: Process,
        form: PLAIN,
        workloads: &["MRPL", "MRPM", "MRPH", "MRDL", "MRDM", "MWCL", "MWCM", "MWUL", "MWUM", "MWRL", "MWRM"],
        targets: &["heddle", "tmpfs", "ext4", "xfs", "btrfs"],
        cores: &[2],
    },
    // No floors: what a program sees of it, beside the function calls of `heddle`.
    Campaign {
        durability: Process,
        form: PLAIN,
        workloads: SEEN_BY_PROGRAMS,
        targets: &["heddle+bypass", "heddle+mount"],
        cores: &[2],
    },
    Campaign {
        durability: Power,
        form: PLAIN,
        workloads: &["DWOL", "DWOM"],
        targets: &["heddle", "tmpfs", "ext4", "xfs", "btrfs"],
        cores: &[2],
    },
    Campaign {
        durability: Power,
        form: PLAIN,
        workloads: &["DWOM", "DRBM"],
        targets: &["nova", "nova-interval", "nova-array", "nova-tree"],
        cores: &[1, 2],
    },
    Campaign {
        durability: Power,
        form: DIRECT,
        workloads: &["DWOM"],
        targets: &["f2fs", "f2fs-rl"],
        cores: &[2],
    },
    Campaign {
        durability: Power,
        form: PLAIN,
        workloads: &["DWSL"],
        targets: &["heddle", "tmpfs", "ext4", "xfs", "f2fs", "f2fs-rl", "f2fs-nl", "f2fs-integrated"],
        cores: &[2],
    },
    by_calls(CALLS[0]),
    by_calls(CALLS[1]),
    by_calls(CALLS[2]),
    by_calls(CALLS[3]),
    by_calls(CALLS[4]),
    // Where neither side's tables fit the cache.
    Campaign {
        durability: Process,
        form: MANY_FILES,
        workloads: &["MWCL", "MWCM"],
        targets: &["heddle", "tmpfs"],
        cores: &[2],
    },
    // Four cells lie in one line.
    Campaign {
        durability: Process,
        form: NEIGHBOURS,
        workloads: &["DWOM"],
        targets: &["heddle", "tmpfs"],
        cores: &[2],
    },
    // A copy of a page past the cache and one fence: the least that a durable write takes.
    Campaign {
        durability: Power,
        form: PLAIN,
        workloads: &["DWOL"],
        targets: &["heddle", COPY],
        cores: &[1],
    },
    // Limits of the machine.
    Campaign { durability: Process, form: PLAIN, workloads: &[COPIED], targets: &[COPY], cores: &[1, 2] },
    Campaign { durability: Power, form: PLAIN, workloads: &[COPIED], targets: &[COPY], cores: &[2] },
];

/// The workload that [`COPY`] is measured with.
pub const COPIED: &str = "DWOL";

/// A program under the bypass beside tmpfs: one process, calls of one length.
const fn by_calls(form: Form) -> Campaign {
    Campaign {
        durability: Process,
        form,
        workloads: &["DWOL", "DRBL"],
        targets: &["heddle+bypass", "tmpfs"],
        cores: &[1],
    }
}

pub const FLOORS: &[Floor] = &[
    beside_peers("DRBL", 5.0),
    beside_peers("DRBM", 5.0),
    beside_peers("DRBH", 5.0),
    beside_peers("DWOL", 2.0),
    beside_peers("DWOM", 4.0),
    beside_peers("DWAL", 4.0),
    beside_peers("DWTL", 4.0),
    beside_peers("DWSL", 3.0),
    beside_peers("MRPL", 5.0),
    beside_peers("MRPM", 5.0),
    beside_peers("MRPH", 5.0),
    beside_peers("MRDL", 5.0),
    beside_peers("MRDM", 5.0),
    beside_peers("MWCL", 5.0),
    beside_peers("MWCM", 6.0),
    beside_peers("MWUL", 5.0),
    beside_peers("MWUM", 5.0),
    beside_peers("MWRL", 4.0),
    beside_peers("MWRM", 4.5),
    under_power("DWOL", "heddle", PEERS, Bound::AtLeast(1.5)),
    under_power("DWOM", "heddle", PEERS, Bound::AtLeast(2.5)),
    under_power("DWSL", "heddle", &["tmpfs"], Bound::AtLeast(1.5)),
    // Both sides promise what an fsync promises on a disk.
    under_power("DWSL", "heddle", &["ext4", "xfs"], Bound::AtLeast(20.0)),
    // One lock an inode: a second worker on the shared file brings next to nothing.
    scaling("nova", &["nova"], Bound::AtMost(1.15)),
    scaling("nova-interval", &["nova-interval"], Bound::AtLeast(1.5)),
    scaling("nova-array", &["nova-array"], Bound::AtLeast(1.5)),
    scaling("nova-tree", &["nova-tree"], Bound::AtLeast(1.5)),
    under_power("DWOM", "nova-interval", &["nova"], Bound::AtLeast(1.3)),
    under_power("DWOM", "nova-array", &["nova"], Bound::AtLeast(1.3)),
    under_power("DWOM", "nova-tree", &["nova"], Bound::AtLeast(1.3)),
    // Readers: a mutex is worse than a shared counter, and that worse than a word a segment.
    under_power("DRBM", "nova-interval", &["nova"], Bound::Below(1.0)),
    under_power("DRBM", "nova", &["nova-array"], Bound::Below(1.0)),
    under_power("DRBM", "nova-tree", &["nova-array"], Bound::AtLeast(0.9)),
    // Past the page cache: the lock of a file is held while the device works.
    Floor { form: DIRECT, ..under_power("DWOM", "f2fs-rl", &["f2fs"], Bound::AtLeast(1.5)) },
    // The device is memory: what an fsync saves is one call that writes, one that flushes, and a checksum. The page itself is the rest.
    under_power("DWSL", "f2fs-nl", &["f2fs"], Bound::AtLeast(1.3)),
    under_power("DWSL", "f2fs-integrated", &["f2fs-rl"], Bound::AtLeast(1.3)),
    under_power("DWSL", "f2fs-nl", &["ext4", "xfs"], Bound::AtLeast(3.0)),
    Floor { form: MANY_FILES, ..beside_tmpfs("MWCL", 1.5) },
    Floor { form: MANY_FILES, ..beside_tmpfs("MWCM", 1.5) },
    Floor { form: NEIGHBOURS, ..beside_tmpfs("DWOM", 1.5) },
    // System calls on both sides, served by the library on one.
    called("DWOL", CALLS[0], 1.0),
    called("DWOL", CALLS[1], 1.5),
    called("DWOL", CALLS[2], 1.2),
    called("DWOL", CALLS[3], 1.7),
    called("DWOL", CALLS[4], 2.5),
    called("DRBL", CALLS[0], 1.0),
    called("DRBL", CALLS[1], 1.0),
    called("DRBL", CALLS[2], 1.0),
    called("DRBL", CALLS[3], 1.0),
    called("DRBL", CALLS[4], 1.0),
    Floor {
        of: ("heddle", 1),
        to: (&[COPY], 1),
        ..under_power("DWOL", "heddle", &[COPY], Bound::AtLeast(0.6))
    },
];

const fn beside_tmpfs(workload: &'static str, ratio: f64) -> Floor {
    Floor { to: (&["tmpfs"], 2), ..beside_peers(workload, ratio) }
}

const fn called(workload: &'static str, form: Form, ratio: f64) -> Floor {
    let bound = Bound::AtLeast(ratio);
    Floor { durability: Process, form, workload, of: ("heddle+bypass", 1), to: (&["tmpfs"], 1), bound }
}

const fn beside_peers(workload: &'static str, ratio: f64) -> Floor {
    let bound = Bound::AtLeast(ratio);
    Floor { durability: Process, form: PLAIN, workload, of: ("heddle", 2), to: (PEERS, 2), bound }
}

const fn under_power(
    workload: &'static str,
    of: &'static str,
    to: &'static [&'static str],
    bound: Bound,
) -> Floor {
    Floor { durability: Power, form: PLAIN, workload, of: (of, 2), to: (to, 2), bound }
}

/// Two workers over one, on the shared file.
const fn scaling(of: &'static str, same: &'static [&'static str], bound: Bound) -> Floor {
    Floor { durability: Power, form: PLAIN, workload: "DWOM", of: (of, 2), to: (same, 1), bound }
}
