//! The volatile record of a log chain, and of an inode's chains. Operations on them and the invariants cited
//! here are in [`log::chain`](crate::log::chain).

use crate::format::inode::HEADS_INLINE;
use crate::format::page::SLOTS;
use crate::ids::{BlockNo, Extent};
use heddle_arena::sync::atomic::{AtomicU32, AtomicU64};
use heddle_arena::sync::{OwnedU32, OwnedU64};
use heddle_arena::{AtomicPtr, Ptr, Shared, Zeroed};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// In `Chain::owner`: the lane is in a call that uses the chain.
pub const BUSY: u32 = 1 << 31;

/// One chain. A lane that has it busy owns the other words (I1).
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Chain {
    pub(crate) owner: AtomicU32,
    pub(crate) number: AtomicU32,
    pub(crate) head: OwnedU64,
    pub(crate) page: OwnedU64,
    pub(crate) spare: OwnedU64,
    pub(crate) slot: OwnedU32,
    pub(crate) seed: OwnedU32,
    pub(crate) spare_seed: OwnedU32,
    /// The page before the one that cleaning examines next; 0: cleaning examines the head.
    pub clean_after: OwnedU64,
    /// The first page, or an earlier one that was its first: read by other lanes' cleaning. It is never later
    /// than the first page on media.
    pub(crate) oldest: AtomicU64,
    /// Pages of a later era than this were made after the chain's last record, if the chain still ends where
    /// `quiet_at` says.
    pub(crate) quiet_since: OwnedU64,
    pub(crate) quiet_at: OwnedU64,
}

// SAFETY: atomics only.
unsafe impl Shared for Chain {}

/// The position of a chain's next record.
#[derive(Clone, Copy, Debug)]
pub struct Tail {
    /// The last page; 0: the chain is empty.
    pub page: BlockNo,
    /// Its next free slot; a full page has none, and this is the number behind the last slot.
    pub slot: u32,
    /// Seed of its records.
    pub seed: u32,
}

impl Tail {
    /// The tail of a chain without pages.
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

/// Every lane writes these once for each log page. So they are on a line that is not read on the common path.
#[repr(C, align(64))]
pub struct Counts {
    /// Era of the newest page.
    pub(crate) era: AtomicU64,
    /// Number of linked pages of all chains.
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
    /// A chain whose pages on media run from `head` to the page of `tail`, where the next record goes. Slots
    /// there that did not count are zeroed durably before any record is appended (D4b).
    pub fn recovered(number: u32, head: BlockNo, tail: Tail) -> Chain {
        Chain {
            owner: AtomicU32::new(0),
            number: AtomicU32::new(number),
            head: OwnedU64::new(head.0),
            page: OwnedU64::new(tail.page.0),
            spare: OwnedU64::new(0),
            slot: OwnedU32::new(tail.slot),
            seed: OwnedU32::new(tail.seed),
            spare_seed: OwnedU32::new(0),
            clean_after: OwnedU64::new(0),
            oldest: AtomicU64::new(head.0),
            quiet_since: OwnedU64::new(0),
            quiet_at: OwnedU64::new(0),
        }
    }

    /// Prefetches the chain's line for writing, as [`crate::state::latch::Spin::prefetch`]: the next record
    /// moves it.
    pub fn prefetch(&self) {
        heddle_arena::prefetch_to_write(&self.slot);
    }

    /// A new chain, owned by this lane; 0: by no lane.
    pub fn new(number: u32, lane: u16) -> Chain {
        let chain = Chain::recovered(number, BlockNo(0), Tail::NONE);
        let owner = if lane == 0 { 0 } else { u32::from(lane) | BUSY };
        chain.owner.store(owner, Relaxed); // ORDERING: Relaxed, not yet linked.
        chain
    }

    /// Its number, which is the index of its head on media.
    pub fn number(&self) -> u32 {
        // ORDERING: Relaxed, never changes.
        self.number.load(Relaxed)
    }

    /// First page, if there is one.
    pub fn head(&self) -> Option<BlockNo> {
        Some(BlockNo(self.head.get())).filter(|b| b.0 != 0)
    }

    /// The page that takes records, and its next free slot.
    pub fn tail(&self) -> (BlockNo, u32) {
        (BlockNo(self.page.get()), self.slot.get())
    }

    /// The first page as other lanes see it, or `None` if the chain is empty.
    pub fn oldest(&self) -> Option<BlockNo> {
        // ORDERING: Acquire, pairs with the Release in `advance_oldest`.
        Some(BlockNo(self.oldest.load(Acquire))).filter(|b| b.0 != 0)
    }

    /// Called after a fence that follows an unlinking: other lanes now see the present first page.
    pub fn advance_oldest(&self) {
        // ORDERING: Release, pairs with the Acquire in `oldest`.
        self.oldest.store(self.head.get(), Release);
    }

