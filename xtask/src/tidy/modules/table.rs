//! The order of modules within crates, and what it does not hold yet.

/// The layers of a crate's modules.
pub struct Order {
    /// The crate's folder.
    pub folder: &'static str,
    /// From the ground up. A name stands for the module and all inside it that no longer name stands for. In one layer modules may
    /// name each other, not in a circle.
    pub layers: &'static [&'static [&'static str]],
}

/// An arrow that climbs.
pub struct Exception {
    pub folder: &'static str,
    /// The module of the file that names the other.
    pub from: &'static str,
    pub to: &'static str,
    /// Why it may, or that it is to go.
    #[allow(dead_code)]
    pub reason: &'static str,
}

/// Modules that name each other in a circle.
pub struct Circle {
    pub folder: &'static str,
    /// A circle may hold these, and no other module.
    pub modules: &'static [&'static str],
    /// Why it may be, or that it is to go.
    #[allow(dead_code)]
    pub reason: &'static str,
}

pub const ORDERS: &[Order] = &[
    Order {
        folder: "crates/nvmfs",
        layers: &[
            &["ids", "variant", "clock", "process", "damage", "lane_counters", "region"],
            &["steps"],
            &["planted"],
            &["format"],
            &["state", "state::cell", "state::bucket", "state::chain", "state::latch"],
            &["state::index"],
            &["state::inode"],
            &["state::lane"],
            &["state::operation"],
            &["state::free_map"],
            &["state::core"],
            &["state::papers"],
            &["state::opens", "state::wait"],
            &["state::scratch"],
            &["state::lease"],
            &["state::latching", "state::living"],
            &["alloc"],
            &["alloc::blob", "alloc::itable", "alloc::reclaim"],
            &["log", "log::chain", "log::scan"],
            &["log::papers"],
            &["log::commit"],
            &["xattr"],
            &["file"],
            &["names"],
            &["upkeep", "upkeep::leases", "upkeep::garbage"],
            &["upkeep::relog"],
            &["upkeep::clean"],
            &["upkeep::recovery"],
            &["upkeep::settle"],
            &["fs"],
            &["counters"],
            &["volume"],
            &["shared"],
            &["fsck"],
            &["deaths"],
        ],
    },
    Order {
        folder: "crates/f2fs",
        layers: &[
            &["ids", "variant", "planted", "format", "steps"],
            &["checksum", "error", "times"],
            &["device"],
            &["superblock"],
            &["nat", "node_log", "pages::page_cache"],
            &["node", "node::block_map", "pages"],
            &["inode"],
            &["segments"],
            &["space", "space::fsync_tracker"],
            &["image"],
            &["change"],
            &["data", "data::direct_io", "data::pointers", "data::read_ahead", "data::write"],
            &["xattr", "dir"],
            &["allocation", "gc"],
            &["checkpoint", "checkpoint::logs", "checkpoint::write"],
            &["checkpoint::commit"],
            &["mounted::guards", "mounted::open_files", "mounted::range_lock"],
            &["mounted"],
            &["mounted::call_gate"],
            &["fsync"],
            &["fs", "fs::attrs", "fs::names", "fs::partial_io", "fs::unnamed"],
            &["recovery"],
            &["volume"],
        ],
    },
    Order {
        folder: "crates/pmem",
        layers: &[
            &["process", "set_once"],
            &["durability", "error", "lost", "planted", "free_space", "presence", "steps"],
            &["noted", "write_backs"],
            &["cpu", "dirty", "domain", "failing_disk", "mapping"],
            &["fault_handler", "huge", "probe", "simulator", "stale_cache", "untouched"],
            &["caller"],
            &["region"],
            &["backing_file", "bandwidth", "watched"],
            &["locked_file"],
            &["open"],
        ],
    },
];

pub const EXCEPTIONS: &[Exception] = &[];

pub const CIRCLES: &[Circle] = &[];
