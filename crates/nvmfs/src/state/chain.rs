//! The volatile record of a log chain, and of an inode's chains. What is done with them: [`log::chain`](crate::log::chain), whose
//! invariants are cited here.

use crate::format::inode::HEADS_INLINE;
use crate::format::page::SLOTS;
use crate::ids::{BlockNo, Extent};
use heddle_arena::sync::atomic::{AtomicU32, AtomicU64};
use heddle_arena::{AtomicPtr, Ptr, Shared, Zeroed};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// In `Chain::owner`: the lane is in a call that uses the chain.
pub const BUSY: u32 = 1 << 31;

/// One chain. Fields are plain words in effect (I1); atomics because the owner changes.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Chain {
    pub(crate) owner: AtomicU32,
    pub(crate) number: AtomicU32,
    pub(crate) head: AtomicU64,
    pub(crate) page: AtomicU64,
    pub(crate) spare: AtomicU64,
    pub(crate) slot: AtomicU32,
    pub(crate) seed: AtomicU32,
    pub(crate) spare_seed: AtomicU32,
    /// The page before the one that cleaning looks at next; 0: it looks at the head.
    pub clean_after: AtomicU64,
    /// A first page that is certainly not later than the one on media: others' cleaning looks at it.
    pub(crate) oldest: AtomicU64,
    /// Pages of a later era than this were made after the chain's last record, if that is still where `quiet_at` says.
    pub(crate) quiet_since: AtomicU64,
    pub(crate) quiet_at: AtomicU64,
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
    pub(crate) inline: [AtomicPtr<Chain>; HEADS_INLINE as usize],
    pub(crate) more: AtomicPtr<AtomicPtr<Chain>>,
    pub(crate) head_block: AtomicU64,
    pub(crate) counts: Counts,
}

/// Written once a log page by any lane: on a line that nothing reads on the common path.
#[repr(C, align(64))]
pub struct Counts {
    /// Era of the page made last.
    pub(crate) era: AtomicU64,
    /// Linked pages of all chains.
    pub(crate) pages: AtomicU64,
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

    /// As [`crate::state::latch::Spin::ask_for`]: the line that the next record moves.
    pub fn ask_for(&self) {
        heddle_arena::prefetch_to_write(&self.slot);
    }

    /// A new one, of this lane; 0: nobody's.
    pub fn new(number: u32, lane: u16) -> Chain {
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
    pub fn claim(&self, lane: u16) -> bool {
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

    /// This lane's, and busy, if it was `from`'s.
    pub fn become_busy(&self, from: u32, lane: u16) -> bool {
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

    /// The lane that is in a call which uses it.
    pub fn user(&self) -> Option<u16> {
        // ORDERING: Relaxed, a guess that `held_up` looks into.
        let owner = self.owner.load(Relaxed);
        (owner & BUSY != 0).then_some((owner & !BUSY) as u16)
    }

    /// Takes the chain for a look at its pages, or finds that the caller's call has it; `None`: another call uses it. What comes back
    /// is for [`Chain::put_back`].
    pub fn borrow(&self, lane: u16) -> Option<u32> {
        let mine = u32::from(lane);
        // ORDERING: Relaxed, a guess.
        let owner = self.owner.load(Relaxed);
        if owner == mine | BUSY {
            return Some(owner);
        }
        (owner & BUSY == 0 && self.become_busy(owner, lane)).then_some(owner)
    }

    /// The end of a [`Chain::borrow`]: who had it has it again.
    pub fn put_back(&self, owner: u32) {
        // ORDERING: Release, pairs with the Acquire in `become_busy`.
        self.owner.store(owner, Release);
    }

    /// Room for so many more slots, or a page that is prepared?
    pub fn has_room(&self, slots: u32) -> bool {
        let (page, slot) = self.tail();
        // ORDERING: Relaxed, I1, or a guess.
        page.0 != 0 && slot + slots <= SLOTS + 1 || self.spare.load(Relaxed) != 0
    }

    /// A page that is prepared and not linked yet.
    pub fn spare(&self) -> Option<Extent> {
        // ORDERING: Relaxed, I1.
        Some(self.spare.load(Relaxed)).filter(|b| *b != 0).map(|b| Extent { block: BlockNo(b), count: 1 })
    }
}
