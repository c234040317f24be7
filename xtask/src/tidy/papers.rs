//! Which variant the NVM engine is mounted as is asked in few files. Other files ask one of the questions in `state/papers.rs`, which say
//! what differs.

use super::Finding;
use super::source::{Source, words};

const ENGINE: &str = "crates/nvmfs/src/";

/// They define the variants, mount an image as one, tell another process which one it is, or read the media that it has written. So may
/// each file named `papers.rs`.
const MAY_ASK: [&str; 4] = ["variant.rs", "volume.rs", "shared/", "upkeep/recovery/"];

/// Fields of the core.
const FIELDS: [&str; 2] = ["variant", "locks"];

pub fn check(source: &Source<'_>) -> Vec<Finding> {
    let Some(inside) = source.path.strip_prefix(ENGINE) else { return Vec::new() };
    let is_theirs = inside.rsplit('/').next() == Some("papers.rs");
    if is_theirs || MAY_ASK.iter().any(|place| inside.starts_with(place)) {
        return Vec::new();
    }
    let mend = "ask `state::papers` what is true, or move what only the papers' variants do into `papers.rs`";
    let asking = (0..source.lines.len()).filter(|i| !source.lines[*i].in_test && asks(source, *i));
    asking.map(|i| Finding::error(source.path, i + 1, "papers", mend)).collect()
}

fn asks(source: &Source<'_>, i: usize) -> bool {
    let code = &source.lines[i].code;
    let is_field = |field: &&str| words(code, field).any(|at| is_cores(source, i, &code[..at]));
    words(code, "locks_whole_file").next().is_some() || FIELDS.iter().any(is_field)
}

/// Is this the beginning of `core.` or `self.`? The dot may stand on a line of its own with the field.
fn is_cores(source: &Source<'_>, i: usize, before: &str) -> bool {
    let Some(of) = before.strip_suffix('.') else { return false };
    let above = || source.lines[..i].iter().rev().map(|line| line.code.trim()).find(|code| !code.is_empty());
    let of = if of.trim().is_empty() { above().unwrap_or_default() } else { of };
    ["core", "self"].iter().any(|name| words(of, name).any(|at| at + name.len() == of.len()))
}
