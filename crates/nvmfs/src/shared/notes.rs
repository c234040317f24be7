//! Notes of a daemon for its successor: which arena it has made for which image.
//!
//! A daemon that starts while clients of a dead one live takes their arena over ([`super::adopt`]). It finds
//! the arena among the descriptors of processes, and any user can make a sealed memory file that looks like
//! one. So it accepts an arena only if the inode is in a note that a daemon of the same user has left.
//!
//! State       DIR/DEVICE-INODE.mount, by the numbers of the image's file. DIR is `$HEDDLE_RUNTIME_DIR` if that is set; else, for root,
//!             `/run/heddle`, for others `$XDG_RUNTIME_DIR/heddle`, or `/tmp/heddle-UID` where that is not set. A living daemon holds
//!             a lock of its note, which no other user can open.
//! Invariants  N1  the directory is opened without following a link, is this user's, and no other user may write there. Otherwise it is
//!                 refused, by name. Everything in it is reached through that descriptor.
//!             N2  notes do not accumulate: a clean unmount removes its note. The note of a killed daemon is removed at the next mount of
//!                 any image, if the machine has rebooted since, or its image is not at its path any more.

use super::image_id;
use heddle_vfs::unmapped::{is_one_user, is_own_user};
use rustix::fs::{
    AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, Stat, flock, fstat, openat, renameat, statat,
    unlinkat,
};
use rustix::process::Uid;
use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Longest note.
const NOTE_BYTES_MAX: u64 = 8 << 10;
const SUFFIX: &str = ".mount";

/// Why no note can be written or read.
#[derive(thiserror::Error, Debug)]
pub enum NoteError {
    /// The directory belongs to another user, or others may write to it.
    #[error("{} is not used: {why}. Remove it, or name another directory with HEDDLE_RUNTIME_DIR", dir.display())]
    NotSafe {
        /// The directory.
        dir: PathBuf,
        /// The owner, or the fault.
        why: String,
    },
    /// A system call failed.
    #[error("cannot write to {}: {source}. Name another directory with HEDDLE_RUNTIME_DIR", dir.display())]
    System {
        /// The directory.
        dir: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// The contents of a note.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Noted {
    /// The boot of the machine.
    pub boot: [u8; 16],
    /// Device and inode of the arena.
    pub arena: [u64; 2],
    /// The PID namespace in which the daemon's clients are numbered.
    pub pid_namespace: u64,
    /// The image's path.
    pub path: PathBuf,
}

impl Noted {
    fn to_bytes(&self) -> Vec<u8> {
        let [device, inode] = self.arena;
        let numbers =
            format!("{:032x} {device} {inode} {} ", u128::from_be_bytes(self.boot), self.pid_namespace);
        [b"heddle 1 ", numbers.as_bytes(), self.path.as_os_str().as_bytes()].concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Noted> {
        let mut fields = bytes.strip_prefix(b"heddle 1 ")?.splitn(5, |byte| *byte == b' ');
        let boot = u128::from_str_radix(std::str::from_utf8(fields.next()?).ok()?, 16).ok()?.to_be_bytes();
        let mut number = || std::str::from_utf8(fields.next()?).ok()?.parse::<u64>().ok();
        let (arena, pid_namespace) = ([number()?, number()?], number()?);
        Some(Noted { boot, arena, pid_namespace, path: OsString::from_vec(fields.next()?.to_vec()).into() })
    }
}

/// A note of a living daemon. Dropping it removes it.
pub struct Note {
    dir: OwnedFd,
    name: String,
    file: File,
    stays: bool,
}

impl Note {
    /// Writes a note.
    pub fn leave(image: [u64; 2], noted: &Noted) -> Result<Note, NoteError> {
        let path = directory();
        let dir = open_directory(&path, true)?;
        let fail = |source: io::Error| NoteError::System { dir: path.clone(), source };
        clear(&dir);
        let name = name_of(image);
        let fresh = format!("{name}.new");
        let _ = unlinkat(&dir, &fresh, AtFlags::empty());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&dir, &fresh, flags, Mode::RUSR | Mode::WUSR).map_err(|e| fail(e.into()))?;
        let mut file = File::from(file);
        let written = flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(io::Error::from)
            .and_then(|()| file.write_all(&noted.to_bytes()))
            .and_then(|()| Ok(renameat(&dir, &fresh, &dir, &name)?));
        if let Err(error) = written {
            let _ = unlinkat(&dir, &fresh, AtFlags::empty());
            return Err(fail(error));
        }
        Ok(Note { dir, name, file, stays: false })
    }

