//! A call that begins again because another was quicker. Others are not quicker for ever: who begins again for seconds follows words that
//! somebody has written over, and that say the same each time.

use super::forged::ONCE_BITTEN;
use super::look;
use crate::state::core::Core;
use heddle_arena::sync::{spin_hint, yield_now};
use heddle_vfs::Result;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Retries that nobody counts.
const FREE: u32 = 1000;
/// How long a call begins again behind those.
const TURNS_MAX: Duration = Duration::from_secs(5);

/// One call's turns.
#[derive(Default)]
pub struct Retries {
    taken: u32,
    since: Option<Instant>,
}

impl Retries {
    /// Once more; `what` is it that contradicts itself if that is not true?
    ///
    /// # Errors
    /// [`Error::Corrupt`](heddle_vfs::Error::Corrupt), when it has gone on for too long.
    #[cold]
    pub fn again(&mut self, core: &Core, what: impl FnOnce() -> String) -> Result<()> {
        self.taken += 1;
        // In a model time stands still.
        if self.taken <= FREE || look().is_none() {
            spin_hint();
            return Ok(());
        }
        yield_now();
        let since = self.since.get_or_insert_with(Instant::now);
        // ORDERING: Relaxed, a hint.
        let bitten = core.waited_in_vain.load(Relaxed);
        if since.elapsed() < if bitten { ONCE_BITTEN } else { TURNS_MAX } {
            return Ok(());
        }
        core.waited_in_vain.store(true, Relaxed); // ORDERING: Relaxed, a hint.
        Err(core.damage(what()))
    }
}
