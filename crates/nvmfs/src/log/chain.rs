//! Chains: the log pages of an inode, in the order in which they were linked.
//!
//! State       volatile: [`Chain`], one a head on media; its fields are its owner's alone. [`Chains`], the chains of an inode.
//! Invariants  I1  a chain is used by one caller at a time: the lane that has set [`BUSY`] beside its number in `owner`
//!                 (self-certifying logs), or whoever holds the inode's log lock (the papers' variants, one chain an inode).
//!                 A lane keeps its number there between its calls; while it is not busy another may take the chain over.
//!             I2  a page is linked only after its zeroed body and its header were fenced (D4a).
//!             I3  a transaction lies in one page (D2).
//!             I4  a page draws its `era` after the last record of the page before it: once a page has a successor, or a
//!                 prepared one, it takes no more records.
//! Crash order C1  `make_room` (page zeroed, header written), fence, `append` (link and records), fence: durable.
//!             C2  a page is unlinked, the unlinking fenced, and only then reused (D5a).
//! Source      per-inode chains leased by lanes: design 4.4, protocol review P6.

mod append;
mod share;

pub use append::{
    Appended, append_unfenced, make_room, next_page, next_slot, pages_of, set_mark_unfenced,
    set_tail_unfenced, unlink_page_unfenced,
};
#[cfg(feature = "planted")]
pub use append::{advance, fill_unfenced, reserve};
pub use share::{has_room_elsewhere, users_held_up};
use share::{take_over, wait_for_one};

use crate::alloc::{Purpose, take_block};
use crate::core::{Core, no_memory};
use crate::format::inode::{HEAD_BLOCK_WORD, HEADS_IN_BLOCK, HEADS_INLINE};
use crate::format::layout::{chunk_of, inode_pos};
use crate::format::page::SLOTS;
use crate::format::pointer::{self, Place};
use crate::ids::{BlockNo, Extent};
use crate::inode::InodeRef;
use crate::lane::{CHAIN_SLOTS, HeldChain, Own};
use crate::lease::LaneGuard;
use heddle_arena::sync::atomic::{AtomicU32, AtomicU64};
use heddle_arena::{AtomicPtr, Ptr, Shared, Zeroed};
use heddle_pmem::{BLOCK_BYTES, LINE_BYTES, Pos};
use heddle_vfs::{Error, Result};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::compiler_fence;

/// In `Chain::owner`: the lane is in a call that uses the chain.
const BUSY: u32 = 1 << 31;

/// One chain. Fields are plain words in effect (I1); atomics because the owner changes.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Chain {
    owner: AtomicU32,
    number: AtomicU32,
    head: AtomicU64,
    page: AtomicU64,
    spare: AtomicU64,
    slot: AtomicU32,
    seed: AtomicU32,
    spare_seed: AtomicU32,
    /// The page before the one that cleaning looks at next; 0: it looks at the head.
    pub clean_after: AtomicU64,
    /// A first page that is certainly not later than the one on media: others' cleaning looks at it.
    oldest: AtomicU64,
    /// Pages of a later era than this were made after the chain's last record, if that is still where `quiet_at` says.
    quiet_since: AtomicU64,
    quiet_at: AtomicU64,
}

// SAFETY: atomics only.
unsafe impl Shared for Chain {}

/// Where the next record of a chain goes.
#[derive(Clone, Copy, Debug)]
pub struct Tail {
    /// The last page; 0: the chain is empty.
    pub page: BlockNo,
    /// Its next free slot; behind the last one: it is full.
    pub slot: u32,
    /// Seed of its records.
    pub seed: u32,
}

impl Tail {
    /// Of a chain without pages.
    pub const NONE: Tail = Tail { page: BlockNo(0), slot: SLOTS + 1, seed: 0 };
}

/// The chains of an inode.
#[repr(C, align(64))]
pub struct Chains {
    inline: [AtomicPtr<Chain>; HEADS_INLINE as usize],
    more: AtomicPtr<AtomicPtr<Chain>>,
    head_block: AtomicU64,
    counts: Counts,
}

/// Written once a log page by any lane: on a line that nothing reads on the common path.
#[repr(C, align(64))]
struct Counts {
    /// Era of the page made last.
    era: AtomicU64,
    /// Linked pages of all chains.
    pages: AtomicU64,
}

