//! git: a history made, cloned onto the place, gone on with and packed there; every object is checked, the files are the source's.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::test_dir::{TestDir, run_for_output, same};
use super::{App, Figure, Length, figure, tree};

pub const APP: App = App {
    name: "git",
    packages: &[("git", "git")],
    about: "clone, commits, gc, fsck --full; heads and files are the source's",
    group: None,
    run,
};

const LIMIT: Duration = Duration::from_secs(300);

fn run(test_dir: &TestDir, length: Length) -> Result<Vec<Figure>> {
    let (source, commits) = (test_dir.path_outside("source"), length.pick(5, 20));
    tree::make(&source, length.pick(200, 2_000))?;
    let plain = || {
        let mut command = test_dir.command_without_bypass("git");
        command.arg("-C").arg(&source);
        command
    };
    run_for_output(plain().args(["init", "-q", "-b", "main"]), LIMIT)?;
    for n in 0..commits {
        change(&source, n)?;
        commit(plain, n)?;
    }
    let head = |mut command: Command| run_for_output(command.args(["rev-parse", "HEAD^{tree}"]), LIMIT);
    let began = Instant::now();
    let url = format!("file://{}", source.display());
    run_for_output(
        test_dir.command_as_placed("git").args([
            "-c",
            "protocol.file.allow=always",
            "clone",
            "-q",
            &url,
            "clone",
        ]),
        LIMIT,
    )?;
    let within = || {
        let mut command = test_dir.command_as_placed("git");
        command.args(["-C", "clone"]);
        command
    };
    same("the clone's tree", head(within())?, head(plain())?)?;
    let clone = test_dir.dir.join("clone");
    // The same changes on both sides give the same tree.
    for n in commits..2 * commits {
        change(&source, n)?;
        commit(plain, n)?;
        change(&clone, n)?;
        commit(within, n)?;
    }
    run_for_output(within().args(["gc", "-q", "--aggressive", "--prune=now"]), LIMIT)?;
    let took = began.elapsed();
    let past = || {
        let mut command = test_dir.command_without_bypass("git");
        command.args(["-C", "clone"]);
        command
    };
    let found = run_for_output(past().args(["fsck", "--full", "--strict"]), LIMIT)?;
    ensure!(found.is_empty(), "git fsck: {found}");
    same("the tree after commits", head(past())?, head(plain())?)?;
    same(
        "commits",
        run_for_output(past().args(["rev-list", "--count", "HEAD"]), LIMIT)?,
        format!("{}\n", 2 * commits),
    )?;
    same(
        "what is not committed",
        run_for_output(past().args(["status", "--porcelain"]), LIMIT)?.as_str(),
        "",
    )?;
    run_for_output(
        test_dir.command_without_bypass("diff").args(["-r", "-x", ".git"]).arg(&source).arg("clone"),
        LIMIT,
    )?;
    Ok(vec![figure("clone, commits, gc", "s", took.as_secs_f64())])
}

/// Some files get longer, one comes, one goes.
fn change(dir: &Path, n: u64) -> Result<()> {
    for i in 0..10 {
        let k = (n * 31 + i * 7) % 200;
        let file = dir.join(format!("d{}/e{}/file {k}", k % 17, k % 5));
        if let Ok(mut bytes) = fs::read(&file) {
            bytes.extend(tree::bytes_of(n * 100 + i, 500));
            // Some are read-only: as an editor does, a new file in their place.
            fs::remove_file(&file)?;
            fs::write(&file, bytes)?;
        }
    }
    fs::write(dir.join(format!("new {n}")), tree::bytes_of(n, 3_000))?;
    if n > 0 {
        fs::remove_file(dir.join(format!("new {}", n - 1)))?;
    }
    Ok(())
}

fn commit(git: impl Fn() -> Command, n: u64) -> Result<()> {
    run_for_output(git().args(["add", "-A"]), LIMIT)?;
    let who = ["-c", "user.name=Heddle", "-c", "user.email=heddle@localhost", "-c", "commit.gpgsign=false"];
    run_for_output(git().args(who).args(["commit", "-q", "-m", &format!("change {n}")]), LIMIT)?;
    Ok(())
}
