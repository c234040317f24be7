//! What a client writes over shared memory can make calls panic, one after the other: the log says so, and does not fill the disk.

use heddle_console::output::talk;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// That many are told in full.
const TOLD: u32 = 50;

/// From now on the first panics are told, and of the others that there are some.
pub fn tell_the_first() {
    let tell = std::panic::take_hook();
    let count = AtomicU32::new(0);
    std::panic::set_hook(Box::new(move |panic| match bounded(&count) {
        n if n < TOLD => tell(panic),
        TOLD => talk("heddle: more calls have panicked: only the first are told"),
        _ => {}
    }));
}

/// How many there were before; stops counting where it makes no difference.
fn bounded(count: &AtomicU32) -> u32 {
    // ORDERING: Relaxed, a count alone.
    count.fetch_update(Relaxed, Relaxed, |n| (n <= TOLD).then_some(n + 1)).unwrap_or(TOLD + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_panics_are_told_then_that_there_are_more_then_none() {
        let count = AtomicU32::new(0);
        let said: Vec<u32> = (0..TOLD + 3).map(|_| bounded(&count)).collect();
        assert_eq!(said[..TOLD as usize], (0..TOLD).collect::<Vec<_>>());
        assert_eq!(said[TOLD as usize..], [TOLD, TOLD + 1, TOLD + 1]);
    }
}
