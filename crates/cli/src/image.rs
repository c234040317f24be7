//! Opening images, and finding where one is mounted: an error about an image in use names the directory to unmount.

use crate::taking::Ground;
use anyhow::{Context, Result, anyhow, bail};
use heddle_pmem::{BLOCK_BYTES, Error, OpenOptions, Region};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Opens an image.
pub fn open(image: &Path, options: &OpenOptions<'_>) -> Result<Region> {
    Region::open(image, options).map_err(|error| explain(image, error))
}

/// Makes an image.
pub fn create(image: &Path, ground: Ground, len_bytes: u64, options: &OpenOptions<'_>) -> Result<Region> {
    ground.clear()?;
    let made = ground.taken.create(len_bytes, options);
    made.map_err(|error| explain(image, error))
}

/// Adds the way out: the mount to unmount, the right that lacks, the command that makes an image.
pub fn explain(image: &Path, error: Error) -> anyhow::Error {
    if let Error::TooSmall { len_bytes, .. } = &error
        && *len_bytes < BLOCK_BYTES as u64
    {
        let image = image.display();
        let remedy =
            if *len_bytes == 0 { format!(". Make one with: heddle mkfs {image}") } else { String::new() };
        return anyhow!("{image} is no image, or what is left of one: it has {len_bytes} bytes{remedy}");
    }
    if let Error::System { errno, .. } = &error {
        let remedy = match *errno {
            Errno::ACCESS | Errno::PERM => "Choose a place where you may write, or ask its owner",
            Errno::ROFS => {
                "That place is read-only: choose another (an image there can be mounted with -o ro)"
            }
            Errno::ISDIR => "An image is a file or a device",
            Errno::NXIO => "That is a socket or a device without a driver: an image is a file or a device",
            Errno::LOOP | Errno::NOTDIR | Errno::NAMETOOLONG => "Check the path, and the links in it",
            Errno::NOENT => "Check the path; an image is made with: heddle mkfs IMAGE",
            _ => return error.into(),
        };
        return anyhow!("{error}. {remedy}");
    }
    let Error::InUse { pid, .. } = &error else { return error.into() };
    let Some(dir) = mounted_at(image) else { return error.into() };
    let by = pid.map_or(String::new(), |pid| format!(" by process {pid}"));
    let dir = dir.display();
    anyhow!(
        "cannot open {}: it is mounted at {dir}{by}. Unmount it with: heddle umount {dir}",
        image.display()
    )
}

/// For commands that read our own format alone.
pub fn refuse_flash(image: &Path, instead: &str) -> Result<()> {
    let image = match heddle_f2fs::is_f2fs(image) {
        true => image.display(),
        false => return Ok(()),
    };
    bail!(
        "{image} is an F2FS image, which this command does not read. There are: heddle info {image}, {instead}"
    )
}

/// Bytes of a file or device.
pub fn len_bytes(image: &Path) -> Result<u64> {
    let measured = File::open(image).and_then(|mut file| file.seek(SeekFrom::End(0)));
    measured.with_context(|| format!("cannot read {}", image.display()))
}

/// An identity as it is shown.
pub fn hex(uuid: [u8; 16]) -> String {
    uuid.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Refuses an image whose copy is mounted: what belongs to one of them could not be told from what belongs to the other.
pub fn refuse_twin(image: &Path) -> Result<()> {
    let Some(own) = Seen::of(image) else { return Ok(()) };
    // A stranger's mount shows what he likes: a device that is set off by being opened, a file that never answers, this image's uuid.
    let believed = |mount: &Shown| mount.user.is_some_and(heddle_fuse::is_believed);
    for Shown { source, dir, .. } in mounts("/proc/thread-self/mounts").into_iter().filter(believed) {
        if let Some(other) = Seen::of(&source)
            && other.uuid == own.uuid
            && other.place != own.place
        {
            let (image, source, dir) =
                (image.display(), heddle_fuse::shown(&source), heddle_fuse::shown(&dir));
            bail!(
                "cannot mount {image}: it is a copy of {source}, which is mounted at {dir}: both have the uuid {}. \
                 Give this one another: heddle tune --uuid random {image}",
                hex(own.uuid)
            );
        }
    }
    Ok(())
}

/// An image of ours, as far as it can be seen.
struct Seen {
    uuid: [u8; 16],
    /// Of a device its number, of a file its inode.
    place: (u64, u64),
}

impl Seen {
    fn of(image: &Path) -> Option<Seen> {
        let meta = image.metadata().ok()?;
        let kind = meta.file_type();
        let is_device = kind.is_block_device() || kind.is_char_device();
        if !is_device && !kind.is_file() {
            return None;
        }
        let len = len_bytes(image).ok()?;
        let place = if is_device { (meta.rdev(), 0) } else { (meta.dev(), meta.ino()) };
        Some(Seen { uuid: crate::info::of_file(image, len).ok()?.uuid, place })
    }
}

/// Where an image is mounted, as far as this process can see.
pub fn mounted_at(image: &Path) -> Option<PathBuf> {
    mounts_of(image).into_iter().next().map(|(dir, _)| dir)
}

/// How far what a mount shows as its source is believed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Word {
    /// Root mounted it, or this user.
    Believed,
    /// The image's owner did.
    Owners,
    /// Another user did, and shows what he likes.
    Strangers,
}

