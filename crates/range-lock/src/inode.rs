//! One readers-writer lock a file, as NOVA has: what shared-file I/O suffers from.
//!
//! State       `LockHead::word`, in the format of module `word`. Every reader writes the cache line of that word: readers of one file do
//!             not scale, which is what SRL II-B measures.
//! Source      SRL II-A (NOVA holds the inode's lock for the whole of a read or write).

use std::ops::Range;

use heddle_arena::{Arena, Full};

use crate::head::{Access, Held, LockHead};
use crate::wait::{Mode, Waiter, may_pass, wake};
use crate::{Error, RangeLock, word};

/// One lock for all ranges of a file.
#[derive(Clone, Copy, Debug)]
pub struct InodeLock {
    mode: Mode,
}

impl InodeLock {
    /// A lock that waits as `mode` says.
    pub fn new(mode: Mode) -> Self {
        InodeLock { mode }
    }

    #[cold]
    fn wait(&self, arena: &Arena, head: &LockHead, access: Access) {
        let mut waiter = Waiter::new(arena, head, self.mode, access, (0, 0));
        waiter.hold_back();
        while !word::try_lock(&head.word, access) {
            waiter.pause(arena.offset_of(&head.word).raw(), || word::holder(&head.word, access));
        }
        waiter.done();
    }
}

impl RangeLock for InodeLock {
    fn init(&self, _: &Arena, _: &LockHead) -> Result<(), Full> {
        Ok(())
    }

    #[inline]
    fn acquire(
        &self,
        arena: &Arena,
        head: &LockHead,
        bytes: Range<u64>,
        access: Access,
    ) -> Result<Held, Error> {
        if bytes.start >= bytes.end {
            return Err(Error::Empty);
        }
        if !may_pass(self.mode, head, access) || !word::try_lock(&head.word, access) {
            self.wait(arena, head, access);
        }
        Ok(Held { first: 0, last: 0, place: 0, access })
    }

    #[inline]
    fn release(&self, arena: &Arena, head: &LockHead, held: Held) {
        if word::unlock(&head.word, held.access) {
            wake(self.mode, arena, arena.offset_of(&head.word).raw());
        }
    }

    unsafe fn last_close(&self, _: &Arena, _: &LockHead) {}

    unsafe fn destroy(&self, _: &Arena, _: &LockHead) {}

    /// The word lies in the head.
    fn memory_bytes(&self, _: &Arena, _: &LockHead) -> u64 {
        0
    }

    fn name(&self) -> &'static str {
        "inode"
    }
}
