//! Part one: a mounted image, used by unmodified programs.
//!
//! For root the mount lies in a mount namespace of the demo's own thread: no other process sees it, and it
//! ends with this process. For other users fusermount3 mounts it for all to see.

use super::{Outcome, copies, stamp};
use anyhow::{Context, Result, bail, ensure};
use heddle_console::namespace;
use heddle_console::scratch::Scratch;
use heddle_nvmfs::server::{Server, ServerOptions};
use heddle_nvmfs::{MountOptions, Variant, format_region, mount};
use heddle_pmem::{OpenOptions, Region};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Instant;

const IMAGE_BYTES: u64 = 256 << 20;
/// The part of the shared file that each of the two processes writes.
const HALF_BYTES: usize = 16 << 20;
const DD_BLOCK_BYTES: usize = 128 << 10;

/// Runs the part in a thread of its own, which has the private namespace.
pub fn run(scratch: &Scratch) -> Result<Outcome> {
    std::thread::scope(|scope| match scope.spawn(|| in_own_namespace(scratch)).join() {
        Ok(outcome) => outcome,
        Err(_) => bail!("a thread panicked"),
    })
}

fn in_own_namespace(scratch: &Scratch) -> Result<Outcome> {
    if let Err(why) = namespace::enter() {
        return Ok(Outcome::Skipped(why));
    }
    let (image, dir) = (scratch.dir().join("image"), scratch.dir().join("mnt"));
    fs::create_dir(&dir)?;
    let region = Region::create(&image, IMAGE_BYTES, &OpenOptions::default())?;
    format_region(&region, Variant::Heddle)?;
    let volume = mount(region, &MountOptions::default())?;
    let attach_server = Server::start(&volume, &ServerOptions::default())?;
    let how = heddle_fuse::MountOptions {
        source: image.clone(),
        attach_ioctl: Some(attach_server.attach_ioctl()),
        ..heddle_fuse::MountOptions::default()
    };
    let mounted = match heddle_fuse::mount(Arc::new(volume.fs()), &dir, &how) {
        Ok(mounted) => mounted,
        Err(error @ (heddle_fuse::Error::NoDevice { .. } | heddle_fuse::Error::Refused { .. })) => {
            drop(attach_server);
            volume.unmount();
            return Ok(Outcome::Skipped(error.to_string()));
        }
        Err(error) => return Err(error.into()),
    };
    scratch.detach_at_end(mounted.unmounter());
    let found = use_it(scratch, &dir);
    let unmounted = mounted.unmount();
    drop(attach_server);
    volume.unmount();
    let found = found?;
    unmounted?;
    let mut fsck = Command::new(std::env::current_exe().context("cannot find this program")?);
    succeed(fsck.args(["fsck", "-n"]).arg(&image)).context("the image is not sound afterwards")?;
    fs::remove_file(&image)?;
    Ok(Outcome::Passed(format!("{found}\n   unmounted; fsck finds nothing")))
}

fn use_it(scratch: &Scratch, dir: &Path) -> Result<String> {
    let (tree, writers) = (copy_a_tree(dir)?, two_writers(scratch, dir)?);
    Ok(format!("{tree}\n{writers}\n{}", copies::run(scratch, dir)?))
}

fn copy_a_tree(dir: &Path) -> Result<String> {
    let Some(tree) = a_tree() else {
        return Ok("   cp, diff: SKIPPED, no tree of files found to copy".to_owned());
    };
    let began = Instant::now();
    let copy = dir.join("tree");
    succeed(Command::new("cp").arg("-r").arg(&tree).arg(&copy))?;
    let took = began.elapsed();
    succeed(Command::new("diff").arg("-r").arg(&tree).arg(&copy)).context("the copy differs")?;
    let (files, bytes) = weigh(&copy)?;
    ensure!(files > 0, "cp copied nothing from {}", tree.display());
    Ok(format!(
        "   cp -r copied {files} files ({}) in {} ms; diff -r finds no difference",
        heddle_console::size::Size(bytes),
        took.as_millis()
    ))
}

/// A directory tree to copy: this project's sources, or a tree that most machines have.
fn a_tree() -> Option<PathBuf> {
    let here = std::env::current_dir().unwrap_or_default();
    let sources = here.join("crates");
    let built_from = Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_path_buf);
    let own =
        [Some(sources), built_from].into_iter().flatten().find(|path| path.join("vfs/src/lib.rs").is_file());
    own.or_else(|| {
        ["/usr/include", "/usr/share/doc"].map(PathBuf::from).into_iter().find(|path| path.is_dir())
    })
}

/// Number of files, and of their bytes.
fn weigh(dir: &Path) -> Result<(u64, u64)> {
    let (mut files, mut bytes) = (0, 0);
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let meta = entry.metadata()?;
        if meta.is_dir() {
            let below = weigh(&entry.path())?;
            (files, bytes) = (files + below.0, bytes + below.1);
        } else {
            (files, bytes) = (files + 1, bytes + meta.len());
        }
    }
    Ok((files, bytes))
}

/// Two processes write the two halves of one file in parallel.
fn two_writers(scratch: &Scratch, dir: &Path) -> Result<String> {
    let shared = dir.join("shared");
    let halves = [stamp::noise(1, HALF_BYTES), stamp::noise(2, HALF_BYTES)];
    fs::File::create(&shared)?.set_len(2 * HALF_BYTES as u64)?;
    let began = Instant::now();
    let mut writers = Vec::new();
    for (number, half) in halves.iter().enumerate() {
        let from = scratch.dir().join(format!("half{number}"));
        fs::write(&from, half)?;
        let mut dd = Command::new("dd");
        dd.arg(format!("if={}", from.display())).arg(format!("of={}", shared.display()));
        dd.arg(format!("bs={DD_BLOCK_BYTES}")).arg(format!("seek={}", number * HALF_BYTES / DD_BLOCK_BYTES));
        dd.args(["conv=notrunc", "status=none"]).stdout(Stdio::piped()).stderr(Stdio::piped());
        writers.push(dd.spawn().context("cannot run dd")?);
    }
    for writer in writers {
        check("dd", writer.wait_with_output()?)?;
    }
    let took = began.elapsed();
    ensure!(fs::read(&shared)? == halves.concat(), "the shared file is not what the two dd processes wrote");
    Ok(format!(
        "   two dd processes wrote the two halves of one file of {} in {} ms; every byte is right",
        heddle_console::size::Size(2 * HALF_BYTES as u64),
        took.as_millis()
    ))
}

/// Runs a command; the error has its output.
pub fn succeed(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {name}"))?;
    check(&name, output)
}

/// Fails unless the command has succeeded.
pub fn check(name: &str, output: Output) -> Result<()> {
    let said = [output.stdout, output.stderr].concat();
    let first: String = String::from_utf8_lossy(&said).lines().take(3).collect::<Vec<_>>().join("; ");
    ensure!(output.status.success(), "{name} failed: {first}");
    Ok(())
}