    /// Takes a chain that no lane has. If it returns true, the chain is this lane's and busy.
    pub fn claim(&self, lane: u16) -> bool {
        // ORDERING: Relaxed, a guess.
        self.owner.load(Relaxed) == 0 && self.become_busy(0, lane)
    }

    /// Takes a chain for cleaning, also one that another lane keeps but is not using. If it returns true, the
    /// chain is this lane's until `unclaim`. The lane that kept it notices at its next call.
    pub fn claim_quiet(&self, lane: u16) -> bool {
        // ORDERING: Relaxed, a guess.
        let owner = self.owner.load(Relaxed);
        owner & BUSY == 0 && owner != u32::from(lane) && self.become_busy(owner, lane)
    }

    /// Makes the chain busy for this lane, if its owner is `from`. Returns true if so.
    pub fn become_busy(&self, from: u32, lane: u16) -> bool {
        // ORDERING: Acquire, pairs with the Release of the last user of the chain (I1); Relaxed: not taken.
        self.owner.compare_exchange(from, u32::from(lane) | BUSY, Acquire, Relaxed).is_ok()
    }

    /// Returns true if this lane, or its settler, has the chain busy.
    pub fn is_busy_for(&self, lane: u16) -> bool {
        // ORDERING: Acquire, pairs with the Release of the last user of the chain.
        self.owner.load(Acquire) == u32::from(lane) | BUSY
    }

    /// Clears the owner of a chain that a dead lane only kept. The chain is whole, and another lane may take
    /// it over for cleaning at this moment (I1). So the settler touches no other field.
    pub fn forget_keeper(&self, dead: u16) {
        // ORDERING: AcqRel, passes on the dead lane's stores; Relaxed if another lane has the chain already.
        let _gone = self.owner.compare_exchange(u32::from(dead), 0, AcqRel, Relaxed);
    }

    /// Sets the chain to its state on media, after its user died. The caller has fenced the slots zeroed in
    /// the last page.
    pub fn restart(&self, head: Option<BlockNo>, tail: Tail) {
        self.head.set(head.map_or(0, |page| page.0));
        self.page.set(tail.page.0);
        self.slot.set(tail.slot);
        self.seed.set(tail.seed);
        [&self.spare, &self.clean_after, &self.quiet_at].iter().for_each(|word| word.set(0));
        self.advance_oldest();
    }

    /// Clears the owner of a chain that was taken for cleaning.
    pub fn unclaim(&self) {
        // ORDERING: Release, pairs with the Acquire in `become_busy`.
        self.owner.store(0, Release);
    }

    /// Ends a call that used the chain: the lane keeps it, not busy.
    pub fn rest(&self, lane: u16) {
        // ORDERING: Release, pairs with the Acquire in `become_busy`.
        self.owner.store(u32::from(lane), Release);
    }

    /// Returns an era such that pages of that era or later hold nothing older than the chain's last record.
    /// The chain is this lane's, and was not busy when the lane took it.
    pub fn quiet_before(&self, now: u64) -> u64 {
        let (page, slot) = self.tail();
        // The number behind a full page's last slot needs seven bits.
        let at = page.0 << 7 | u64::from(slot);
        if self.quiet_at.get() != at {
            self.quiet_at.set(at);
            self.quiet_since.set(now);
        }
        self.quiet_since.get() + 1
    }

    /// The lane in a call that uses the chain.
    pub fn user(&self) -> Option<u16> {
        // ORDERING: Relaxed, a hint; `held_up` checks the lane.
        let owner = self.owner.load(Relaxed);
        (owner & BUSY != 0).then_some((owner & !BUSY) as u16)
    }

    /// Takes the chain to read its pages, or finds that the caller's own call has it. Returns the former
    /// owner, for [`Chain::put_back`]; `None` if another call uses the chain.
    pub fn borrow(&self, lane: u16) -> Option<u32> {
        let mine = u32::from(lane);
        // ORDERING: Relaxed, a guess.
        let owner = self.owner.load(Relaxed);
        if owner == mine | BUSY {
            return Some(owner);
        }
        (owner & BUSY == 0 && self.become_busy(owner, lane)).then_some(owner)
    }

    /// Ends a [`Chain::borrow`]: the former owner has the chain again.
    pub fn put_back(&self, owner: u32) {
        // ORDERING: Release, pairs with the Acquire in `become_busy`.
        self.owner.store(owner, Release);
    }

    /// Returns true if so many more slots fit the page, or if another page is prepared.
    pub fn has_room(&self, slots: u32) -> bool {
        let (page, slot) = self.tail();
        page.0 != 0 && slot + slots <= SLOTS + 1 || self.spare.get() != 0
    }

