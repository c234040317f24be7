//! dbench: what clients of a file server do, each in a tree of its own; the trees it leaves are the same for every way of looking at them.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::test_dir::{TestDir, run_for_output};
use super::{App, Figure, Length, figure, tree};

pub const APP: App = App {
    name: "dbench",
    packages: &[("dbench", "dbench")],
    about: "4 clients of a file server; the tree they leave through mount, bypass and the next mount is one, and what dbench writes",
    group: None,
    run,
};

const LIMIT: Duration = Duration::from_secs(180);
const CLIENTS: &str = "4";

fn run(test_dir: &TestDir, length: Length) -> Result<Vec<Figure>> {
    let mut command = test_dir.command_as_placed("dbench");
    command.args(["-t", length.pick("2", "10"), "--skip-cleanup", "-D"]).arg(&test_dir.dir).arg(CLIENTS);
    let out = run_for_output(&mut command, LIMIT)?;
    // It can do without the semaphore that lets its clients begin at once, which is no file.
    let failed = |line: &str| line.contains("failed") && !line.contains("barrier semaphore");
    ensure!(!out.contains("ERROR") && !out.lines().any(failed), "dbench says: {out}");
    let rate = out
        .lines()
        .find_map(|line| line.strip_prefix("Throughput ")?.split_whitespace().next()?.parse().ok());
    let rate: f64 = rate.with_context(|| format!("dbench said: {out}"))?;
    // What it writes is zeros and nothing else, so a byte of another file would show.
    let clients = test_dir.dir.join("clients");
    let files = tree::bytes_are(&clients, 0)?;
    ensure!(files > 20, "only {files} files are left");
    let copy = test_dir.path_outside("copy");
    run_for_output(test_dir.command_as_placed("cp").arg("-a").arg(&clients).arg(&copy), LIMIT)?;
    tree::compare(&clients, &copy)
        .context("through the mount, against a copy made as the program sees it")?;
    test_dir.remount()?;
    tree::compare(&clients, &copy).context("after the next mount")?;
    Ok(vec![figure("4 clients", "MB/s", rate)])
}
