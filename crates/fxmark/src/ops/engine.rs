//! The world of engines: called by threads or by processes, through the `FileSystem` trait alone.
//!
//! Every path is walked name by name from the root, with the permission check of each directory, as the kernel does;
//! every engine is called through `dyn FileSystem`, so none is favoured by inlining.

use super::{Failure, Mode, Ops, Result, whole};
use crate::page::Page;
use crate::path::RelPath;
use heddle_vfs::{
    Cookie, Cred, FileKind, FileSystem, Handle, Ino, Name, NewNode, OpenFlags, RenameMode, SetAttr,
};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// An engine and who calls it.
pub(crate) struct Engine {
    fs: Arc<dyn FileSystem>,
    cred: Cred,
    /// Of a process that has attached.
    map: Option<Box<dyn Fn()>>,
}

/// An open directory with a batch of entries, as a C library's directory stream has one.
pub(crate) struct Listing {
    handle: Handle,
    /// Records of inode number, kind, name length and name.
    batch: Vec<u8>,
    at: usize,
    next: Cookie,
    end: bool,
}

/// What glibc reads with one `getdents64`.
const BATCH_BYTES: usize = 32 << 10;
/// Inode number 8, kind 1, length 1.
const RECORD_HEAD_BYTES: usize = 10;

impl Engine {
    /// Calls as the user of this process.
    pub fn new(fs: Arc<dyn FileSystem>) -> Engine {
        // SAFETY: these calls have no arguments and cannot fail.
        let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
        Engine { fs, cred: Cred { uid, gid, groups: Vec::new(), umask: 0 }, map: None }
    }

    /// The same of a process that has attached; `map` has it map all pages.
    pub fn attached(fs: Arc<dyn FileSystem>, map: Box<dyn Fn()>) -> Engine {
        Engine { map: Some(map), ..Engine::new(fs) }
    }

    fn walk<'p>(&self, path: &'p RelPath) -> heddle_vfs::Result<(Ino, Name<'p>)> {
        let mut parent = Ino::ROOT;
        let mut rest = path.bytes();
        while let Some(slash) = rest.iter().position(|b| *b == b'/') {
            parent = self.fs.step(&self.cred, parent, Name::new(&rest[..slash])?)?.0;
            rest = &rest[slash + 1..];
        }
        Ok((parent, Name::new(rest)?))
    }

    fn find(&self, path: &RelPath) -> heddle_vfs::Result<Ino> {
        let (parent, name) = self.walk(path)?;
        Ok(self.fs.step(&self.cred, parent, name)?.0)
    }

    fn fill(&self, dir: &mut Listing) -> heddle_vfs::Result<()> {
        dir.batch.clear();
        dir.at = 0;
        let (batch, next) = (&mut dir.batch, &mut dir.next);
        self.fs.readdir(&dir.handle, *next, &mut |entry| {
            let name = entry.name.bytes();
            if batch.len() + RECORD_HEAD_BYTES + name.len() > BATCH_BYTES {
                return false;
            }
            let mut head = [0; RECORD_HEAD_BYTES];
            head[..8].copy_from_slice(&entry.ino.0.to_ne_bytes());
            head[8..].copy_from_slice(&[entry.kind as u8, name.len() as u8]);
            batch.extend_from_slice(&head);
            extend(batch, name);
            *next = entry.next;
            true
        })?;
        dir.end = batch.is_empty();
        Ok(())
    }
}

/// Appends a name. A short one is copied in two pieces that may overlap, since a call of memcpy takes as long as the rest of an entry.
#[inline]
fn extend(batch: &mut Vec<u8>, name: &[u8]) {
    fn two<const N: usize>(batch: &mut Vec<u8>, name: &[u8]) {
        let (Some(first), Some(last)) = (name.first_chunk::<N>(), name.last_chunk::<N>()) else { return };
        batch.extend_from_slice(first);
        batch.extend_from_slice(first);
        let end = batch.len() - 2 * N + name.len();
        batch[end - N..end].copy_from_slice(last);
        batch.truncate(end);
    }
    match name.len() {
        4..=8 => two::<4>(batch, name),
        9..=16 => two::<8>(batch, name),
        _ => batch.extend_from_slice(name),
    }
}

trait Named<T> {
    fn named(self, call: &'static str) -> Result<T>;
}

impl<T> Named<T> for heddle_vfs::Result<T> {
    #[inline]
    fn named(self, call: &'static str) -> Result<T> {
        self.map_err(|source| Failure::Engine { call, source })
    }
}

impl Ops for Engine {
    type File = Handle;
    type Dir = Listing;

