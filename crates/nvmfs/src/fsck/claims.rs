//! The use of each block.

use super::catalogue::Code;
use super::pass::{Location, Pass};
use crate::format::blob;
use crate::format::layout::Layout;
use crate::ids::{BlockNo, InodeId, PageNo};
use heddle_vfs::Ino;
use std::collections::BTreeSet;

/// The use of a block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Use {
    /// Inode chunk of this number.
    Chunk(u64),
    /// Log page.
    Log(InodeId),
    /// Block of further heads.
    Heads(InodeId),
    /// Extent list.
    List(InodeId),
    /// Blob of attributes, or map of pages.
    Blob(InodeId, blob::Kind),
    /// Pages of a file from this one on.
    Data(InodeId, PageNo),
}

impl Use {
    fn data(self) -> Option<(InodeId, PageNo)> {
        if let Use::Data(id, page) = self { Some((id, page)) } else { None }
    }

    /// The inode, if it belongs to one.
    pub fn ino(self) -> Option<Ino> {
        match self {
            Use::Chunk(_) => None,
            Use::Log(id) | Use::Heads(id) | Use::List(id) | Use::Blob(id, _) | Use::Data(id, _) => {
                Some(id.ino)
            }
        }
    }

    /// The use as text.
    pub fn text(self) -> String {
        match self {
            Use::Chunk(n) => format!("inode chunk {n}"),
            Use::Log(id) => format!("the log of inode {}", id.ino.0),
            Use::Heads(id) => format!("the heads of inode {}'s log", id.ino.0),
            Use::List(id) => format!("an extent list of inode {}", id.ino.0),
            Use::Blob(id, blob::Kind::Xattrs) => format!("attributes of inode {}", id.ino.0),
            Use::Blob(id, blob::Kind::Map) => format!("a map of inode {}", id.ino.0),
            Use::Data(id, page) => format!("page {} of inode {}", page.0, id.ino.0),
        }
    }
}

/// Consecutive blocks of one use.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// First block.
    pub block: BlockNo,
    /// Number of blocks.
    pub count: u64,
    /// Their use.
    pub what: Use,
}

impl Claim {
    fn end(&self) -> u64 {
        self.block.0 + self.count
    }
}

/// Pages whose block has another use too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// The file that gives up the block.
    pub id: InodeId,
    /// The first of these pages.
    pub page: PageNo,
    /// Number of pages.
    pub pages: u64,
    /// True: the file gets a copy; false: a hole.
    pub copy: bool,
}

/// All claims.
#[derive(Default)]
pub struct Claims {
    /// Claims of inodes in use, and of metadata.
    pub all: Vec<Claim>,
    /// Claims of inodes without a name: a repair may name these inodes, so it must not write to their blocks
    /// before that.
    pub of_orphans: Vec<Claim>,
}

impl Claims {
    /// Blocks without a claim, ascending.
    pub fn free(&self, layout: &Layout) -> Vec<BlockNo> {
        let mut taken: Vec<(u64, u64)> =
            self.all.iter().chain(&self.of_orphans).map(|c| (c.block.0, c.end())).collect();
        taken.sort_unstable();
        let mut free = Vec::new();
        let mut at = layout.data.0;
        for (start, end) in taken.into_iter().chain([(layout.last().0, layout.last().0)]) {
            free.extend((at..start).map(BlockNo));
            at = at.max(end);
        }
        free
    }

    /// Number of blocks in use, each counted once.
    pub fn blocks(&self, which: impl Fn(Use) -> bool) -> u64 {
        let mut spans: Vec<(u64, u64)> =
            self.all.iter().filter(|c| which(c.what)).map(|c| (c.block.0, c.end())).collect();
        spans.sort_unstable();
        let mut end = 0;
        let mut sum = 0;
        for (from, to) in spans {
            sum += to.saturating_sub(from.max(end));
            end = end.max(to);
        }
        sum
    }
}

impl Pass<'_> {
    /// Adds a claim; the blocks lie in the data area.
    pub fn claim(&mut self, block: BlockNo, count: u64, what: Use) {
        let list = if self.quiet { &mut self.claims.of_orphans } else { &mut self.claims.all };
        // Contiguous blocks of one file become one claim.
        if let (Some(last), Use::Data(id, page)) = (list.last_mut(), what)
            && let Use::Data(of, first) = last.what
            && of == id
            && last.end() == block.0
            && first.0 + last.count == page.0
        {
            last.count += count;
            return;
        }
        list.push(Claim { block, count, what });
    }
}

/// Finds blocks that have two claims.
pub fn judge(pass: &mut Pass<'_>) {
    let mut all = pass.claims.all.clone();
    all.sort_by_key(|c| (c.block, c.what));
    let mut before: Option<Claim> = None;
    // Chunks whose pointers are cut: another claim on their blocks may be right.
    let is_lie = |n: &u64| {
        let at = pass.image.layout.chunk_pointer(*n);
        pass.fixes.lies.iter().any(|(lie, _)| *lie == at)
    };
    let mut cut: BTreeSet<u64> = pass.slots.unproven.iter().copied().filter(is_lie).collect();
    for claim in all {
        let Some(first) = before.filter(|b| b.end() > claim.block.0) else {
            before = Some(claim);
            continue;
        };
        let end = first.end().min(claim.end());
        let (from, count) = (claim.block, end - claim.block.0);
        let what = format!("{} of {} and {}", blocks(from, count), first.what.text(), claim.what.text());
        let location = Location { ino: claim.what.ino().or(first.what.ino()), block: Some(from), slot: None };
        pass.issue(Code::CLAIMED_TWICE, location, what);
        // If one of two chunks is unproven, its pointer is forged. The first chunk is exempt, because it
        // holds the root.
        let chunk = |c: &Claim| if let Use::Chunk(n) = c.what { Some(n) } else { None };
        let is_cut = [first, claim].iter().filter_map(chunk).any(|n| cut.contains(&n));
        let unproven =
            [first, claim].iter().filter_map(chunk).find(|n| *n != 0 && pass.slots.unproven.contains(n));
        match unproven {
            _ if is_cut => {}
            Some(n) => {
                cut.insert(n);
                super::slots::not_there(pass, n);
            }
            None => give_way(pass, &first, &claim, from, count),
        }
        if claim.end() > first.end() {
            before = Some(claim);
        }
    }
}

fn blocks(from: BlockNo, count: u64) -> String {
    match count {
        1 => format!("block {}", from.0),
        _ => format!("blocks {} to {}", from.0, from.0 + count - 1),
    }
}

/// Data gives up its block: it gets a copy if the other use is data too, and a hole if the other use is
/// proven.
fn give_way(pass: &mut Pass<'_>, first: &Claim, second: &Claim, from: BlockNo, count: u64) {
    let copy = first.what.data().is_some() && second.what.data().is_some();
    for claim in [second, first] {
        if let Some((id, page)) = claim.what.data() {
            let page = PageNo(page.0 + from.0 - claim.block.0);
            pass.fixes.shares.push(Share { id, page, pages: count, copy });
            return;
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
