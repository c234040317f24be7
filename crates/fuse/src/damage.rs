//! Damage that calls meet. A program gets `EUCLEAN` alone, so the text that names the structure goes to the
//! user of the mount: each text once, and a limited number of them.

use std::collections::HashSet;
use std::sync::{Mutex, OnceLock, PoisonError};

use heddle_vfs::Error;

/// Most texts that are told. A damaged image may have one for each of its inodes.
const TOLD_MAX: usize = 64;

type Tell = Box<dyn Fn(&str) + Send + Sync>;

static DAMAGE: OnceLock<Damage> = OnceLock::new();

struct Damage {
    tell: Tell,
    told: Mutex<HashSet<String>>,
}

/// Sets where the mounts of this process tell of damage. Only the first call counts.
pub fn tell_of_damage(tell: impl Fn(&str) + Send + Sync + 'static) {
    DAMAGE.get_or_init(|| Damage { tell: Box::new(tell), told: Mutex::default() });
}

/// Tells of this error, if it is damage that was not told yet.
#[cold]
pub(crate) fn met(error: &Error) {
    let (Error::Corrupt(_), Some(damage)) = (error, DAMAGE.get()) else { return };
    let mut told = damage.told.lock().unwrap_or_else(PoisonError::into_inner);
    let text = error.to_string();
    if told.len() >= TOLD_MAX || !told.insert(text.clone()) {
        return;
    }
    let last = told.len() == TOLD_MAX;
    drop(told);
    (damage.tell)(&text);
    if last {
        (damage.tell)("more damage is not told");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::errno;

    #[test]
    fn damage_that_programs_meet_is_told_once() {
        static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
        tell_of_damage(|line| LINES.lock().unwrap().push(line.to_owned()));
        let met = |what: String| assert_eq!(errno(&Error::Corrupt(what)).code(), libc::EUCLEAN);
        for _ in 0..2 {
            met("inode 7: its node".to_owned());
        }
        assert_eq!(errno(&Error::Io("inode 7".to_owned())).code(), libc::EIO);
        assert_eq!(
            *LINES.lock().unwrap(),
            ["the image is damaged: inode 7: its node; run: heddle fsck IMAGE"]
        );
        (0..1000).for_each(|ino| met(format!("inode {ino}")));
        let lines = LINES.lock().unwrap();
        assert_eq!((lines.len(), lines[64].as_str()), (65, "more damage is not told"));
    }
}
