//! Runs a test binary with a mutant switched on.
//!
//! Tests of a mutant may hang, fill memory, leave daemons and mounts. As root each binary runs in namespaces of its own, with a small
//! `/dev/shm` that is also the folder of temporary files: all of it ends with the binary. It ends at the first test that fails. A mutant
//! that hangs is known by its silence: no test of the binary comes to its end for far longer than without the mutant.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};

use super::switched::ON;
use crate::breaches::SHORT;
use crate::test_binaries::{BUILT, Suite};
use crate::{process, sandbox};

/// Bytes of private memory a test may have, and of files in memory.
const MEMORY_BYTES: u64 = 6 << 30;

/// How a binary ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ended {
    /// All passed; the longest time in which no test ended.
    Passed(Duration),
    /// This test failed.
    Failed(String),
    /// The binary failed without the name of a test.
    Broke,
    /// No test ended any more.
    Silent,
}

/// One binary, and who runs it.
pub struct Run<'a> {
    pub suite: &'a Suite,
    /// Of this worker.
    pub log: PathBuf,
    /// Of the mutant; 0: none.
    pub number: u32,
    /// It is taken for hanging after this silence.
    pub silence: Duration,
}

impl Run<'_> {
    /// # Errors
    /// It cannot be started or ended.
    pub fn with(&self, args: &[&str]) -> Result<Ended> {
        let log = File::create(&self.log).with_context(|| format!("cannot create {}", self.log.display()))?;
        let mut command = apart(&self.suite.program);
        command.args(args).envs(SHORT).env(BUILT, "1").env(ON, self.number.to_string());
        command.current_dir(&self.suite.folder).stdin(Stdio::null()).stdout(log).stderr(Stdio::null());
        let (mut heard, mut heard_at, mut longest) = (0, Duration::ZERO, Duration::ZERO);
        let mut now = Duration::ZERO;
        let status = process::watched(&mut command, |used| {
            now = used;
            let log = self.printed();
            longest = longest.max(used - heard_at);
            let ended =
                log.lines().filter(|line| line.starts_with("test ") && line.contains(" ... ")).count();
            if ended > heard {
                (heard, heard_at) = (ended, used);
            }
            failed(&log).is_some() || used - heard_at >= self.silence
        })?;
        Ok(match (failed(&self.printed()), status) {
            (Some(test), _) => Ended::Failed(test),
            (None, Some(status)) if status.success() => Ended::Passed(longest.max(now - heard_at)),
            (None, Some(_)) => Ended::Broke,
            (None, None) => Ended::Silent,
        })
    }

    fn printed(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }
}

/// The first test that failed.
fn failed(printed: &str) -> Option<String> {
    let name = |line: &str| Some(line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?.to_owned());
    printed.lines().find_map(name).map(|name| name.trim_end_matches(" - should panic").to_owned())
}

/// A program where nothing that it leaves behind outlives it.
fn apart(program: &Path) -> Command {
    if sandbox::lacking().is_some() {
        return Command::new(program);
    }
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    let script = format!(
        "mount -t tmpfs -o mode=1777,size={MEMORY_BYTES} none /dev/shm || exit 1; ulimit -d {}; \"$@\" & wait \"$!\"",
        MEMORY_BYTES >> 10
    );
    command.args(["--", "sh", "-c", &script, "sh"]).arg(program).env("TMPDIR", "/dev/shm");
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_test_that_failed_is_named() {
        let printed =
            "running 3 tests\ntest a ... ok\ntest b::c ... FAILED\ntest d - should panic ... FAILED\n";
        assert_eq!(failed(printed).as_deref(), Some("b::c"));
        assert_eq!(failed("test d - should panic ... FAILED").as_deref(), Some("d"));
        assert_eq!(failed("test a ... ok"), None);
    }
}
