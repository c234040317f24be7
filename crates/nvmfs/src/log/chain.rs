//! Chains: the log pages of an inode, in the order in which they were linked.
//!
//! State       volatile: [`Chain`], one for each head on media; only the chain's owner touches its fields. [`Chains`]: the chains of
//!             an inode.
//! Invariants  I1  one caller at a time uses a chain. With self-certifying logs that is the lane that has set [`BUSY`] beside its
//!                 number in `owner`. In the papers' variants (one chain an inode) it is the holder of the inode's log lock.
//!                 A lane's number stays in `owner` between its calls. While `BUSY` is clear, another lane may take the chain over.
//!             I2  a page is linked only after its zeroed body and its header were fenced (D4a).
//!             I3  a transaction lies in one page (D2).
//!             I4  a page draws its `era` after the last record of the page before it was appended. Once a page has a successor, linked
//!                 or prepared, it takes no more records.
//! Crash order C1  `make_room` (page zeroed, header written), fence, `append` (link and records), fence: durable.
//!             C2  a page is unlinked, the unlinking fenced, and only then reused (D5a).
//! Source      per-inode chains leased by lanes: docs/protocol.md, "Chains and their cleaning", P6.

mod append;
mod share;

pub use crate::state::chain::{Chain, Tail};
pub use append::{
    Appended, append_unfenced, make_room, next_page, next_slot, pages_of, set_mark_unfenced,
    set_tail_unfenced, unlink_page_unfenced,
};
#[cfg(feature = "planted")]
pub use append::{advance, fill_unfenced, reserve};
pub use share::{has_room_elsewhere, users_held_up};
use share::{take_over, wait_for_one};

use crate::alloc::{Purpose, take_block};
use crate::format::inode::{HEAD_BLOCK_WORD, HEADS_IN_BLOCK, HEADS_INLINE};
use crate::format::layout::{chunk_of, inode_pos};
use crate::format::page::SLOTS;
use crate::format::pointer::{self, PointerLocation};
use crate::ids::{BlockNo, Extent};
use crate::planted::{Bug, Met, met, planted};
use crate::state::chain::{BUSY, Chains, Counts};
use crate::state::core::{Core, no_memory};
use crate::state::inode::InodeRef;
use crate::state::lane::{CHAIN_SLOTS, HeldChain, LaneLocal};
use crate::state::lease::LaneGuard;
use heddle_arena::{AtomicPtr, Ptr};
use heddle_pmem::{BLOCK_BYTES, LINE_BYTES, Pos};
use heddle_vfs::{Error, Result};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::compiler_fence;

/// Position of the pointer to a chain's first page.
pub fn head_pos(core: &Core, inode: InodeRef<'_>, chains: &Chains, number: u32) -> Pos {
    if number < HEADS_INLINE {
        return pointer_word_pos(core, inode, u64::from(number));
    }
    // ORDERING: Acquire, pairs with the Release in `make_head_block`.
    BlockNo(chains.head_block.load(Acquire)).pos().plus(u64::from(number - HEADS_INLINE) * 8)
}

/// Position of word `word` of the second line of an inode's slot.
pub fn pointer_word_pos(core: &Core, inode: InodeRef<'_>, word: u64) -> Pos {
    inode_pos(core.chunk_block(inode.ino), chunk_of(inode.ino).1).plus(LINE_BYTES as u64 + word * 8)
}

