//! The ioctl by which a mount tells a program the address of its attach socket.
//!
//! A program that has a file of a mount open asks that mount, through that descriptor, for the address of its
//! attach socket ([`heddle_vfs::ioctl::ATTACH`]). It sends a number that it has just drawn: the **token**. At the attach socket
//! it sends the number again. The daemon accepts the program only if the number came through its own mount,
//! from a thread of the process that now connects.
//!
//! State       the tokens of the last seconds, one for each thread.
//! Invariants  I1  an accepted client has asked the mount that this daemon serves, and no other. If a stranger's mount passes the
//!                 question on to this one, the thread that asks is not one of the client's.
//!             I2  a token counts once, and for a short time.
//!             I3  tokens cost other users nothing: there is one for each thread, and a full table drops the oldest, whose thread has
//!                 connected long ago.

use super::wire::NAME;
use heddle_vfs::ioctl::{ATTACH_BYTES, AttachIoctl};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A random number that only its maker knows.
pub type AttachToken = [u8; 16];

/// How long a token is valid.
const TOKEN_AGE_MAX: Duration = Duration::from_secs(10);
/// Number of tokens that are kept.
const TOKENS_MAX: usize = 4096;
/// Longest address of a socket.
pub const ADDRESS_BYTES_MAX: usize = 64;

/// The parts of a question: magic number, token. Of an answer: magic number, length of the address, address.
const TOKEN_AT: usize = 8;
const LEN_AT: usize = 8;
const ADDRESS_AT: usize = 16;

/// A client's question.
pub fn question(token: &AttachToken) -> [u8; ATTACH_BYTES] {
    let mut question = [0; ATTACH_BYTES];
    question[..TOKEN_AT].copy_from_slice(&NAME.to_ne_bytes());
    question[TOKEN_AT..TOKEN_AT + token.len()].copy_from_slice(token);
    question
}

/// The address in an answer; `None`: it is not a valid answer.
pub fn address(answer: &[u8; ATTACH_BYTES]) -> Option<&[u8]> {
    let len = answer[LEN_AT] as usize;
    let ours = answer.starts_with(&NAME.to_ne_bytes()) && (1..=ADDRESS_BYTES_MAX).contains(&len);
    ours.then(|| answer.get(ADDRESS_AT..ADDRESS_AT + len)).flatten()
}

/// The tokens that were received.
pub struct AttachTokens {
    address: Vec<u8>,
    tokens: Mutex<HashMap<u32, (AttachToken, Instant)>>,
}

impl AttachTokens {
    /// No token yet, for the attach socket at this address.
    pub fn of(address: &[u8]) -> AttachTokens {
        AttachTokens {
            address: address[..address.len().min(ADDRESS_BYTES_MAX)].to_vec(),
            tokens: Mutex::default(),
        }
    }

    /// Returns true if a thread of this process has sent this token. It counts once.
    pub fn redeem(&self, token: &AttachToken, process: u32) -> bool {
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        let found = tokens.iter().find(|(_, (known, _))| known == token);
        let Some((thread, at)) = found.map(|(thread, (_, at))| (*thread, *at)) else { return false };
        tokens.remove(&thread);
        at.elapsed() <= TOKEN_AGE_MAX && has_thread(process, thread)
    }
}

impl AttachIoctl for AttachTokens {
    fn answer(&self, question: &[u8; ATTACH_BYTES], thread: u32) -> [u8; ATTACH_BYTES] {
        let mut answer = [0; ATTACH_BYTES];
        let token = question[TOKEN_AT..].first_chunk::<{ size_of::<AttachToken>() }>();
        if let Some(token) = token
            && question.starts_with(&NAME.to_ne_bytes())
        {
            answer[..TOKEN_AT].copy_from_slice(&NAME.to_ne_bytes());
            answer[LEN_AT] = self.address.len() as u8;
            answer[ADDRESS_AT..ADDRESS_AT + self.address.len()].copy_from_slice(&self.address);
            let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
            if tokens.len() >= TOKENS_MAX {
                let oldest = tokens.iter().min_by_key(|(_, (_, at))| *at).map(|(thread, _)| *thread);
                oldest.and_then(|thread| tokens.remove(&thread));
            }
            tokens.insert(thread, (*token, Instant::now()));
        }
        answer
    }
}

/// Returns true if this is a thread of that process. The kernel knows neither a process nor a thread of the number 0.
fn has_thread(process: u32, thread: u32) -> bool {
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
    fn a_token_counts_once_and_for_the_process_whose_thread_sent_it() {
        let tokens = AttachTokens::of(b"here");
        let (process, thread) = me();
        assert!(!tokens.redeem(&[1; 16], process), "nobody has sent it");
        let answer = tokens.answer(&question(&[1; 16]), thread);
        assert_eq!(address(&answer), Some(&b"here"[..]));
        assert!(!tokens.redeem(&[2; 16], process), "another number");
        assert!(tokens.redeem(&[1; 16], process));
        assert!(!tokens.redeem(&[1; 16], process), "once");
        // A stranger passes the client's number on: its thread is not one of the client's.
        tokens.answer(&question(&[3; 16]), 1);
        assert!(!tokens.redeem(&[3; 16], process), "a thread of another process has sent it");
        tokens.answer(&question(&[4; 16]), 0);
        assert!(!tokens.redeem(&[4; 16], process), "a thread of another number space");
        tokens.answer(&question(&[5; 16]), thread);
        assert!(!tokens.redeem(&[5; 16], 0), "a process of another number space");
    }

    #[test]
    fn rubbish_is_no_question_and_no_answer() {
        let tokens = AttachTokens::of(b"here");
        assert_eq!(tokens.answer(&[0xff; ATTACH_BYTES], 1), [0; ATTACH_BYTES]);
        assert_eq!(address(&[0; ATTACH_BYTES]), None);
        let mut answer = tokens.answer(&question(&[1; 16]), 1);
        for len in [0, ADDRESS_BYTES_MAX as u8 + 1, 255] {
            answer[LEN_AT] = len;
            assert_eq!(address(&answer), None, "{len}");
        }
    }

    #[test]
    fn a_full_table_forgets_the_oldest() {
        let tokens = AttachTokens::of(b"here");
        let (process, thread) = me();
        for other in 0..TOKENS_MAX as u32 {
            tokens.answer(&question(&[7; 16]), 1 << 30 | other);
        }
        tokens.answer(&question(&[1; 16]), thread);
        assert_eq!(tokens.tokens.lock().unwrap().len(), TOKENS_MAX);
        assert!(tokens.redeem(&[1; 16], process));
    }
}
