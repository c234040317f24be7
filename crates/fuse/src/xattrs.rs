//! Requests for extended attributes, and for copies between open files.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering::SeqCst;

use fuser::{Errno, FileHandle, INodeNo, ReplyXattr, Request};
use heddle_vfs::{Error, Ino, Result, SetXattr, XattrName};

use crate::adapter::Adapter;
use crate::convert::errno;
use crate::handles::Open;
use crate::privileges::CAPABILITY;

/// The longest copy of one call: the answer has 32 bits.
const COPY_MAX_BYTES: u64 = 1 << 30;

/// Answers with the value or, for `size` 0, with its length.
pub(crate) fn answer_xattr(value: Result<Vec<u8>>, size: u32, reply: ReplyXattr) {
    match value {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(error) => reply.error(errno(&error)),
    }
}

impl Adapter {
    pub(crate) fn xattr(&self, request: &Request, ino: INodeNo, name: &OsStr) -> Result<Vec<u8>> {
        self.guarded(|| {
            let name = XattrName::new(name.as_bytes())?;
            self.as_caller(request, false, |cred| self.fs.getxattr(cred, Ino(ino.0), name))
        })
    }

    pub(crate) fn xattrs(&self, request: &Request, ino: INodeNo) -> Result<Vec<u8>> {
        self.guarded(|| self.as_caller(request, false, |cred| self.fs.listxattr(cred, Ino(ino.0))))
    }

    pub(crate) fn set_xattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
    ) -> Result<()> {
        const BOTH: i32 = libc::XATTR_CREATE | libc::XATTR_REPLACE;
        let how = match flags {
            0 => SetXattr::Any,
            libc::XATTR_CREATE => SetXattr::Create,
            libc::XATTR_REPLACE => SetXattr::Replace,
            BOTH => SetXattr::Never,
            _ => return Err(Error::InvalidArgument("flags of setxattr")),
        };
        self.guarded(|| {
            self.refuse_if_interrupted(request, Ino(ino.0))?;
            let name = XattrName::new(name.as_bytes())?;
            let done =
                self.as_setter(request, name, |cred| self.fs.setxattr(cred, Ino(ino.0), name, value, how));
            if name.bytes() == CAPABILITY {
                self.capabilities_given.fetch_add(1, SeqCst);
            }
            done
        })
    }

    pub(crate) fn remove_xattr(&self, request: &Request, ino: INodeNo, name: &OsStr) -> Result<()> {
        self.guarded(|| {
            self.refuse_if_interrupted(request, Ino(ino.0))?;
            let name = XattrName::new(name.as_bytes())?;
            self.as_setter(request, name, |cred| self.fs.removexattr(cred, Ino(ino.0), name))
        })
    }

    /// Copies, and returns the number of bytes copied.
    pub(crate) fn copy(
        &self,
        request: &Request,
        (fh_from, offset_from): (FileHandle, u64),
        (fh_to, offset_to): (FileHandle, u64),
        len_bytes: u64,
    ) -> Result<u32> {
        let len = len_bytes.min(COPY_MAX_BYTES);
        let copy = |from: &Open, to: &Open| {
            self.before_content_change(request, to)?;
            let to = &to.handle;
            if self.is_mapped(to.ino) {
                // The kernel drops its pages around the target, with stores to them. It then copies by writes
                // instead.
                return Err(Error::NotSupported("copies into a file that is mapped"));
            }
            let copied = self.fs.copy_range(&from.handle, offset_from, to, offset_to, len)?;
            self.synced(to)?;
            Ok(copied as u32)
        };
        let both = [fh_from.0, fh_to.0];
        self.guarded(|| self.orphans.with_space(|| self.handles.with_both(both, copy)))
    }
}
