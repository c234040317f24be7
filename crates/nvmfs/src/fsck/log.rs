//! Reads an inode's log: its chains from their heads, page by page.

use super::catalogue::Code;
use super::claims::Use;
use super::mend;
use super::page::{self, PageAt};
use super::pass::{Location, Pass};
use crate::format::inode::{HEAD_BLOCK_WORD, HEADS_IN_BLOCK, HEADS_INLINE, TAIL_WORD};
use crate::format::page::{PageHeader, SLOTS, next_pos};
use crate::format::pointer::{self, PointerLocation, Target};
use crate::format::record::Record;
use crate::format::superblock::MOUNTS_MAX;
use crate::ids::{BlockNo, InodeId};
use crate::variant::LogKind;
use heddle_pmem::{LINE_BYTES, Pos};
use std::collections::BTreeSet;

/// A record that counts.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Page.
    pub block: BlockNo,
    /// First slot.
    pub slot: u32,
    /// The record.
    pub record: Record,
}

/// The contents of a log.
#[derive(Default)]
pub struct Log {
    /// Records that count, including mended ones.
    pub records: Vec<Entry>,
    /// True: the log must be written anew, because a part is missing or wrong.
    pub damaged: bool,
    /// Number of chains that have a page.
    pub chains: u32,
    /// Its pages.
    pub pages: Vec<BlockNo>,
}

/// Figures of a log, for `info`.
#[derive(Clone, Copy, Default, Debug)]
pub struct Figures {
    /// Chains with pages.
    pub chains: u32,
    /// Log pages.
    pub pages: u64,
    /// Records that count.
    pub records: u64,
    /// Number of them that are not superseded.
    pub living: u64,
    /// Number of extents of a file.
    pub extents: u64,
    /// Blocks of data.
    pub blocks: u64,
    /// Size in bytes.
    pub size_bytes: u64,
}

/// State of the walk through the pages of an inode's log.
struct Walk {
    id: InodeId,
    /// Position of the slot's second line.
    at: Pos,
    met: BTreeSet<BlockNo>,
}

/// Reads the log of an inode whose slot is known.
pub fn read(pass: &mut Pass<'_>, id: InodeId) -> Log {
    let mut log = Log::default();
    let Some(slot) = pass.slots.pos(id.ino) else { return log };
    let mut walk = Walk { id, at: slot.plus(LINE_BYTES as u64), met: BTreeSet::new() };
    let heads = head_block(pass, &mut walk, &mut log);
    let further = heads.map_or(0, |_| HEADS_IN_BLOCK);
    for number in 0..HEADS_INLINE + further {
        let at = match (number.checked_sub(HEADS_INLINE), heads) {
            (Some(n), Some(block)) => block.pos().plus(u64::from(n) * 8),
            _ => walk.at.plus(u64::from(number) * 8),
        };
        if pass.media.word(at) != 0 {
            chain(pass, &mut walk, number, at, &mut log);
        }
    }
    if pass.image.kind != LogKind::Tail {
        no_tail(pass, &walk, "in an image that has none");
    } else if log.pages.is_empty() && !log.damaged {
        tail_alone(pass, &walk, &mut log);
    }
    log
}

fn no_tail(pass: &mut Pass<'_>, walk: &Walk, why: &str) {
    let at = walk.at.plus(TAIL_WORD * 8);
    if pass.media.word(at) != 0 {
        pass.issue(Code::TAIL, Location::ino(walk.id.ino), format!("a tail pointer {why}"));
        pass.exact(at, vec![0]);
    }
}

/// `nova`: a log without pages. If the tail points to a page of the log, the head was lost: a head is durable
/// before the tail.
fn tail_alone(pass: &mut Pass<'_>, walk: &Walk, log: &mut Log) {
    let raw = pass.media.word(walk.at.plus(TAIL_WORD * 8));
    match pointer::decode_tail(pass.image.seed, walk.id, raw) {
        Target::At((block, _)) if leads_to(pass, walk.id, 0, block) => {
            let what = format!("no chain begins here, but the tail stands in block {}", block.0);
            pass.issue(Code::HEAD, Location::ino(walk.id.ino), what);
            log.damaged = true;
        }
        _ => no_tail(pass, walk, "of a log without pages"),
    }
}