    /// Keeps the note: clients still have the arena that it names.
    pub fn keep(mut self) {
        self.stays = true;
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        // Only this daemon's own note: a daemon that took over has written another one. It is not opened: a process that ends for lack
        // of descriptors has none for that.
        let there = statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW);
        let same = |there: Stat, own: Stat| (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino);
        if !self.stays && there.is_ok_and(|there| fstat(&self.file).is_ok_and(|own| same(there, own))) {
            let _ = unlinkat(&self.dir, &self.name, AtFlags::empty());
        }
    }
}

/// Whether the daemon that has left a note lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Author {
    /// It holds the lock of its note, in whichever PID namespace it is.
    Lives,
    /// Nobody holds that lock.
    Ended,
    /// The system does not tell.
    Unknown,
}

impl Author {
    fn of(note: &File) -> Author {
        // Shared: of two processes that look at once neither takes the other for the author. Closing the file drops it.
        match flock(note, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Author::Ended,
            Err(rustix::io::Errno::WOULDBLOCK) => Author::Lives,
            Err(_) => Author::Unknown,
        }
    }
}

/// The note of this user's last daemon for an image, and whether that daemon lives.
pub fn read(image: [u64; 2]) -> Result<Option<(Noted, Author)>, NoteError> {
    read_in(&directory(), image)
}

