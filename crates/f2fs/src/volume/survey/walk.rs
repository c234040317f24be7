//! The survey's walk over all names.
//!
//! An inode is read at its first name. The names in a directory are read later, one directory after the other. Damage is reported, and the
//! walk goes on. Counts are compared only if every name was read, and nothing is newer than the checkpoint.

use super::blocks::{BadReferences, ReferencedBlocks};
use super::paths::{DirNo, Paths};
use super::{Survey, Surveyed};
use crate::dir::Entry;
use crate::format::{BLOCK_BYTES, checkpoint_flag, feature, inline_flag};
use crate::ids::{BlockAddr, ByNid, Nid};
use crate::inode::{Inode, ROOT};
use crate::mounted::F2fs;
use crate::volume::{check_nameless, read_segments};
use heddle_vfs::{Error, FileKind, NAME_MAX_BYTES, Name, Result};

/// Limit on reported findings.
const PROBLEMS_MAX: usize = 10_000;
/// Number of entries before those of other names: `.` and `..`.
const DOTS: u64 = 2;

pub(super) struct Walk<'a> {
    fs: &'a F2fs,
    found: Survey,
    not_reported: u64,
    referenced: ReferencedBlocks<'a>,
    seen: ByNid<Seen>,
    paths: Paths,
    /// Directories whose names are to be read, and the parent of each.
    next: Vec<(Nid, DirNo, Nid)>,
    /// Every name was read.
    is_whole: bool,
    /// Nothing is newer than the checkpoint.
    is_all_in_checkpoint: bool,
}

/// An inode that names lead to.
struct Seen {
    names: u32,
    /// The link count in the inode.
    links: u32,
    /// The directory of its first name.
    dir: DirNo,
    is_dir: bool,
}

