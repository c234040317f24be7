//! Where programs run: a directory on tmpfs, one on ext4, one on a mounted image, and the same with the bypass preloaded.
//!
//! State       a tmpfs of the run's own holds it all: the directory of place `tmpfs`, the images of the others, what programs say.
//! Invariants  I1  a place is made for one program and taken away after it: nothing is left over from another one.
//!             I2  a heddle image is unmounted and checked by fsck after its program; a finding is a failure of that program's run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::process;

/// What a file system is made and mounted with may take.
const MOUNT_MAX: Duration = Duration::from_secs(60);
/// Images of heddle and ext4.
const IMAGE_BYTES: u64 = 3 << 30;
/// Lines of a program that failed that are shown.
const SHOWN: usize = 12;

/// Kinds of places, in the order of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The kernel's, in memory.
    Tmpfs,
    /// The kernel's, on a loop device over a file in memory.
    Ext4,
    /// A heddle image, through the kernel.
    Mount,
    /// A heddle image, the program with the bypass.
    Bypass,
}

impl Kind {
    /// All.
    pub const ALL: [Kind; 4] = [Kind::Tmpfs, Kind::Ext4, Kind::Mount, Kind::Bypass];

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Tmpfs => "tmpfs",
            Kind::Ext4 => "ext4",
            Kind::Mount => "mount",
            Kind::Bypass => "bypass",
        }
    }
}

/// The tmpfs that holds all places.
pub struct TestRoot {
    dir: PathBuf,
    heddle: PathBuf,
}

impl TestRoot {
    /// Mounts it. Inside of namespaces of our own (`private`) it goes with this process.
    pub fn new(heddle: &Path) -> Result<TestRoot> {
        let dir = std::env::temp_dir().join(format!("heddle-apps-{}", std::process::id()));
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let test_root = TestRoot { dir, heddle: heddle.to_path_buf() };
        run(Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=80%,mode=755", "tmpfs"])
            .arg(&test_root.dir))?;
        Ok(test_root)
    }

    /// A fresh place. `groups`: members of this group may attach to the image too.
    pub fn test_dir(&self, kind: Kind, group: Option<&str>) -> Result<TestDir> {
        let home = self.dir.join(kind.name());
        fs::create_dir_all(home.join("mnt"))?;
        let (image, dir) = (home.join("image"), home.join("mnt/work"));
        let test_dir = TestDir { kind, image, dir, home, heddle: self.heddle.clone() };
        test_dir.mount(group)?;
        // Programs of other users write to it too.
        File::create(test_dir.report())?.set_permissions(fs::Permissions::from_mode(0o666))?;
        fs::create_dir(&test_dir.dir)?;
        Ok(test_dir)
    }
}

impl Drop for TestRoot {
    fn drop(&mut self) {
        let gone = run(Command::new("umount").arg("--lazy").arg(&self.dir));
        if gone.is_ok() {
            // An empty directory; nothing hangs on it.
            let _ = fs::remove_dir(&self.dir);
        }
    }
}

/// What the bypass did for a program, in calls.
#[derive(Clone, Default)]
pub struct Served {
    /// Done by the engine.
    pub calls: u64,
    /// Left to the kernel, by reason (docs/bypass.md).
    pub passed_on: BTreeMap<String, u64>,
    /// Why it could not be used at all.
    pub refused: BTreeSet<String>,
}

impl std::fmt::Display for Served {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "calls served {}", self.calls)?;
        self.passed_on.iter().try_for_each(|(why, calls)| write!(f, ", {why} {calls}"))?;
        self.refused.iter().try_for_each(|why| write!(f, "; {why}"))
    }
}

/// A directory for one program.
pub struct TestDir {
    /// Which kind.
    pub kind: Kind,
    /// The program's directory, empty at first.
    pub dir: PathBuf,
    home: PathBuf,
    image: PathBuf,
    heddle: PathBuf,
}

