//! A client that scribbles over shared memory can make many calls panic: the log reports that, and does not
//! fill the disk.

use heddle_console::output::talk;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// At most so many are reported in full.
const TOLD: u32 = 50;

/// From now on the first panics are reported, and then once that there are more.
pub fn tell_the_first() {
    let tell = std::panic::take_hook();
    let count = AtomicU32::new(0);
    std::panic::set_hook(Box::new(move |panic| match bounded(&count) {
        n if n < TOLD => tell(panic),
        TOLD => talk("heddle: more calls have panicked; only the first are reported"),
        _ => {}
    }));
}

/// The number of panics before; counting stops once it makes no difference.
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
