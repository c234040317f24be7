//! fsck.f2fs: what it says of an image, and its repairs, traced.

use super::lost_files::LostFiles;
use super::traced::{self, Ended};
use anyhow::{Context, Result};
use heddle_f2fs::Repair;
use std::fs::File;
use std::io::{ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;

pub(super) const CHECKER: &str = "fsck.f2fs";
/// Its usual places, for users whose `PATH` lacks them.
const SYSTEM: &str = "/usr/sbin:/sbin:/usr/local/sbin";

/// The output of the checker.
pub(super) struct Said {
    pub(super) issues: Vec<String>,
    /// Its exit code.
    pub(super) ended: i32,
}

/// Asks what is wrong with an image. Returns `None` if the checker is not installed.
pub(super) fn look(image: &Path) -> Result<Option<Said>> {
    let started =
        command(image, "--dry-run", Path::new(".")).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = match started {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        started => started.with_context(|| format!("cannot run {CHECKER}"))?,
    };
    if let Some(mut stdin) = child.stdin.take() {
        // The checker may have ended by now.
        let _ = stdin.write_all(b"n\nn\nn\n");
    }
    let said = child.wait_with_output().with_context(|| format!("cannot run {CHECKER}"))?;
    let issues = issues(&String::from_utf8_lossy(&said.stdout));
    Ok(Some(Said { issues, ended: said.status.code().unwrap_or(255) }))
}

/// Repairs the image. Each block is kept before it is changed.
pub(super) fn repair(
    image: &Path,
    repair: &mut Repair,
    lost: &LostFiles,
    is_interrupted: &AtomicBool,
) -> Result<Ended> {
    let what = || format!("cannot run {CHECKER} traced");
    // The checker asks whether to keep lost files.
    let answers = if lost.is_left_to_checker() { b"y\ny\ny\n" } else { b"n\nn\nn\n" };
    let mut asked = nameless_file()?;
    asked.write_all(answers).and_then(|()| asked.seek(SeekFrom::Start(0))).with_context(what)?;
    let mut command = command(image, "-y", &lost.dir());
    // What it has left to repair is asked afterwards.
    command.stdin(asked).stdout(Stdio::null());
    traced::run(&mut command, repair, is_interrupted).with_context(what)
}

fn command(image: &Path, how: &str, dir: &Path) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(CHECKER);
    command
        .arg(how)
        .current_dir(dir)
        .arg(image.canonicalize().unwrap_or_else(|_| PathBuf::from(image)))
        .env("PATH", format!("{path}:{SYSTEM}"))
        .stderr(Stdio::null());
    command
}

/// A file in memory: nobody has to read it while the checker runs.
fn nameless_file() -> Result<File> {
    let made = rustix::fs::memfd_create("heddle-fsck", rustix::fs::MemfdFlags::CLOEXEC);
    Ok(File::from(made.context("cannot make a file in memory")?))
}

/// Issues that it would only repair in passing do not change its exit code: for example a wrong hash of a name, by
/// which no call finds it.
fn issues(text: &str) -> Vec<String> {
    let bad = |line: &&str| ["[Fail]", "[ASSERT]", "[FIX]"].iter().any(|sign| line.contains(sign));
    text.lines().filter(bad).map(|line| line.trim().to_owned()).collect()
}
