//! What two states of an image differ in: inodes that no name leads to any more, files whose content is another one, inodes with
//! other attributes.
//!
//! A good name leads to an inode of its type, in a reachable directory. If a directory cannot be listed, because it ignores case or is
//! encrypted, every inode that exists counts as named.

use super::{Lost, LostKind, ReadableInode};
use crate::error::OpenError;
use crate::format::NatEntry;
use crate::ids::{BlockAddr, Nid, Nids};
use crate::inode::ROOT;
use crate::volume::survey::paths::{DirNo, Paths};
use heddle_undo::Old;
use heddle_vfs::xattr::Xattrs;
use heddle_vfs::{Error, FileKind, Result};
use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::path::Path;

/// What an inode's content is, without reading its blocks.
#[derive(PartialEq, Eq)]
struct Print {
    kind: LostKind,
    end: Option<u64>,
    /// Nodes that lead nowhere.
    missing: u64,
    /// Of its inline bytes, or its pointers.
    hash: u64,
}

/// A name met in a walk: the inode that it leads to, its directory, and itself.
type Met<'a> = (Nid, FileKind, DirNo, &'a [u8]);

impl Lost {
    /// This state, with all that it had and `now` has not. `old`: all blocks in which they differ.
    pub(crate) fn since(mut self, now: &Lost, old: &Old) -> std::result::Result<Lost, OpenError> {
        let image = self.media.device.path().to_owned();
        self.compare(now, old).map_err(|error| unread(&image, error))?;
        Ok(self)
    }

    fn compare(&mut self, now: &Lost, old: &Old) -> Result<()> {
        let named = now.named()?;
        let (mut changed, mut others) = (Nids::default(), Nids::default());
        for nid in self.all()? {
            let stays = match &named {
                Some(named) => named.contains(&nid),
                None => now.find_inode(nid)?.is_some(),
            };
            let is_met = named.as_ref().is_some_and(|named| named.contains(&nid));
            if !is_met && self.is_quota_file(nid)? {
                continue;
            }
            if stays && !self.is_other(nid, now, old)? {
                if !self.keeps_attributes(nid, now)? {
                    others.insert(nid);
                }
                continue;
            }
            self.add_one(nid)?;
            if stays {
                changed.insert(nid);
            }
        }
        let mut attributes = Vec::new();
        if !changed.is_empty() || !others.is_empty() {
            now.walk_names(&mut |(nid, _, dir, name), paths| {
                let unnamed = self.inodes.get_mut(&nid).filter(|inode| inode.path.is_none());
                if let Some(inode) = unnamed.filter(|_| changed.contains(&nid)) {
                    inode.path = Some(paths.shown(dir, Some(name)));
                }
                if others.remove(&nid) {
                    attributes.push(paths.shown(dir, Some(name)));
                }
            })?;
        }
        attributes.extend(others.into_iter().map(|nid| format!("inode {}", nid.0)));
        self.changed_attributes = attributes;
        for nid in changed {
            // The root, or one in a directory that cannot be listed.
            if let Some(inode) = self.inodes.get_mut(&nid) {
                inode.path.get_or_insert_with(|| format!("inode {}", nid.0));
            }
        }
        Ok(())
    }

    /// Is it a quota file of the superblock? Such a file never had a name: one that has is a user's, whatever a damaged superblock says.
    fn is_quota_file(&self, nid: Nid) -> Result<bool> {
        let has_own_name = |found: ReadableInode| found.inode.block().name_bytes.get() > 0;
        Ok(self.quota_inodes.contains(&nid) && !self.find_inode(nid)?.is_some_and(has_own_name))
    }

    /// All inodes: those of the table, and those that only names lead to.
    fn all(&self) -> Result<Vec<Nid>> {
        let is_inode = |(nid, entry): &(Nid, NatEntry)| entry.ino.get() == nid.0 && *nid >= ROOT;
        let used = self.media.nodes.nat.used(&self.media.device)?;
        let mut all: Vec<Nid> = used.into_iter().filter(is_inode).map(|(nid, _)| nid).collect();
        let known: Nids = all.iter().copied().collect();
        let mut others = Nids::default();
        self.walk_names(&mut |(nid, ..), _| {
            if nid > ROOT && !known.contains(&nid) {
                others.insert(nid);
            }
        })?;
        let mut others: Vec<Nid> = others.into_iter().collect();
        others.sort_unstable();
        all.extend(others);
        Ok(all)
    }

    /// What good names lead to, the root included; `None`: not all directories can be listed.
    fn named(&self) -> Result<Option<Nids>> {
        let mut named = Nids::default();
        if self.is_kind(ROOT, FileKind::Directory) {
            named.insert(ROOT);
        }
        let is_whole = self.walk_names(&mut |(nid, kind, ..), _| {
            if !named.contains(&nid) && self.is_kind(nid, kind) {
                named.insert(nid);
            }
        })?;
        Ok(is_whole.then_some(named))
    }

