//! Statistics of a mounted file system, since its mount or live.
//!
//! `stat` takes one sample, `top` shows the differences between samples, and `metrics` (of the mount) serves
//! other programs. Samples come from the mount's process, through the attach socket that the mount names; they are
//! counted in `heddle_nvmfs::counters`.

pub mod counted;
mod figures;
pub mod prometheus;
pub mod stat;
pub mod top;

use anyhow::{Context, Result, anyhow, bail};
use heddle_console::mounted::{Trust, mounted_image, mounts_of};
use heddle_fuse::{ask_with_timeout, shown};
use heddle_nvmfs::client::{self, AttachError};
use heddle_nvmfs::counters::Counters;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags, open, statx};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a mount may take to answer, if the caller named it or root or this user made it.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// The same for a mount that only shows the image's name.
const STRANGER_MAX: Duration = Duration::from_secs(2);

/// A sample of the file system that is mounted at (or above) a directory, or from an image.
fn reading(path: &Path) -> Result<Counters> {
    let words = through(path, |file| {
        client::counters_and_image(file.as_fd()).map(|(counters, image)| (counters.to_words(), image))
    })?;
    Counters::from_words(&words).context("a reading of another layout")
}

/// Asks the mount at (or above) a directory, or the mount of an image. Each answer carries the image's
/// identity: a mount of another image with the same name is skipped. A mount that does not answer delays the
/// caller only briefly.
pub fn through(
    path: &Path,
    ask: impl Fn(&OwnedFd) -> Result<(Vec<u64>, [u64; 2]), AttachError>,
) -> Result<Vec<u64>> {
    let name = path.display();
    let looked = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let looked = looked.with_context(|| format!("cannot look at {name}"))?;
    // Attributes that the kernel has: the mount's process is not asked.
    let kind = statx(&looked, c"", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE);
    match FileType::from_raw_mode(kind.with_context(|| format!("cannot look at {name}"))?.stx_mode.into()) {
        FileType::Directory => return asked(path, ANSWER_MAX, &ask).map(|(found, _)| found),
        FileType::RegularFile | FileType::BlockDevice | FileType::CharacterDevice => {}
        _ => bail!("{name} is neither a directory nor an image"),
    }
    let wanted = client::identity_of(&looked)?;
    let mut failed = None;
    let mut for_strangers = STRANGER_MAX;
    for (dir, trust) in mounts_of(path) {
        let (began, limit) = match trust {
            Trust::Trusted => (None, ANSWER_MAX),
            Trust::Owners => (None, STRANGER_MAX),
            Trust::Strangers => (Some(Instant::now()), for_strangers),
        };
        match asked(&dir, limit, &ask) {
            Ok((found, image)) if image == wanted => return Ok(found),
            Ok(_) => {}
            // Errors of trusted mounts come first.
            Err(error) => failed = failed.or(Some(error)),
        }
        // All untrusted mounts together have as much time as one.
        for_strangers = for_strangers.saturating_sub(began.map_or(Duration::ZERO, |began| began.elapsed()));
    }
    Err(failed.unwrap_or_else(|| {
        anyhow!(
            "{name} is not mounted, as far as this process can see. Mount it with: heddle mount {name} DIR"
        )
    }))
}

/// Asks the mount at this directory.
fn asked(
    dir: &Path,
    limit: Duration,
    ask: &impl Fn(&OwnedFd) -> Result<(Vec<u64>, [u64; 2]), AttachError>,
) -> Result<(Vec<u64>, [u64; 2])> {
    const FOUND: u8 = 1;
    let answer = ask_with_timeout(limit, || {
        let opened = directory(dir).with_context(|| format!("cannot look at {}", shown(dir)));
        match opened.and_then(|file| ask(&file).with_context(|| shown(dir))) {
            Ok((words, image)) => {
                let bytes = image.iter().chain(&words).flat_map(|word| word.to_ne_bytes());
                [FOUND].into_iter().chain(bytes).collect()
            }
            Err(error) => [&[0], format!("{error:#}").as_bytes()].concat(),
        }
    });
    let answer = answer.with_context(|| {
        format!(
            "cannot ask {}: it takes a process and two descriptors, see ulimit -n and ulimit -u",
            shown(dir)
        )
    })?;
    match answer.as_deref().and_then(<[u8]>::split_first) {
        Some((&FOUND, bytes)) => {
            let mut words: Vec<u64> =
                bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
            let [device, inode] = *words.first_chunk::<2>().context("an answer that is cut short")?;
            words.drain(..2);
            Ok((words, [device, inode]))
        }
        Some((_, text)) => Err(anyhow!("{}", String::from_utf8_lossy(text))),
        None => Err(anyhow!(
            "{}: its process gives no answer: it is stopped, or has other work. Look with: ps -e | grep heddle",
            shown(dir)
        )),
    }
}

/// A descriptor to ask the mount through.
fn directory(dir: &Path) -> rustix::io::Result<OwnedFd> {
    open(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// The source of the mount, for a headline.
fn name_of(path: &Path) -> String {
    match mounted_image(path) {
        Some(image) => format!("{} at {}", image.display(), path.display()),
        None => path.display().to_string(),
    }
}

/// Name of a process, as the kernel tells it.
fn program(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name: String = name.trim_end().chars().filter(|c| heddle_fuse::is_plain(*c)).collect();
    if name.is_empty() { "-".to_owned() } else { name }
}
