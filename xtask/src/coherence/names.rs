//! Names of lines: which structure of the file system a transferred line belongs to.
//!
//! The program tells each allocation's type and the place in the source that made it. A type with lines of different meaning has a row
//! in [`TYPES`]; arrays of plain words are named by their file and the function that made them; the rest follows from the type.

use std::collections::BTreeMap;
use std::path::Path;

use super::Line;
use super::code::Code;
use super::report::{Report, Thing, What};

/// A type's lines, in order; a line beyond them has the last name.
const TYPES: &[(&str, &[&str])] = &[
    (
        "VolatileInode",
        &[
            "inode: who it is (line 0)",
            "directory: bucket",
            "inode: size and times (line 2)",
            "inode: cells of the first pages (line 3)",
            "inode: counts of names, handles, blocks, pins (line 4)",
        ],
    ),
    (
        "PaperLocks",
        &["range lock: head", "range lock: waiting", "log lock", "tail lock", "index lock", "time lock"],
    ),
    ("Lane", &["lane: state", "lane: held blocks", "lane: its own"]),
    ("Slot", &["lane: lease"]),
    ("Chunk", &["inode chunks: places"]),
    ("Apart", &["inode chunk: free slots"]),
    ("Cell", &["cells of a leaf"]),
    ("Chain", &["log chain"]),
    ("Chains", &["log chains of an inode: heads", "log chains of an inode: pages and eras"]),
    (
        "Root",
        &[
            "mount: places",
            "mount: count of inode chunks",
            "mount: rename latch",
            POOL,
            POOL,
            POOL,
            POOL,
            POOL,
            "mount: state",
        ],
    ),
    ("Top", &["arena: top"]),
    ("FreeList", &["arena: free list of a size"]),
    ("ParkingTable", &["arena: parking table"]),
    ("Node", &["interval tree: node"]),
    ("Bucket", &["directory: bucket"]),
    ("OpenTable", &["lane: open handles"]),
];

const POOL: &str = "mount: pool of bucket arrays";

/// Plain words, by the file that makes them.
const WORDS: &[(&str, &str)] = &[
    ("nvmfs/src/state/free_map.rs", "free map"),
    ("nvmfs/src/state/index.rs", "page index: node"),
    ("nvmfs/src/names/table.rs", "directory: entries outside their bucket"),
    ("range-lock/src/array.rs", "range lock: words of the array"),
    ("range-lock/src/tree.rs", "range lock: words and nodes of the tree"),
];

/// The lines of a run by name, most transfers first.
pub fn lines(report: &Report, target: &str, code: &Code) -> Vec<Line> {
    let mut by_name: BTreeMap<String, (Line, u64)> = BTreeMap::new();
    for thing in &report.things {
        let main = thing.by.iter().max_by_key(|by| by.0);
        let name = name(thing, target, code);
        let count = if let What::Named { count, .. } = thing.what { count } else { 1 };
        let line = Line { name: name.clone(), transfers: 0, count: 0, code: None };
        let (line, most) = by_name.entry(name).or_insert((line, 0));
        line.transfers += thing.transfers;
        line.count += count;
        if let Some((transfers, writer, toucher)) = main
            && transfers > most
        {
            *most = *transfers;
            line.code = Some((code.function(*writer), code.function(*toucher)));
        }
    }
    let mut lines: Vec<Line> = by_name.into_values().map(|(line, _)| line).collect();
    lines.sort_by(|a, b| b.transfers.cmp(&a.transfers).then_with(|| a.name.cmp(&b.name)));
    lines
}

fn name(thing: &Thing, target: &str, code: &Code) -> String {
    match &thing.what {
        What::Address(at) => unnamed(*at, thing, code),
        What::Named { what, file, line, at, element_bytes, .. } => {
            named(what, (file, *line), (*at, *element_bytes), target)
        }
    }
}

/// No thing that the program told of: a variable, or memory of the process.
fn unnamed(at: u64, thing: &Thing, code: &Code) -> String {
    if let Some(variable) = code.variable(at) {
        return format!("static: {variable}");
    }
    let toucher = thing.by.iter().max_by_key(|by| by.0).map(|by| code.function(by.2));
    let toucher = toucher.unwrap_or_default();
    let toucher = toucher.split(" (").next().unwrap_or_default();
    let kind = if code.is_beyond(at) { "heap" } else { "static" };
    format!("{kind}, touched by {toucher}")
}

fn named(what: &str, (file, line): (&str, u32), (at, element_bytes): (u32, u64), target: &str) -> String {
    let Some((module, ty)) = type_of(what) else { return what.to_owned() };
    let file_end = file.trim_start_matches("crates/");
    if ty == "PaperLocks" && at == 0 {
        return range_lock_head(target).to_owned();
    }
    if let Some((_, lines)) = TYPES.iter().find(|(name, _)| *name == ty) {
        return lines[(at as usize).min(lines.len() - 1)].to_owned();
    }
    if module == "atomic" {
        if let Some((_, name)) = WORDS.iter().find(|(path, _)| file_end == *path) {
            return (*name).to_owned();
        }
        let stem = file_end.rsplit('/').next().unwrap_or(file_end).trim_end_matches(".rs");
        let function = enclosing(file, line).map(|f| format!(" made by {f}")).unwrap_or_default();
        return format!("{stem}: words{function}");
    }
    let of = if element_bytes > 64 { format!(" (line {at})") } else { String::new() };
    format!("{module}: {ty}{of}")
}

/// What is on the first line of a range lock depends on its kind.
fn range_lock_head(target: &str) -> &'static str {
    match target {
        "nova" => "range lock: reader count",
        "nova-interval" => "range lock: mutex of the interval tree",
        _ => "range lock: root",
    }
}

/// Module and name of a type; `None`: it is words.
fn type_of(what: &str) -> Option<(&str, &str)> {
    let plain = what.split('<').next().unwrap_or(what);
    let (path, ty) = plain.rsplit_once("::")?;
    // Atomics' own names are those of a generic type since Rust 1.9x: `core::sync::atomic::Atomic<u64>`.
    Some((path.rsplit("::").next().unwrap_or(path), ty))
}

/// The function around a line of the source, if the source is there.
fn enclosing(file: &str, line: u32) -> Option<String> {
    let text = std::fs::read_to_string(Path::new(file)).ok()?;
    function_at(&text, line)
}

/// The last `fn NAME` at or above a line.
pub fn function_at(text: &str, line: u32) -> Option<String> {
    let above: Vec<&str> = text.lines().take(line as usize).collect();
    above.iter().rev().find_map(|line| {
        let (before, after) = line.split_once("fn ")?;
        let heads = ["", "pub", "pub(crate)", "pub(super)", "unsafe", "pub unsafe", "const", "pub const"];
        let name: String = after.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        (heads.contains(&before.trim()) && !name.is_empty()).then_some(name)
    })
}
