//! Saves what a repair has taken away: files, directories with what is in them, and targets of links, as plain files and directories.
//!
//! An inode is saved once, under the first of its names; others are hard links, where the file system has room for them.
//!
//! Invariants  S1  no repair ends before all of it is durable here. What cannot be saved whole leaves nothing half behind.
//!             S2  every name is made by its directory's descriptor, as a new one, of one component: no name of an image leads elsewhere.
//!                 There are no links to follow: the target of a link is a file's content.
//!             S3  nothing gets rights that an image could give: no set-id bits, no devices.

use crate::fsck::undo_files::as_text;
use heddle_console::size::Size;
use heddle_f2fs::{Lost, LostForm, LostInode, LostKind};
use heddle_vfs::FileKind;
use rustix::fs::{AtFlags, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps, Uid};
use rustix::io::Errno;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Where the files of all repairs are, as fsck.f2fs names it.
pub(super) const LOST_FOUND: &str = "lost_found";
const NAME_MAX: usize = 255;
/// At most so many names of one inode may be refused by the file system: its name in a lost directory, and `NUMBER-NAME`. If it refuses the
/// bare number too, that is an error.
const REFUSED_NAMES_MAX: u32 = 2;
/// A directory that lies deeper in lost ones is saved at the top.
const DEPTH_MAX: usize = 64;
/// Space that a name and an inode may take.
const INODE_BYTES: u64 = 4096;
const NEW_DIR: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A file that kept a name, and whose content a repair has changed.
#[derive(Serialize)]
pub(super) struct Changed {
    /// A name of it.
    pub(super) path: String,
    /// Where its old content is.
    #[serde(serialize_with = "as_text")]
    pub(super) saved: PathBuf,
}

/// What was written.
struct Written {
    /// A message for each part of a saved file that was damaged in the image.
    damage: Vec<String>,
    /// The path of each saved inode below the top.
    places: BTreeMap<u32, Vec<u8>>,
}

/// The directory `IMAGE.lost`. Lost files are saved in its subdirectory `lost_found`.
pub(super) struct Saver {
    dir: PathBuf,
    root: OwnedFd,
    /// Name of the subdirectory that holds the files of this repair until all are written.
    staging: String,
    /// Number of saved inodes to which no name leads any more.
    saved: usize,
    changed: Vec<Changed>,
    /// Messages about parts of the saved files that were damaged in the image.
    damage: Vec<String>,
}

impl Saver {
    /// For `dir`, which this command has made.
    ///
    /// # Errors
    /// `dir` was replaced by another directory meanwhile, or cannot be opened.
    pub(super) fn of(dir: &Path, staging: String) -> io::Result<Saver> {
        let root = rustix::fs::open(dir, NEW_DIR, Mode::empty())?;
        // Whoever may rename it may have put another one there.
        let stat = rustix::fs::fstat(&root)?;
        if stat.st_uid != rustix::process::geteuid().as_raw() || stat.st_mode & 0o077 != 0 {
            return Err(io::Error::other("it was replaced by another directory"));
        }
        Ok(Saver { dir: dir.into(), root, staging, saved: 0, changed: Vec::new(), damage: Vec::new() })
    }

    /// Number of saved inodes to which no name leads any more.
    pub(super) fn count_nameless(&self) -> usize {
        self.saved
    }

    /// Files that kept a name.
    pub(super) fn take_changed(&mut self) -> Vec<Changed> {
        std::mem::take(&mut self.changed)
    }

    /// Messages about parts of the saved files that were damaged in the image.
    pub(super) fn take_damage(&mut self) -> Vec<String> {
        std::mem::take(&mut self.damage)
    }

    /// Saves all of it, under a name that says so (`publish`); durable when this returns.
    ///
    /// # Errors
    /// Why not all can be saved; then nothing is.
    pub(super) fn save(&mut self, lost: &Lost) -> Result<(), String> {
        let new: BTreeMap<u32, &LostInode> = lost.inodes().map(|inode| (inode.ino, inode)).collect();
        if new.is_empty() {
            return Ok(());
        }
        let need = self.need(lost, &new)?;
        let written = self.write(lost, new, need);
        if written.is_err() {
            // What is there is not all, and nobody counts on it.
            let _ = std::fs::remove_dir_all(self.here().join(&self.staging));
        }
        let Written { damage, places } = written?;
        self.damage = damage;
        for inode in lost.inodes() {
            let place = places.get(&inode.ino).map(|place| OsStr::from_bytes(place));
            match (&inode.path, place) {
                (Some(path), Some(place)) => {
                    let saved = self.dir.join(LOST_FOUND).join(place);
                    self.changed.push(Changed { path: path.clone(), saved });
                }
                _ => self.saved += 1,
            }
        }
        Ok(())
    }

