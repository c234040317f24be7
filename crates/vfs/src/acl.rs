//! POSIX access control lists: the access that they grant, their relation to mode bits, and their form as an
//! extended attribute.
//!
//! State       entries in the order owner, users, owning group, groups, mask, others.
//! Invariants  A1  owner, owning group and others are there once; with a named user or group there is a mask.
//!             A2  an access list and the mode of its inode agree: owner's and others' bits are the same, and the group bits of
//!                 the mode are the mask, or the owning group's where there is no mask. A list without named entries and mask
//!                 is the mode, and is not kept.
//! Source      POSIX.1e draft 17 section 23; where it leaves a choice, what Linux does.

use crate::{Cred, Error, FileKind, Permission, Result};

/// Version of the attribute's form: a word of it, then 8 bytes an entry, little-endian.
const XATTR_VERSION: u32 = 2;
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
/// The id in the form of an entry without a user or group.
const NO_ID: u32 = u32::MAX;

/// The subject of an entry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u16)]
pub enum Tag {
    /// The owner.
    Owner = 0x01,
    /// A user.
    User = 0x02,
    /// The owning group.
    OwningGroup = 0x04,
    /// A group.
    Group = 0x08,
    /// The most that users, the owning group and groups can get.
    Mask = 0x10,
    /// All other users.
    Others = 0x20,
}

impl Tag {
    fn from_raw(raw: u16) -> Option<Tag> {
        use Tag::*;
        [Owner, User, OwningGroup, Group, Mask, Others].into_iter().find(|tag| *tag as u16 == raw)
    }

    fn names_someone(self) -> bool {
        matches!(self, Tag::User | Tag::Group)
    }
}

/// The access of one subject.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Entry {
    /// The subject.
    pub tag: Tag,
    /// Read, write and execute as three bits.
    pub perm: u8,
    /// The user or group; meaningless for the other tags.
    pub id: u32,
}

impl Entry {
    /// The entry as one word: tag in bits 0 to 15, permissions in 16 to 31, id in 32 to 63; of the attribute's form the
    /// little-endian bytes.
    pub fn word(self) -> u64 {
        let id = if self.tag.names_someone() { self.id } else { NO_ID };
        u64::from(self.tag as u16) | u64::from(self.perm) << 16 | u64::from(id) << 32
    }

    /// Reads [`Entry::word`] back.
    pub fn from_word(word: u64) -> Option<Entry> {
        let perm = (word >> 16) as u16;
        (perm <= 7).then_some(())?;
        let tag = Tag::from_raw(word as u16)?;
        // The word may have any bits here if the entry names no user or group.
        let id = if tag.names_someone() { (word >> 32) as u32 } else { NO_ID };
        Some(Entry { tag, perm: perm as u8, id })
    }
}

/// A list that keeps A1.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Acl(Vec<Entry>);

impl Acl {
    /// Checks A1.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`].
    pub fn new(entries: Vec<Entry>) -> Result<Acl> {
        let bad = || {
            Error::InvalidArgument("the access control list lacks an entry, or its entries are out of order")
        };
        let count = |tag| entries.iter().filter(|entry| entry.tag == tag).count();
        let once = [Tag::Owner, Tag::OwningGroup, Tag::Others].into_iter().all(|tag| count(tag) == 1);
        let named = entries.iter().any(|entry| entry.tag.names_someone());
        let masks = count(Tag::Mask);
        let in_order = entries.is_sorted_by_key(|entry| entry.tag);
        let ids = entries.iter().all(|entry| !entry.tag.names_someone() || entry.id != NO_ID);
        let bits = entries.iter().all(|entry| entry.perm <= 7);
        if once && in_order && ids && bits && masks <= 1 && (masks == 1 || !named) {
            Ok(Acl(entries))
        } else {
            Err(bad())
        }
    }

    /// Parses the attribute's form. Returns `None` if it has no entries, which removes the list.
    ///
    /// # Errors
    /// [`Error::NotSupported`] for another version of the form, [`Error::InvalidArgument`] for anything else
    /// that is no list.
    pub fn from_xattr(value: &[u8]) -> Result<Option<Acl>> {
        if value.is_empty() {
            return Ok(None);
        }
        let bad = Error::InvalidArgument("not an access control list");
        let Some((header, rest)) = value.split_at_checked(HEADER_BYTES) else { return Err(bad) };
        if header != XATTR_VERSION.to_le_bytes() {
            return Err(Error::NotSupported("this version of access control lists"));
        }
        if rest.is_empty() {
            return Ok(None);
        }
        if !rest.len().is_multiple_of(ENTRY_BYTES) {
            return Err(bad);
        }
        let entry = |bytes: &[u8]| {
            let mut word = [0; ENTRY_BYTES];
            word.copy_from_slice(bytes);
            Entry::from_word(u64::from_le_bytes(word))
        };
        let entries: Option<Vec<Entry>> = rest.chunks_exact(ENTRY_BYTES).map(entry).collect();
        Acl::new(entries.ok_or(bad)?).map(Some)
    }

