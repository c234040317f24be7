//! The engine's source: its calls that store or fence, and their comments.

use heddle_pmem::planted::{Kind, Site};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The phrase of a comment that argues for a call which no test can notice: "No check sees" or "no check sees".
const ARGUED: &str = "o check sees";
/// The phrase of a comment for a call that only a planted bug makes.
const OF_A_BUG: &str = "part of a planted bug";

/// Files whose stores do not belong to a mounted file system: fsck's repair has its own rigs, and planted
/// bugs do not count.
const ELSEWHERE: [&str; 6] = ["fsck/", "models/", "planted", "region.rs", "tests", "deaths.rs"];

/// The engine's source, from the top of the repository: the compiler names its files like this.
const SOURCE: &str = "crates/nvmfs/src/";

/// A call as the source has it.
pub(super) struct Written {
    /// The function that contains it.
    pub(super) function: String,
    /// Its comment says that no check sees it.
    pub(super) argued: bool,
}

/// `upkeep/clean.rs:98`.
pub(super) fn shown(site: &Site) -> String {
    format!("{}:{}", site.file.strip_prefix(SOURCE).unwrap_or(site.file), site.line)
}

/// The name of its kind.
pub(super) fn word(kind: Kind) -> &'static str {
    if kind == Kind::Fence { "fence" } else { "store" }
}

/// Returns true if the call is in an examined file of the engine.
pub(super) fn is_engines(site: &Site) -> bool {
    let inside = site.file.strip_prefix(SOURCE);
    inside.is_some_and(|inside| !ELSEWHERE.iter().any(|part| inside.contains(part)))
}

/// All calls in the engine's source, including those that never run.
pub(super) fn written() -> BTreeMap<Site, Written> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../nvmfs/src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    let mut sites = BTreeMap::new();
    for file in files {
        let Ok(inside) = file.strip_prefix(&root) else { continue };
        // Kept for the life of the process.
        let name: &'static str = String::leak(format!("{SOURCE}{}", inside.to_string_lossy()));
        let Ok(text) = std::fs::read_to_string(&file) else { continue };
        sites.extend(calls_in(name, &text).into_iter().filter(|(site, _)| is_engines(site)));
    }
    sites
}

/// The calls of one file, without those of planted bugs.
fn calls_in(file: &'static str, text: &str) -> Vec<(Site, Written)> {
    let lines: Vec<&str> = text.lines().collect();
    let (mut calls, mut function) = (Vec::new(), String::new());
    for (at, line) in lines.iter().enumerate() {
        if let Some(name) = function_in(line) {
            function = name.to_string();
        }
        let Some(kind) = kind_of(line) else { continue };
        let above = lines[..at].iter().rev().take_while(|line| line.trim_start().starts_with("//"));
        let comment: Vec<&str> = above.chain([line]).copied().collect();
        let says = |words: &str| comment.iter().any(|line| line.contains(words));
        if !says(OF_A_BUG) {
            let written = Written { function: function.clone(), argued: says(ARGUED) };
            calls.push((Site { file, line: at as u32 + 1, kind }, written));
        }
    }
    calls
}

/// The name of the function that begins in this line.
fn function_in(line: &str) -> Option<&str> {
    let code = line.trim_start();
    let name = code.split("fn ").nth(1).filter(|_| !code.starts_with("//"))?;
    name.split(['(', '<']).next()
}

fn kind_of(line: &str) -> Option<Kind> {
    let code = line.trim_start();
    let fences =
        ["region.fence()", "region.fence_and_wait()", "fence_unless(Bug", "wait_unless(Bug", "self.fence()"];
    let stores = [
        ".nt_write(",
        ".nt_write_user(",
        ".nt_line(",
        ".nt_zero(",
        ".nt_copy(",
        ".store_u64(",
        ".store_line(",
        ".flush_unfenced(",
    ];
    if code.starts_with("//") {
        None
    } else if fences.iter().any(|call| code.contains(call)) {
        Some(Kind::Fence)
    } else if stores.iter().any(|call| code.contains(call)) {
        Some(Kind::Store)
    } else {
        None
    }
}

fn sources(dir: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            sources(&path, files);
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            files.push(path);
        }
    }
    files.sort();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_found_with_what_their_comments_say() {
        let text = "fn f<'a>() {\n// PERSIST: first.\ncore.region.fence();\n// PERSIST: it is needed. No check sees it.\n// Truly.\n\
            region.nt_zero(at, 8);\n// region.fence() in words\n}\npub fn g() {\n\
            // PERSIST: part of a planted bug.\nregion.fence();\nself.fence();\n";
        let found = calls_in("f.rs", text);
        let short: Vec<_> =
            found.iter().map(|(site, w)| (site.line, site.kind, w.function.as_str(), w.argued)).collect();
        let (fence, store) = (Kind::Fence, Kind::Store);
        assert_eq!(short, [(3, fence, "f", false), (6, store, "f", true), (12, fence, "g", false)]);
    }
}