// SAFETY: atomics only.
unsafe impl Shared for Chains {}
// SAFETY: all zeros is no chain.
unsafe impl Zeroed for Chains {
    fn zeroed() -> Chains {
        Chains {
            inline: std::array::from_fn(|_| AtomicPtr::new(Ptr::NULL)),
            more: AtomicPtr::new(Ptr::NULL),
            head_block: AtomicU64::new(0),
            counts: Counts { era: AtomicU64::new(0), pages: AtomicU64::new(0) },
        }
    }
}

impl Chain {
    /// A chain whose pages on media run from `head` to the page of `tail`, where the next record goes: what stood there and did not
    /// count is zero, durably, before anything is appended (D4b).
    pub fn recovered(number: u32, head: BlockNo, tail: Tail) -> Chain {
        Chain {
            owner: AtomicU32::new(0),
            number: AtomicU32::new(number),
            head: AtomicU64::new(head.0),
            page: AtomicU64::new(tail.page.0),
            spare: AtomicU64::new(0),
            slot: AtomicU32::new(tail.slot),
            seed: AtomicU32::new(tail.seed),
            spare_seed: AtomicU32::new(0),
            clean_after: AtomicU64::new(0),
            oldest: AtomicU64::new(head.0),
            quiet_since: AtomicU64::new(0),
            quiet_at: AtomicU64::new(0),
        }
    }

    /// As [`crate::latch::Spin::ask_for`]: the line that the next record moves.
    pub fn ask_for(&self) {
        heddle_arena::prefetch_to_write(&self.slot);
    }

    fn new(number: u32, lane: u16) -> Chain {
        let chain = Chain::recovered(number, BlockNo(0), Tail::NONE);
        let owner = if lane == 0 { 0 } else { u32::from(lane) | BUSY };
        chain.owner.store(owner, Relaxed); // ORDERING: Relaxed, not yet linked.
        chain
    }

    /// Its number: which head on media.
    pub fn number(&self) -> u32 {
        // ORDERING: Relaxed, never changes.
        self.number.load(Relaxed)
    }

    /// First page, if there is one.
    pub fn head(&self) -> Option<BlockNo> {
        // ORDERING: Relaxed, I1.
        Some(BlockNo(self.head.load(Relaxed))).filter(|b| b.0 != 0)
    }

    /// Page that takes records, and its next free slot.
    pub fn tail(&self) -> (BlockNo, u32) {
        // ORDERING: Relaxed, I1.
        (BlockNo(self.page.load(Relaxed)), self.slot.load(Relaxed))
    }

    /// See the field. 0: the chain is empty.
    pub fn oldest(&self) -> Option<BlockNo> {
        // ORDERING: Acquire, pairs with the Release in `settle_oldest`.
        Some(BlockNo(self.oldest.load(Acquire))).filter(|b| b.0 != 0)
    }

    /// After a fence behind an unlinking: the first page is what it is in memory.
    pub fn settle_oldest(&self) {
        // ORDERING: Relaxed, I1; Release, pairs with the Acquire in `oldest`.
        self.oldest.store(self.head.load(Relaxed), Release);
    }

    /// Takes a chain that nobody has; true: it is this lane's, and busy.
    fn claim(&self, lane: u16) -> bool {
        // ORDERING: Relaxed, a guess.
        self.owner.load(Relaxed) == 0 && self.become_busy(0, lane)
    }

    /// Takes a chain for cleaning, also one that a lane keeps but is not using; true: it is this lane's until `unclaim`. The lane
    /// that kept it finds out at its next call.
    pub fn claim_quiet(&self, lane: u16) -> bool {
        // ORDERING: Relaxed, a guess.
        let owner = self.owner.load(Relaxed);
        owner & BUSY == 0 && owner != u32::from(lane) && self.become_busy(owner, lane)
    }

    fn become_busy(&self, from: u32, lane: u16) -> bool {
        // ORDERING: Acquire, pairs with the Release of whoever used the chain last (I1); Relaxed: not taken.
        self.owner.compare_exchange(from, u32::from(lane) | BUSY, Acquire, Relaxed).is_ok()
    }

    /// Is this lane, which is dead, in a call that uses it? Then the chain is its settler's, and stays so.
    pub fn was_used_by(&self, dead: u16) -> bool {
        // ORDERING: Acquire, pairs with the Release of whoever used the chain last.
        self.owner.load(Acquire) == u32::from(dead) | BUSY
    }