fn read_in(dir: &Path, image: [u64; 2]) -> Result<Option<(Noted, Author)>, NoteError> {
    match open_directory(dir, false) {
        Ok(dir) => Ok(note_in(&dir, OsStr::new(&name_of(image)))
            .and_then(|(note, noted)| Some((noted?, Author::of(&note))))),
        Err(NoteError::System { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The directory of this user's daemons, for other files of theirs; none of those names ends with `.mount`.
///
/// # Errors
/// `NoteError`: it does not exist and was not to be made, or it is not safe (N1).
pub fn runtime_directory(make: bool) -> Result<OwnedFd, NoteError> {
    open_directory(&directory(), make)
}

/// The PID namespace of this process.
pub fn pid_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |meta| meta.ino())
}

fn name_of([device, inode]: [u64; 2]) -> String {
    format!("{device:x}-{inode:x}{SUFFIX}")
}

fn directory() -> PathBuf {
    directory_of(rustix::process::geteuid(), |name| std::env::var_os(name))
}

/// The directory of this user, who has set these variables.
fn directory_of(uid: Uid, variable: impl Fn(&str) -> Option<OsString>) -> PathBuf {
    let set = |name| variable(name).filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let usual = || match set("XDG_RUNTIME_DIR") {
        _ if uid.is_root() => "/run/heddle".into(),
        Some(dir) => dir.join("heddle"),
        None => format!("/tmp/heddle-{}", uid.as_raw()).into(),
    };
    set("HEDDLE_RUNTIME_DIR").unwrap_or_else(usual)
}

/// Opens the directory, and checks N1.
fn open_directory(path: &Path, make: bool) -> Result<OwnedFd, NoteError> {
    let fail = |source: io::Error| NoteError::System { dir: path.to_path_buf(), source };
    let not_safe = |why: String| NoteError::NotSafe { dir: path.to_path_buf(), why };
    if make && path.symlink_metadata().is_err() {
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(fail)?;
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = match rustix::fs::open(path, flags, Mode::empty()) {
        Err(rustix::io::Errno::NOTDIR | rustix::io::Errno::LOOP) => {
            return Err(not_safe("it is no directory (a link to one is not followed)".to_owned()));
        }
        Err(rustix::io::Errno::ACCESS)
            if path.symlink_metadata().is_ok_and(|meta| !is_own_user(meta.uid())) =>
        {
            return Err(not_safe("it belongs to another user".to_owned()));
        }
        other => other.map_err(|e| fail(e.into()))?,
    };
    let stat = fstat(&dir).map_err(|e| fail(e.into()))?;
    if !is_own_user(stat.st_uid) {
        let whose = if is_one_user(stat.st_uid) {
            ""
        } else {
            ", who may be anybody here: this user namespace lacks users"
        };
        return Err(not_safe(format!("it belongs to user {}{whose}", stat.st_uid)));
    }
    if stat.st_mode & 0o022 != 0 {
        return Err(not_safe(format!("others may write to it (mode {:o})", stat.st_mode & 0o7777)));
    }
    Ok(dir)
}

fn note_in(dir: &OwnedFd, name: &OsStr) -> Option<(File, Option<Noted>)> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(dir, name, flags, Mode::empty()).ok()?;
    let stat = fstat(&file).ok()?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || !is_own_user(stat.st_uid) {
        return None;
    }
    let (file, mut bytes) = (File::from(file), Vec::new());
    (&file).take(NOTE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some((file, Noted::from_bytes(&bytes)))
}

/// Removes stale notes (N2).
fn clear(dir: &OwnedFd) {
    let boot = crate::process::boot_id();
    let names = Dir::read_from(dir).into_iter().flatten().flatten();
    for name in names.map(|entry| OsStr::from_bytes(entry.file_name().to_bytes()).to_owned()) {
        if !name.as_bytes().ends_with(SUFFIX.as_bytes()) {
            continue;
        }
        let Some((file, noted)) = note_in(dir, &name) else { continue };
        let is_there = |noted: &Noted| {
            let image = rustix::fs::open(&noted.path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
            image.ok().and_then(|image| image_id(image).ok()).is_some_and(|id| name == *name_of(id))
        };
        let counts = noted.is_some_and(|noted| noted.boot == boot && is_there(&noted));
        if !counts && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = unlinkat(dir, &name, AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_note_says_what_was_written() {
        let path = PathBuf::from(OsString::from_vec(b"/a b/c,\xff".to_vec()));
        let noted = Noted { boot: [0xa5; 16], arena: [1, u64::MAX], pid_namespace: 7, path };
        assert_eq!(Noted::from_bytes(&noted.to_bytes()), Some(noted));
        for rubbish in [&b""[..], b"heddle 1 ", b"heddle 1 zz 1 2 3 /", b"heddle 2 0 1 2 3 /"] {
            assert_eq!(Noted::from_bytes(rubbish), None);
        }
    }

    #[test]
    fn a_directory_that_others_could_have_made_is_refused_by_name() {
        let here = tempfile::tempdir().unwrap();
        let refused = |dir: &Path, word: &str| {
            let error = open_directory(dir, true).unwrap_err();
            assert!(matches!(error, NoteError::NotSafe { .. }), "{error}");
            let said = error.to_string();
            assert!(said.contains(dir.to_str().unwrap()) && said.contains(word), "{said}");
        };
        let own = here.path().join("own");
        assert!(
            matches!(open_directory(&own, false), Err(NoteError::System { .. })),
            "it was not to be made"
        );
        open_directory(&own, true).unwrap();
        assert_eq!(own.metadata().unwrap().mode() & 0o7777, 0o700);
        symlink(&own, here.path().join("link")).unwrap();
        refused(&here.path().join("link"), "not followed");
        symlink(here.path().join("nowhere"), here.path().join("dangling")).unwrap();
        refused(&here.path().join("dangling"), "not followed");
        File::create(here.path().join("file")).unwrap();
        refused(&here.path().join("file"), "no directory");
        std::fs::set_permissions(&own, PermissionsExt::from_mode(0o770)).unwrap();
        refused(&own, "others may write");
        if rustix::process::geteuid().is_root() {
            std::fs::set_permissions(&own, PermissionsExt::from_mode(0o700)).unwrap();
            std::os::unix::fs::chown(&own, Some(4242), None).unwrap();
            refused(&own, "user 4242");
        }
    }

    #[test]
    fn each_image_has_a_note_and_those_without_an_image_go() {
        let here = tempfile::tempdir().unwrap();
        let notes = here.path().join("notes");
        let dir = open_directory(&notes, true).unwrap();
        // Images are not opened for that: a device, as this socket, may have its own way of being opened.
        let images = ["image", "earlier"].map(|name| here.path().join(name));
        let _there = images.each_ref().map(|image| UnixListener::bind(image).unwrap());
        let [id, earlier] = images.each_ref().map(|image| {
            let meta = image.symlink_metadata().unwrap();
            [meta.dev(), meta.ino()]
        });
        let ids = [id, [id[0], id[1] + 100], [id[0] + 1, id[1]]];
        let names = ids.map(name_of);
        let boot = crate::process::boot_id();
        let noted = Noted { boot, arena: [1, 2], pid_namespace: 3, path: images[0].clone() };
        names.iter().for_each(|name| std::fs::write(notes.join(name), noted.to_bytes()).unwrap());
        let before_the_boot = Noted { boot: [1; 16], path: images[1].clone(), ..noted };
        std::fs::write(notes.join(name_of(earlier)), before_the_boot.to_bytes()).unwrap();
        assert_eq!(std::fs::read_dir(&notes).unwrap().count(), 4, "{names:?}");
        std::fs::write(notes.join("other"), b"no note").unwrap();
        rustix::fs::mkfifoat(&dir, "0-0.mount", Mode::RUSR | Mode::WUSR).unwrap();
        symlink(notes.join("other"), notes.join("0-1.mount")).unwrap();
        clear(&dir);
        let mut left: Vec<_> = std::fs::read_dir(&notes).unwrap().map(|it| it.unwrap().file_name()).collect();
        left.sort();
        let mut right = ["0-0.mount".into(), "0-1.mount".into(), OsString::from(&names[0]), "other".into()];
        right.sort();
        assert_eq!(left, right);
    }

    #[test]
    fn a_user_has_a_directory_by_his_variables_and_his_number() {
        let here = |uid, set: [&str; 2]| {
            let value = |name: &str| match name {
                "HEDDLE_RUNTIME_DIR" => set[0],
                "XDG_RUNTIME_DIR" => set[1],
                other => panic!("{other}"),
            };
            directory_of(Uid::from_raw(uid), |name| Some(value(name).into()))
        };
        assert_eq!(here(0, ["/own", "/xdg"]), Path::new("/own"));
        assert_eq!(here(0, ["", "/xdg"]), Path::new("/run/heddle"));
        assert_eq!(here(1000, ["/own", "/xdg"]), Path::new("/own"));
        assert_eq!(here(1000, ["", "/xdg"]), Path::new("/xdg/heddle"));
        assert_eq!(here(1000, ["", ""]), Path::new("/tmp/heddle-1000"));
        let none = directory_of(Uid::from_raw(7), |_| None);
        assert_eq!(none, Path::new("/tmp/heddle-7"));
    }

    #[test]
    fn a_note_is_read_where_there_is_one_and_errors_are_told() {
        let here = tempfile::tempdir().unwrap();
        assert!(matches!(read_in(&here.path().join("none"), [1, 2]), Ok(None)));
        assert!(!here.path().join("none").exists(), "a look makes nothing");
        let noted = Noted { boot: [1; 16], arena: [1, 2], pid_namespace: 3, path: "/image".into() };
        std::fs::write(here.path().join("1-2.mount"), noted.to_bytes()).unwrap();
        assert!(matches!(read_in(here.path(), [1, 2]), Ok(Some((it, Author::Ended))) if it == noted));
        assert!(matches!(read_in(here.path(), [1, 3]), Ok(None)));
        let long = here.path().join("x".repeat(300));
        assert!(matches!(read_in(&long, [1, 2]), Err(NoteError::System { .. })));
    }

    #[test]
    fn the_pid_namespace_is_the_one_that_the_kernel_names() {
        let link = std::fs::read_link("/proc/self/ns/pid").unwrap();
        assert_eq!(link.to_str().unwrap(), format!("pid:[{}]", pid_namespace()));
    }

    #[test]
    fn a_directory_that_may_not_be_opened_is_told_by_its_owner() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: only root can become others");
            return;
        }
        let here = tempfile::tempdir().unwrap();
        std::fs::set_permissions(here.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let dirs = [("others", 4242, 0o700), ("own", 4243, 0o000)].map(|(name, owner, mode)| {
            let dir = here.path().join(name);
            std::fs::create_dir(&dir).unwrap();
            std::fs::set_permissions(&dir, PermissionsExt::from_mode(mode)).unwrap();
            std::os::unix::fs::chown(&dir, Some(owner), None).unwrap();
            dir
        });
        let user = || {
            // SAFETY: plain system calls. The first one concerns this thread alone, the second undoes what it does to the process.
            unsafe {
                assert_eq!(libc::syscall(libc::SYS_setresuid, 4243, 4243, 4243), 0);
                assert_eq!(libc::prctl(libc::PR_SET_DUMPABLE, 1), 0);
            }
            dirs.each_ref().map(|dir| open_directory(dir, false).unwrap_err())
        };
        let [others, own] = std::thread::scope(|scope| scope.spawn(user).join().unwrap());
        assert!(
            matches!(&others, NoteError::NotSafe { why, .. } if why.contains("another user")),
            "{others}"
        );
        assert!(matches!(own, NoteError::System { .. }), "{own}");
    }
}