    /// Bytes that these take, if there is so much space.
    fn need(&self, lost: &Lost, new: &BTreeMap<u32, &LostInode>) -> Result<u64, String> {
        let mut need = 0;
        let mut largest = (0, String::new());
        for inode in new.values() {
            let blocks = self.blocks(lost, inode).map_err(|error| self.unsaved(inode, &error))?;
            need += blocks * INODE_BYTES + INODE_BYTES;
            if blocks >= largest.0 {
                largest = (blocks, shown(inode));
            }
        }
        let stat =
            rustix::fs::fstatvfs(&self.root).map_err(|errno| cannot("look at", &self.dir, errno.into()))?;
        // What is kept for root is root's.
        let is_root = rustix::process::geteuid().is_root();
        let free = stat.f_frsize.saturating_mul(if is_root { stat.f_bfree } else { stat.f_bavail });
        if need > free {
            return Err(format!(
                "the repair would lose {}; to save that takes {} in {}, where {} are free; the largest is {}. Make room there",
                files(new.len()),
                Size(need),
                self.above().display(),
                Size(free),
                largest.1
            ));
        }
        Ok(need)
    }

    /// Blocks of all readings of an inode.
    fn blocks(&self, lost: &Lost, inode: &LostInode) -> io::Result<u64> {
        let mut blocks = 0;
        for form in lost.forms(inode.ino)? {
            blocks += match (inode.kind, form) {
                (LostKind::Directory, LostForm::AsSaid) => 1,
                _ => lost.blocks(inode.ino, form)?,
            };
        }
        Ok(blocks)
    }

    fn write(&self, lost: &Lost, inodes: BTreeMap<u32, &LostInode>, need: u64) -> Result<Written, String> {
        let failed = |error: io::Error| cannot("save lost files in", &self.dir, error);
        let total = inodes.len();
        let unsaved = |inode: &LostInode, error: io::Error| {
            format!("{}; {} need {}", self.unsaved(inode, &error), files(total), Size(need))
        };
        let top = new_dir(&self.root, self.staging.as_bytes()).map_err(|errno| failed(errno.into()))?;
        let mut writing =
            Writing { lost, names: BTreeMap::new(), inodes, places: BTreeMap::new(), damage: Vec::new() };
        writing.list();
        let below: BTreeSet<u32> = writing.names.values().flatten().map(|(_, ino)| *ino).collect();
        let all: Vec<u32> = writing.inodes.keys().copied().collect();
        let tops = all.iter().filter(|ino| !below.contains(ino));
        // Directories in a circle have no top, and those that lie too deep are not reached from theirs.
        for ino in tops.chain(&all) {
            if !writing.places.contains_key(ino) {
                let spot = Spot { top: &top, dir: &top, path: Vec::new(), depth: 0 };
                writing.save(*ino, None, &spot).map_err(|(inode, error)| unsaved(&inode, error))?;
            }
        }
        // S1. Errors of delayed writes come here too.
        rustix::fs::syncfs(&top).map_err(|errno| failed(errno.into()))?;
        Ok(Written { damage: writing.damage, places: writing.places })
    }

    /// Gives what was saved its name; durable when this returns. Returns false if nothing was saved.
    ///
    /// # Errors
    /// Why it has another name still.
    pub(super) fn publish(&self) -> Result<bool, String> {
        if self.saved + self.changed.len() == 0 {
            return Ok(false);
        }
        self.is_in_place()?;
        let (root, staging) = (&self.root, &self.staging);
        let moved = rustix::fs::renameat_with(root, staging, root, LOST_FOUND, RenameFlags::NOREPLACE);
        let published = moved.and_then(|()| rustix::fs::fsync(root));
        published.map(|()| true).map_err(|errno| cannot("save lost files in", &self.dir, errno.into()))
    }

    /// Checks that its path still leads to it: the user is told of that path.
    ///
    /// # Errors
    /// The reason.
    pub(super) fn is_in_place(&self) -> Result<(), String> {
        let number = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
        let own = rustix::fs::fstat(&self.root).map(number);
        match rustix::fs::lstat(&self.dir).map(number) == own {
            true => Ok(()),
            false => {
                Err(format!("somebody has moved {} away, where lost files are saved", self.dir.display()))
            }
        }
    }

