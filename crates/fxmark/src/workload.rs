//! The workloads: names, their operations, and differences of the original program.
//!
//! Source  FxMark (USENIX ATC'16), Tables 1 and 2: nineteen workloads, four letters each (data or metadata, read or
//!         write, operation, sharing level); the mixes are those of SRL's Fig. 12 (c, d). The applications: `bench/hacc.rs`,
//!         `bench/oltp.rs`, `bench/varmail.rs`.

use crate::ConfigError;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A workload.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[allow(missing_docs, reason = "SPECS below says what each one is, in one place for people and program")]
#[rustfmt::skip]
pub enum Workload {
    DRBL, DRBM, DRBH, DWOL, DWOM, DWAL, DWTL, DWSL,
    MRPL, MRPM, MRPH, MRDL, MRDM, MWCL, MWCM, MWUL, MWUM, MWRL, MWRM,
    MIX50, MIX75, MIX25,
    HACC, OLTP, VARMAIL,
}

struct Spec {
    workload: Workload,
    name: &'static str,
    /// One operation, as counted.
    operation: &'static str,
    /// What `--faithful` does instead; empty if only zeros replace the stamped data.
    faithful: &'static str,
}

use Workload::*;
const SPECS: [Spec; 25] = [
    spec(DRBL, "DRBL", "pread 4 KiB of the worker's own file", ""),
    spec(DRBM, "DRBM", "pread 4 KiB of the worker's own block of one shared file", ""),
    spec(DRBH, "DRBH", "pread 4 KiB, the same block for all workers", ""),
    spec(DWOL, "DWOL", "pwrite 4 KiB of the worker's own file", ""),
    spec(DWOM, "DWOM", "pwrite 4 KiB of the worker's own block of one shared file", ""),
    spec(
        DWAL,
        "DWAL",
        "append 4 KiB to the worker's own file; cut to 0 at the window, inside the timed loop",
        "no window: the run ends early when the device is full",
    ),
    spec(
        DWTL,
        "DWTL",
        "extend the worker's own file by one block, truncate it to one block: one operation",
        "truncate by one block a time; refilled and synced outside the clock",
    ),
    spec(DWSL, "DWSL", "pwrite 4 KiB of the worker's own file and fsync", ""),
    spec(MRPL, "MRPL", "open and close the worker's own file, five names deep", "stat"),
    spec(
        MRPM,
        "MRPM",
        "open and close a random one of 32,768 files, five names deep",
        "stat; path printed inside the loop; its generator visits 8 of the files",
    ),
    spec(
        MRPH,
        "MRPH",
        "open and close one file, the same for all workers, five names deep",
        "stat; path printed inside the loop",
    ),
    spec(
        MRDL,
        "MRDL",
        "readdir: one entry of the worker's own directory, over and over",
        "never rewinds: counts calls at the end of the directory",
    ),
    spec(
        MRDM,
        "MRDM",
        "readdir: one entry of a shared directory, over and over",
        "never rewinds: counts calls at the end of the directory",
    ),
    spec(MWCL, "MWCL", "create an empty file in the worker's own directory", "name printed inside the loop"),
    spec(
        MWCM,
        "MWCM",
        "create an empty file in a shared directory",
        "writes 4 KiB too; name printed inside the loop",
    ),
    spec(MWUL, "MWUL", "unlink an empty file of the worker's own directory", "name printed inside the loop"),
    spec(MWUM, "MWUM", "unlink an empty file of a shared directory", "name printed inside the loop"),
    spec(
        MWRL,
        "MWRL",
        "rename a file inside the worker's own directory",
        "one file, from number to next number; both names printed inside the loop",
    ),
    spec(
        MWRM,
        "MWRM",
        "rename from the worker's own directory into a shared one",
        "both names printed inside the loop",
    ),
    spec(MIX50, "MIX50", "DWOM by 50 % of the workers, DRBM by the others, one file", ""),
    spec(MIX75, "MIX75", "DWOM by 75 % of the workers, DRBM by the others, one file", ""),
    spec(MIX25, "MIX25", "DWOM by 25 % of the workers, DRBM by the others, one file", ""),
    spec(
        HACC,
        "HACC",
        "a rank's part of a checkpoint in one shared file: open, nine large writes at no page's start, close",
        "",
    ),
    spec(
        OLTP,
        "OLTP",
        "a database: read 2 KiB of one of ten files; to ten reads, write 2 KiB and fsync; to 3,200, 256 KiB of the log",
        "",
    ),
    spec(
        VARMAIL,
        "VARMAIL",
        "a turn of a mail server: remove; make, write, fsync; read, append, fsync; read; one directory",
        "",
    ),
];

const fn spec(
    workload: Workload,
    name: &'static str,
    operation: &'static str,
    faithful: &'static str,
) -> Spec {
    Spec { workload, name, operation, faithful }
}