/// The block of further heads.
fn head_block(pass: &mut Pass<'_>, walk: &mut Walk, log: &mut Log) -> Option<BlockNo> {
    let (seed, id) = (pass.image.seed, walk.id);
    let at = walk.at.plus(HEAD_BLOCK_WORD * 8);
    let raw = pass.media.word(at);
    let decode = |raw| pointer::decode(seed, id, PointerLocation::HeadBlock, raw);
    let location = Location::ino(id.ino);
    let fits = |block: BlockNo| pass.holds(block) && holds_heads(pass, id, block);
    let block = match decode(raw) {
        Target::None => return None,
        Target::At(block) if fits(block) => block,
        Target::At(block) => {
            log.damaged = true;
            let code = if pass.holds(block) { Code::HEAD_BLOCK } else { Code::LOG_OUTSIDE };
            pass.issue(code, location, format!("block {} holds no heads of this inode", block.0));
            return None;
        }
        Target::Bad => {
            let mended = mend::pointer(raw, decode, fits);
            pass.issue(Code::HEAD_BLOCK, location, "the pointer's check is wrong");
            match mended.map(|raw| (raw, decode(raw))) {
                Some((raw, Target::At(block))) => {
                    pass.exact(at, vec![raw]);
                    block
                }
                Some((raw, _)) => {
                    pass.exact(at, vec![raw]);
                    return None;
                }
                None => {
                    log.damaged = true;
                    return None;
                }
            }
        }
    };
    pass.claim(block, 1, Use::Heads(id));
    walk.met.insert(block);
    Some(block)
}

/// Returns true if most words of this block are pointers to chains of this inode, or zero.
fn holds_heads(pass: &Pass<'_>, id: InodeId, block: BlockNo) -> bool {
    let words = pass.media.block(block);
    let wrong = words.iter().enumerate().filter(|(i, raw)| {
        let place = PointerLocation::Head(HEADS_INLINE + *i as u32);
        pointer::decode(pass.image.seed, id, place, **raw) == Target::Bad
    });
    let used = words.iter().filter(|w| **w != 0).count();
    wrong.count() * 2 <= used.max(2)
}

/// Returns true if the block has the header of a page of this chain, as it is or after mending one bit.
fn leads_to(pass: &Pass<'_>, id: InodeId, chain: u32, block: BlockNo) -> bool {
    if !pass.holds(block) {
        return false;
    }
    let line = pass.media.line(block.pos());
    match PageHeader::decode(pass.image.seed, &line) {
        Some(header) => header.owner == id && header.chain == chain,
        None => mend::header(pass.image.seed, &line, id, chain).is_some(),
    }
}

/// The target of a pointer of a log, after mending it if needed. `None`: the chain ends here, or is cut;
/// `damaged` is set then.
fn follow(
    pass: &mut Pass<'_>,
    walk: &Walk,
    chain: u32,
    (at, place): (Pos, PointerLocation),
    log: &mut Log,
) -> Option<BlockNo> {
    let (seed, id) = (pass.image.seed, walk.id);
    let raw = pass.media.word(at);
    let decode = |raw| pointer::decode(seed, id, place, raw);
    let (code, location) = match place {
        PointerLocation::Next(page) => (Code::NEXT, Location::of(id.ino, page)),
        _ => (Code::HEAD, Location::ino(id.ino)),
    };
    match decode(raw) {
        Target::None => return None,
        Target::At(block) if pass.holds(block) => return Some(block),
        Target::At(block) => {
            log.damaged = true;
            pass.issue(Code::LOG_OUTSIDE, location, format!("chain {chain} leads to block {}", block.0));
            return None;
        }
        Target::Bad => pass.issue(code, location, format!("chain {chain}: the pointer's check is wrong")),
    }
    let fits = |block| leads_to(pass, id, chain, block) && !walk.met.contains(&block);
    let stands = BlockNo(crate::format::word::field(raw, 0, BlockNo::BITS));
    let mended = mend::pointer(raw, decode, fits)
        .or_else(|| fits(stands).then(|| pointer::encode(seed, id, place, stands)));
    let Some(raw) = mended else {
        log.damaged = true;
        return None;
    };
    pass.exact(at, vec![raw]);
    if let Target::At(block) = decode(raw) { Some(block) } else { None }
}

fn chain(pass: &mut Pass<'_>, walk: &mut Walk, number: u32, at: Pos, log: &mut Log) {
    let id = walk.id;
    let mut next = follow(pass, walk, number, (at, PointerLocation::Head(number)), log);
    if next.is_some() {
        log.chains += 1;
        if number > 0 && pass.image.kind != LogKind::SelfCertifying {
            pass.issue(Code::CHAIN_TOO_MANY, Location::ino(id.ino), format!("chain {number}"));
            log.damaged = true;
        }
    }
    let mut pages = Vec::new();
    while let Some(block) = next {
        if !walk.met.insert(block) {
            pass.issue(Code::CIRCLE, Location::of(id.ino, block), format!("chain {number} comes back to it"));
            log.damaged = true;
            break;
        }
        let header = header(pass, id, number, block, log);
        let foreign = header.is_some_and(|h| h.owner != id || h.chain != number);
        if foreign {
            break;
        }
        pass.claim(block, 1, Use::Log(id));
        log.pages.push(block);
        if let Some(header) = header {
            pages.push(PageAt::read(pass, id, block, &header));
        }
        next = follow(pass, walk, number, (next_pos(block), PointerLocation::Next(block)), log);
    }
    if pass.image.kind == LogKind::Tail {
        // The tail stands in the only chain that can have one.
        if number == 0 {
            by_tail(pass, walk, pages, log);
        }
    } else {
        pages.into_iter().for_each(|page| page::judge(pass, page, SLOTS + 1, log));
    }
}