impl TestDir {
    fn mount(&self, group: Option<&str>) -> Result<()> {
        let mnt = self.home.join("mnt");
        match self.kind {
            Kind::Tmpfs => Ok(()),
            Kind::Ext4 => {
                File::create(&self.image)?.set_len(IMAGE_BYTES)?;
                run(Command::new("mkfs.ext4")
                    .args(["-q", "-F", "-E", "lazy_itable_init=0"])
                    .arg(&self.image))?;
                run(Command::new("mount").args(["-o", "loop"]).arg(&self.image).arg(mnt))
            }
            Kind::Mount | Kind::Bypass => {
                run(self.heddle().args(["mkfs", "--size", &IMAGE_BYTES.to_string()]).arg(&self.image))?;
                self.mount_image(group)
            }
        }
    }

    fn mount_image(&self, group: Option<&str>) -> Result<()> {
        let mut options = format!("suid,dev,log={}", self.home.join("mount.log").display());
        options.extend(group.map(|group| format!(",attach-group={group}")));
        // Its process stays, and must not keep a pipe of ours open.
        let said = File::create(self.home.join("mounting"))?;
        let mut mount = self.heddle();
        mount.args(["mount", "-o", &options]).arg(&self.image).arg(self.home.join("mnt"));
        run(mount.stdout(Stdio::null()).stderr(said))
    }

    /// Unmounts and mounts again.
    pub fn remount(&self) -> Result<()> {
        let mnt = self.home.join("mnt");
        match self.kind {
            Kind::Tmpfs => Ok(()),
            Kind::Ext4 => {
                run(Command::new("umount").arg(&mnt))?;
                run(Command::new("mount").args(["-o", "loop"]).arg(&self.image).arg(mnt))
            }
            Kind::Mount | Kind::Bypass => {
                run(self.heddle().arg("umount").arg(mnt))?;
                self.mount_image(None)
            }
        }
    }

    fn heddle(&self) -> Command {
        let mut command = Command::new(&self.heddle);
        command.env("HEDDLE_RUNTIME_DIR", self.home.join("run"));
        command
    }

    /// A command of the program: with the bypass if this is a place of the bypass.
    pub fn command_as_placed(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        if self.kind != Kind::Bypass {
            return self.command_without_bypass(program);
        }
        let mut command = self.heddle();
        command.args(["run", "--"]).arg(program).env("HEDDLE_REPORT", self.report());
        self.at_home(command)
    }

    /// A command of the program without the bypass, in every kind of place.
    pub fn command_without_bypass(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        self.at_home(Command::new(program))
    }

    fn at_home(&self, mut command: Command) -> Command {
        command.current_dir(&self.dir).env("LC_ALL", "C.UTF-8").env("HOME", &self.home).stdin(Stdio::null());
        command
    }

    /// A path outside the file system under test.
    pub fn path_outside(&self, name: &str) -> PathBuf {
        self.home.join(name)
    }

    /// What the bypass served and passed on.
    pub fn served(&self) -> Result<Served> {
        let text = fs::read_to_string(self.report())?;
        let mut served = Served::default();
        // A program that was killed while it wrote its line leaves a beginning.
        for line in text.lines().filter(|line| line.ends_with('}')) {
            let line: serde_json::Value = serde_json::from_str(line).context("the bypass' report")?;
            let count = |value: &serde_json::Value| value.as_u64().unwrap_or(0);
            for call in ["read", "write", "seek", "sync", "stat", "resize", "advise"] {
                served.calls += count(&line[call]);
            }
            served
                .refused
                .extend(line["refused"].as_array().into_iter().flatten().map(|why| why.to_string()));
            for (why, n) in line["passed_on"].as_object().into_iter().flatten().filter(|(_, n)| count(n) > 0)
            {
                *served.passed_on.entry(why.clone()).or_default() += count(n);
            }
        }
        Ok(served)
    }

