//! Programs that copy trees: tar, rsync, cp. What they leave is what they were given, to the nanosecond and the hole.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::test_dir::{TestDir, run_for_output};
use super::{App, Figure, Length, figure, tree};

pub const TAR: App = App {
    name: "tar",
    packages: &[("tar", "tar")],
    about: "packs a tree into an archive on the place, unpacks it there; the tree is what it was",
    group: None,
    run: tar,
};

pub const RSYNC: App = App {
    name: "rsync",
    packages: &[("rsync", "rsync")],
    about: "-aHAXS of a tree, twice, then changed files; the tree is what it was, by rsync's checksums too",
    group: None,
    run: rsync,
};

pub const CP: App = App {
    name: "cp",
    packages: &[("coreutils", "cp")],
    about: "-a of a tree onto the place and within it; both are what it was",
    group: None,
    run: cp,
};

const LIMIT: Duration = Duration::from_secs(300);

/// The tree that is copied, beside the place.
fn source(test_dir: &TestDir, length: Length) -> Result<PathBuf> {
    let source = test_dir.path_outside("source");
    tree::make(&source, length.pick(200, 3_000))?;
    Ok(source)
}

fn rate(names: usize, began: Instant) -> Figure {
    figure("names copied", "names/s", names as f64 / began.elapsed().as_secs_f64())
}

fn tar(test_dir: &TestDir, length: Length) -> Result<Vec<Figure>> {
    let source = source(test_dir, length)?;
    let began = Instant::now();
    run_for_output(
        test_dir
            .command_as_placed("tar")
            .args(["--format=posix", "--sparse", "-cf", "archive.tar", "-C"])
            .arg(&source)
            .arg("."),
        LIMIT,
    )?;
    std::fs::create_dir(test_dir.dir.join("out"))?;
    run_for_output(
        test_dir.command_as_placed("tar").args(["--same-owner", "-xpf", "archive.tar", "-C", "out"]),
        LIMIT,
    )?;
    let names = tree::compare(&test_dir.dir.join("out"), &source)?;
    let figures = vec![rate(names, began)];
    // The archive itself, without the bypass.
    run_for_output(
        test_dir.command_without_bypass("tar").args(["-df", "archive.tar", "-C"]).arg(&source),
        LIMIT,
    )?;
    Ok(figures)
}

fn rsync(test_dir: &TestDir, length: Length) -> Result<Vec<Figure>> {
    let source = source(test_dir, length)?;
    let from = format!("{}/", source.display());
    // Without the last one it takes times of one second for the same.
    let args = ["-aHAXS", "--no-inc-recursive", "--modify-window=-1"];
    let began = Instant::now();
    run_for_output(test_dir.command_as_placed("rsync").args(args).args([from.as_str(), "out/"]), LIMIT)?;
    let out = test_dir.dir.join("out");
    let figures = vec![rate(tree::compare(&out, &source)?, began)];
    // Some files change in the middle, and are mended in place.
    for n in (0..200).step_by(3) {
        let file = source.join(format!("d{}/e{}/file {n}", n % 17, n % 5));
        if let Ok(mut bytes) = std::fs::read(&file) {
            bytes.splice(bytes.len() / 2..bytes.len() / 2, b"changed".iter().copied());
            std::fs::write(&file, bytes)?;
        }
    }
    run_for_output(
        test_dir.command_as_placed("rsync").args(args).args([
            "--inplace",
            "--no-whole-file",
            "--no-S",
            &from,
            "out/",
        ]),
        LIMIT,
    )?;
    tree::compare(&out, &source)?;
    let differences = run_for_output(
        test_dir.command_without_bypass("rsync").args(args).args(["-nic", "--delete", &from, "out/"]),
        LIMIT,
    )?;
    ensure!(differences.is_empty(), "rsync -c finds differences: {differences}");
    Ok(figures)
}

fn cp(test_dir: &TestDir, length: Length) -> Result<Vec<Figure>> {
    let source = source(test_dir, length)?;
    let copy = |command: &mut Command, from: &std::path::Path, to: &str| {
        run_for_output(command.arg("-a").arg(from).arg(to), LIMIT)
    };
    let began = Instant::now();
    copy(&mut test_dir.command_as_placed("cp"), &source, "first")?;
    copy(&mut test_dir.command_as_placed("cp"), &test_dir.dir.join("first"), "second")?;
    let took = rate(2 * tree::compare(&test_dir.dir.join("second"), &source)?, began);
    tree::compare(&test_dir.dir.join("first"), &source)?;
    run_for_output(test_dir.command_without_bypass("diff").arg("-r").arg(&source).arg("second"), LIMIT)?;
    Ok(vec![took])
}
