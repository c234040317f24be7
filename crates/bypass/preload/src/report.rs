//! The report of the calls that the engine served and of those passed on to the kernel, for
//! `HEDDLE_REPORT=FILE`: a line of JSON for each process, written when it ends or executes another program.

use crate::counts::{COUNTS, Counts, REASONS};
use crate::inherited_filter;
use crate::table::MOUNTS;
use crate::thread::{is_beside_in_this_memory, records, this_thread};
use std::ffi::OsString;
use std::fmt::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

static PATH: OnceLock<OsString> = OnceLock::new();
static IS_SILENT: AtomicBool = AtomicBool::new(false);

/// Called when the library is loaded: checks whether a report is wanted.
pub fn start() {
    if let Some(path) = std::env::var_os("HEDDLE_REPORT").filter(|path| !path.is_empty()) {
        let _first = PATH.set(path);
    }
}

/// From now on this process writes no line: a line needs memory, whose lock may be held for ever.
pub fn write_none() {
    IS_SILENT.store(true, Relaxed); // ORDERING: Relaxed, of the only thread.
}

/// True: the program has loaded a library whose calls are not seen here.
static HAS_LIBRARY_APART: AtomicBool = AtomicBool::new(false);
const APART: &str =
    "the program has loaded a library by dlmopen, or with RTLD_DEEPBIND: it works through the mounts";

const FILTER: &str = "the program was started under a filter of system calls that ends it for a call that attaching takes, or no child \
                      could try that: it works through the mounts";

/// Called before such a library is loaded.
pub fn has_library_apart() {
    // ORDERING: Relaxed: only the report's.
    HAS_LIBRARY_APART.store(true, Relaxed);
}

/// Appends this process's line and resets the counts. Does nothing without `HEDDLE_REPORT`.
pub fn write() {
    let Some(path) = PATH.get() else { return };
    // A child that runs in its parent's memory finds the parent's counts. A program that a signal handler
    // ends leaves no line: making one allocates memory, which a handler must not do.
    // ORDERING: Relaxed, a flag that is only raised.
    if this_thread().is_vfork_child()
        || is_beside_in_this_memory()
        || this_thread().is_in_handler()
        || IS_SILENT.load(Relaxed)
    {
        return;
    }
    let Some(_busy) = crate::thread::Busy::enter() else { return };
    let mut line = line();
    use std::os::unix::ffi::OsStrExt;
    let more = rustix::fs::OFlags::APPEND | rustix::fs::OFlags::CREATE | rustix::fs::OFlags::CLOEXEC;
    let open =
        |access| rustix::fs::open(path.as_bytes(), access | more, rustix::fs::Mode::from_raw_mode(0o644));
    let file = open(rustix::fs::OFlags::RDWR).or_else(|_| open(rustix::fs::OFlags::WRONLY));
    if let Ok(file) = file {
        // An earlier process may have left an incomplete line: it was killed while writing, or met its file size
        // limit.
        if !ends_a_line(&file) {
            line.insert(0, '\n');
        }
        // One write keeps lines of several processes whole. If it fails there is no report, and the program
        // goes on.
        let _ = rustix::io::write(&file, line.as_bytes());
    }
    records().for_each(|r| r.counts.clear());
}

/// Returns true if the file is empty or ends with a newline, or if that is unknown.
fn ends_a_line(file: &rustix::fd::OwnedFd) -> bool {
    let Ok(stat) = rustix::fs::fstat(file) else { return true };
    // An empty file needs no newline. If another process appends to it meanwhile, it appends a whole line.
    let Some(at) = (stat.st_size as u64).checked_sub(1) else { return true };
    let mut last = [b'\n'];
    rustix::io::pread(file, &mut last, at).is_err() || last == *b"\n"
}

fn line() -> String {
    // ORDERING: Relaxed, only counts; those of running threads may be stale.
    let sum =
        |of: &dyn Fn(&Counts) -> &AtomicU64| records().map(|r| of(&r.counts).load(Relaxed)).sum::<u64>();
    let program = std::fs::read_link("/proc/thread-self/exe").unwrap_or_default();
    let mut line =
        format!("{{\"pid\":{},\"program\":{}", std::process::id(), quoted(&program.to_string_lossy()));
    for (name, count) in COUNTS {
        let _ = write!(line, ",\"{name}\":{}", sum(&|c| &c.calls[count as usize]));
    }
    let (read, written) = (sum(&|c| &c.bytes_read), sum(&|c| &c.bytes_written));
    let _ = write!(line, ",\"bytes_read\":{read},\"bytes_written\":{written},\"passed_on\":{{");
    let mut comma = "";
    for (name, why) in REASONS {
        let _ = write!(line, "{comma}\"{name}\":{}", sum(&|c| &c.passed[why as usize]));
        comma = ",";
    }
    line.push_str("},\"refused\":[");
    comma = "";
    // ORDERING: Relaxed, a flag that is only raised.
    let apart = HAS_LIBRARY_APART.load(Relaxed).then_some(APART);
    let filter = inherited_filter::is_deadly().then_some(FILTER);
    for why in MOUNTS.refusals().chain(apart).chain(filter) {
        let _ = write!(line, "{comma}{}", quoted(why));
        comma = ",";
    }
    line.push_str("]}\n");
    line
}

/// A JSON string, with its quotation marks.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if u32::from(c) < 0x20 => drop(write!(out, "\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