    fn mkdir(&self, path: &RelPath) -> Result<()> {
        let node = NewNode { kind: FileKind::Directory, perm: 0o755, rdev: 0, target: b"" };
        self.walk(path)
            .and_then(|(parent, name)| self.fs.make(&self.cred, parent, name, node))
            .named("mkdir")
            .map(drop)
    }

    fn create(&self, path: &RelPath) -> Result<Handle> {
        let made = self.walk(path).and_then(|(parent, name)| {
            self.fs.create(&self.cred, parent, name, 0o644, OpenFlags::READ_WRITE)
        });
        Ok(made.named("create")?.1)
    }

    fn open(&self, path: &RelPath, mode: Mode, direct: bool) -> Result<Handle> {
        let flags = match mode {
            Mode::Read => OpenFlags::READ,
            Mode::ReadWrite => OpenFlags::READ_WRITE,
            Mode::Append => OpenFlags { append: true, ..OpenFlags::READ_WRITE },
        };
        let flags = OpenFlags { direct, ..flags };
        self.find(path).and_then(|ino| self.fs.open(&self.cred, ino, flags)).named("open")
    }

    fn close(&self, file: Handle) -> Result<()> {
        self.fs.release(file);
        Ok(())
    }

    fn stat(&self, path: &RelPath) -> Result<Option<u64>> {
        match self.walk(path).and_then(|(parent, name)| self.fs.lookup(&self.cred, parent, name)) {
            Ok(attr) => Ok(Some(attr.size_bytes)),
            Err(heddle_vfs::Error::NotFound) => Ok(None),
            Err(error) => Err(error).named("stat"),
        }
    }

    fn unlink(&self, path: &RelPath) -> Result<()> {
        self.walk(path).and_then(|(parent, name)| self.fs.unlink(&self.cred, parent, name)).named("unlink")
    }

    fn rename(&self, from: &RelPath, to: &RelPath) -> Result<()> {
        let moved = self.walk(from).and_then(|(old, name)| {
            let (new, new_name) = self.walk(to)?;
            self.fs.rename(&self.cred, old, name, new, new_name, RenameMode::Replace)
        });
        moved.named("rename")
    }

    #[inline]
    fn read(&self, file: &Handle, offset: u64, page: &mut Page) -> Result<()> {
        whole("read", self.fs.read(file, offset, page.as_mut_bytes()).named("read")?)
    }

    #[inline]
    fn write(&self, file: &Handle, offset: u64, page: &Page) -> Result<()> {
        whole("write", self.fs.write(file, offset, page.as_bytes()).named("write")?)
    }

    #[inline]
    fn append(&self, file: &Handle, page: &Page) -> Result<Option<u64>> {
        self.fs.append(file, page.as_bytes()).named("append").map(Some)
    }

    fn truncate(&self, file: &Handle, size_bytes: u64) -> Result<()> {
        let set = SetAttr { size_bytes: Some(size_bytes), ..SetAttr::default() };
        self.fs.setattr(&self.cred, file.ino, Some(file), &set).named("truncate").map(drop)
    }

    fn fsync(&self, file: &Handle) -> Result<()> {
        self.fs.fsync(file, false).named("fsync")
    }

    fn size(&self, file: &Handle) -> Result<u64> {
        Ok(self.fs.getattr(file.ino).named("getattr")?.size_bytes)
    }

    fn open_dir(&self, path: &RelPath) -> Result<Listing> {
        let handle = self
            .find(path)
            .and_then(|ino| self.fs.open(&self.cred, ino, OpenFlags::READ))
            .named("opendir")?;
        Ok(Listing {
            handle,
            batch: Vec::with_capacity(BATCH_BYTES),
            at: 0,
            next: Cookie::default(),
            end: false,
        })
    }

    #[inline]
    fn next_name<'d>(&self, dir: &'d mut Listing) -> Result<Option<&'d [u8]>> {
        if dir.at == dir.batch.len() {
            if !dir.end {
                self.fill(dir).named("readdir")?;
            }
            if dir.end {
                return Ok(None);
            }
        }
        let name = dir.at + RECORD_HEAD_BYTES;
        let len = usize::from(dir.batch[name - 1]);
        dir.at = name + len;
        Ok(Some(&dir.batch[name..name + len]))
    }

    fn rewind(&self, dir: &mut Listing) -> Result<()> {
        dir.batch.clear();
        (dir.at, dir.next, dir.end) = (0, Cookie::default(), false);
        Ok(())
    }

    fn close_dir(&self, dir: Listing) -> Result<()> {
        self.fs.release(dir.handle);
        Ok(())
    }

    fn settle(&self) -> Result<()> {
        self.fs.sync().named("sync")
    }

    fn ready(&self) {
        if let Some(map) = &self.map {
            map();
        }
    }
}
