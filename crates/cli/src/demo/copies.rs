//! Two copies in parallel, on tmpfs, on the mount, and on the mount with the bypass: their times, and a check
//! of every byte.

use super::programs::{check, succeed};
use super::stamp;
use anyhow::{Context, Result, ensure};
use heddle_console::output::talk;
use heddle_console::preload::library;
use heddle_console::scratch::Scratch;
use heddle_console::size::Size;
use heddle_nvmfs::wire::OTHER_BUILD;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const FILE_BYTES: usize = 32 << 20;
const COPIES: u64 = 2;

/// Runs the part and returns its findings.
pub fn run(scratch: &Scratch, mnt: &Path) -> Result<String> {
    let originals = scratch.dir().join("originals");
    fs::create_dir(&originals)?;
    for n in 0..COPIES {
        fs::write(originals.join(n.to_string()), stamp::noise(10 + n, FILE_BYTES))?;
    }
    let (plain, name): (&dyn Fn(&mut Command), _) =
        (&|_| (), if scratch.is_on_tmpfs() { "tmpfs" } else { "its directory" });
    let there = copy(&originals, &scratch.dir().join("copies"), plain)?;
    let mounted = copy(&originals, &mnt.join("copies"), plain)?;
    let both = format!(
        "   two cp processes, {} each: {} ms on {name}, {} ms on the mount",
        Size(FILE_BYTES as u64),
        there.as_millis(),
        mounted.as_millis()
    );
    let right = "cmp finds every copy right";
    build_library();
    let library = match library() {
        Ok(library) => library,
        Err(error) => return Ok(format!("{both}; {right}\n   the bypass: SKIPPED, {error}")),
    };
    let report = scratch.dir().join("report");
    let bypassed = copy(&originals, &mnt.join("copies"), &|command| {
        command.env("LD_PRELOAD", library.as_os_str()).env("HEDDLE_REPORT", &report);
    })?;
    let served = served(&report)?;
    if served == 0 && fs::read_to_string(&report)?.contains(OTHER_BUILD) {
        return Ok(format!(
            "{both}; {right}\n   the bypass: SKIPPED, {} is of another build than this program: build it with: \
             cargo build --release -p heddle-preload",
            library.display()
        ));
    }
    ensure!(served > 0, "the bypass served no call of cp and cmp: {}", fs::read_to_string(&report)?);
    Ok(format!(
        "{both}, {} ms with the bypass\n   ({served} calls skipped the kernel); {right}",
        bypassed.as_millis()
    ))
}

/// Builds the bypass library if Cargo runs this program: `cargo run` builds the program alone. After a failure the search for the
/// library says what is missing.
fn build_library() {
    let [Some(cargo), Some(here)] = ["CARGO", "CARGO_MANIFEST_DIR"].map(std::env::var_os) else { return };
    if library().is_err() {
        talk("   building the bypass library, in a minute or two");
    }
    let mut build = Command::new(cargo);
    build.current_dir(here).args(["build", "--quiet", "--package", "heddle-preload"]);
    if !cfg!(debug_assertions) {
        build.arg("--release");
    }
    let _ = build.stdin(Stdio::null()).stdout(Stdio::null()).status();
}

/// Copies all originals in parallel, compares the copies and removes them. Returns the time that copying
/// took.
fn copy(originals: &Path, to: &Path, how: &dyn Fn(&mut Command)) -> Result<Duration> {
    fs::create_dir(to)?;
    let began = Instant::now();
    let start = |n: u64| {
        let mut cp = Command::new("cp");
        cp.arg(originals.join(n.to_string())).arg(to.join(n.to_string()));
        how(cp.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()));
        cp.spawn().context("cannot run cp")
    };
    for cp in (0..COPIES).map(start).collect::<Vec<_>>() {
        check("cp", cp?.wait_with_output()?)?;
    }
    let took = began.elapsed();
    for n in 0..COPIES {
        let mut cmp = Command::new("cmp");
        how(cmp.arg(originals.join(n.to_string())).arg(to.join(n.to_string())));
        succeed(&mut cmp).context("a copy differs")?;
    }
    fs::remove_dir_all(to)?;
    Ok(took)
}

/// The number of served calls in a report.
fn served(report: &Path) -> Result<u64> {
    let text = fs::read_to_string(report).context("the bypass wrote no report")?;
    let mut served = 0;
    for line in text.lines() {
        let line: serde_json::Value = serde_json::from_str(line).context("the bypass' report")?;
        served += ["read", "write", "seek", "sync", "stat", "resize"]
            .iter()
            .filter_map(|call| line[*call].as_u64())
            .sum::<u64>();
    }
    Ok(served)
}