    /// The attribute's form.
    pub fn to_xattr(&self) -> Vec<u8> {
        let mut bytes = XATTR_VERSION.to_le_bytes().to_vec();
        bytes.extend(self.0.iter().flat_map(|entry| entry.word().to_le_bytes()));
        bytes
    }

    /// Its entries.
    pub fn entries(&self) -> &[Entry] {
        &self.0
    }

    /// The nine mode bits that agree with it (A2), and whether they express the whole list.
    pub fn mode_bits(&self) -> (u16, bool) {
        let (mut mode, mut group_class, mut whole) = (0, None, true);
        for entry in &self.0 {
            let perm = u16::from(entry.perm);
            match entry.tag {
                Tag::Owner => mode |= perm << 6,
                Tag::OwningGroup => group_class = group_class.or(Some(perm)),
                Tag::Mask => (group_class, whole) = (Some(perm), false),
                Tag::Others => mode |= perm,
                Tag::User | Tag::Group => whole = false,
            }
        }
        (mode | group_class.unwrap_or(0) << 3, whole)
    }

    /// Applies a change of mode (A2).
    pub fn set_mode_bits(&mut self, perm: u16) {
        let group_class = self.group_class();
        for entry in &mut self.0 {
            match entry.tag {
                Tag::Owner => entry.perm = (perm >> 6) as u8 & 7,
                Tag::Others => entry.perm = perm as u8 & 7,
                tag if tag == group_class => entry.perm = (perm >> 3) as u8 & 7,
                _ => {}
            }
        }
    }

    /// The entry that the group bits of a mode stand for.
    fn group_class(&self) -> Tag {
        if self.0.iter().any(|entry| entry.tag == Tag::Mask) { Tag::Mask } else { Tag::OwningGroup }
    }

    /// The access list and the mode of a new file, made with mode `perm` in a directory with this default
    /// list.
    pub fn for_new(&self, perm: u16) -> (Acl, u16) {
        let mut acl = self.clone();
        let (limits, _) = acl.mode_bits();
        let mode = perm & !0o777 | perm & limits;
        acl.set_mode_bits(mode);
        (acl, mode)
    }

    /// Returns true if this caller, neither the owner of the inode nor root, may do `want` to an inode of the group `gid`.
    fn permits(&self, cred: &Cred, gid: u32, want: u8) -> bool {
        let mask = self.0.iter().find(|entry| entry.tag == Tag::Mask).map_or(7, |entry| entry.perm);
        let grants = |entry: &Entry| entry.perm & want == want;
        if let Some(user) = self.0.iter().find(|entry| entry.tag == Tag::User && entry.id == cred.uid) {
            return user.perm & mask & want == want;
        }
        let mut groups = self.0.iter().filter(|entry| match entry.tag {
            Tag::OwningGroup => cred.in_group(gid),
            Tag::Group => cred.in_group(entry.id),
            _ => false,
        });
        let mut in_a_group = false;
        let granted = groups.any(|entry| {
            in_a_group = true;
            grants(entry)
        });
        match (granted, in_a_group) {
            (true, _) => mask & want == want,
            (false, true) => false,
            (false, false) => self.0.iter().any(|entry| entry.tag == Tag::Others && grants(entry)),
        }
    }
}

impl Cred {
    /// [`Cred::check_mode`] for an inode with an access list. The list decides for all but the owner and
    /// root, unless the group bits of the mode are all clear; then only the mode counts, as in Linux.
    ///
    /// # Errors
    /// [`Error::AccessDenied`].
    pub fn check_acl(
        &self,
        kind: FileKind,
        perm: u16,
        owner: (u32, u32),
        acl: Option<&Acl>,
        want: Permission,
    ) -> Result<()> {
        match acl {
            Some(acl) if !self.is_root() && self.uid != owner.0 && perm & 0o070 != 0 => {
                if acl.permits(self, owner.1, want.0) { Ok(()) } else { Err(Error::AccessDenied) }
            }
            _ => self.check_mode(kind, perm, owner.0, owner.1, want),
        }
    }
}

#[cfg(test)]
mod tests;