    /// Gives a chain that a dead lane only kept to nobody. It is in order, and another lane's cleaning may take it over at this very
    /// moment (I1): nothing else of it is the settler's to touch.
    pub fn forget_keeper(&self, dead: u16) {
        // ORDERING: AcqRel, passes on what the dead lane did; Relaxed if it is another's already.
        let _gone = self.owner.compare_exchange(u32::from(dead), 0, AcqRel, Relaxed);
    }

    /// A chain as the media has it after its user died. Behind a fence that covers what was zeroed in the last page.
    pub fn restart(&self, head: Option<BlockNo>, tail: Tail) {
        // ORDERING: Relaxed throughout, I1: the settler has the chain.
        self.head.store(head.map_or(0, |page| page.0), Relaxed);
        self.page.store(tail.page.0, Relaxed); // ORDERING: Relaxed, as above.
        self.slot.store(tail.slot, Relaxed); // ORDERING: Relaxed, as above.
        self.seed.store(tail.seed, Relaxed); // ORDERING: Relaxed, as above.
        for word in [&self.spare, &self.clean_after, &self.quiet_at] {
            word.store(0, Relaxed); // ORDERING: Relaxed, as above.
        }
        self.settle_oldest();
    }

    /// Gives a chain that was taken for cleaning back: to nobody.
    pub fn unclaim(&self) {
        // ORDERING: Release, pairs with the Acquire in `become_busy`.
        self.owner.store(0, Release);
    }

    /// The end of a call that used the chain: the lane keeps it.
    pub fn rest(&self, lane: u16) {
        // ORDERING: Release, pairs with the Acquire in `become_busy`.
        self.owner.store(u32::from(lane), Release);
    }

    /// An era such that pages made in it or later hold nothing older than the chain's last record. The chain is this lane's, and
    /// was taken from one that was not using it.
    pub fn quiet_before(&self, now: u64) -> u64 {
        let (page, slot) = self.tail();
        let at = page.0 << 6 | u64::from(slot);
        // ORDERING: Relaxed throughout, I1.
        if self.quiet_at.load(Relaxed) != at {
            self.quiet_at.store(at, Relaxed);
            self.quiet_since.store(now, Relaxed);
        }
        // ORDERING: Relaxed, as above.
        self.quiet_since.load(Relaxed) + 1
    }

    /// A page that is prepared and not linked yet.
    pub fn spare(&self) -> Option<Extent> {
        // ORDERING: Relaxed, I1.
        Some(self.spare.load(Relaxed)).filter(|b| *b != 0).map(|b| Extent { block: BlockNo(b), count: 1 })
    }
}

/// Position of the pointer to a chain's first page.
pub fn head_pos(core: &Core, inode: InodeRef<'_>, chains: &Chains, number: u32) -> Pos {
    if number < HEADS_INLINE {
        return pointer_word_pos(core, inode, u64::from(number));
    }
    // ORDERING: Acquire, pairs with the Release in `chain_or_new`.
    BlockNo(chains.head_block.load(Acquire)).pos().plus(u64::from(number - HEADS_INLINE) * 8)
}

/// Position of word `word` of the second line of an inode's slot.
pub fn pointer_word_pos(core: &Core, inode: InodeRef<'_>, word: u64) -> Pos {
    inode_pos(core.chunk_block(inode.ino), chunk_of(inode.ino).1).plus(LINE_BYTES as u64 + word * 8)
}

/// The inode's chains, made if need be.
pub fn chains_of<'c>(core: &'c Core, own: &mut Own, inode: InodeRef<'c>) -> Result<&'c Chains> {
    // ORDERING: Acquire, pairs with the CAS below.
    let mut at = inode.vi.chains.load(Acquire);
    if at.is_null() {
        // SAFETY: `own` is this thread's.
        let new = unsafe { own.heap.alloc_zeroed::<Chains>(&core.arena, 1) }.map_err(no_memory)?;
        // ORDERING: AcqRel and Acquire: the winner's table is the table.
        at = match inode.vi.chains.compare_exchange(Ptr::NULL, new, AcqRel, Acquire) {
            Ok(_) => new,
            Err(winner) => {
                // SAFETY: `new` was never linked.
                unsafe { own.heap.free(&core.arena, new, 1) };
                winner
            }
        };
    }
    Ok(core.arena.get(at))
}

