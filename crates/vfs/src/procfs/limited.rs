//! Questions about other processes that a process may keep waiting.
//!
//! A thread asks, and is left behind if it waits too long ([`super`] says for what). It holds nothing then, and a signal that kills this
//! process ends it. Processes of root and of this user are asked about first: no other user keeps an answer about those from its asker.

use std::collections::VecDeque;
use std::fs;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::Builder;
use std::time::Duration;

use crate::unmapped::is_own_user;

/// How long one question about a process of root or of this user may take, which no stranger can delay: many descriptors take long.
const OURS_MAX: Duration = Duration::from_secs(5);
/// How long one about a stranger's may take.
const STRANGERS_MAX: Duration = Duration::from_millis(300);
/// How long those questions may take together that are not answered.
const WAITS_MAX: Duration = Duration::from_secs(6);

/// The answers about each of these processes. One that keeps its asker waiting has none; if many do, others of their users may have none.
pub fn of_each<T: Send + 'static>(
    processes: impl IntoIterator<Item = u32>,
    ask: impl Fn(u32) -> T + Send + Sync + 'static,
) -> Vec<(u32, T)> {
    let (ours, others): (Vec<u32>, Vec<u32>) = processes.into_iter().partition(|pid| is_ours(*pid));
    let strangers = others.len();
    let mut left: VecDeque<u32> = ours.into_iter().chain(others).collect();
    let (ask, mut answers, mut waited) = (Arc::new(ask), Vec::new(), Duration::ZERO);
    while !left.is_empty() && waited < WAITS_MAX {
        let (tell, told) = channel();
        let (list, ask) = (left.clone(), Arc::clone(&ask));
        // The other end is gone once a question has taken too long.
        let each = move || list.into_iter().all(|pid| tell.send((pid, ask(pid))).is_ok());
        if Builder::new().name("heddle-asks".into()).spawn(each).is_err() {
            break;
        }
        loop {
            let limit = if left.len() > strangers { OURS_MAX } else { STRANGERS_MAX };
            match told.recv_timeout(limit) {
                Ok(answer) => answers.push(answer),
                Err(RecvTimeoutError::Timeout) => waited += limit,
                Err(RecvTimeoutError::Disconnected) => {}
            }
            let asked = left.pop_front();
            if answers.last().map(|(pid, _)| *pid) != asked {
                break;
            }
        }
    }
    answers
}

/// The answer about one process, if it comes in time.
pub fn of<T: Send + 'static>(pid: u32, ask: impl Fn(u32) -> T + Send + Sync + 'static) -> Option<T> {
    of_each([pid], ask).pop().map(|(_, answer)| answer)
}

/// Returns true if root or this user is among the users of a process.
fn is_ours(pid: u32) -> bool {
    // As bytes: a process may have any name.
    let status = fs::read(format!("/proc/{pid}/status")).unwrap_or_default();
    let status = String::from_utf8_lossy(&status);
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    users.split_whitespace().filter_map(|uid| uid.parse().ok()).any(|uid: u32| uid == 0 || is_own_user(uid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::LockedMemory;
    use std::time::Instant;

    #[test]
    fn who_keeps_an_asker_waiting_is_left_out_and_no_other() {
        let never = |pid: u32| {
            if pid % 2 == 1 {
                std::thread::sleep(Duration::from_secs(3600));
            }
            pid + 1
        };
        let began = Instant::now();
        assert_eq!(of_each([10, 11, 13, 14], never), [(10, 11), (14, 15)]);
        assert_eq!((of(7, never), of(8, never)), (None, Some(9)));
        let many = (0..200).map(|n| 2 * n + 1).chain([2]);
        assert!(of_each(many, never).is_empty());
        assert!(began.elapsed() < 5 * WAITS_MAX, "{:?}", began.elapsed());
        assert_eq!(of_each([4, 6], |pid| assert_ne!(pid, 4)), [(6, ())], "a panic is no answer");
        assert!(of_each([], never).is_empty());
    }

    #[test]
    fn ours_are_asked_about_before_those_of_strangers() {
        let Some(locked) = LockedMemory::new() else { return };
        let me = std::process::id();
        assert!(is_ours(me) && !is_ours(locked.pid()) && !is_ours(u32::MAX));
        let asked = of_each([locked.pid(), me], |pid| pid);
        assert_eq!(asked, [(me, me), (locked.pid(), locked.pid())]);
    }
}
