//! A small in-memory file system to measure in tests, and one that misbehaves on purpose.

use heddle_vfs::{
    Attr, Cookie, Cred, DirEntry, Error, FileKind, FileSystem, Handle, Ino, Listing, Name, NewNode,
    OpenFlags, RangeOp, RenameMode, Result, SeekTarget, SetAttr, StatFs, Time,
};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard};

/// What goes wrong in it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Fault {
    None,
    /// One write in 1000 says it was done and was not.
    DropsWrites,
    /// Reads give zeros.
    ReadsZeros,
    /// Reads say they were done and move nothing.
    ReadsNothing,
    /// The 500th write fails.
    Fails,
    /// The 500th write panics.
    Panics,
    /// The 500th write never returns.
    Hangs,
    /// Truncations say they were done and were not.
    KeepsTail,
    /// One unlink in 100 says it was done and was not.
    KeepsNames,
    /// Every path leads to the first file.
    MixesUpFiles,
    /// A listing leaves out one entry.
    HidesEntry,
}

#[derive(Default)]
struct State {
    files: HashMap<u64, Vec<u8>>,
    dirs: HashMap<u64, BTreeMap<Vec<u8>, (u64, FileKind)>>,
    next: u64,
}

pub struct Toy {
    state: Mutex<State>,
    fault: Fault,
    calls: AtomicU64,
    /// Offsets that were read or written, each with its caller.
    pub touched: Mutex<Vec<(std::thread::ThreadId, u64)>>,
    watch: bool,
}

impl Toy {
    pub fn new(fault: Fault) -> Toy {
        let state = State { dirs: HashMap::from([(1, BTreeMap::new())]), next: 2, ..State::default() };
        Toy {
            state: Mutex::new(state),
            fault,
            calls: AtomicU64::new(0),
            touched: Mutex::default(),
            watch: false,
        }
    }