fn counts<'c>(core: &'c Core, inode: InodeRef<'c>) -> Option<&'c Counts> {
    // ORDERING: Acquire, pairs with the CAS in `chains_of`.
    let chains = inode.vi.chains.load(Acquire);
    (!chains.is_null()).then(|| &core.arena.get(chains).counts)
}

/// Linked log pages of all chains of an inode; a moment old if other lanes write it.
pub fn pages(core: &Core, inode: InodeRef<'_>) -> u64 {
    // ORDERING: Relaxed, an estimate.
    // A death between linking a page and counting it may leave one too few.
    counts(core, inode).map_or(0, |c| (c.pages.load(Relaxed) as i64).max(0) as u64)
}

/// Era of the page that was made last: what is made from now on has a later one.
pub fn era_now(core: &Core, inode: InodeRef<'_>) -> u64 {
    counts(core, inode).map_or(0, |c| c.era.load(SeqCst))
}

/// The chains that exist.
pub fn existing<'c>(core: &'c Core, inode: InodeRef<'c>) -> impl Iterator<Item = &'c Chain> {
    // ORDERING: Acquire, pairs with the CAS in `chains_of`.
    let chains = Some(inode.vi.chains.load(Acquire)).filter(|p| !p.is_null()).map(|p| core.arena.get(p));
    let more = chains.and_then(|c| {
        // ORDERING: Acquire, pairs with the CAS in `slot_of`.
        let more = c.more.load(Acquire);
        (!more.is_null()).then(|| core.arena.slice(more, HEADS_IN_BLOCK as usize))
    });
    let inline = chains.map_or(&[][..], |c| &c.inline[..]);
    inline.iter().chain(more.unwrap_or(&[])).filter_map(|p| {
        // ORDERING: Acquire, pairs with the CAS in `chain_or_new`.
        let chain = p.load(Acquire);
        (!chain.is_null()).then(|| core.arena.get(chain))
    })
}

/// The place of chain `number` in memory.
fn slot_of<'c>(
    core: &'c Core,
    own: &mut Own,
    chains: &'c Chains,
    number: u32,
) -> Result<&'c AtomicPtr<Chain>> {
    if number < HEADS_INLINE {
        return Ok(&chains.inline[number as usize]);
    }
    // ORDERING: Acquire, pairs with the CAS below.
    let mut more = chains.more.load(Acquire);
    if more.is_null() {
        // SAFETY: `own` is this thread's.
        let new = unsafe {
            own.heap.alloc_slice(&core.arena, HEADS_IN_BLOCK as usize, |_| AtomicPtr::new(Ptr::NULL))
        };
        let new = new.map_err(no_memory)?;
        // ORDERING: AcqRel and Acquire, as in `chains_of`.
        more = match chains.more.compare_exchange(Ptr::NULL, new, AcqRel, Acquire) {
            Ok(_) => new,
            Err(winner) => {
                // SAFETY: `new` was never linked.
                unsafe { own.heap.free(&core.arena, new, HEADS_IN_BLOCK as usize) };
                winner
            }
        };
    }
    Ok(&core.arena.slice(more, HEADS_IN_BLOCK as usize)[(number - HEADS_INLINE) as usize])
}

/// Links a chain of `pages` pages, the last of them of era `era`, that recovery found.
pub fn adopt(
    core: &Core,
    own: &mut Own,
    inode: InodeRef<'_>,
    chain: Chain,
    (pages, era): (u64, u64),
    head_block: Option<BlockNo>,
) -> Result<()> {
    let chains = chains_of(core, own, inode)?;
    let number = chain.number();
    chains.counts.pages.fetch_add(pages, Relaxed); // ORDERING: Relaxed, an estimate.
    chains.counts.era.fetch_max(era, SeqCst);
    // ORDERING: Release, pairs with the Acquire in `head_pos`.
    chains.head_block.store(head_block.map_or(0, |b| b.0), Release);
    // SAFETY: `own` is this thread's.
    let new = unsafe { own.heap.alloc(&core.arena, chain) }.map_err(no_memory)?;
    // ORDERING: Release, pairs with the loads in `existing`.
    slot_of(core, own, chains, number)?.store(new, Release);
    Ok(())
}

