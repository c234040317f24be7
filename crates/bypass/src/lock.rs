//! The lock of a file's offset.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// A lock that a forked child can open: its holder does not exist there.
pub struct Lock(AtomicU32);

const FREE: u32 = 0;
const HELD: u32 = 1;
const WAITED_FOR: u32 = 2;

impl Lock {
    /// Free.
    pub const fn new() -> Lock {
        Lock(AtomicU32::new(FREE))
    }

    /// Takes it, until what comes back is dropped.
    pub fn hold(&self) -> Held<'_> {
        if self.0.compare_exchange(FREE, HELD, SeqCst, SeqCst).is_err() {
            while self.0.swap(WAITED_FOR, SeqCst) != FREE {
                let flags = rustix::thread::futex::Flags::PRIVATE;
                // Whatever it says, the word is looked at again.
                let _ = rustix::thread::futex::wait(&self.0, flags, WAITED_FOR, None);
            }
        }
        Held(self)
    }

    /// In a forked child: the holder is not here.
    pub fn reset(&self) {
        self.0.store(FREE, SeqCst);
    }
}

/// See [`Lock::hold`].
pub struct Held<'l>(&'l Lock);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.0.0.swap(FREE, SeqCst) == WAITED_FOR {
            let _ = rustix::thread::futex::wake(&self.0.0, rustix::thread::futex::Flags::PRIVATE, 1);
        }
    }
}
