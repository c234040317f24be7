//! Contents from an inode's records: pages and attributes of a file, names of a directory; and the reverse:
//! equivalent new records.
//!
//! A new kind of record has its place here: [`File::of`] or [`Dir::of`] apply it, and their `records` write
//! its equivalent when a log is written anew.

mod dir;
mod file;

pub use dir::{Dir, Named};
pub use file::File;

use super::catalogue::Code;
use super::claims::Use;
use super::log::Entry;
use super::mend;
use super::pass::{Location, Pass};
use crate::format::blob::{self, Kind, MapRun, XATTR_BLOCKS_MAX, map_of_words, xattrs_of_words};
use crate::format::extent_list;
use crate::format::inode::InodeBase;
use crate::format::record::{Attributes, Record};
use crate::ids::{BlockNo, Extent, InodeId, PageNo};
use heddle_vfs::{Ino, Time};
use std::collections::BTreeSet;

/// The last set of extended attributes: its change count, its blob, its time, and the record's position.
type Attached = Option<(u64, Option<BlockNo>, Time, Location)>;

/// Permissions that a file has left if records of its log are lost: one of them may have taken the others away.
/// A directory keeps all: its records are mostly names, and others must get to what is below it.
const OWNER_ALONE: u16 = 0o700;

/// The attributes of an inode whose log says nothing of them.
fn attributes_of_birth(birth: &InodeBase) -> Attributes {
    Attributes {
        size: 0,
        perm: birth.perm,
        uid: birth.uid,
        gid: birth.gid,
        mtime: birth.crtime,
        ctime: birth.crtime,
        atime: birth.crtime,
        change_count: 0,
    }
}

/// Applies an xattr record.
fn attach(attached: &mut Attached, entry: &Entry, ino: Ino) {
    let Record::Xattrs { blob, change_count, mtime } = entry.record else { return };
    if attached.is_none_or(|(known, ..)| known < change_count) {
        *attached = Some((change_count, blob, mtime, Location::of(ino, entry.block).slot(entry.slot)));
    }
}

/// Blocks of lists and maps that records of one inode have named so far. If two records name the same block,
/// one is forged: the block is claimed once, and the log is written anew.
#[derive(Default)]
struct ListClaims {
    blocks: BTreeSet<BlockNo>,
    again: bool,
}

impl ListClaims {
    fn claim(&mut self, pass: &mut Pass<'_>, at: BlockNo, what: Use, (code, location): (Code, Location)) {
        if self.blocks.insert(at) {
            pass.claim(at, 1, what);
        } else {
            self.again = true;
            pass.issue(code, location, format!("another record names block {} too", at.0));
        }
    }
}

/// Reads and claims the blob of the current attributes. Returns false if they are lost; they are removed
/// then. Blocks of older sets are free.
fn settle_attached(pass: &mut Pass<'_>, id: InodeId, attached: &mut Attached) -> bool {
    let Some((_, Some(first), _, location)) = *attached else { return true };
    if words(pass, id, location, Kind::Xattrs, first, &mut ListClaims::default())
        .is_some_and(|words| xattrs_of_words(&words).is_some())
    {
        return true;
    }
    pass.issue(Code::XATTRS, location, "the blob of its attributes is not whole");
    *attached = None;
    false
}

/// The xattr record beside a state of this change count.
fn attached_record(attached: Attached, change_count: u64) -> Option<Record> {
    attached.map(|(_, blob, mtime, _)| Record::Xattrs { blob, change_count, mtime })
}

/// Decodes a block whose words have a checksum, after mending one flipped bit if needed.
fn certified<T>(
    pass: &mut Pass<'_>,
    at: BlockNo,
    code: Code,
    location: Location,
    decode: mend::Decode<'_, T>,
) -> Option<T> {
    let words = pass.media.block(at);
    if let Some(said) = decode(&|i| words[i]) {
        return Some(said);
    }
    let (index, word, said) = mend::block(pass, &words[..], decode)?;
    pass.issue(code, location, "one bit of the block");
    pass.exact(at.pos().plus(index as u64 * 8), vec![word]);
    Some(said)
}

/// The words of a blob, whose blocks are claimed; `None`: it is damaged.
fn words(
    pass: &mut Pass<'_>,
    owner: InodeId,
    location: Location,
    kind: Kind,
    first: BlockNo,
    list_claims: &mut ListClaims,
) -> Option<Vec<u64>> {
    let seed = pass.image.seed;
    let (blocks_max, code, bit) = match kind {
        Kind::Xattrs => (XATTR_BLOCKS_MAX, Code::XATTRS, Code::XATTRS_BIT),
        Kind::Map => (pass.image.layout.blocks_total as usize, Code::MAP, Code::MAP_BIT),
    };
    let (mut all, mut next) = (Vec::new(), Some(first));
    let mut met = BTreeSet::new();
    while let Some(at) = next {
        if !pass.holds(at) || !met.insert(at) || met.len() > blocks_max {
            return None;
        }
        let here = Location { block: Some(at), slot: None, ..location };
        let decode = |word_at: &dyn Fn(usize) -> u64| blob::decode(seed, owner, kind, at, word_at);
        let (part, following) = certified(pass, at, bit, here, &decode)?;
        list_claims.claim(pass, at, Use::Blob(owner, kind), (code, here));
        all.extend(part);
        next = following;
    }
    Some(all)
}

/// The runs of the map of a remap record that begins at `page`; `None`: it is lost. Its blocks live as long
/// as the record that names them.
fn map(
    pass: &mut Pass<'_>,
    owner: InodeId,
    location: Location,
    (page, blob): (PageNo, Option<BlockNo>),
    list_claims: &mut ListClaims,
) -> Option<Vec<MapRun>> {
    let Some(first) = blob else { return Some(Vec::new()) };
    let runs =
        words(pass, owner, location, Kind::Map, first, list_claims).and_then(|words| map_of_words(&words));
    let runs = runs.filter(|runs| runs.first().is_none_or(|run| run.page >= page));
    if runs.is_none() {
        pass.issue(Code::MAP, location, format!("the map of its pages from {} on is not whole", page.0));
    }
    runs
}

/// The extents of a list; `None`: it is lost. Its blocks live as long as the record that names them.
fn list(
    pass: &mut Pass<'_>,
    owner: InodeId,
    location: Location,
    (first, pages): (BlockNo, u64),
    list_claims: &mut ListClaims,
) -> Option<Vec<Extent>> {
    let seed = pass.image.seed;
    let (mut extents, mut next, mut count) = (Vec::new(), Some(first), 0u64);
    let mut met = BTreeSet::new();
    while let Some(at) = next {
        let here = Location { block: Some(at), slot: None, ..location };
        if !pass.holds(at) || !met.insert(at) {
            pass.issue(Code::LIST, here, "a list leads to this block, where none can be");
            return None;
        }
        let decode = |word_at: &dyn Fn(usize) -> u64| extent_list::decode(seed, owner, at, word_at);
        let Some((part, following)) = certified(pass, at, Code::LIST_BIT, here, &decode) else {
            pass.issue(Code::LIST, here, "its checksum is wrong");
            return None;
        };
        list_claims.claim(pass, at, Use::List(owner), (Code::LIST, here));
        count = part.iter().fold(count, |sum, e| sum.saturating_add(e.count));
        if count > pages {
            break;
        }
        extents.extend(part);
        next = following;
    }
    if count != pages {
        pass.issue(Code::LIST_LENGTH, location, format!("the record has {pages} pages, its list {count}"));
        return None;
    }
    Some(extents)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