/// The inode's only chain (the papers' variants). The caller holds the inode's log lock.
pub fn only<'c>(core: &'c Core, own: &mut Own, inode: InodeRef<'c>) -> Result<&'c Chain> {
    let chains = chains_of(core, own, inode)?;
    // ORDERING: Acquire, pairs with the store below or in `adopt`.
    let at = chains.inline[0].load(Acquire);
    if !at.is_null() {
        return Ok(core.arena.get(at));
    }
    // SAFETY: `own` is this thread's.
    let new = unsafe { own.heap.alloc(&core.arena, Chain::new(0, 0)) }.map_err(no_memory)?;
    // ORDERING: Release, pairs with the load above.
    chains.inline[0].store(new, Release);
    Ok(core.arena.get(new))
}

/// The chain of this inode that the lane holds, or else the first that nobody holds, or else a new one.
pub fn lease<'c>(core: &'c Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'c>) -> Result<&'c Chain> {
    let generation = inode.vi.generation();
    let ways = ways_of(inode.ino);
    for way in ways {
        let held = guard.own.chains[way];
        if held.ino == inode.ino.0 && held.generation == generation {
            let chain = core.arena.get::<Chain>(Ptr::from_raw(held.chain));
            if use_held(guard.own, guard.id, way, chain) {
                return Ok(chain);
            }
        }
    }
    // The chain used last stays: a rename works with two.
    let way = if guard.own.chain_last == ways[0] as u64 { ways[1] } else { ways[0] };
    let_go(core, guard.own, guard.id, way);
    // Said before it is claimed: whoever settles this lane looks at the chains of this inode.
    guard.own.chains[way] = HeldChain { ino: inode.ino.0, generation: 0, chain: 0 };
    compiler_fence(SeqCst);
    let chain = match claim(core, guard, inode) {
        Ok(chain) => chain,
        Err(error) => {
            guard.own.chains[way] = HeldChain::default();
            return Err(error);
        }
    };
    guard.own.chains[way] =
        HeldChain { ino: inode.ino.0, generation, chain: core.arena.offset_of(chain).raw() };
    guard.own.chain_last = way as u64;
    guard.own.chains_busy |= 1 << way;
    Ok(chain)
}

/// Makes a chain that the lane keeps busy, if it is not yet; false: another has taken it over since.
fn use_held(own: &mut Own, lane: u16, way: usize, chain: &Chain) -> bool {
    let busy = own.chains_busy & 1 << way != 0;
    if !busy && !chain.become_busy(u32::from(lane), lane) {
        own.chains[way] = HeldChain::default();
        return false;
    }
    own.chains_busy |= 1 << way;
    own.chain_last = way as u64;
    true
}

/// The end of a call: the lane keeps its chains, but is not using them.
pub fn rest_all(arena: &heddle_arena::Arena, own: &mut Own, lane: u16) {
    let mut busy = std::mem::take(&mut own.chains_busy);
    while busy != 0 {
        let way = busy.trailing_zeros() as usize;
        busy &= busy - 1;
        arena.get::<Chain>(Ptr::from_raw(own.chains[way].chain)).rest(lane);
    }
}

fn ways_of(ino: heddle_vfs::Ino) -> [usize; 2] {
    let first = ino.0 as usize % CHAIN_SLOTS;
    [first, first ^ 1]
}

fn claim<'c>(core: &'c Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'c>) -> Result<&'c Chain> {
    let chains = chains_of(core, guard.own, inode)?;
    for number in 0..HEADS_INLINE + HEADS_IN_BLOCK {
        let place = slot_of(core, guard.own, chains, number)?;
        // ORDERING: Acquire, pairs with the CAS below.
        let at = place.load(Acquire);
        if !at.is_null() {
            let chain = core.arena.get(at);
            if chain.claim(guard.id) {
                return Ok(chain);
            }
            continue;
        }
        if number == HEADS_INLINE
            && let Err(error) = make_head_block(core, guard, inode, chains)
        {
            // Without a block for more heads the chains that others keep have to do.
            return take_over(core, guard.id, inode, |_| true).ok_or(error);
        }
        // SAFETY: `own` is this thread's.
        let new =
            unsafe { guard.own.heap.alloc(&core.arena, Chain::new(number, guard.id)) }.map_err(no_memory)?;
        // ORDERING: AcqRel and Relaxed: the loser goes on to the next number.
        if place.compare_exchange(Ptr::NULL, new, AcqRel, Relaxed).is_ok() {
            return Ok(core.arena.get(new));
        }
        // SAFETY: `new` was never linked.
        unsafe { guard.own.heap.free(&core.arena, new, 1) };
    }
    wait_for_one(core, guard.id, inode)
}

