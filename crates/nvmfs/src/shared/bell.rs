//! The doorbell: a mount tells a program the address of its door, and the door knows that the program asked.
//!
//! A program that has a file of a mount open asks that mount, through that descriptor, for the address of its
//! door ([`heddle_vfs::ioctl::DOOR`]). It sends a number that it has just drawn: the **knock**. At the door
//! it sends the number again. The daemon accepts the program only if the number came through its own mount,
//! from a thread of the process that now connects.
//!
//! State       the knocks of the last seconds, one for each thread.
//! Invariants  I1  an accepted client has asked the mount that this daemon serves, and no other. If a stranger's mount passes the
//!                 question on to this one, the thread that asks is not one of the client's.
//!             I2  a knock counts once, and for a short time.
//!             I3  knocks cost other users nothing: there is one for each thread, and a full table drops the oldest, whose thread has
//!                 connected long ago.

use super::wire::NAME;
use heddle_vfs::ioctl::{DOOR_BYTES, Doorbell};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A random number that only its maker knows.
pub type Knock = [u8; 16];

/// How long a knock is valid.
const KNOCK_MAX: Duration = Duration::from_secs(10);
/// Number of knocks that are kept.
const KNOCKS_MAX: usize = 4096;
/// Longest address of a socket.
pub const ADDRESS_BYTES_MAX: usize = 64;

/// The parts of a question: magic number, knock. Of an answer: magic number, length of the address, address.
const KNOCK_AT: usize = 8;
const LEN_AT: usize = 8;
const ADDRESS_AT: usize = 16;

/// A client's question.
pub fn question(knock: &Knock) -> [u8; DOOR_BYTES] {
    let mut question = [0; DOOR_BYTES];
    question[..KNOCK_AT].copy_from_slice(&NAME.to_ne_bytes());
    question[KNOCK_AT..KNOCK_AT + knock.len()].copy_from_slice(knock);
    question
}

/// The address in an answer; `None`: it is not a valid answer.
pub fn address(answer: &[u8; DOOR_BYTES]) -> Option<&[u8]> {
    let len = answer[LEN_AT] as usize;
    let ours = answer.starts_with(&NAME.to_ne_bytes()) && (1..=ADDRESS_BYTES_MAX).contains(&len);
    ours.then(|| answer.get(ADDRESS_AT..ADDRESS_AT + len)).flatten()
}

/// The knocks that were received.
pub struct Bell {
    address: Vec<u8>,
    knocks: Mutex<HashMap<u32, (Knock, Instant)>>,
}

impl Bell {
    /// The doorbell for the door at this address.
    pub fn of(address: &[u8]) -> Bell {
        Bell { address: address[..address.len().min(ADDRESS_BYTES_MAX)].to_vec(), knocks: Mutex::default() }
    }

    /// Returns true if a thread of this process has sent this knock. It counts once.
    pub fn heard(&self, knock: &Knock, process: u32) -> bool {
        let mut knocks = self.knocks.lock().unwrap_or_else(PoisonError::into_inner);
        let found = knocks.iter().find(|(_, (known, _))| known == knock);
        let Some((thread, at)) = found.map(|(thread, (_, at))| (*thread, *at)) else { return false };
        knocks.remove(&thread);
        at.elapsed() <= KNOCK_MAX && has_thread(process, thread)
    }
}

impl Doorbell for Bell {
    fn ring(&self, question: &[u8; DOOR_BYTES], thread: u32) -> [u8; DOOR_BYTES] {
        let mut answer = [0; DOOR_BYTES];
        let knock = question[KNOCK_AT..].first_chunk::<{ size_of::<Knock>() }>();
        if let Some(knock) = knock
            && question.starts_with(&NAME.to_ne_bytes())
        {
            answer[..KNOCK_AT].copy_from_slice(&NAME.to_ne_bytes());
            answer[LEN_AT] = self.address.len() as u8;
            answer[ADDRESS_AT..ADDRESS_AT + self.address.len()].copy_from_slice(&self.address);
            let mut knocks = self.knocks.lock().unwrap_or_else(PoisonError::into_inner);
            if knocks.len() >= KNOCKS_MAX {
                let oldest = knocks.iter().min_by_key(|(_, (_, at))| *at).map(|(thread, _)| *thread);
                oldest.and_then(|thread| knocks.remove(&thread));
            }
            knocks.insert(thread, (*knock, Instant::now()));
        }
        answer
    }
}

/// Returns true if this is a thread of that process.
fn has_thread(process: u32, thread: u32) -> bool {
    if process == 0 || thread == 0 {
        return false;
    }
    // SAFETY: signal 0 is not delivered: the kernel only checks that it could be. Not /proc: that may be
    // hidden from this user.
    let there = unsafe { libc::syscall(libc::SYS_tgkill, process as i32, thread as i32, 0) };
    there == 0 || std::io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn me() -> (u32, u32) {
        (std::process::id(), rustix::thread::gettid().as_raw_nonzero().get() as u32)
    }

    #[test]
    fn a_knock_counts_once_and_for_the_process_whose_thread_knocked() {
        let bell = Bell::of(b"here");
        let (process, thread) = me();
        assert!(!bell.heard(&[1; 16], process), "nobody has knocked");
        let answer = bell.ring(&question(&[1; 16]), thread);
        assert_eq!(address(&answer), Some(&b"here"[..]));
        assert!(!bell.heard(&[2; 16], process), "another number");
        assert!(bell.heard(&[1; 16], process));
        assert!(!bell.heard(&[1; 16], process), "once");
        // A stranger passes the client's number on: its thread is not one of the client's.
        bell.ring(&question(&[3; 16]), 1);
        assert!(!bell.heard(&[3; 16], process), "a thread of another process has knocked");
        bell.ring(&question(&[4; 16]), 0);
        assert!(!bell.heard(&[4; 16], process), "a thread of another number space");
    }

    #[test]
    fn rubbish_is_no_question_and_no_answer() {
        let bell = Bell::of(b"here");
        assert_eq!(bell.ring(&[0xff; DOOR_BYTES], 1), [0; DOOR_BYTES]);
        assert_eq!(address(&[0; DOOR_BYTES]), None);
        let mut answer = bell.ring(&question(&[1; 16]), 1);
        for len in [0, ADDRESS_BYTES_MAX as u8 + 1, 255] {
            answer[LEN_AT] = len;
            assert_eq!(address(&answer), None, "{len}");
        }
    }

    #[test]
    fn a_full_table_forgets_the_oldest() {
        let bell = Bell::of(b"here");
        let (process, thread) = me();
        for other in 0..KNOCKS_MAX as u32 {
            bell.ring(&question(&[7; 16]), 1 << 30 | other);
        }
        bell.ring(&question(&[1; 16]), thread);
        assert_eq!(bell.knocks.lock().unwrap().len(), KNOCKS_MAX);
        assert!(bell.heard(&[1; 16], process));
    }
}
