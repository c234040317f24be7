//! Programs in C for the bypass: each is run on tmpfs, on a mount, and on a mount with the library preloaded.

use super::{Mounted, Place, alone, build_preload, command};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub fn compiled(place: &Place, source: &str, extra: &[&str]) -> Option<PathBuf> {
    let program = place.path(Path::new(source).file_stem().unwrap().to_str().unwrap());
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-o"]).arg(&program).arg(source).args(extra);
    let Ok(said) = cc.output() else {
        eprintln!("SKIPPED, NOT TESTED: there is no C compiler");
        return None;
    };
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    Some(program)
}

/// `heddle run -- COMMAND…` with a report: what it said, and the report's lines.
pub fn run(place: &Place, args: &[&str]) -> (Output, Vec<serde_json::Value>) {
    build_preload();
    let report = place.path("report");
    let _ = fs::remove_file(&report);
    let mut all = vec!["run", "--"];
    all.extend(args);
    let out = command(&all).env("HEDDLE_REPORT", &report).output().unwrap();
    let lines = fs::read_to_string(report).unwrap_or_default();
    // A line that another process is about to end is taken for incomplete: then an empty one follows it.
    let lines = lines.lines().filter(|line| !line.is_empty());
    (out, lines.map(|line| serde_json::from_str(line).unwrap()).collect())
}

#[track_caller]
pub fn went_well(out: &Output) {
    let said = String::from_utf8_lossy(&out.stderr).into_owned() + &String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && !said.contains("panicked"), "{said}");
}

pub fn sum(report: &[serde_json::Value], of: &str) -> u64 {
    report.iter().map(|line| line[of].as_u64().unwrap()).sum()
}

/// Where the traps are: a program for each kind.
pub const TRAPS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c");
pub const C_API: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../bypass/c");

/// One trap: on tmpfs, on the mount and under the bypass it ends the same, and there the engine serves what it should.
#[track_caller]
pub fn trap(name: &str, served: &[&str]) {
    trap_with(name, served, &[]);
}

/// As [`trap`], of a program that is linked with these libraries.
#[track_caller]
pub fn trap_with(name: &str, served: &[&str], libraries: &[&str]) {
    let (kind, name) = name.split_once('/').unwrap_or(("traps", name));
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    // A library of which the program uses nothing by its name is not loaded at its start.
    let mut extra = vec!["-pthread".to_owned(), "-w".to_owned(), "-Wl,--as-needed".to_owned()];
    for library in libraries {
        let Some(made) = compiled(&place, &format!("{TRAPS}/{library}.c"), &["-shared", "-fPIC"]) else {
            return;
        };
        extra.push(made.to_str().unwrap().to_owned());
    }
    let extra: Vec<&str> = extra.iter().map(String::as_str).collect();
    let Some(program) = compiled(&place, &format!("{TRAPS}/{kind}.c"), &extra) else { return };
    let mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
    let (program, other) = (program.to_str().unwrap(), place.text("other"));
    let plain = |file: &str| Command::new(program).args([name, file, &other]).output().unwrap();
    went_well(&plain(&place.text("on-tmpfs")));
    went_well(&plain(mounted.path("through-the-mount").to_str().unwrap()));
    let (out, report) = run(&place, &[program, name, mounted.path("bypassed").to_str().unwrap(), &other]);
    went_well(&out);
    for what in served {
        assert!(sum(&report, what) > 0, "nothing served of {what}: {report:?}");
    }
}

/// A test for each trap: its name, the trap, and what the engine must have served there.
#[macro_export]
macro_rules! traps {
    ($($(#[$doc:meta])* $name:ident = $trap:literal, $served:expr;)*) => {$(
        $(#[$doc])*
        #[test]
        fn $name() {
            $crate::common::traps::trap($trap, &$served);
        }
    )*};
}