impl<'a> Walk<'a> {
    pub(super) fn of(fs: &'a F2fs) -> Walk<'a> {
        Walk {
            fs,
            found: Survey::default(),
            not_reported: 0,
            referenced: ReferencedBlocks::of(&fs.media.geometry),
            seen: ByNid::default(),
            paths: Paths::new(),
            next: Vec::new(),
            is_whole: true,
            is_all_in_checkpoint: fs.recovered_inodes == 0,
        }
    }

    /// Gives each inode to `keep`.
    pub(super) fn run(mut self, keep: &mut dyn FnMut(Surveyed)) -> Survey {
        self.look_at_tables();
        self.look_at_root(keep);
        while let Some((nid, dir, above)) = self.next.pop() {
            self.look_into(nid, dir, above, keep);
        }
        if self.is_all_in_checkpoint {
            self.look_at_orphans();
            self.compare_counts();
        }
        if self.not_reported > 0 {
            self.found.problems.push(format!("and {} more", self.not_reported));
        }
        self.found
    }

    fn report(&mut self, problem: String) {
        if self.found.problems.len() < PROBLEMS_MAX {
            self.found.problems.push(problem);
        } else {
            self.not_reported += 1;
        }
    }

    /// Reports a finding of an inode at this path.
    fn report_at(&mut self, nid: Nid, path: (DirNo, Option<&[u8]>), what: &str) {
        let path = self.paths.shown(path.0, path.1);
        self.report(format!("{path} (inode {}): {what}", nid.0));
    }

    fn report_error(&mut self, nid: Nid, path: (DirNo, Option<&[u8]>), error: &Error) {
        let what = match error {
            Error::Corrupt(what) => what.clone(),
            other => other.to_string(),
        };
        let named = ["inode", "directory"].map(|word| format!("{word} {}: ", nid.0));
        let short = named.iter().find_map(|named| what.strip_prefix(named.as_str())).unwrap_or(&what);
        self.report_at(nid, path, short);
    }

    /// Reads the segment tables as a mount for writing does, if this mount has not.
    fn look_at_tables(&mut self) {
        let fs = self.fs;
        let (media, state) = (&fs.media, fs.checkpoint_state());
        // In such an image Linux has marked blocks as live that are not in use.
        if media.space.is_some()
            || state.checkpoint.has(checkpoint_flag::DISABLED | checkpoint_flag::RESIZING)
        {
            return;
        }
        let read = read_segments(&media.device, &media.geometry, &state.checkpoint);
        drop(state);
        match read {
            Ok(segments) if self.is_all_in_checkpoint => self.referenced.segments = Some(segments),
            Ok(_) => {}
            Err(what) => self.report(format!("no mount can write to it: {what}")),
        }
    }

    fn look_at_root(&mut self, keep: &mut dyn FnMut(Surveyed)) {
        match self.fs.media.inode(ROOT) {
            Ok(root) => {
                self.look_at(&root, (DirNo::ROOT, None), keep);
                self.next.push((ROOT, DirNo::ROOT, ROOT));
            }
            Err(error) => {
                self.is_whole = false;
                self.report_error(ROOT, (DirNo::ROOT, None), &error);
            }
        }
    }

    /// Reads a directory's names and the inodes to which they lead.
    fn look_into(&mut self, nid: Nid, at: DirNo, above: Nid, keep: &mut dyn FnMut(Surveyed)) {
        let fs = self.fs;
        let media = &fs.media;
        let here = (at, None);
        let dir = match media.inode(nid) {
            Ok(dir) if dir.check_readable().is_ok() => dir,
            Ok(_) => {
                self.is_whole = false;
                return;
            }
            Err(error) => {
                self.is_whole = false;
                return self.report_error(nid, here, &error);
            }
        };
        let finds = media.check_dir(&dir).and_then(|()| media.check_above(&dir, above));
        if let Err(error) = &finds {
            self.report_error(nid, here, error);
        }
        let mut subdirs = 0_u32;
        let listed = media.list_all(&dir, PROBLEMS_MAX, &mut |entry| {
            if !entry.is_dots() {
                subdirs += u32::from(entry.kind == FileKind::Directory);
                self.look_at_entry(&dir, at, &entry, finds.is_ok(), keep);
            } else if entry.is_behind(DOTS) {
                self.report_at(
                    nid,
                    here,
                    &format!("its entry {} is called {}", entry.place, text(entry.name)),
                );
            }
            Ok(())
        });
        let damage = listed.unwrap_or_else(|error| vec![error]);
        damage.iter().for_each(|error| self.report_error(nid, here, error));
        self.is_whole &= damage.is_empty();
        let links = dir.block().links.get();
        if damage.is_empty() && self.is_all_in_checkpoint && links != subdirs.saturating_add(2) {
            self.report_at(nid, here, &format!("it counts {links} links, and has {subdirs} directories"));
        }
    }

    fn look_at_entry(
        &mut self,
        dir: &Inode,
        at: DirNo,
        entry: &Entry<'_>,
        finds: bool,
        keep: &mut dyn FnMut(Surveyed),
    ) {
        let (nid, path) = (entry.nid, (at, Some(entry.name)));
        let found = if finds { self.fs.media.check_found(dir, entry) } else { Ok(()) };
        if let Err(error) = &found {
            self.report_error(nid, path, error);
        }
        if nid <= ROOT {
            self.is_whole = false;
            return;
        }
        let inode = match self.fs.child_of(dir, (nid, entry.kind)) {
            Ok(inode) => inode,
            Err(error) => {
                self.report_error(nid, path, &error);
                let Ok(inode) = self.fs.media.inode(nid) else {
                    self.is_whole = false;
                    return;
                };
                inode
            }
        };
        if let Some(seen) = self.seen.get_mut(&nid) {
            seen.names = seen.names.saturating_add(1);
            return;
        }
        let (links, is_dir) = (inode.block().links.get(), inode.kind == FileKind::Directory);
        self.seen.insert(nid, Seen { names: 1, links, dir: at, is_dir });
        self.look_at(&inode, path, keep);
        if is_dir {
            let below = self.paths.add(at, entry.name);
            self.next.push((nid, below, dir.nid));
        }
    }

    /// Reads all of an inode except a directory's names.
    fn look_at(&mut self, inode: &Inode, path: (DirNo, Option<&[u8]>), keep: &mut dyn FnMut(Surveyed)) {
        let fs = self.fs;
        let media = &fs.media;
        self.found.unread += u64::from(inode.check_readable().is_err());
        let mut bad = BadReferences::default();
        let counted = media.check_end(inode).and_then(|others| {
            for nid in others.into_iter().chain([inode.nid]) {
                let addr = BlockAddr(media.nodes.nat.find(&media.device, nid)?.addr.get());
                self.referenced.refer(addr, 1, &mut bad);
            }
            media.surveyed(inode, &mut self.referenced, &mut bad)
        });
        match counted {
            Ok(surveyed) => keep(surveyed),
            Err(error) => self.report_error(inode.nid, path, &error),
        }
        let others = [media.xattrs(inode).map(drop), media.check_content(inode)];
        others
            .iter()
            .filter_map(|found| found.as_ref().err())
            .for_each(|error| self.report_error(inode.nid, path, error));
        let said = self.own_name(inode);
        bad.messages().chain(said).for_each(|what| self.report_at(inode.nid, path, &what));
    }

    /// What is wrong with the name that an inode says. With the feature it may be an encrypted one, of any bytes.
    fn own_name(&self, inode: &Inode) -> Option<String> {
        let block = inode.block();
        let remedy = "renaming it under a mount mends that";
        let len = block.name_bytes.get() as usize;
        match block.name.get(..len) {
            _ if self.fs.media.features & feature::ENCRYPT != 0 => None,
            None => {
                Some(format!("its own name has {len} bytes, where {NAME_MAX_BYTES} are the most; {remedy}"))
            }
            Some(name) if len > 0 && Name::new(name).is_err() => {
                Some(format!("it says that its name is {}; {remedy}", text(name)))
            }
            Some(_) => None,
        }
    }

    /// Inodes without a name that were open.
    fn look_at_orphans(&mut self) {
        let orphans: Vec<Nid> = self.fs.checkpoint_state().orphans.iter().copied().collect();
        for nid in orphans {
            let looked = check_nameless(&self.fs.media, nid).and_then(|inode| {
                let ends = self.fs.media.check_end(&inode);
                ends.map(drop).map_err(|error| format!("inode {}, which has no name: {error}", nid.0))
            });
            match looked {
                Err(what) => self.report(what),
                Ok(()) if self.seen.contains_key(&nid) => {
                    self.report(format!("inode {} is said to have no name, and a name leads to it", nid.0));
                }
                Ok(()) => {}
            }
        }
    }

    /// Names of each inode, and all inodes.
    fn compare_counts(&mut self) {
        if !self.is_whole {
            return;
        }
        let mut wrong: Vec<(Nid, DirNo, String)> = Vec::new();
        for (nid, seen) in &self.seen {
            let Seen { names, links, dir, is_dir } = seen;
            match (is_dir, names) {
                (true, 1) => {}
                (true, _) => {
                    wrong.push((*nid, *dir, format!("{names} names lead to it, and it is a directory")))
                }
                (false, _) if names == links => {}
                _ => {
                    wrong.push((*nid, *dir, format!("it counts {links} links, and {names} names lead to it")))
                }
            }
        }
        wrong.sort_unstable_by_key(|(nid, ..)| *nid);
        for (nid, dir, what) in wrong {
            let dir = self.paths.shown(dir, None);
            self.report(format!("inode {}, with a name in {dir}: {what}", nid.0));
        }
        let info = self.fs.info();
        let (counted, named) = (u64::from(info.inodes), self.seen.len() as u64 + 1);
        let has_quota = self.fs.superblock.quota_ino.iter().any(|ino| ino.get() != 0);
        if self.found.problems.is_empty() && !has_quota && named + info.orphans != counted {
            self.report(format!(
                "the checkpoint counts {counted} inodes, names lead to {named}, and {} have none",
                info.orphans
            ));
        }
    }
}

fn text(name: &[u8]) -> String {
    format!("\"{}\"", String::from_utf8_lossy(name).escape_debug())
}

impl crate::image::Media {
    /// Its size is one that it can have, and what stands inline can be read.
    fn check_content(&self, inode: &Inode) -> Result<()> {
        if inode.check_readable().is_err() {
            return Ok(());
        }
        let (size, most) = (inode.size_bytes, inode.size_max_bytes());
        if inode.has_pointers() && size > most {
            return Err(Error::Corrupt(format!("its size is {size} bytes, and {most} are the most")));
        }
        let is_read = inode.has(inline_flag::DATA) || inode.kind == FileKind::Symlink;
        if is_read && matches!(inode.kind, FileKind::Regular | FileKind::Symlink) {
            self.read(inode, 0, &mut [0; BLOCK_BYTES])?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_beyond_ten_thousand_are_only_counted() {
        let place = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = place.path().join("image");
        std::fs::File::create(&path).unwrap().set_len(crate::IMAGE_BYTES_MIN).unwrap();
        crate::make_image(&path, "", &|_, _| ()).unwrap();
        let fs = F2fs::open(&path).unwrap();
        for (told, lines, last) in [
            (9_999, 9_999, "9998"),
            (10_000, 10_000, "9999"),
            (10_001, 10_001, "and 1 more"),
            (10_003, 10_001, "and 3 more"),
        ] {
            let mut walk = Walk::of(&fs);
            (0..told).for_each(|n| walk.report(n.to_string()));
            let problems = walk.run(&mut |_| ()).problems;
            assert_eq!((problems.len(), problems.last().map(String::as_str)), (lines, Some(last)));
        }
    }
}
