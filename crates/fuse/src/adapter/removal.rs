//! Removal of names. An inode without a name is kept for as long as the kernel knows it (`orphans`).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use fuser::{INodeNo, Request};
use heddle_vfs::{Cred, FileKind, Ino, Name, Result};

use super::Adapter;

impl Adapter {
    /// Removes a name by `work`, and keeps the inode for as long as the kernel knows it.
    pub(crate) fn remove(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        work: impl Fn(&Cred, Ino, Name<'_>) -> Result<()>,
    ) -> Result<()> {
        self.guarded(|| {
            let (parent, name) = (Ino(parent.0), Name::new(name.as_bytes())?);
            self.keeping(parent, name, || self.as_caller(request, false, |cred| work(cred, parent, name)))
        })
    }

    fn keeping(&self, parent: Ino, name: Name<'_>, work: impl FnOnce() -> Result<()>) -> Result<()> {
        // If the inode cannot be held, it is freed with its last name.
        let held = self.fs.hold(parent, name).ok();
        let done = work();
        if let Some(handle) = held {
            // A removed directory has no name, whatever its link count says.
            let has_no_name = |attr: heddle_vfs::Attr| attr.nlink == 0 || attr.kind == FileKind::Directory;
            let lost = done.is_ok() && self.fs.getattr(handle.ino).is_ok_and(has_no_name);
            let unneeded = if lost { self.orphans.keep(handle) } else { Some(handle) };
            unneeded.into_iter().for_each(|handle| self.fs.release(handle));
        }
        done
    }

    /// Subtracts from an inode's lookup count, as FORGET tells. At 0 its handle is closed.
    pub(crate) fn kernel_forgets(&self, ino: INodeNo, times: u64) {
        let ino = Ino(ino.0);
        if self.orphans.forget(ino, times)
            && let Some(handle) = self.orphans.take(ino)
        {
            // FORGET has no reply. `guarded` has noted a panic for the session.
            let _ = self.guarded(|| {
                self.fs.release(handle);
                Ok(())
            });
            self.orphans.ended();
        }
    }
}
