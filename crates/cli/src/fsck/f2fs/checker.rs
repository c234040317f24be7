//! fsck.f2fs: what it says of an image, and its repairs, traced.

use super::lost_files::LostFiles;
use super::traced::{self, Ended};
use anyhow::{Context, Result};
use heddle_f2fs::Repair;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;

pub(super) const CHECKER: &str = "fsck.f2fs";
/// Its usual places, for users whose `PATH` lacks them.
const SYSTEM: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/local/sbin"];

/// The output of the checker.
pub(super) struct Said {
    pub(super) issues: Vec<String>,
    /// Its exit code.
    pub(super) ended: i32,
}

/// The program. It is the same at each run, whatever is put into the directories meanwhile.
pub(super) struct Checker {
    program: PathBuf,
    /// What it gets as `PATH`.
    path: OsString,
}

impl Checker {
    /// Looks for it. An element of `PATH` that is empty or relative would mean another directory at each run, and one where anybody may
    /// have put a program: it does not count.
    pub(super) fn installed() -> Option<Checker> {
        let given = std::env::var_os("PATH").unwrap_or_default();
        let places = std::env::split_paths(&given).filter(|place| place.is_absolute());
        let places: Vec<PathBuf> = places.chain(SYSTEM.map(PathBuf::from)).collect();
        let is_program = |program: &PathBuf| {
            program.is_file() && rustix::fs::access(program, rustix::fs::Access::EXEC_OK).is_ok()
        };
        let program = places.iter().map(|place| place.join(CHECKER)).find(is_program)?;
        Some(Checker { program, path: std::env::join_paths(&places).ok()? })
    }

    /// Asks what is wrong with an image.
    pub(super) fn look(&self, image: &Path) -> Result<Said> {
        let what = || format!("cannot run {}", self.program.display());
        let mut command = self.command(image, "--dry-run", Path::new("."));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().with_context(what)?;
        if let Some(mut stdin) = child.stdin.take() {
            // The checker may have ended by now.
            let _ = stdin.write_all(b"n\nn\nn\n");
        }
        let said = child.wait_with_output().with_context(what)?;
        let issues = issues(&String::from_utf8_lossy(&said.stdout));
        Ok(Said { issues, ended: said.status.code().unwrap_or(255) })
    }

    /// Repairs the image. Each block is kept before it is changed.
    pub(super) fn repair(
        &self,
        image: &Path,
        repair: &mut Repair,
        lost: &LostFiles,
        is_interrupted: &AtomicBool,
    ) -> Result<Ended> {
        let what = || format!("cannot run {} traced", self.program.display());
        // The checker asks whether to keep lost files.
        let answers = if lost.is_left_to_checker() { b"y\ny\ny\n" } else { b"n\nn\nn\n" };
        let mut asked = nameless_file()?;
        asked.write_all(answers).and_then(|()| asked.seek(SeekFrom::Start(0))).with_context(what)?;
        let mut command = self.command(image, "-y", &lost.dir());
        // What it has left to repair is asked afterwards.
        command.stdin(asked).stdout(Stdio::null());
        traced::run(&mut command, repair, is_interrupted).with_context(what)
    }

    /// `image`: a path that is right in any directory.
    fn command(&self, image: &Path, how: &str, dir: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(how).current_dir(dir).arg(image).env("PATH", &self.path).stderr(Stdio::null());
        command
    }
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