    fn is_kind(&self, nid: Nid, kind: FileKind) -> bool {
        self.media.inode(nid).is_ok_and(|inode| inode.kind == kind)
    }

    /// Gives all names to `see`, `.` and `..` excepted. Returns false if a directory cannot be listed.
    fn walk_names(&self, see: &mut dyn FnMut(Met<'_>, &Paths)) -> Result<bool> {
        let (mut paths, mut is_whole) = (Paths::new(), true);
        let mut next = vec![(ROOT, DirNo::ROOT)];
        let mut seen: Nids = [ROOT].into_iter().collect();
        while let Some((nid, at)) = next.pop() {
            let Ok(dir) = self.media.inode(nid) else { continue };
            let mut below = Vec::new();
            let listed = self.media.list(&dir, 0, &mut |entry| {
                if !entry.is_dots() {
                    see((entry.nid, entry.kind, at, entry.name), &paths);
                    let is_new = entry.kind == FileKind::Directory && !seen.contains(&entry.nid);
                    if is_new && self.is_kind(entry.nid, entry.kind) {
                        seen.insert(entry.nid);
                        below.push((entry.nid, entry.name.to_vec()));
                    }
                }
                Ok(false)
            });
            match listed {
                Err(Error::NotSupported(_)) => is_whole = false,
                Err(error @ Error::Io(_)) => return Err(error),
                // What stands behind other damage may have no name any more.
                Ok(()) | Err(_) => {}
            }
            next.extend(below.into_iter().map(|(nid, name)| (nid, paths.add(at, &name))));
        }
        Ok(is_whole)
    }

    /// Is its content another one now? One that contradicts itself counts so: what it could be besides may be free now.
    fn is_other(&self, nid: Nid, now: &Lost, old: &Old) -> Result<bool> {
        let Some(was) = self.print(nid, old)? else { return Ok(false) };
        let is_doubtful = was.kind != LostKind::Directory && self.forms(nid.0).map_err(io_error)?.len() > 1;
        Ok(is_doubtful || now.print(nid, old)?.as_ref() != Some(&was))
    }

    /// Are its owner, permissions and extended attributes the same now? Extended attributes that could not be read before are not asked
    /// about.
    fn keeps_attributes(&self, nid: Nid, now: &Lost) -> Result<bool> {
        let Some((was, xattrs)) = self.attributes(nid)? else { return Ok(true) };
        let is = now.attributes(nid)?;
        Ok(is.is_some_and(|(is, now)| is == was && (xattrs.is_none() || now == xattrs)))
    }

    /// Permissions, owner and group; and the extended attributes, if they can be read.
    fn attributes(&self, nid: Nid) -> Result<Option<([u32; 3], Option<Xattrs>)>> {
        let Some(found) = self.find_inode(nid)? else { return Ok(None) };
        let block = found.inode.block();
        let of_block = [u32::from(block.mode.get()) & 0o7777, block.uid.get(), block.gid.get()];
        Ok(Some((of_block, self.media.xattrs(&found.inode).ok())))
    }

    fn print(&self, nid: Nid, old: &Old) -> Result<Option<Print>> {
        let Some(found) = self.find_inode(nid)? else { return Ok(None) };
        let (inode, kind) = (&found.inode, self.kind_of(&found.inode));
        let (mut hash, end) = (DefaultHasher::new(), found.end());
        if kind == LostKind::Directory {
            return Ok(Some(Print { kind, end: None, missing: 0, hash: 0 }));
        }
        if !inode.has_pointers() {
            hash.write(found.inline());
            return Ok(Some(Print { kind, end, missing: 0, hash: hash.finish() }));
        }
        let last = end.map_or(u64::MAX, |end| end.div_ceil(super::BLOCK));
        let missing = self.walk(inode, &mut |first, pointers| {
            let here = last.saturating_sub(first).min(pointers.len() as u64) as usize;
            for (n, pointer) in pointers[..here].iter().enumerate() {
                let addr = BlockAddr(pointer.get());
                // A reserved block reads as a hole.
                if addr == BlockAddr::NULL || addr == BlockAddr::NEW {
                    continue;
                }
                hash.write_u64(first + n as u64);
                hash.write_u32(addr.0);
                if self.is_in_main_area(pointer) && old.has(u64::from(addr.0)) {
                    hash.write(&self.media.device.block(addr).map_err(io::Error::other)?[..]);
                }
            }
            Ok(())
        });
        let missing = missing.map_err(io_error)?;
        Ok(Some(Print { kind, end, missing, hash: hash.finish() }))
    }
}

fn io_error(error: io::Error) -> Error {
    Error::Io(error.to_string())
}

fn unread(image: &Path, error: Error) -> OpenError {
    OpenError::System { image: image.into(), what: "read all of", source: io::Error::other(error) }
}

#[cfg(test)]
mod tests;