    /// A file system that records each caller and the offsets it touches.
    pub fn watched() -> Toy {
        Toy { watch: true, ..Toy::new(Fault::None) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn every(&self, n: u64) -> bool {
        (self.calls.fetch_add(1, SeqCst) + 1).is_multiple_of(n)
    }

    fn touch(&self, offset: u64) {
        if self.watch {
            self.touched.lock().unwrap().push((std::thread::current().id(), offset));
        }
    }
}

impl State {
    fn attr(&self, ino: u64) -> Result<Attr> {
        let (kind, size) = match self.files.get(&ino) {
            Some(data) => (FileKind::Regular, data.len() as u64),
            None => (FileKind::Directory, self.dirs.get(&ino).ok_or(Error::Stale)?.len() as u64),
        };
        let (time, perm) = (Time(0), 0o755);
        Ok(Attr {
            ino: Ino(ino),
            generation: 0,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size_bytes: size,
            blocks_512: 0,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
        })
    }

    fn dir(&mut self, ino: Ino) -> Result<&mut BTreeMap<Vec<u8>, (u64, FileKind)>> {
        self.dirs.get_mut(&ino.0).ok_or(Error::NotDirectory)
    }

    fn add(&mut self, parent: Ino, name: Name<'_>, kind: FileKind) -> Result<Attr> {
        let ino = self.next;
        if self.dir(parent)?.contains_key(name.bytes()) {
            return Err(Error::Exists);
        }
        self.dir(parent)?.insert(name.bytes().to_vec(), (ino, kind));
        self.next += 1;
        match kind {
            FileKind::Directory => drop(self.dirs.insert(ino, BTreeMap::new())),
            _ => drop(self.files.insert(ino, Vec::new())),
        }
        self.attr(ino)
    }
}

impl FileSystem for Toy {
    fn statfs(&self) -> Result<StatFs> {
        Err(Error::NotSupported("toy"))
    }

    fn lookup(&self, _: &Cred, parent: Ino, name: Name<'_>) -> Result<Attr> {
        let mut state = self.state();
        let (mut ino, kind) = *state.dir(parent)?.get(name.bytes()).ok_or(Error::NotFound)?;
        if self.fault == Fault::MixesUpFiles && kind == FileKind::Regular {
            ino = *state.files.keys().min().unwrap();
        }
        state.attr(ino)
    }

    fn parent(&self, _: Ino) -> Result<Ino> {
        Err(Error::NotSupported("toy"))
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.state().attr(ino.0)
    }

    fn setattr(&self, _: &Cred, ino: Ino, _: Option<&Handle>, set: &SetAttr) -> Result<Attr> {
        let mut state = self.state();
        if let Some(size) = set.size_bytes {
            let data = state.files.get_mut(&ino.0).ok_or(Error::IsDirectory)?;
            if self.fault != Fault::KeepsTail || size as usize > data.len() {
                data.resize(size as usize, 0);
            }
        }
        state.attr(ino.0)
    }

    fn make(&self, _: &Cred, parent: Ino, name: Name<'_>, node: NewNode<'_>) -> Result<Attr> {
        self.state().add(parent, name, node.kind)
    }

    fn create(
        &self,
        _: &Cred,
        parent: Ino,
        name: Name<'_>,
        _: u16,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        let attr = self.state().add(parent, name, FileKind::Regular)?;
        Ok((attr, Handle { ino: attr.ino, flags, token: 0 }))
    }

    fn readlink(&self, _: Ino) -> Result<Vec<u8>> {
        Err(Error::NotSupported("toy"))
    }

    fn link(&self, _: &Cred, _: Ino, _: Ino, _: Name<'_>) -> Result<Attr> {
        Err(Error::NotSupported("toy"))
    }

    fn unlink(&self, _: &Cred, parent: Ino, name: Name<'_>) -> Result<()> {
        if self.fault == Fault::KeepsNames && self.every(100) {
            return Ok(());
        }
        let mut state = self.state();
        let (ino, _) = state.dir(parent)?.remove(name.bytes()).ok_or(Error::NotFound)?;
        state.files.remove(&ino);
        Ok(())
    }

    fn rmdir(&self, _: &Cred, _: Ino, _: Name<'_>) -> Result<()> {
        Err(Error::NotSupported("toy"))
    }

    fn rename(
        &self,
        _: &Cred,
        old: Ino,
        name: Name<'_>,
        new: Ino,
        new_name: Name<'_>,
        _: RenameMode,
    ) -> Result<()> {
        if self.fault == Fault::KeepsNames && self.every(100) {
            return Ok(());
        }
        let mut state = self.state();
        let entry = state.dir(old)?.remove(name.bytes()).ok_or(Error::NotFound)?;
        state.dir(new)?.insert(new_name.bytes().to_vec(), entry);
        Ok(())
    }

    fn open(&self, _: &Cred, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        self.state().attr(ino.0)?;
        Ok(Handle { ino, flags, token: 0 })
    }

    fn release(&self, _: Handle) {}

    fn read(&self, handle: &Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.touch(offset);
        let state = self.state();
        let data = state.files.get(&handle.ino.0).ok_or(Error::IsDirectory)?;
        let from = data.get(offset as usize..).unwrap_or_default();
        let len = from.len().min(buf.len());
        match self.fault {
            Fault::ReadsNothing => {}
            Fault::ReadsZeros => buf[..len].fill(0),
            _ => buf[..len].copy_from_slice(&from[..len]),
        }
        Ok(len)
    }

    fn write(&self, handle: &Handle, offset: u64, buf: &[u8]) -> Result<usize> {
        self.touch(offset);
        match self.fault {
            Fault::DropsWrites if self.every(1000) => return Ok(buf.len()),
            Fault::Fails if self.every(500) => return Err(Error::Io("planted".into())),
            Fault::Panics if self.every(500) => panic!("planted panic"),
            Fault::Hangs if self.every(500) => loop {
                std::thread::park();
            },
            _ => {}
        }
        let mut state = self.state();
        let data = state.files.get_mut(&handle.ino.0).ok_or(Error::BadHandle)?;
        let end = offset as usize + buf.len();
        if data.len() < end {
            data.resize(end, 0);
        }
        data[offset as usize..end].copy_from_slice(buf);
        Ok(buf.len())
    }

    fn append(&self, handle: &Handle, buf: &[u8]) -> Result<u64> {
        let size = self.getattr(handle.ino)?.size_bytes;
        self.write(handle, size, buf)?;
        Ok(size)
    }

    fn fsync(&self, _: &Handle, _: bool) -> Result<()> {
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn fallocate(&self, _: &Handle, _: RangeOp, _: u64, _: u64) -> Result<()> {
        Err(Error::NotSupported("toy"))
    }

    fn seek(&self, _: &Handle, _: SeekTarget, _: u64) -> Result<u64> {
        Err(Error::NotSupported("toy"))
    }

    fn readdir(&self, handle: &Handle, from: Cookie, listing: &mut Listing) -> Result<()> {
        let mut state = self.state();
        let hidden = if self.fault == Fault::HidesEntry { 3 } else { usize::MAX };
        let entries = state.dir(handle.ino)?.iter().enumerate().skip(from.0 as usize);
        listing.fill(entries.filter(|(at, _)| *at != hidden).map(|(at, (name, (ino, kind)))| {
            Ok(DirEntry { ino: Ino(*ino), kind: *kind, name: Name::new(name)?, next: Cookie(at as u64 + 1) })
        }))
    }
}
