//! A futex for models: as with the kernel's, no wake can come between the comparison and the sleep.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

#[cfg(loom)]
use loom::sync::{Condvar, Mutex};
#[cfg(shuttle)]
use shuttle::sync::{Condvar, Mutex};

use super::atomic::{AtomicU32, Ordering::SeqCst};

#[derive(Default)]
struct Sleepers {
    asleep: u32,
    /// Wakes that no sleeper has taken yet. At most `asleep`.
    woken: u32,
    condvar: Arc<Condvar>,
}

type Table = Mutex<HashMap<usize, Sleepers>>;

#[cfg(loom)]
loom::lazy_static! {
    static ref TABLE: Table = Mutex::new(HashMap::new());
}
#[cfg(shuttle)]
shuttle::lazy_static! {
    static ref TABLE: Table = Mutex::new(HashMap::new());
}

fn key(word: &AtomicU32) -> usize {
    std::ptr::from_ref(word) as usize
}

/// Sleeps until a wake if `word` is `expected`; otherwise returns at once. Time does not pass in a model, so
/// the time limit has no effect.
pub fn futex_wait(word: &AtomicU32, expected: u32, _timeout: Option<Duration>) {
    if std::thread::panicking() {
        return;
    }
    let mut table = TABLE.lock().unwrap();
    // ORDERING: SeqCst; the table's lock orders it against a wake, as the kernel's does.
    if word.load(SeqCst) != expected {
        return;
    }
    let at = table.entry(key(word)).or_default();
    at.asleep += 1;
    let condvar = at.condvar.clone();
    loop {
        table = condvar.wait(table).unwrap();
        let Some(at) = table.get_mut(&key(word)) else { return };
        if at.woken > 0 {
            at.woken -= 1;
            at.asleep -= 1;
            return;
        }
    }
}

/// Wakes at most `n` threads that sleep on `word`; returns their number.
pub fn futex_wake(word: &AtomicU32, n: u32) -> usize {
    if std::thread::panicking() {
        return 0;
    }
    let mut table = TABLE.lock().unwrap();
    let Some(at) = table.get_mut(&key(word)) else { return 0 };
    let now = n.min(at.asleep - at.woken);
    at.woken += now;
    at.condvar.notify_all();
    now as usize
}