/// Makes the block of further heads, if no other lane has.
fn make_head_block(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    chains: &Chains,
) -> Result<()> {
    let _latched = inode.vi.heads.lock();
    // ORDERING: Acquire, pairs with the Release below.
    if chains.head_block.load(Acquire) != 0 {
        return Ok(());
    }
    // Once an inode: whoever comes first, and that may be a removal.
    let block = take_block(core.free_map(), &core.region, guard.own, Purpose::Free).ok_or(Error::NoSpace)?;
    core.region.nt_zero(block.pos(), BLOCK_BYTES as u64);
    // PERSIST: I2 for the block of heads: empty before it is linked.
    core.region.fence();
    let to = pointer::encode(core.seed, inode.id(), Place::HeadBlock, block);
    core.region.store_u64(pointer_word_pos(core, inode, HEAD_BLOCK_WORD), to);
    // PERSIST: the link before any head in it is relied upon.
    core.region.fence();
    // ORDERING: Release, pairs with the Acquire loads of `head_block`.
    chains.head_block.store(block.0, Release);
    Ok(())
}

/// The chain may be gone: its inode died. Then its record belongs to the slot's next inode and has another owner.
fn let_go(core: &Core, own: &mut Own, lane: u16, way: usize) {
    let held = own.chains[way];
    let busy = if own.chains_busy & 1 << way == 0 { 0 } else { BUSY };
    own.chains_busy &= !(1 << way);
    let alive = core.slot(heddle_vfs::Ino(held.ino)).is_some_and(|i| i.vi.generation() == held.generation);
    if held.ino != 0 && alive {
        let owner = &core.arena.get::<Chain>(Ptr::from_raw(held.chain)).owner;
        // ORDERING: Release, pairs with the Acquire in `become_busy` (I1); Relaxed if it is another's already.
        let _gone = owner.compare_exchange(u32::from(lane) | busy, 0, Release, Relaxed);
    }
    own.chains[way] = HeldChain::default();
}

/// Gives all chains that the lane holds back.
pub fn let_go_all(core: &Core, own: &mut Own, lane: u16) {
    (0..CHAIN_SLOTS).for_each(|way| let_go(core, own, lane, way));
}

/// Gives the lane's chain of this inode back: the lane has turned to something else.
pub fn let_go_of(core: &Core, own: &mut Own, lane: u16, inode: InodeRef<'_>) {
    for way in ways_of(inode.ino) {
        if own.chains[way].ino == inode.ino.0 {
            let_go(core, own, lane, way);
        }
    }
}

/// The block of further heads, if there is one.
pub fn head_block(core: &Core, inode: InodeRef<'_>) -> Option<Extent> {
    // ORDERING: Acquire, pairs with the CAS in `chains_of`.
    let chains = Some(inode.vi.chains.load(Acquire)).filter(|p| !p.is_null())?;
    // ORDERING: Acquire, pairs with the Release in `make_head_block`.
    let block = core.arena.get(chains).head_block.load(Acquire);
    (block != 0).then_some(Extent { block: BlockNo(block), count: 1 })
}

/// Empties the volatile chains of an inode that dies; its blocks are the caller's affair. Their memory stays with the slot for the
/// inode's successors: another lane may still be about to let go of one (`let_go`), and must then find a chain.
pub fn retire_chains(core: &Core, inode: InodeRef<'_>) {
    for chain in existing(core, inode) {
        // ORDERING: Relaxed, published with the next life; Release on the owner pairs with `claim`.
        for word in
            [&chain.head, &chain.page, &chain.spare, &chain.clean_after, &chain.oldest, &chain.quiet_at]
        {
            word.store(0, Relaxed);
        }
        chain.slot.store(SLOTS + 1, Relaxed); // ORDERING: Relaxed, as above.
        chain.owner.store(0, Release); // ORDERING: Release, as above.
    }
    // ORDERING: Acquire, pairs with the CAS in `chains_of`.
    let chains = inode.vi.chains.load(Acquire);
    if !chains.is_null() {
        let chains = core.arena.get(chains);
        for word in [&chains.head_block, &chains.counts.era, &chains.counts.pages] {
            word.store(0, Relaxed); // ORDERING: Relaxed, as above.
        }
    }
}
