//! Calls as root with names as text, for tests.

use crate::{
    Attr, Cred, Error, FileKind, FileSystem, Handle, Ino, Name, NewNode, OpenFlags, RenameMode, SetAttr,
};

/// A name that may be one.
///
/// # Panics
/// If it may not.
pub fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

/// The superuser.
pub fn root() -> Cred {
    Cred::root()
}

/// Calls with the root user and names as text.
pub trait Short: FileSystem {
    /// A new file, open.
    fn new_file(&self, dir: Ino, text: &str) -> Handle {
        self.try_file(dir, text).unwrap()
    }

    /// The same, if that can be.
    fn try_file(&self, dir: Ino, text: &str) -> Result<Handle, Error> {
        self.create(&root(), dir, name(text), 0o644, OpenFlags::READ_WRITE).map(|made| made.1)
    }

    /// A new directory.
    fn new_dir(&self, dir: Ino, text: &str) -> Ino {
        self.try_dir(dir, text).unwrap()
    }

    /// The same, if that can be.
    fn try_dir(&self, dir: Ino, text: &str) -> Result<Ino, Error> {
        let node = NewNode { kind: FileKind::Directory, perm: 0o755, rdev: 0, target: &[] };
        self.make(&root(), dir, name(text), node).map(|attr| attr.ino)
    }

    /// The inode of this name.
    fn find(&self, dir: Ino, text: &str) -> Result<Attr, Error> {
        self.lookup(&root(), dir, name(text))
    }

    /// Opens an existing file for reading and writing.
    fn open_file(&self, dir: Ino, text: &str) -> Handle {
        let ino = self.find(dir, text).unwrap().ino;
        self.open(&root(), ino, OpenFlags::READ_WRITE).unwrap()
    }

    /// Removes a name that is not a directory's.
    fn remove(&self, dir: Ino, text: &str) -> Result<(), Error> {
        self.unlink(&root(), dir, name(text))
    }

    /// Sets the size.
    fn resize(&self, handle: &Handle, size_bytes: u64) -> Result<(), Error> {
        let set = SetAttr { size_bytes: Some(size_bytes), ..SetAttr::default() };
        self.setattr(&root(), handle.ino, Some(handle), &set).map(|_| ())
    }

    /// The size, in bytes.
    fn size(&self, handle: &Handle) -> u64 {
        self.getattr(handle.ino).unwrap().size_bytes
    }

    /// Reads up to `len` bytes.
    fn read_vec(&self, handle: &Handle, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0xee; len];
        let read = self.read(handle, offset, &mut bytes).unwrap();
        bytes.truncate(read);
        bytes
    }

    /// Renames, and replaces an existing name.
    fn replace(&self, from: (Ino, &str), to: (Ino, &str)) -> Result<(), Error> {
        self.rename(&root(), from.0, name(from.1), to.0, name(to.1), RenameMode::Replace)
    }
}

impl<F: FileSystem + ?Sized> Short for F {}