    fn report(&self) -> PathBuf {
        self.home.join("report")
    }

    /// Takes it away; an image must be sound.
    ///
    /// # Errors
    /// It is still in use, or fsck found something.
    pub fn finish(self) -> Result<()> {
        if let Err(error) = self.end() {
            self.give_up();
            return Err(error);
        }
        fs::remove_dir_all(&self.home).with_context(|| format!("cannot remove {}", self.home.display()))
    }

    fn end(&self) -> Result<()> {
        match self.kind {
            Kind::Tmpfs => {}
            Kind::Ext4 => run(Command::new("umount").arg(self.home.join("mnt")))?,
            Kind::Mount | Kind::Bypass => {
                run(self.heddle().arg("umount").arg(self.home.join("mnt")))?;
                self.check_image().context("the image is not sound afterwards")?;
            }
        }
        Ok(())
    }

    /// A mount's process may need a moment more to let go of an image that is clean already.
    fn check_image(&self) -> Result<()> {
        let began = Instant::now();
        loop {
            match run_for_output(self.heddle().args(["fsck", "-n"]).arg(&self.image), MOUNT_MAX) {
                Err(error) if began.elapsed() < MOUNT_MAX && error.to_string().contains("is in use by") => {
                    std::thread::sleep(Duration::from_millis(100));
                }
                found => return found.map(drop),
            }
        }
    }

    /// Unmounts, as far as it goes: after a failure, which is said already.
    pub fn give_up(self) {
        let mnt = self.home.join("mnt");
        if self.kind != Kind::Tmpfs {
            let _ = run(Command::new("umount").arg("--lazy").arg(mnt));
        }
        // An image still in use keeps its memory until the run ends.
        let _ = fs::remove_dir_all(&self.home);
    }
}

fn run(command: &mut Command) -> Result<()> {
    run_for_output(command, MOUNT_MAX).map(drop)
}

/// Runs to the end or the limit; what it wrote to stdout.
///
/// # Errors
/// It fails, or takes too long: with the last lines that it said.
pub fn run_for_output(command: &mut Command, limit: Duration) -> Result<String> {
    let (mut out, mut err) = (memory_file()?, memory_file()?);
    command.stdout(out.try_clone()?).stderr(err.try_clone()?).stdin(Stdio::null());
    let status = process::status(command, limit);
    let (said, complaint) = (text_of(&mut out)?, text_of(&mut err)?);
    let last = |text: &str| {
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(SHOWN)..].join("\n")
    };
    let tail = || format!("{}\n{}", last(&said), last(&complaint));
    match status {
        Ok(status) if status.success() => Ok(said),
        Ok(status) => bail!("{}: {status}\n{}", process::show(command), tail()),
        Err(error) => Err(error.context(tail())),
    }
}

/// A file without a name: what a program that is killed has said is there all the same.
fn memory_file() -> Result<File> {
    let path = std::env::temp_dir().join(format!(
        "heddle-said-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .context("cannot make a file for output")?;
    fs::remove_file(&path)?;
    Ok(file)
}

fn text_of(file: &mut File) -> Result<String> {
    use std::io::{Read, Seek};
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Runs several at once, each to its end or the limit; what each wrote to stdout.
///
/// # Errors
/// As [`run_for_output`], of the first that fails.
pub fn run_all_for_output(commands: Vec<Command>, limit: Duration) -> Result<Vec<String>> {
    std::thread::scope(|scope| {
        let runs: Vec<_> = commands
            .into_iter()
            .map(|mut command| scope.spawn(move || run_for_output(&mut command, limit)))
            .collect();
        runs.into_iter().map(|run| run.join().unwrap_or_else(|_| bail!("a thread panicked"))).collect()
    })
}

/// Fails unless both are the same.
pub fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Result<()> {
    ensure!(found == expected, "{what}: {found:?} instead of {expected:?}");
    Ok(())
}