    /// A path to it, also if it was moved: another directory in its place is a stranger's.
    pub(super) fn here(&self) -> PathBuf {
        let by_number = PathBuf::from(format!("/proc/self/fd/{}", self.root.as_raw_fd()));
        if by_number.is_dir() { by_number } else { self.dir.clone() }
    }

    /// Where space is needed: the directory itself may be gone when that is read.
    fn above(&self) -> &Path {
        self.dir.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."))
    }

    fn unsaved(&self, inode: &LostInode, error: &io::Error) -> String {
        format!(
            "the repair would lose {}, which cannot be saved in {}: {error}",
            shown(inode),
            self.above().display()
        )
    }
}

/// Where something is saved.
struct Spot<'a> {
    /// The subdirectory of this repair, which becomes `lost_found`.
    top: &'a OwnedFd,
    /// The directory in which the next file is made.
    dir: &'a OwnedFd,
    /// Path of `dir` below the top, with a slash behind each name.
    path: Vec<u8>,
    depth: usize,
}

/// What is saved in one go.
struct Writing<'l> {
    lost: &'l Lost,
    inodes: BTreeMap<u32, &'l LostInode>,
    /// For each lost directory, its names and the lost inodes to which they lead.
    names: BTreeMap<u32, Vec<(Vec<u8>, u32)>>,
    /// The path of each saved inode below the top.
    places: BTreeMap<u32, Vec<u8>>,
    damage: Vec<String>,
}

type Unsaved = (LostInode, io::Error);

impl Writing<'_> {
    fn list(&mut self) {
        for inode in self.inodes.values().filter(|inode| inode.kind == LostKind::Directory) {
            let mut names = self.lost.names(inode.ino);
            names.retain(|(_, ino)| *ino != inode.ino && self.inodes.contains_key(ino));
            // A damaged directory may have an entry many times.
            let mut seen = BTreeSet::new();
            names.retain(|entry| seen.insert(entry.clone()));
            self.names.insert(inode.ino, names);
        }
    }

    /// Saves an inode under `name`, its name in a lost directory. Without one, or if the file system refuses it, its name is `NUMBER-NAME`.
    fn save(&mut self, ino: u32, name: Option<&[u8]>, spot: &Spot<'_>) -> Result<(), Unsaved> {
        let Some(inode) = self.inodes.get(&ino).copied() else { return Ok(()) };
        let unsaved = |error: io::Error| (inode.clone(), error);
        if inode.kind == LostKind::Directory {
            return self.save_dir(inode, name, spot);
        }
        if let Some(first) = self.places.get(&ino) {
            if let Some(name) = name {
                link(inode, first, name, spot);
            }
            return Ok(());
        }
        for form in self.lost.forms(ino).map_err(unsaved)? {
            let place = self.save_form(inode, form, name, spot).map_err(unsaved)?;
            self.places.entry(ino).or_insert(place);
        }
        Ok(())
    }

    /// Saves one reading of an inode as a file. Returns its path below the top.
    fn save_form(
        &mut self,
        inode: &LostInode,
        form: LostForm,
        name: Option<&[u8]>,
        spot: &Spot<'_>,
    ) -> io::Result<Vec<u8>> {
        let new = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let make = |name: &[u8]| rustix::fs::openat(spot.dir, name, new, Mode::from_raw_mode(0o600));
        let (name, file) = named(inode, form, name, make)?;
        let missing = self.write_content(inode, form, File::from(file))?;
        if missing > 0 {
            self.damage.push(format!(
                "{}: {missing} of its pointers lead nowhere; what was there is missing in the file that is saved",
                shown(inode)
            ));
        }
        if form != LostForm::AsSaid {
            let name = String::from_utf8_lossy(&name).escape_debug().to_string();
            self.damage.push(format!(
                "{}: it contradicts itself; what it may have been besides is in {name}",
                shown(inode)
            ));
        }
        Ok([&spot.path[..], &name].concat())
    }

    fn save_dir(&mut self, inode: &LostInode, name: Option<&[u8]>, spot: &Spot<'_>) -> Result<(), Unsaved> {
        let unsaved = |error: io::Error| (inode.clone(), error);
        if self.places.contains_key(&inode.ino) || spot.depth >= DEPTH_MAX {
            return Ok(());
        }
        let (name_there, dir) =
            named(inode, LostForm::AsSaid, name, |name| new_dir(spot.dir, name)).map_err(unsaved)?;
        let path = [&spot.path[..], &name_there].concat();
        self.places.insert(inode.ino, path.clone());
        let path = [&path[..], b"/"].concat();
        let within = Spot { top: spot.top, dir: &dir, path, depth: spot.depth + 1 };
        for (name, ino) in self.names.remove(&inode.ino).unwrap_or_default() {
            self.save(ino, Some(&name), &within)?;
        }
        set_attributes(&dir, inode, 0o700).map_err(unsaved)?;
        for form in self.lost.forms(inode.ino).map_err(unsaved)?.into_iter().skip(1) {
            self.save_form(inode, form, name, spot).map_err(unsaved)?;
        }
        Ok(())
    }

    /// Writes the content. Returns the number of pointers that lead nowhere.
    fn write_content(&self, inode: &LostInode, form: LostForm, mut file: File) -> io::Result<u64> {
        let mut missing = 0;
        match inode.kind {
            LostKind::Special(kind, number) if form == LostForm::AsSaid => {
                file.write_all(special(kind, number).as_bytes())?
            }
            _ => {
                let read = self.lost.read(inode.ino, form, &mut |at, bytes| file.write_all_at(bytes, at))?;
                file.set_len(read.size_bytes)?;
                missing = read.missing;
            }
        }
        set_attributes(&file, inode, 0)?;
        Ok(missing)
    }
}

