//! Path walks over any [`FileSystem`], for callers in the same process; the kernel walks paths of a mount.
//!
//! Every path starts at the root, with or without a leading '/'. `.` and `..` are resolved here, symbolic links are
//! followed up to [`LINKS_MAX`] of them in one walk, a trailing '/' asks for a directory. The right to pass through a
//! directory is checked by the engine's `step`, and here where no step is made (`.` and `..`). A walk that meets
//! no symbolic link allocates nothing.

#[cfg(test)]
mod tests;

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::{
    Attr, Cred, Error, FileKind, FileSystem, Handle, Ino, Name, NewNode, OpenFlags, Permission, Result,
};

/// Symbolic links followed in one walk, as Linux' `MAXSYMLINKS`.
pub const LINKS_MAX: u32 = 40;

/// Longest path in bytes, as Linux' `PATH_MAX` less its NUL.
pub const PATH_MAX_BYTES: usize = 4095;

/// The inode of a path, symbolic links followed.
///
/// # Errors
/// Those of `lookup`; [`Error::NotDirectory`], [`Error::Loop`], [`Error::NameTooLong`]; [`Error::NotFound`] if empty.
pub fn resolve(fs: &dyn FileSystem, cred: &Cred, path: impl AsRef<Path>) -> Result<Attr> {
    Walk::new(fs, cred).whole(bytes(&path)?, LastLink::Follow)
}

/// As [`resolve`], but a symbolic link at the end is not followed (`lstat`), unless a '/' follows it.
///
/// # Errors
/// Those of [`resolve`].
pub fn resolve_nofollow(fs: &dyn FileSystem, cred: &Cred, path: impl AsRef<Path>) -> Result<Attr> {
    Walk::new(fs, cred).whole(bytes(&path)?, LastLink::Keep)
}

/// The directory that holds, or would hold, the last name of a path, and that name: for make, unlink, rename.
/// A trailing '/' is dropped; the caller knows whether it wants a directory.
///
/// # Errors
/// Those of [`resolve`] for the directory; [`Error::InvalidName`] if the path ends in `.`, `..` or is the root.
pub fn resolve_parent<'p, P: AsRef<Path> + ?Sized>(
    fs: &dyn FileSystem,
    cred: &Cred,
    path: &'p P,
) -> Result<(Ino, Name<'p>)> {
    let (above, last, _) = split_last(bytes(path)?);
    let name = Name::new(last)?;
    Ok((Walk::new(fs, cred).directory(Ino::ROOT, above)?, name))
}

/// open(2): `flags` are its `O_` bits (`O_CREAT`, `O_EXCL`, `O_TRUNC`, `O_APPEND`, `O_DIRECTORY`, `O_NOFOLLOW` and the
/// access mode count), `perm` the mode of a file that is made, before the umask.
///
/// # Errors
/// Those of [`resolve`], `create` and `open`; [`Error::Loop`] if `O_NOFOLLOW` meets a symbolic link.
pub fn open_path(
    fs: &dyn FileSystem,
    cred: &Cred,
    path: impl AsRef<Path>,
    flags: i32,
    perm: u16,
) -> Result<Handle> {
    Walk::new(fs, cred).open(Ino::ROOT, bytes(&path)?, flags, perm)
}

/// Makes a directory and all missing ones above it. Existing ones stay unchanged.
///
/// # Errors
/// Those of [`resolve`] and `make`; [`Error::NotDirectory`] if something else is in the way.
pub fn create_dir_all(fs: &dyn FileSystem, cred: &Cred, path: impl AsRef<Path>, perm: u16) -> Result<Ino> {
    let mut walk = Walk::new(fs, cred);
    let mut dir = Ino::ROOT;
    for component in bytes(&path)?.split(|b| *b == b'/').filter(|c| !c.is_empty()) {
        let node = NewNode { kind: FileKind::Directory, perm, rdev: 0, target: &[] };
        dir = match walk.directory(dir, component) {
            Err(Error::NotFound) => match fs.make(cred, dir, Name::new(component)?, node) {
                Err(Error::Exists) => walk.directory(dir, component)?,
                made => made?.ino,
            },
            found => found?,
        };
    }
    Ok(dir)
}

fn bytes<P: AsRef<Path> + ?Sized>(path: &P) -> Result<&[u8]> {
    let path = path.as_ref().as_os_str().as_bytes();
    match path.len() {
        0 => Err(Error::NotFound),
        len if len > PATH_MAX_BYTES => Err(Error::NameTooLong),
        _ => Ok(path),
    }
}

/// The path before the last component, the component, and whether a '/' follows it.
fn split_last(path: &[u8]) -> (&[u8], &[u8], bool) {
    let end = path.iter().rposition(|b| *b != b'/').map_or(0, |last| last + 1);
    let start = path[..end].iter().rposition(|b| *b == b'/').map_or(0, |slash| slash + 1);
    (&path[..start], &path[start..end], end < path.len())
}

/// How often a path is walked, or a name looked up again, if the inode is freed before it is opened or its
/// attributes are read.
const ENDED_MAX: u32 = 100;

/// The result of a walk.
type Found = (Ino, FileKind);

const ROOT: Found = (Ino::ROOT, FileKind::Directory);

#[derive(Clone, Copy, PartialEq, Eq)]
enum LastLink {
    Follow,
    Keep,
}

struct Walk<'a> {
    fs: &'a dyn FileSystem,
    cred: &'a Cred,
    links: u32,
}