/// Returns the inode's chains. Allocates them if the inode has none yet.
pub fn chains_of<'c>(core: &'c Core, own: &mut LaneLocal, inode: InodeRef<'c>) -> Result<&'c Chains> {
    // ORDERING: Acquire, pairs with the CAS below.
    let mut at = inode.volatile.chains.load(Acquire);
    if at.is_null() {
        // SAFETY: `own` is this thread's.
        let new = unsafe { own.heap.alloc_zeroed::<Chains>(&core.arena, 1) }.map_err(no_memory)?;
        // ORDERING: AcqRel and Acquire: both lanes use the table of the lane that won.
        at = match inode.volatile.chains.compare_exchange(Ptr::NULL, new, AcqRel, Acquire) {
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
    let chains = inode.volatile.chains.load(Acquire);
    (!chains.is_null()).then(|| &core.arena.get(chains).counts)
}

/// Number of linked log pages in all chains of an inode. The figure may be stale while other lanes write the
/// inode.
pub fn pages(core: &Core, inode: InodeRef<'_>) -> u64 {
    // ORDERING: Relaxed, an estimate. A client that dies between linking a page and counting it may leave the
    // count one too low.
    counts(core, inode).map_or(0, |c| (c.pages.load(Relaxed) as i64).max(0) as u64)
}

/// Era of the newest log page. Every page made from now on has a later era.
pub fn era_now(core: &Core, inode: InodeRef<'_>) -> u64 {
    counts(core, inode).map_or(0, |c| c.era.load(SeqCst))
}

/// The inode's chains that exist in memory.
pub fn existing<'c>(core: &'c Core, inode: InodeRef<'c>) -> impl Iterator<Item = &'c Chain> {
    // ORDERING: Acquire, pairs with the CAS in `chains_of`.
    let chains =
        Some(inode.volatile.chains.load(Acquire)).filter(|p| !p.is_null()).map(|p| core.arena.get(p));
    // Chains with a further head stay with the slot when its inode ends; without a block of heads they are not the present inode's.
    // ORDERING: Acquire, pairs with the Release in `make_head_block`.
    let more = chains.filter(|c| c.head_block.load(Acquire) != 0).and_then(|c| {
        // ORDERING: Acquire, pairs with the CAS in `slot_of`.
        let more = c.more.load(Acquire);
        (!more.is_null()).then(|| core.arena.slice(more, HEADS_IN_BLOCK as usize))
    });
    let inline = chains.map_or(&[][..], |c| &c.inline[..]);
    inline.iter().chain(more.unwrap_or(&[])).filter_map(|p| {
        // ORDERING: Acquire, pairs with the CAS in `claim`.
        let chain = p.load(Acquire);
        (!chain.is_null()).then(|| core.arena.get(chain))
    })
}

/// The arena word that leads to chain `number`.
fn slot_of<'c>(
    core: &'c Core,
    own: &mut LaneLocal,
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

/// Notes the block of further heads that recovery found, also if no chain has a page.
pub fn adopt_head_block(core: &Core, own: &mut LaneLocal, inode: InodeRef<'_>, block: BlockNo) -> Result<()> {
    // ORDERING: Release, pairs with the Acquire in `head_pos`.
    chains_of(core, own, inode)?.head_block.store(block.0, Release);
    Ok(())
}

/// Adds a chain that recovery found: `pages` pages, the last of them of era `era`.
pub fn adopt(
    core: &Core,
    own: &mut LaneLocal,
    inode: InodeRef<'_>,
    chain: Chain,
    (pages, era): (u64, u64),
) -> Result<()> {
    let chains = chains_of(core, own, inode)?;
    let number = chain.number();
    chains.counts.pages.fetch_add(pages, Relaxed); // ORDERING: Relaxed, an estimate.
    if !planted(Bug::ErasBeginAnew) {
        chains.counts.era.fetch_max(era, SeqCst);
    }
    // SAFETY: `own` is this thread's.
    let new = unsafe { own.heap.alloc(&core.arena, chain) }.map_err(no_memory)?;
    // ORDERING: Release, pairs with the loads in `existing`.
    slot_of(core, own, chains, number)?.store(new, Release);
    Ok(())
}

/// The inode's only chain (the papers' variants). The caller holds the inode's log lock.
pub fn only<'c>(core: &'c Core, own: &mut LaneLocal, inode: InodeRef<'c>) -> Result<&'c Chain> {
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

/// Returns a chain of this inode for the lane to append to: the chain that the lane holds, else the first
/// free one, else a new one.
pub fn lease<'c>(core: &'c Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'c>) -> Result<&'c Chain> {
    let generation = inode.volatile.generation();
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
    // The chain used last is kept: a rename works with two.
    let way = if guard.own.chain_last == ways[0] as u64 { ways[1] } else { ways[0] };
    let_go(core, guard.own, guard.id, way);
    // Noted before the claim: the settler of this lane examines the chains of every inode noted here.
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

/// Makes a chain that the lane keeps busy, if it is not yet. Returns false if another lane has taken the
/// chain over.
fn use_held(own: &mut LaneLocal, lane: u16, way: usize, chain: &Chain) -> bool {
    let busy = own.chains_busy & 1 << way != 0;
    if !busy && !chain.become_busy(u32::from(lane), lane) {
        own.chains[way] = HeldChain::default();
        return false;
    }
    own.chains_busy |= 1 << way;
    own.chain_last = way as u64;
    true
}

fn ways_of(ino: heddle_vfs::Ino) -> [usize; 2] {
    let first = ino.0 as usize % CHAIN_SLOTS;
    [first, first ^ 1]
}

fn claim<'c>(core: &'c Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'c>) -> Result<&'c Chain> {
    let chains = chains_of(core, guard.own, inode)?;
    for number in 0..HEADS_INLINE + HEADS_IN_BLOCK {
        // Also if the slot's last inode had more chains: they stay with the slot, but their block of heads does not.
        // ORDERING: Acquire, pairs with the Release in `make_head_block`.
        if number == HEADS_INLINE
            && chains.head_block.load(Acquire) == 0
            && let Err(error) = make_head_block(core, guard, inode, chains)
        {
            // There is no block for more heads, so the lane takes over a chain that another lane keeps.
            return take_over(core, guard.id, inode, |_| true).ok_or(error);
        }
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
        // SAFETY: `own` is this thread's.
        let new =
            unsafe { guard.own.heap.alloc(&core.arena, Chain::new(number, guard.id)) }.map_err(no_memory)?;
        // ORDERING: AcqRel and Relaxed: a lane that loses the race tries the next number.
        if place.compare_exchange(Ptr::NULL, new, AcqRel, Relaxed).is_ok() {
            return Ok(core.arena.get(new));
        }
        // SAFETY: `new` was never linked.
        unsafe { guard.own.heap.free(&core.arena, new, 1) };
    }
    wait_for_one(core, guard.id, inode)
}

/// Allocates the block of further heads, unless another lane already has.
fn make_head_block(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    chains: &Chains,
) -> Result<()> {
    let _latched = inode.volatile.heads.lock();
    // ORDERING: Acquire, pairs with the Release below.
    if chains.head_block.load(Acquire) != 0 {
        return Ok(());
    }
    // `Purpose::Free`: an inode needs this block at most once, and the first call that needs it may be a
    // removal.
    let block = take_block(core.free_map(), &core.region, guard.own, Purpose::Free).ok_or(Error::NoSpace)?;
    core.region.nt_zero(block.pos(), BLOCK_BYTES as u64);
    // PERSIST: I2 for the block of heads: it is zeroed before it is linked.
    core.region.fence();
    let to = pointer::encode(core.seed, inode.id(), PointerLocation::HeadBlock, block);
    core.region.store_u64(pointer_word_pos(core, inode, HEAD_BLOCK_WORD), to);
    // PERSIST: the link is durable before any head in the block is used.
    core.region.fence();
    met(Met::HeadBlock);
    // ORDERING: Release, pairs with the Acquire loads of `head_block`.
    chains.head_block.store(block.0, Release);
    Ok(())
}

/// Gives one chain back. The chain's inode may be dead. Then the chain belongs to the slot's next inode and
/// has another owner.
fn let_go(core: &Core, own: &mut LaneLocal, lane: u16, way: usize) {
    let held = own.chains[way];
    let busy = if own.chains_busy & 1 << way == 0 { 0 } else { BUSY };
    own.chains_busy &= !(1 << way);
    let alive =
        core.slot(heddle_vfs::Ino(held.ino)).is_some_and(|i| i.volatile.generation() == held.generation);
    if held.ino != 0 && alive {
        let owner = &core.arena.get::<Chain>(Ptr::from_raw(held.chain)).owner;
        // ORDERING: Release, pairs with the Acquire in `become_busy` (I1); Relaxed if it is another's already.
        let _gone = owner.compare_exchange(u32::from(lane) | busy, 0, Release, Relaxed);
    }
    own.chains[way] = HeldChain::default();
}

/// Gives back all chains that the lane holds.
pub fn let_go_all(core: &Core, own: &mut LaneLocal, lane: u16) {
    (0..CHAIN_SLOTS).for_each(|way| let_go(core, own, lane, way));
}

/// Gives back the lane's chain of this inode, because the lane has turned to other work.
pub fn let_go_of(core: &Core, own: &mut LaneLocal, lane: u16, inode: InodeRef<'_>) {
    for way in ways_of(inode.ino) {
        if own.chains[way].ino == inode.ino.0 {
            let_go(core, own, lane, way);
        }
    }
}

/// The block of further heads, if there is one.
pub fn head_block(core: &Core, inode: InodeRef<'_>) -> Option<Extent> {
    // ORDERING: Acquire, pairs with the CAS in `chains_of`.
    let chains = Some(inode.volatile.chains.load(Acquire)).filter(|p| !p.is_null())?;
    // ORDERING: Acquire, pairs with the Release in `make_head_block`.
    let block = core.arena.get(chains).head_block.load(Acquire);
    (block != 0).then_some(Extent { block: BlockNo(block), count: 1 })
}

/// Empties the volatile chains of a dying inode. The caller frees their blocks. The memory of the chains
/// stays with the slot for later inodes: another lane may still be about to release one (`let_go`), and must
/// then find a chain.
pub fn retire_chains(core: &Core, inode: InodeRef<'_>) {
    for chain in existing(core, inode) {
        // The slot's next inode publishes them.
        for word in [&chain.head, &chain.page, &chain.spare, &chain.clean_after, &chain.quiet_at] {
            word.set(0);
        }
        chain.slot.set(SLOTS + 1);
        // ORDERING: Relaxed, as the words above; Release on the owner pairs with `claim`.
        chain.oldest.store(0, Relaxed);
        chain.owner.store(0, Release);
    }
    // ORDERING: Acquire, pairs with the CAS in `chains_of`.
    let chains = inode.volatile.chains.load(Acquire);
    if !chains.is_null() {
        let chains = core.arena.get(chains);
        for word in [&chains.head_block, &chains.counts.era, &chains.counts.pages] {
            if planted(Bug::HeadBlockStays) && std::ptr::eq(word, &chains.head_block) {
                continue;
            }
            word.store(0, Relaxed); // ORDERING: Relaxed, the slot's next inode publishes it.
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