/// Makes a hard link for a further name of a saved file. A failure is ignored: the file has its first name.
fn link(inode: &LostInode, first: &[u8], name: &[u8], spot: &Spot<'_>) {
    let ending = ending(inode.kind, LostForm::AsSaid);
    let name = [&name[..name.len().min(NAME_MAX - ending.len())], ending.as_bytes()].concat();
    let _ = rustix::fs::linkat(spot.top, first, spot.dir, &name[..], AtFlags::empty());
}

fn new_dir(at: &OwnedFd, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    rustix::fs::mkdirat(at, name, Mode::from_raw_mode(0o700))?;
    rustix::fs::openat(at, name, NEW_DIR, Mode::empty())
}

/// Makes it under `name`, its name in a lost directory. Without one, or if the file system refuses it, its name is `NUMBER-NAME`.
fn named<T>(
    inode: &LostInode,
    form: LostForm,
    name: Option<&[u8]>,
    make: impl Fn(&[u8]) -> rustix::io::Result<T>,
) -> io::Result<(Vec<u8>, T)> {
    let ending = ending(inode.kind, form);
    let own = name.map(|name| [&name[..name.len().min(NAME_MAX - ending.len())], ending.as_bytes()].concat());
    // An entry takes one name at most: one of these is free, and the loop ends.
    let by_number = (0_u64..).map(|n| match n {
        0 => numbered(inode, form),
        1 => format!("{}{ending}", inode.ino),
        n => format!("{}.{n}{ending}", inode.ino),
    });
    let mut refused = 0;
    for name in own.into_iter().chain(by_number.map(String::into_bytes)) {
        match make(&name) {
            Ok(made) => return Ok((name, made)),
            Err(Errno::EXIST) => {}
            // A file system that refuses the bare number refuses it with a further number, too.
            Err(Errno::INVAL | Errno::ILSEQ | Errno::NAMETOOLONG) if refused < REFUSED_NAMES_MAX => {
                refused += 1
            }
            Err(errno) => return Err(errno.into()),
        }
    }
    Err(io::Error::other("its names are all taken"))
}

/// `NUMBER-NAME` of an inode. Slashes, control characters and bytes that are not UTF-8 become `_`.
fn numbered(inode: &LostInode, form: LostForm) -> String {
    let ending = ending(inode.kind, form);
    let harmless =
        |c: char| if c == '/' || c.is_control() || c == char::REPLACEMENT_CHARACTER { '_' } else { c };
    let own: String = String::from_utf8_lossy(&inode.name).chars().map(harmless).collect();
    let number = inode.ino.to_string();
    let room = NAME_MAX - number.len() - 1 - ending.len();
    let own = &own[..own.floor_char_boundary(room)];
    if own.is_empty() { format!("{number}{ending}") } else { format!("{number}-{own}{ending}") }
}

