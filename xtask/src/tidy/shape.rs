//! Sizes that a reader can hold, words that may not stay, and pointers that may not leave pmem.

use super::Finding;
use super::source::{Source, block_end, words};

const FILE_LINES_SOFT: usize = 400;
const FILE_LINES_HARD: usize = 600;
const FUNCTION_LINES_SOFT: usize = 70;
/// A red test is to be understood from its name alone.
const TEST_NAME_WORDS: usize = 12;

/// Crates that hold a region: they reach it through pmem's calls only, or the simulated region would not see the store.
const REGION_HOLDERS: [&str; 2] = ["crates/nvmfs/", "crates/f2fs/"];
const RAW_POINTERS: [&str; 2] = ["*mut u8", "*const u8"];

const UNFINISHED: [&str; 3] = ["todo", "unimplemented", "dbg"];

pub fn check(source: &Source<'_>) -> Vec<Finding> {
    let mut findings = function_sizes(source);
    findings.extend(file_size(source));
    findings.extend(test_names(source));
    let holds_region = REGION_HOLDERS.iter().any(|folder| source.path.starts_with(folder));
    for (i, line) in source.lines.iter().enumerate() {
        for name in UNFINISHED {
            if words(&line.code, name).any(|at| line.code[at + name.len()..].starts_with('!')) {
                let mend = format!("finish it: {name}! does not stay");
                findings.push(Finding::error(source.path, i + 1, "unfinished", mend));
            }
        }
        if holds_region && RAW_POINTERS.iter().any(|pointer| line.code.contains(pointer)) {
            let mend = "reach the region through heddle-pmem: raw pointers to it live there alone";
            findings.push(Finding::error(source.path, i + 1, "raw-pointer", mend));
        }
    }
    findings
}

fn file_size(source: &Source<'_>) -> Option<Finding> {
    let count = source.lines.len();
    let mend =
        |limit: usize| format!("{count} lines, more than {limit}: find the second idea and give it a file");
    if count > FILE_LINES_HARD {
        Some(Finding::error(source.path, count, "file-size", mend(FILE_LINES_HARD)))
    } else if count > FILE_LINES_SOFT {
        Some(Finding::warning(source.path, count, "file-size", mend(FILE_LINES_SOFT)))
    } else {
        None
    }
}

fn function_sizes(source: &Source<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (i, line) in source.lines.iter().enumerate() {
        let Some(at) = words(&line.code, "fn").next() else { continue };
        let rest = line.code[at + 2..].trim_start();
        if line.in_test || !rest.starts_with(|c: char| c.is_alphabetic() || c == '_') {
            continue;
        }
        let column = line.code[..at].chars().count();
        let Some(end) = block_end(&source.lines, i, column) else { continue };
        let count = end - i + 1;
        if count > FUNCTION_LINES_SOFT {
            let mend = format!("{count} lines, more than {FUNCTION_LINES_SOFT}: give its parts names");
            findings.push(Finding::warning(source.path, i + 1, "function-size", mend));
        }
    }
    findings
}

/// The function behind each `#[test]`.
fn test_names<'a>(source: &'a Source<'_>) -> impl Iterator<Item = Finding> + 'a {
    let is_test = |code: &str| code.trim() == "#[test]";
    let tests = source.lines.iter().enumerate().filter(move |(_, line)| is_test(&line.code));
    tests.filter_map(|(i, _)| {
        let at =
            (i + 1..source.lines.len()).find(|at| source.lines[*at].code.trim_start().starts_with("fn "))?;
        let code = source.lines[at].code.trim_start();
        let name = code.trim_start_matches("fn ").split('(').next()?;
        let count = name.split('_').count();
        let mend =
            format!("{name} has {count} words, more than {TEST_NAME_WORDS}: say what must hold, shorter");
        (count > TEST_NAME_WORDS).then(|| Finding::error(source.path, at + 1, "test-name", mend))
    })
}