/// Where all mounts are that show this image's path as their source, those that are believed first.
pub fn mounts_of(image: &Path) -> Vec<(PathBuf, Word)> {
    let Ok(image) = image.canonicalize() else { return Vec::new() };
    let owner = image.metadata().map(|meta| meta.uid()).ok();
    let word = |user: Option<u32>| match user {
        Some(user) if heddle_fuse::is_believed(user) => Word::Believed,
        user if user.is_some() && user == owner => Word::Owners,
        _ => Word::Strangers,
    };
    let all = mounts("/proc/thread-self/mounts").into_iter();
    let mut shown: Vec<_> =
        all.filter(|mount| mount.source == image).map(|mount| (mount.dir, word(mount.user))).collect();
    shown.sort_by_key(|(_, word)| *word);
    shown
}

/// Is it mounted, here or where the process that holds it is, by a process that lives? One that has it and no mount is about to begin or
/// to end.
pub fn is_served(image: &Path) -> bool {
    let Ok(whole) = image.canonicalize() else { return false };
    let here = mounts("/proc/thread-self/mounts");
    let believed = |mount: &Shown| mount.user.is_some_and(heddle_fuse::is_believed);
    if here.iter().any(|mount| mount.source == whole && believed(mount) && heddle_fuse::is_served(&mount.dir))
    {
        return true;
    }
    let there = heddle_pmem::lock_holder(image).map(|pid| mounts(&format!("/proc/{pid}/mounts")));
    // Of those that were seen here it is known already.
    there.is_some_and(|there| there.iter().any(|mount| mount.source == whole && !here.contains(mount)))
}

/// Was it left in order? `None`: it cannot be looked at.
pub fn is_clean(image: &Path) -> Option<bool> {
    if heddle_f2fs::is_f2fs(image) {
        return Some(heddle_f2fs::F2fs::open(image).ok()?.info().clean);
    }
    // Of a device the inode knows no size.
    let bytes = rustix::fs::seek(fs::File::open(image).ok()?, rustix::fs::SeekFrom::End(0)).ok()?;
    crate::info::of_file(image, bytes).ok().map(|found| found.clean)
}

/// The image behind a mount point.
pub fn mounted_image(dir: &Path) -> Option<PathBuf> {
    let dir = dir.canonicalize().ok()?;
    mounts("/proc/thread-self/mounts").into_iter().rfind(|mount| mount.dir == dir).map(|mount| mount.source)
}

/// A mount, as a table shows it.
#[derive(PartialEq, Eq, Debug)]
struct Shown {
    source: PathBuf,
    dir: PathBuf,
    user: Option<u32>,
}

/// Every heddle mount in such a table.
fn mounts(table: &str) -> Vec<Shown> {
    let table = fs::read(table).unwrap_or_default();
    table.split(|byte| *byte == b'\n').filter_map(parse).collect()
}

/// `source dir type options 0 0`
fn parse(line: &[u8]) -> Option<Shown> {
    let mut fields = line.split(|byte| *byte == b' ');
    let (source, dir) = (unescaped(fields.next()?), unescaped(fields.next()?));
    let is_ours = fields.next()? == b"fuse.heddle";
    let user = heddle_fuse::user_of(fields.next()?);
    is_ours.then_some(Shown { source, dir, user })
}

/// Space, tab, newline and backslash are written as `\` and three octal digits.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, after @ ..] = rest {
        let octal = after.first_chunk::<3>().filter(|_| *first == b'\\');
        let code = octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_heddle_mounts_count_and_names_with_blanks_are_whole() {
        let line = br"/dev/shm/my\040img /mnt/a\134b fuse.heddle rw,nosuid,user_id=4 0 0";
        let shown = Shown { source: "/dev/shm/my img".into(), dir: r"/mnt/a\b".into(), user: Some(4) };
        assert_eq!(parse(line), Some(shown));
        assert_eq!(parse(b"tmpfs /dev/shm tmpfs rw 0 0"), None);
        assert_eq!(parse(b""), None);
    }
}