/// The suffix of a saved file that stands for something other than a plain file or directory.
fn ending(kind: LostKind, form: LostForm) -> &'static str {
    match (form, kind) {
        (LostForm::Blocks, _) => ".blocks",
        (LostForm::Inline, _) => ".inline",
        (_, LostKind::File | LostKind::Directory) => "",
        (_, LostKind::Encoded) => ".raw",
        (_, LostKind::Symlink) => ".symlink",
        (_, LostKind::Special(..)) => ".special",
    }
}

fn special(kind: FileKind, number: u32) -> String {
    let (major, minor) = ((number & 0xf_ff00) >> 8, number & 0xff | (number >> 12) & 0xf_ff00);
    match kind {
        FileKind::CharDevice => format!("character device {major}:{minor}\n"),
        FileKind::BlockDevice => format!("block device {major}:{minor}\n"),
        FileKind::Fifo => "named pipe\n".into(),
        _ => "socket\n".into(),
    }
}

/// S3. The owner is set as far as the caller may. `at_least` are mode bits that are set in any case.
fn set_attributes(file: impl AsFd, inode: &LostInode, at_least: u32) -> io::Result<()> {
    // The largest number says that nothing is to change.
    let [uid, gid] = [inode.uid, inode.gid].map(|id| (id != u32::MAX).then_some(id));
    let _ = rustix::fs::fchown(&file, uid.map(Uid::from_raw), gid.map(Gid::from_raw));
    let perm = if inode.kind == LostKind::Symlink { 0o600 } else { u32::from(inode.perm) & 0o777 };
    rustix::fs::fchmod(&file, Mode::from_raw_mode(perm | at_least))?;
    let time = Timespec { tv_sec: inode.mtime.secs(), tv_nsec: inode.mtime.nanos().into() };
    // A file system may not know times that an image may have.
    let _ = rustix::fs::futimens(&file, &Timestamps { last_access: time, last_modification: time });
    Ok(())
}

/// An inode, for a message.
fn shown(inode: &LostInode) -> String {
    match String::from_utf8_lossy(&inode.name) {
        name if name.is_empty() => format!("inode {}", inode.ino),
        name => format!("inode {} (\"{}\")", inode.ino, name.escape_debug()),
    }
}

fn files(count: usize) -> String {
    if count == 1 { "1 file".into() } else { format!("{count} files") }
}

fn cannot(what: &str, dir: &Path, error: io::Error) -> String {
    format!("cannot {what} {}: {error}", dir.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_vfs::Time;

    fn inode(kind: LostKind, name: &[u8]) -> LostInode {
        LostInode {
            ino: u32::MAX,
            kind,
            name: name.into(),
            perm: 0o644,
            uid: 0,
            gid: 0,
            mtime: Time(0),
            path: None,
        }
    }

    #[test]
    fn any_name_becomes_one_component_that_a_directory_takes() {
        let place = tempfile::tempdir().unwrap();
        let umlauts = "ä".repeat(127);
        let names = [
            &b""[..],
            b".",
            b"..",
            b"../../victim",
            b"/etc/passwd",
            b"line\nline\x1b[2J\0nul",
            b"\xff\xfe",
            &[b'x'; 255],
            umlauts.as_bytes(),
            "ends in \u{9b}".as_bytes(),
        ];
        let kinds = [LostKind::File, LostKind::Encoded, LostKind::Special(FileKind::CharDevice, 0)];
        for (name, kind) in names.into_iter().flat_map(|name| kinds.map(|kind| (name, kind))) {
            let name = numbered(&inode(kind, name), LostForm::AsSaid);
            assert!(
                name.starts_with("4294967295") && name.ends_with(ending(kind, LostForm::AsSaid)),
                "{name}"
            );
            assert!(
                name.len() <= NAME_MAX && !name.contains(|c: char| c == '/' || c.is_control()),
                "{name:?}"
            );
            std::fs::write(place.path().join(&name), "").unwrap();
        }
        assert_eq!(numbered(&inode(LostKind::Symlink, b"link"), LostForm::AsSaid), "4294967295-link.symlink");
        assert_eq!(numbered(&inode(LostKind::File, b"../v"), LostForm::AsSaid), "4294967295-.._v");
    }

    #[test]
    fn devices_are_told_by_both_numbers() {
        assert_eq!(special(FileKind::BlockDevice, 0x0801), "block device 8:1\n");
        // The lower eight bits of the minor number come first, and its upper ones last.
        assert_eq!(special(FileKind::CharDevice, 0x0120_4567), "character device 69:4711\n");
    }
}
