//! `heddle run`: starts a program with the bypass preloaded.
//!
//! The preloaded library does the rest: it finds heddle mounts itself when the program opens a file.

use crate::counters::through;
use anyhow::{Result, anyhow};
use heddle_console::failure::Exit;
use heddle_console::inherited;
use heddle_console::output::{file_bytes, talk};
use heddle_console::preload::library;
use heddle_nvmfs::client;
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Run a program with the bypass: its reads and writes on mounts of variant heddle mostly skip the kernel
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Fail at once if this image is not mounted, or this command cannot attach to it
    #[arg(long)]
    image: Option<PathBuf>,
    /// If an image lies in memory, map all of it when a process first opens a file of it, unless the mount is read-only: for long-lived
    /// programs, whose first writes would else map it piece by piece. This takes time in each process, and more for a larger image
    #[arg(long)]
    prefault: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  heddle run -- fio --name=job --filename=/mnt/h/file --rw=randwrite --bs=4k --size=64M
  heddle run --image /dev/shm/my.img -- python3 program.py
  heddle run --prefault -- ./checkpoint                   map the image before the first write
  HEDDLE_REPORT=report.json heddle run -- ./program       when a process ends, append a line of JSON: calls served, and passed on
  LD_PRELOAD=/usr/local/lib/heddle/libheddle_preload.so ./program      the same without this command, if the library lies there

The kernel does not see these reads and writes. Nor do inotify, fanotify, leases, audit, strace and I/O limits of control groups.
A program that attaches maps the whole image. Unless the mount is read-only, it can write to all of it, whatever the modes of its files.
Read docs/bypass.md before you use the bypass: it lists the calls that are served.

Environment:
  HEDDLE_REPORT=FILE     as above
  HEDDLE_PREFAULT=1      as --prefault
  HEDDLE_PRELOAD=FILE    the library [default: beside this program, or in ../lib/heddle or ../lib]
  HEDDLE_AIO=pass        pass libaio and io_uring to the kernel; by default they are refused, so that programs can use calls that are served
  HEDDLE_TRUST=USER,...  attach to these users' mounts too, besides root's and your own; these users can corrupt the program's memory
                         (docs/security.md)

Static programs, and set-id programs that get another user's or group's rights, work without the bypass, through the kernel.

Exit code: the program's; 126 if it cannot be run, 127 if it is not found, 1 if this command fails before, 2 if its options are wrong.";

/// Runs the command: on success the program replaces this process.
pub fn run(args: &Args) -> Result<()> {
    if let Some(image) = &args.image {
        through(image, |file| {
            let (_, identity) = client::counters_and_image(file.as_fd())?;
            client::attach(file.as_fd())?;
            Ok((Vec::new(), identity))
        })?;
    }
    let library = library()?;
    let [program, ..] = args.command.as_slice() else { return Err(anyhow!("no program is given")) };
    if let Some(why) = unpreloadable(Path::new(program)) {
        talk(&format!("heddle: {} {why}: it works, through the mount", Path::new(program).display()));
    }
    let mut preload = library.into_os_string();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    // SAFETY: no other thread of this process is running: with little stack, the first one waits for this
    // one.
    unsafe {
        std::env::set_var("LD_PRELOAD", preload);
        if args.prefault {
            std::env::set_var("HEDDLE_PREFAULT", "1");
        }
    }
    let error = inherited::become_program(&args.command);
    let code = if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 };
    let what = format!("cannot run {}", Path::new(program).display());
    Err(Exit::because(code, anyhow::Error::new(error).context(what)))
}

/// The reason why a program ignores preloaded libraries, if it does.
fn unpreloadable(program: &Path) -> Option<&'static str> {
    let found = if program.components().count() > 1 {
        program.to_path_buf()
    } else {
        let dirs = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&dirs).map(|dir| dir.join(program)).find(|path| path.is_file())?
    };
    let file = found.metadata().ok()?;
    // The kernel compares with the real identity: to a set-id program of its own, root is nobody else.
    let set_uid = file.mode() & 0o4000 != 0 && file.uid() != rustix::process::getuid().as_raw();
    let set_gid = file.mode() & 0o2010 == 0o2010 && file.gid() != rustix::process::getgid().as_raw();
    if set_uid || set_gid {
        return Some("is set-id and takes no preloaded library");
    }
    is_static(&file_bytes(&found).ok()?).then_some("is linked statically and takes no preloaded library")
}

/// Returns true for a 64-bit little-endian ELF executable without an interpreter. Returns false for malformed
/// ones.
fn is_static(elf: &[u8]) -> bool {
    const INTERPRETER: u32 = 3;
    let number = |at: usize, len: usize| {
        let bytes = elf.get(at..at.checked_add(len)?)?;
        Some(bytes.iter().rev().fold(0_usize, |number, byte| number << 8 | usize::from(*byte)))
    };
    let headers = || {
        let (first, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
        let kinds = (0..count).map(|i| number(first.checked_add(i.checked_mul(size)?)?, 4));
        kinds.collect::<Option<Vec<usize>>>()
    };
    elf.starts_with(b"\x7fELF\x02\x01")
        && headers().is_some_and(|kinds| !kinds.is_empty() && !kinds.contains(&(INTERPRETER as usize)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::os::unix::fs::PermissionsExt;

    /// It is the usual case of root, and was told of every set-id program.
    #[test]
    fn a_set_id_program_of_ones_own_takes_the_library() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("program");
        std::fs::write(&program, "#!/bin/sh\n").unwrap();
        let set_mode = |mode| std::fs::set_permissions(&program, PermissionsExt::from_mode(mode)).unwrap();
        set_mode(0o6755);
        assert_eq!(unpreloadable(&program), None);
        // Another's, if this user can make it so.
        if std::os::unix::fs::chown(&program, Some(65534), Some(65534)).is_ok() {
            for (mode, is_secure) in [(0o755, false), (0o2745, false), (0o2755, true), (0o4755, true)] {
                set_mode(mode);
                assert_eq!(unpreloadable(&program).is_some(), is_secure, "{mode:o}");
            }
        }
    }

    #[test]
    fn options_before_the_program_are_ours_and_those_after_are_its_own() {
        #[derive(Parser)]
        struct Run {
            #[command(flatten)]
            args: Args,
        }
        let command = |words: &[&str]| Run::try_parse_from(words).map(|run| run.args.command);
        assert!(command(&["run", "--bogus", "true"]).is_err(), "no program is called --bogus");
        let program = ["ls", "--color", "-l", "--prefault"];
        for before in [&["run"][..], &["run", "--"], &["run", "--prefault", "--"]] {
            assert_eq!(
                command(&[before, &program].concat()).ok(),
                Some(program.map(OsString::from).to_vec())
            );
        }
    }

    #[test]
    fn this_program_is_dynamic_and_nonsense_is_not_static() {
        assert!(!is_static(&std::fs::read("/proc/self/exe").unwrap()));
        assert!(!is_static(b"#!/bin/sh\n"));
        assert!(!is_static(b"\x7fELF\x02\x01\xff\xff\xff\xff"));
        let mut elf = vec![0; 120];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        (elf[32], elf[54], elf[56], elf[64]) = (64, 56, 1, 1);
        assert!(is_static(&elf), "one loaded segment, no interpreter");
    }
}
