//! Functions that the bypass stands before, however a program comes to them: looked up, and by the C library's other names.

mod common;

use common::build_preload;
use common::traps::{trap, trap_with};
use std::collections::HashSet;
use std::path::Path;
use std::process::Command;

/// What was written by a function that the program had looked up overwrote the file's start.
#[test]
fn functions_looked_up_in_the_c_library_share_the_offset() {
    trap_with("lookup/found", &["write"], &["looks_up"]);
}

#[test]
fn another_librarys_function_of_the_name_is_called_once() {
    trap_with("lookup/between", &["write"], &["looks_up"]);
}

#[test]
fn what_is_not_found_by_name_is_said_as_by_the_loader() {
    trap_with("lookup/missing", &[], &["looks_up"]);
}

#[test]
fn other_names_of_a_function_are_served_alike() {
    trap("names/names", &["write", "read", "seek"]);
}

/// Names of functions that a library defines, with their addresses; `None`: there is no nm(1).
fn functions_of(library: &Path) -> Option<Vec<(String, String)>> {
    let said = Command::new("nm").args(["--dynamic", "--defined-only"]).arg(library).output().ok()?;
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let function = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [address, "T" | "W" | "i", name] = words[..] else { return None };
        Some((address.to_owned(), name.split('@').next().unwrap().to_owned()))
    };
    Some(String::from_utf8(said.stdout).unwrap().lines().filter_map(function).collect())
}

/// A program that called `__write` overwrote the file's start.
#[test]
fn each_name_of_a_function_that_is_served_is_served() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let Some(at) = maps
        .lines()
        .find_map(|line| line.find('/').map(|at| &line[at..]).filter(|at| at.contains("/libc.so")))
    else {
        eprintln!("SKIPPED, NOT TESTED: this program has no libc.so");
        return;
    };
    let library = build_preload().join("libheddle_preload.so");
    let (Some(theirs), Some(ours)) = (functions_of(Path::new(at)), functions_of(&library)) else {
        eprintln!("SKIPPED, NOT TESTED: there is no nm");
        return;
    };
    let is_ours = |name: &str| ours.iter().any(|(_, our)| our == name);
    let served: HashSet<&str> =
        theirs.iter().filter(|(_, name)| is_ours(name)).map(|(address, _)| address.as_str()).collect();
    let unserved: Vec<&str> = theirs
        .iter()
        .filter(|(address, name)| served.contains(address.as_str()) && !is_ours(name))
        .map(|(_, name)| name.as_str())
        .collect();
    assert!(served.len() > 100, "{served:?}");
    assert!(unserved.is_empty(), "not in calls/names.rs: {unserved:?}");
}
