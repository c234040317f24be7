//! A call that starts over because another call was faster. Others cannot be faster for ever: a call that
//! starts over for seconds follows words that a client has scribbled over, and that never change.

use super::check_every;
use super::forged::ONCE_BITTEN;
use crate::state::core::Core;
use heddle_arena::sync::{spin_hint, yield_now};
use heddle_vfs::Result;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Retries without a time limit.
const FREE: u32 = 1000;
/// Time limit for the retries after those.
const TURNS_MAX: Duration = Duration::from_secs(5);

/// The retries of one call.
#[derive(Default)]
pub struct Retries {
    taken: u32,
    since: Option<Instant>,
}

impl Retries {
    /// Counts one more retry. `what` names the structure that is inconsistent if the retries do not end.
    ///
    /// # Errors
    /// [`Error::Corrupt`](heddle_vfs::Error::Corrupt), when it has gone on for too long.
    #[cold]
    pub fn again(&mut self, core: &Core, what: impl FnOnce() -> String) -> Result<()> {
        self.taken += 1;
        // Time does not pass in a model.
        if self.taken <= FREE || check_every().is_none() {
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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::state::core::tests::bare;

    /// Has a call that has started over so often, and since so long ago, to end?
    fn ends(bitten: bool, taken: u32, ago: Duration) -> bool {
        let core = bare(1024);
        core.waited_in_vain.store(bitten, Relaxed);
        let mut retries = Retries { taken, since: Some(Instant::now() - ago) };
        let ended = retries.again(&core, || "a table".into()).is_err();
        assert_eq!(retries.taken, taken + 1);
        assert_eq!(core.damage_found().is_some_and(|text| text.contains("a table")), ended);
        assert_eq!(core.waited_in_vain.load(Relaxed), ended || bitten);
        ended
    }

    #[test]
    fn a_call_starts_over_for_seconds_at_most() {
        let long = Duration::from_secs(3600);
        assert!(!ends(false, 999, long) && !ends(true, 999, long), "a thousand are free");
        assert!(ends(false, 1000, long) && ends(true, 1000, long));
        assert!(!ends(false, 1000, Duration::from_secs(1)));
        assert!(ends(false, 1000, Duration::from_secs(5)));
        assert!(ends(true, 1000, Duration::from_millis(50)), "one wait was in vain before");
        assert!(!ends(true, 1000, Duration::ZERO));
    }
}