/// The header of a page; a foreign header is reported.
fn header(pass: &mut Pass<'_>, id: InodeId, chain: u32, block: BlockNo, log: &mut Log) -> Option<PageHeader> {
    let line = pass.media.line(block.pos());
    let location = Location::of(id.ino, block);
    let header = match PageHeader::decode(pass.image.seed, &line) {
        Some(header) => header,
        None => {
            pass.issue(Code::HEADER, location, format!("chain {chain}: the header's checksum is wrong"));
            let mended = if pass.may_mend() { mend::header(pass.image.seed, &line, id, chain) } else { None };
            let Some((line, header)) = mended else {
                log.damaged = true;
                return None;
            };
            pass.exact(block.pos(), line[..7].to_vec());
            header
        }
    };
    if header.owner != id || header.chain != chain {
        let (ino, of) = (header.owner.ino.0, header.chain);
        pass.issue(Code::HEADER_FOREIGN, location, format!("it is of chain {of} of inode {ino}"));
        log.damaged = true;
    }
    let epoch = pass.image.superblock.epoch.get();
    if header.epoch > epoch && header.owner == id {
        let what = format!("the page is of mount {}", header.epoch);
        if header.epoch < MOUNTS_MAX / 2 {
            pass.issue(Code::EPOCH_BEHIND, location, format!("{what}, the superblock counts {epoch}"));
            pass.epoch_seen = pass.epoch_seen.max(header.epoch);
        } else {
            // If this era were believed, the image would have no mounts left.
            pass.issue(Code::VERSION_RANGE, location, format!("{what}, of which no image has so many"));
            log.damaged = true;
        }
    }
    Some(header)
}

/// `nova`: records before the tail count.
fn by_tail(pass: &mut Pass<'_>, walk: &Walk, pages: Vec<PageAt>, log: &mut Log) {
    if pages.is_empty() {
        return;
    }
    let (seed, id) = (pass.image.seed, walk.id);
    let at = walk.at.plus(TAIL_WORD * 8);
    let raw = pass.media.word(at);
    let location = Location::ino(id.ino);
    let fits = |(block, slot): (BlockNo, u32)| pages.iter().any(|p| p.block == block && p.ends_at(slot));
    let mut tail = match pointer::decode_tail(seed, id, raw) {
        Target::At(to) if fits(to) => Some(to),
        Target::At((block, slot)) => {
            let what = format!("block {}, slot {slot} is no end of a record of this log", block.0);
            pass.issue(Code::TAIL_OUTSIDE, location, what);
            None
        }
        // A crash cut the first transaction of the log before its tail was stored.
        Target::None if !pass.clean() || pages.iter().all(PageAt::blank) => Some((BlockNo(0), 0)),
        Target::None => {
            pass.issue(Code::TAIL, location, "it is missing");
            None
        }
        Target::Bad => {
            pass.issue(Code::TAIL, location, "the pointer's check is wrong");
            let mended = mend::pointer(raw, |raw| pointer::decode_tail(seed, id, raw), fits);
            mended.and_then(|raw| match pointer::decode_tail(seed, id, raw) {
                Target::At(to) => {
                    pass.exact(at, vec![raw]);
                    Some(to)
                }
                _ => None,
            })
        }
    };
    if tail.is_none() {
        let last = pages.iter().rev().find(|p| p.end() > 1).unwrap_or(&pages[0]);
        let to = (last.block, last.end());
        pass.exact(at, vec![pointer::encode_tail(seed, id, to.0, to.1)]);
        tail = Some(to);
    }
    let (last, slot) = tail.unwrap_or((BlockNo(0), 0));
    let mut counts = last.0 != 0;
    for page in pages {
        let end = match (counts, page.block == last) {
            (false, _) => 1,
            (true, true) => slot,
            (true, false) => SLOTS + 1,
        };
        counts &= page.block != last;
        page::judge(pass, page, end, log);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