impl<'a> Walk<'a> {
    fn new(fs: &'a dyn FileSystem, cred: &'a Cred) -> Walk<'a> {
        Walk { fs, cred, links: 0 }
    }

    fn whole(&mut self, path: &[u8], last: LastLink) -> Result<Attr> {
        for _ in 0..ENDED_MAX {
            let ino = self.walk(Ino::ROOT, path, last)?.map_or(Ino::ROOT, |found| found.0);
            match self.fs.getattr(ino) {
                // It was freed after the walk; the path may name another inode by now.
                Err(Error::Stale) => self.links = 0,
                answer => return answer,
            }
        }
        Err(Error::Stale)
    }

    /// The directory at the end of a path; `start` for an empty path.
    fn directory(&mut self, start: Ino, path: &[u8]) -> Result<Ino> {
        match self.walk(start, path, LastLink::Follow)? {
            Some((ino, FileKind::Directory)) => Ok(ino),
            Some(_) => Err(Error::NotDirectory),
            None => Ok(if path.starts_with(b"/") { Ino::ROOT } else { start }),
        }
    }

    /// Walks `path` from `start` (or from the root if it begins with '/'); `None` if it has no component.
    fn walk(&mut self, start: Ino, path: &[u8], last: LastLink) -> Result<Option<Found>> {
        let mut dir = if path.starts_with(b"/") { Ino::ROOT } else { start };
        let mut at: Option<Found> = None;
        let mut rest = path;
        while let Some((component, after)) = next_component(rest) {
            match at {
                Some((ino, FileKind::Directory)) => dir = ino,
                Some(_) => return Err(Error::NotDirectory),
                None => {}
            }
            let found = self.step(dir, component)?;
            // Only a '/' may follow: then the link is followed, whatever `last` says.
            let keep = after.is_empty() && last == LastLink::Keep;
            at = Some(if found.1 == FileKind::Symlink && !keep { self.follow(dir, found.0)? } else { found });
            rest = after;
        }
        match at {
            Some((_, kind)) if path.ends_with(b"/") && kind != FileKind::Directory => {
                Err(Error::NotDirectory)
            }
            at => Ok(at),
        }
    }

    fn step(&self, dir: Ino, component: &[u8]) -> Result<Found> {
        if component != b"." && component != b".." {
            return self.fs.step(self.cred, dir, Name::new(component)?);
        }
        if self.fs.getattr(dir)?.kind != FileKind::Directory {
            return Err(Error::NotDirectory);
        }
        self.fs.access(self.cred, dir, Permission::EXECUTE)?;
        let ino = if component == b"." { dir } else { self.fs.parent(dir)? };
        Ok((ino, FileKind::Directory))
    }

    fn link_target(&mut self, link: Ino) -> Result<Vec<u8>> {
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(Error::Loop);
        }
        self.fs.readlink(link)
    }

    fn follow(&mut self, dir: Ino, link: Ino) -> Result<Found> {
        let target = self.link_target(link)?;
        Ok(self.walk(dir, &target, LastLink::Follow)?.unwrap_or(ROOT))
    }

    fn open(&mut self, start: Ino, path: &[u8], flags: i32, perm: u16) -> Result<Handle> {
        if flags & libc::O_CREAT == 0 {
            let last = if flags & libc::O_NOFOLLOW != 0 { LastLink::Keep } else { LastLink::Follow };
            for _ in 0..ENDED_MAX {
                let found = self.walk(start, path, last)?.unwrap_or(ROOT);
                match self.open_found(found, flags) {
                    // As in `whole`.
                    Err(Error::Stale) => self.links = 0,
                    answer => return answer,
                }
            }
            return Err(Error::Stale);
        }
        let (above, last, slash) = split_last(path);
        if last.is_empty() || last == b"." || last == b".." || slash {
            return Err(Error::IsDirectory);
        }
        let (dir, name) = (self.directory(start, above)?, Name::new(last)?);
        self.open_or_create(dir, name, flags, perm)
    }

    fn open_or_create(&mut self, dir: Ino, name: Name<'_>, flags: i32, perm: u16) -> Result<Handle> {
        let exclusive = flags & libc::O_EXCL != 0;
        for _ in 0..ENDED_MAX {
            let found = if exclusive { Err(Error::NotFound) } else { self.fs.step(self.cred, dir, name) };
            match found {
                Ok((ino, FileKind::Symlink)) if flags & libc::O_NOFOLLOW == 0 => {
                    let target = self.link_target(ino)?;
                    return self.open(dir, &target, flags, perm);
                }
                Ok(found) => match self.open_found(found, flags) {
                    // It was freed after the lookup: the name is free now, or names another inode.
                    Err(Error::Stale) => continue,
                    answer => return answer,
                },
                Err(Error::NotFound) => {}
                Err(error) => return Err(error),
            }
            match self.fs.create(self.cred, dir, name, perm, OpenFlags::from_posix(flags)) {
                Ok((_, handle)) => return Ok(handle),
                // Another caller made it between the lookup and the creation: it exists now, so it is opened.
                Err(Error::Exists) if !exclusive => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::Stale)
    }

    fn open_found(&self, (ino, kind): Found, flags: i32) -> Result<Handle> {
        match kind {
            FileKind::Symlink => return Err(Error::Loop),
            FileKind::Directory if flags & libc::O_CREAT != 0 => return Err(Error::IsDirectory),
            FileKind::Directory => {}
            _ if flags & libc::O_DIRECTORY != 0 => return Err(Error::NotDirectory),
            _ => {}
        }
        self.fs.open(self.cred, ino, OpenFlags::from_posix(flags))
    }
}

/// The first component and what follows its '/'s: empty only if nothing at all follows.
fn next_component(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let start = path.iter().position(|b| *b != b'/')?;
    let path = &path[start..];
    let end = path.iter().position(|b| *b == b'/').unwrap_or(path.len());
    Some((&path[..end], &path[end..]))
}
