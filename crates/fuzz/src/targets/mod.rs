//! What is fed with hostile input, and what it promises.

mod decoders;
mod flash;
mod language;
mod mount;
mod node_log;
mod repair;
mod wire;

/// One of them.
pub trait Target {
    /// Inputs to begin with.
    fn seeds(&self) -> Vec<Vec<u8>>;

    /// Bytes that belong together: pieces are cut out and put in between these.
    fn unit(&self) -> usize {
        1
    }

    /// Words that such inputs are made of.
    fn words(&self) -> &[&str] {
        &[]
    }

    /// Tries an input; a number that says what kind of thing happened.
    ///
    /// # Errors
    /// The promise that was broken.
    fn run(&mut self, input: &[u8]) -> Result<u64, String>;
}

/// A target's name, what it feeds with what, and how it is made ready.
pub struct Row {
    /// On the command line.
    pub name: &'static str,
    /// For people.
    pub about: &'static str,
    /// Inputs of the short run.
    pub short: u64,
    /// Makes it ready; `wide`: with all there is to begin with, or with a little, quickly.
    pub make: fn(wide: bool) -> Box<dyn Target>,
}

/// All of them.
pub const TARGETS: &[Row] = &[
    Row {
        name: "mount",
        about: "images with forged fields: mount, read, write, empty, mount again",
        short: 250,
        make: |wide| Box::new(mount::Mount::new(wide)),
    },
    Row {
        name: "repair",
        about: "damaged images: fsck mends all it says it does, the image mounts, undamaged files are whole",
        short: 150,
        make: |wide| Box::new(repair::Repair::new(wide)),
    },
    Row {
        name: "flash",
        about: "F2FS images with forged fields: open, list, read",
        short: 150,
        make: |_| Box::new(flash::Flash::new()),
    },
    Row {
        name: "nodelog",
        about: "node logs with forged records: open, list, write, unmount, open the image alone",
        short: 150,
        make: |_| Box::new(node_log::NodeLog::new()),
    },
    Row {
        name: "decoders",
        about: "records, blobs, lists, superblocks, access lists: what is read is written the same",
        short: 40_000,
        make: |_| Box::new(decoders::Decoders),
    },
    Row {
        name: "language",
        about: "workloads of the crash rig: what is read is written the same",
        short: 4_000,
        make: |_| Box::new(language::Language),
    },
    Row {
        name: "wire",
        about: "both ends of the daemon's socket",
        short: 2_000,
        make: |_| Box::new(wire::Wire::new()),
    },
];
