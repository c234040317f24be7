//! A copy of the tree in which one mutant after the other is made, built, tested and undone.
//!
//! Tests of a mutant may hang, fill memory, leave daemons and mounts. As root each runs in namespaces of its own, with a small
//! `/dev/shm` that is also the folder of temporary files: all of it ends with the test.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::list::Mutant;
use super::suites::{Baselines, Suite, watching};
use crate::{process, sandbox};

const BUILD_LIMIT: Duration = Duration::from_secs(20 * 60);
/// Bytes of private memory a test may have, and of files in memory.
const MEMORY_BYTES: u64 = 6 << 30;

/// What became of a mutant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// A suite failed, or did not end.
    Caught(Suite),
    /// It does not compile.
    Unviable,
    /// No suite that watches its crate says a word.
    Survived,
}

impl Verdict {
    pub fn word(&self) -> &'static str {
        match self {
            Verdict::Caught(_) => "caught",
            Verdict::Unviable => "unviable",
            Verdict::Survived => "SURVIVED",
        }
    }

    /// The suite that saw it.
    pub fn by(&self) -> Option<String> {
        match self {
            Verdict::Caught(suite) => Some(suite.to_string()),
            _ => None,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = self.by().map_or(String::new(), |by| format!(" by {by}"));
        write!(f, "{}{by}", self.word())
    }
}

/// The copy.
pub struct Tree {
    root: PathBuf,
}

impl Tree {
    /// Copies what git knows or would add. What is the same already stays as it is, so that cargo does not build it anew.
    pub fn new(root: &Path, number: usize) -> Result<Tree> {
        let tree = Tree { root: process::target_dir(root).join("mutants").join(number.to_string()) };
        let files = Command::new("git")
            .current_dir(root)
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .output()?;
        ensure!(files.status.success(), "git ls-files: {}", String::from_utf8_lossy(&files.stderr));
        let files = String::from_utf8(files.stdout).context("a file's name is not UTF-8")?;
        for file in files.split('\0').filter(|file| !file.is_empty() && root.join(file).is_file()) {
            copy_if_other(&root.join(file), &tree.root.join(file))?;
        }
        Ok(tree)
    }

    /// Makes the change, asks one suite after the other, undoes the change.
    ///
    /// # Errors
    /// The tree cannot be written, or does not build without a change.
    pub fn judge(&self, mutant: &Mutant, baselines: &Baselines) -> Result<Verdict> {
        let file = self.root.join(&mutant.file);
        let whole =
            std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let changed = mutant.applied(&whole).with_context(|| format!("{}: not in the file", mutant.name))?;
        let write = |text: &str| {
            std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
        };
        let of = mutant.package.trim_start_matches("heddle-");
        for suite in watching(&self.root, of)? {
            if !baselines.may_run(&suite) {
                continue;
            }
            write(&changed)?;
            let (built, passed) = self.build_and_run(&suite, baselines.limit(&suite));
            write(&whole)?;
            if !built {
                return Ok(Verdict::Unviable);
            }
            if passed.is_none() && self.passes_unchanged(&suite, baselines)? {
                return Ok(Verdict::Caught(suite));
            }
        }
        Ok(Verdict::Survived)
    }

    fn passes_unchanged(&self, suite: &Suite, baselines: &Baselines) -> Result<bool> {
        if baselines.has_passed(suite) {
            return Ok(true);
        }
        let (built, passed) = self.build_and_run(suite, baselines.limit(suite));
        ensure!(built, "{suite} does not build without a change: {}", self.root.display());
        match passed {
            Some(took) => baselines.passed(suite, took),
            None => baselines.is_red(suite),
        }
        Ok(passed.is_some())
    }

    /// Does it build; and if all passed, in which time?
    fn build_and_run(&self, suite: &Suite, limit: Duration) -> (bool, Option<Duration>) {
        let args = suite.args();
        let mut build = Command::new("cargo");
        build.args(&args).arg("--no-run");
        if process::status(self.in_tree(&mut build), BUILD_LIMIT).is_ok_and(|status| status.success()) {
            let start = Instant::now();
            let ended = process::status(self.in_tree(&mut apart(&args)), limit);
            (true, ended.is_ok_and(|status| status.success()).then(|| start.elapsed()))
        } else {
            (false, None)
        }
    }

    fn in_tree<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.current_dir(&self.root).env("CARGO_TARGET_DIR", self.root.join("target"));
        // Small changes one after the other: here what cargo can reuse pays.
        command.env("CARGO_INCREMENTAL", "1").env_remove("CARGO_MANIFEST_DIR");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null())
    }
}

/// `cargo` with these arguments, where nothing that it leaves behind outlives it.
fn apart(args: &[String]) -> Command {
    let mut command = Command::new("unshare");
    if sandbox::lacking().is_some() {
        command = Command::new("cargo");
        command.args(args);
        return command;
    }
    command.args(["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    let script = format!(
        "mount -t tmpfs -o mode=1777,size={MEMORY_BYTES} none /dev/shm || exit 1; ulimit -d {}; cargo \"$@\" & wait \"$!\"",
        MEMORY_BYTES >> 10
    );
    command.args(["--", "sh", "-c", &script, "sh"]).args(args).env("TMPDIR", "/dev/shm");
    command
}

fn copy_if_other(from: &Path, to: &Path) -> Result<()> {
    let bytes = std::fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
    if std::fs::read(to).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    let folder = to.parent().context("a file without a folder")?;
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    std::fs::copy(from, to).with_context(|| format!("cannot write {}", to.display()))?;
    Ok(())
}
