//! stress-ng: what it calls stressors of file systems, each with its own checks switched on.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::test_dir::TestDir;
use super::{App, Figure, Length, figure};
use crate::process;

pub const APP: App = App {
    name: "stress-ng",
    packages: &[("stress-ng", "stress-ng")],
    about: "its stressors of files and directories, with --verify, two of each at a time",
    group: None,
    run,
};

/// Stressors of files, names and attributes; not those of block devices, or of how much memory the kernel's caches take.
const STRESSORS: &[&str] = &[
    "access",
    "acl",
    "chdir",
    "chmod",
    "chown",
    "copy-file",
    "dentry",
    "dir",
    "dirdeep",
    "dirmany",
    "dup",
    "fallocate",
    "fault",
    "fd-race",
    "fiemap",
    "file-ioctl",
    "filename",
    "flock",
    "fpunch",
    "fsize",
    "fstat",
    "getdent",
    "handle",
    "hdd",
    "iomix",
    "lease",
    "link",
    "locka",
    "lockf",
    "lockofd",
    "metamix",
    "mmap",
    "mmapaddr",
    "msync",
    "open",
    "rename",
    "seek",
    "sendfile",
    "splice",
    "symlink",
    "sync-file",
    "touch",
    "unlink",
    "utime",
    "verity",
    "vm-splice",
    "xattr",
];

/// stress-ng's exit codes, from its manual.
const PASSED: i32 = 0;
const NO_RESOURCE: i32 = 3;
const NOT_IMPLEMENTED: i32 = 4;

/// Its stressor `dup` may end while a child of it waits in open(2) for the other end of a pipe: that child stays, and keeps the place
/// busy. All processes that can be seen here are this chore's (`private`).
fn end_leftovers() -> Result<()> {
    for entry in std::fs::read_dir("/proc")? {
        let entry = entry?;
        let name = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        if name.starts_with("stress-ng") {
            let pid = entry.file_name();
            // One that ended by itself meanwhile is what is wanted.
            let _ended = std::process::Command::new("kill").arg("-9").arg(pid).output()?;
        }
    }
    Ok(())
}

fn run(test_dir: &TestDir, length: Length) -> Result<Vec<Figure>> {
    let seconds = length.pick(1, 3);
    let began = Instant::now();
    let (mut passed, mut not_here, mut failures) = (0, Vec::new(), Vec::new());
    for stressor in STRESSORS {
        let mut command = test_dir.command_as_placed("stress-ng");
        command.arg("--temp-path").arg(&test_dir.dir).args([
            "--verify",
            "--seed",
            "7",
            "--timeout",
            &format!("{seconds}s"),
        ]);
        command.args([&format!("--{stressor}"), "2"]).args([
            "--fallocate-bytes",
            "16M",
            "--hdd-bytes",
            "16M",
            "--mmap-bytes",
            "16M",
        ]);
        command.args([
            "--iomix-bytes",
            "16M",
            "--sync-file-bytes",
            "16M",
            "--copy-file-bytes",
            "128M",
            "--seek-size",
            "16M",
        ]);
        let log = test_dir.path_outside("stress-ng.log");
        let said = std::fs::File::create(&log)?;
        command.stdout(said.try_clone()?).stderr(said);
        let status = process::status(&mut command, Duration::from_secs(60 + 2 * seconds))?;
        end_leftovers()?;
        match status.code() {
            Some(PASSED) => passed += 1,
            Some(NO_RESOURCE | NOT_IMPLEMENTED) => not_here.push(*stressor),
            _ => {
                let said = std::fs::read_to_string(&log)?;
                let why: Vec<&str> = said
                    .lines()
                    .filter(|line| line.contains("fail:") || line.contains("error:"))
                    .take(2)
                    .collect();
                let why = if why.is_empty() { said.lines().rev().take(1).collect() } else { why };
                let unknown = said.contains("unrecognized option");
                if unknown {
                    not_here.push(stressor)
                } else {
                    failures.push(format!("{stressor} ({status}): {}", why.join("; ")))
                }
            }
        }
    }
    if !not_here.is_empty() {
        println!("stress-ng on {}: not run here: {}", test_dir.kind.name(), not_here.join(", "));
    }
    if !failures.is_empty() {
        bail!("{}", failures.join("\n"));
    }
    Ok(vec![
        figure("stressors passed", "", f64::from(passed)),
        figure("all of them", "s", began.elapsed().as_secs_f64()),
    ])
}