impl Workload {
    /// The nineteen workloads of the paper.
    pub fn nineteen() -> impl Iterator<Item = Workload> {
        SPECS.iter().map(|s| s.workload).filter(|w| w.write_percent().is_none() && !w.is_application())
    }

    /// All: the nineteen, the mixes and the applications.
    pub fn all() -> impl Iterator<Item = Workload> {
        SPECS.iter().map(|s| s.workload)
    }

    /// By name, in any case.
    ///
    /// # Errors
    /// [`ConfigError::UnknownWorkload`], which lists the names there are.
    pub fn parse(name: &str) -> Result<Workload, ConfigError> {
        let found = SPECS.iter().find(|s| s.name.eq_ignore_ascii_case(name)).map(|s| s.workload);
        found.ok_or_else(|| ConfigError::UnknownWorkload { name: name.to_owned() })
    }

    /// Its name on the command line and in reports.
    pub fn name(self) -> &'static str {
        self.spec().name
    }

    /// What is counted as one operation.
    pub fn operation(self) -> &'static str {
        self.spec().operation
    }

    /// What `--faithful` does instead, if it is more than writing zeros.
    pub fn faithful(self) -> Option<&'static str> {
        Some(self.spec().faithful).filter(|text| !text.is_empty())
    }

    /// Returns true if the paper measures it with `O_DIRECT`, too (its Fig. 10).
    pub fn takes_direct(self) -> bool {
        matches!(self, DRBL | DRBM | DWOL | DWOM)
    }

    /// Returns true for an application's sequence of calls, and false for a loop around one call.
    pub fn is_application(self) -> bool {
        matches!(self, HACC | OLTP | VARMAIL)
    }

    /// Share of the workers that write, for the mixes.
    pub(crate) fn write_percent(self) -> Option<u64> {
        match self {
            MIX50 => Some(50),
            MIX75 => Some(75),
            MIX25 => Some(25),
            _ => None,
        }
    }

    fn spec(self) -> &'static Spec {
        &SPECS[self as usize]
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The names of all workloads, in one line.
pub(crate) fn names() -> String {
    SPECS.iter().map(|s| s.name).collect::<Vec<_>>().join(" ")
}

/// What `heddle fxmark --list` prints: each workload, and how `--faithful` differs.
pub fn list() -> String {
    let mut out =
        String::from("Workloads (FxMark's nineteen, mixes, applications): what counts as one operation\n\n");
    for spec in &SPECS {
        out += &format!("  {:<8} {}\n", spec.name, spec.operation);
    }
    out += NOTES;
    for spec in SPECS.iter().filter(|s| !s.faithful.is_empty()) {
        out += &format!("  {:<8} {}\n", spec.name, spec.faithful);
    }
    out
}

const NOTES: &str = "
Default: Table 2 of the paper, with blocks 8 MiB apart in the shared file (--stride 4K: neighbours, as the
table has it).
Data is stamped with worker, page and sequence, and is read back after every run; a wrong byte fails the run.
Names are made before the clock starts. MWC*, MWU*, MWRM and the faithful DWTL work on a bounded set of files or
blocks; making the set anew is left out of the worker's clock. DWTL's pair never reaches the disk of file systems
that allocate late (ext4, xfs, btrfs): that favours them.
Mixes: writers are cores x percent. Where that is no whole number, one worker mixes operation by operation, so the
percentage is exact on any number of cores; reads and writes are counted apart.
--access random (DRBL DRBM DWOL DWOM DWSL and mixes): a random page of the worker's own part of the file each time.
--call SIZE (DRBL DWOL): calls of so many bytes, at a multiple of that.
HACC: a rank's part is 8 MiB, or its share of --file-size: bytes a second are operations a second times that.
OLTP: the data files have the size of --file-size together, or 8 MiB a worker, as the shared file has elsewhere.
VARMAIL: 1,000 mails in all, four fifths of them there; each worker has its own.

--faithful: the loops of the original program, with what distorts its figures. All data is zeros, there is no warm-up, and:
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_finds_its_own_spec() {
        for workload in Workload::all() {
            assert_eq!(workload.spec().workload, workload);
            assert_eq!(Workload::parse(&workload.name().to_lowercase()).unwrap(), workload);
        }
        assert_eq!(Workload::nineteen().count(), 19);
    }

    #[test]
    fn an_unknown_workload_is_answered_with_the_names_there_are() {
        let text = Workload::parse("DWOX").unwrap_err().to_string();
        assert!(text.contains("DWOX") && text.contains("DWOM") && text.contains("MIX25"), "{text}");
    }

    #[test]
    fn the_list_says_what_faithful_changes() {
        let text = list();
        assert!(Workload::all().all(|w| text.contains(w.operation())));
        assert!(text.contains("visits 8 of the files"));
    }
}
