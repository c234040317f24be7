//! The world of engines: threads or processes that call the `FileSystem` trait only.
//!
//! Every path is walked name by name from the root, with the permission check of each directory, as the kernel does;
//! every engine is called through `dyn FileSystem`, so none is favoured by inlining.

use super::{Failure, Mode, Ops, Result, whole};
use crate::path::RelPath;
use heddle_vfs::{
    Cookie, Cred, FileKind, FileSystem, Handle, Ino, Listing, Name, NewNode, OpenFlags, RenameMode, SetAttr,
};
use std::sync::Arc;

/// An engine and the credentials of its caller.
pub(crate) struct Engine {
    fs: Arc<dyn FileSystem>,
    cred: Cred,
    /// Maps all pages, in an attached process.
    map: Option<Box<dyn Fn()>>,
}

/// An open directory with a batch of entries, as a C library's directory stream has one.
pub(crate) struct Stream {
    handle: Handle,
    batch: Listing,
    /// Index of the next entry in the batch.
    place: usize,
    next: Cookie,
}

impl Engine {
    /// Makes calls as the user of this process.
    pub fn new(fs: Arc<dyn FileSystem>) -> Engine {
        // SAFETY: these calls have no arguments and cannot fail.
        let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
        Engine { fs, cred: Cred { uid, gid, groups: Vec::new(), umask: 0 }, map: None }
    }

    /// The same in an attached process; `map` maps all pages.
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

    /// Reads the next batch. Returns false if there is none.
    fn more(&self, dir: &mut Stream) -> Result<bool> {
        dir.place = 0;
        self.fs.readdir(&dir.handle, dir.next, &mut dir.batch).named("readdir")?;
        Ok(!dir.batch.is_empty())
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
    type Dir = Stream;

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
    fn read(&self, file: &Handle, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let want = bytes.len();
        whole("read", self.fs.read(file, offset, bytes).named("read")?, want)
    }

    #[inline]
    fn write(&self, file: &Handle, offset: u64, bytes: &[u8]) -> Result<()> {
        whole("write", self.fs.write(file, offset, bytes).named("write")?, bytes.len())
    }

    #[inline]
    fn append(&self, file: &Handle, bytes: &[u8]) -> Result<Option<u64>> {
        self.fs.append(file, bytes).named("append").map(Some)
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

    fn open_dir(&self, path: &RelPath) -> Result<Stream> {
        let handle = self
            .find(path)
            .and_then(|ino| self.fs.open(&self.cred, ino, OpenFlags::READ))
            .named("opendir")?;
        Ok(Stream { handle, batch: Listing::default(), place: 0, next: Cookie::default() })
    }

    #[inline]
    fn next_name<'d>(&self, dir: &'d mut Stream) -> Result<Option<&'d [u8]>> {
        if dir.batch.is_behind(dir.place) && !self.more(dir)? {
            return Ok(None);
        }
        let Some(entry) = dir.batch.next(&mut dir.place) else { return Ok(None) };
        dir.next = entry.next;
        Ok(Some(entry.name.bytes()))
    }

    fn rewind(&self, dir: &mut Stream) -> Result<()> {
        dir.batch.clear();
        (dir.place, dir.next) = (0, Cookie::default());
        Ok(())
    }

    fn close_dir(&self, dir: Stream) -> Result<()> {
        self.fs.release(dir.handle);
        Ok(())
    }

    fn write_back(&self) -> Result<()> {
        self.fs.sync().named("sync")
    }

    fn ready(&self) {
        if let Some(map) = &self.map {
            map();
        }
    }
}