    /// A page that is prepared and not linked yet.
    pub fn spare(&self) -> Option<Extent> {
        Some(self.spare.get()).filter(|b| *b != 0).map(|b| Extent { block: BlockNo(b), count: 1 })
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn tail(page: u64, slot: u32) -> Tail {
        Tail { page: BlockNo(page), slot, seed: 9 }
    }

    #[test]
    fn a_chain_is_one_lanes_while_it_is_busy() {
        let chain = Chain::new(3, 0);
        assert_eq!((chain.number(), chain.user(), Chain::new(3, 5).user()), (3, None, Some(5)));
        assert!(chain.claim(5) && chain.user() == Some(5));
        assert!(!chain.claim(5) && !chain.claim(6) && !chain.claim_quiet(6), "it is busy");
        assert!(chain.is_busy_for(5) && !chain.is_busy_for(6));
        chain.rest(5);
        assert!(chain.user().is_none() && !chain.is_busy_for(5));
        assert!(!chain.claim(6), "another lane keeps it");
        assert!(!chain.claim_quiet(5), "it keeps it itself");
        chain.forget_keeper(6);
        assert!(!chain.claim(7));
        assert!(chain.claim_quiet(6) && chain.user() == Some(6));
        chain.forget_keeper(6);
        assert_eq!(chain.user(), Some(6), "it uses it");
        chain.unclaim();
        assert!(chain.claim_quiet(7));
        chain.rest(7);
        chain.forget_keeper(7);
        assert!(chain.claim(8));
    }

    #[test]
    fn a_borrowed_chain_goes_back_to_its_owner() {
        let chain = Chain::new(0, 0);
        assert_eq!((chain.borrow(5), chain.user()), (Some(0), Some(5)));
        assert_eq!((chain.borrow(5), chain.borrow(6)), (Some(5 | BUSY), None));
        chain.put_back(0);
        assert!(chain.claim(5));
        chain.rest(5);
        assert_eq!((chain.borrow(6), chain.user()), (Some(5), Some(6)));
        chain.put_back(5);
        assert!(chain.user().is_none() && chain.become_busy(5, 5) && !chain.become_busy(5, 5));
    }

    #[test]
    fn a_page_has_room_up_to_its_last_slot() {
        let none = Chain::new(0, 0);
        assert!(
            !none.has_room(1) && none.head().is_none() && none.oldest().is_none() && none.spare().is_none()
        );
        assert_eq!(none.tail(), (BlockNo(0), SLOTS + 1));
        let chain = Chain::recovered(2, BlockNo(20), tail(30, SLOTS));
        assert_eq!(
            (chain.head(), chain.oldest(), chain.tail()),
            (Some(BlockNo(20)), Some(BlockNo(20)), (BlockNo(30), SLOTS))
        );
        assert_eq!([0, 1, 2].map(|slots| chain.has_room(slots)), [true, true, false]);
        chain.spare.set(40);
        assert_eq!((chain.has_room(2), chain.spare()), (true, Some(Extent { block: BlockNo(40), count: 1 })));
        chain.clean_after.set(1);
        chain.restart(Some(BlockNo(21)), tail(31, 5));
        assert_eq!(
            (chain.head(), chain.oldest(), chain.tail()),
            (Some(BlockNo(21)), Some(BlockNo(21)), (BlockNo(31), 5))
        );
        assert!(chain.spare().is_none() && chain.clean_after.get() == 0);
        chain.head.set(22);
        assert_eq!(chain.oldest(), Some(BlockNo(21)), "others see it later");
        chain.advance_oldest();
        assert_eq!(chain.oldest(), Some(BlockNo(22)));
        chain.restart(None, Tail::NONE);
        assert!(chain.head().is_none() && chain.oldest().is_none() && !chain.has_room(1));
    }

    #[test]
    fn a_chain_is_quiet_since_the_look_after_its_last_record() {
        let chain = Chain::recovered(0, BlockNo(20), tail(30, 5));
        assert_eq!([chain.quiet_before(7), chain.quiet_before(9)], [8, 8]);
        chain.slot.set(6);
        assert_eq!([chain.quiet_before(9), chain.quiet_before(12)], [10, 10]);
        chain.page.set(31);
        assert_eq!(chain.quiet_before(12), 13);
    }

    /// A page and its neighbour, both full, were taken for one, and records of the second for older ones.
    #[test]
    fn crash_a_chain_that_filled_the_neighbouring_page_was_quiet() {
        let chain = Chain::recovered(0, BlockNo(30), tail(30, SLOTS + 1));
        assert_eq!(chain.quiet_before(7), 8);
        chain.page.set(31);
        assert_eq!(chain.quiet_before(9), 10);
        chain.page.set(30);
        assert_eq!(chain.quiet_before(12), 13);
    }
}
