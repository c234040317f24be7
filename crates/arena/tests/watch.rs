//! A process that nobody watches, until it is watched: a watcher stays for the rest of the process.
#![cfg(not(any(loom, shuttle)))]

use heddle_arena::watch;

#[test]
fn a_process_is_watched_once_a_watcher_is_set() {
    assert!(!watch::is_on());
    watch::set_watcher(|_| {});
    assert!(watch::is_on());
}
