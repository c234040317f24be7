//! A directory as a whole: all that a listing skips, and names that no call finds.

use super::Entry;
use crate::format::inline_flag;
use crate::image::Media;
use crate::inode::Inode;
use heddle_vfs::{Error, FileKind, Result};

/// What a listing skips, because it makes no sense or cannot be read.
pub(super) struct Damage {
    met: Vec<Error>,
    most: usize,
}

impl Damage {
    /// Keeps the first so many; one at least.
    pub(super) fn up_to(most: usize) -> Damage {
        Damage { met: Vec::new(), most: most.max(1) }
    }

    pub(super) fn is_met(&self) -> bool {
        !self.met.is_empty()
    }

    pub(super) fn note(&mut self, what: impl FnOnce() -> Error) {
        if self.met.len() < self.most {
            self.met.push(what());
        }
    }

    /// The first of it, if there is any.
    pub(super) fn end(self) -> Result<()> {
        self.met.into_iter().next().map_or(Ok(()), Err)
    }
}

impl Media {
    /// Gives all entries to `emit`, `.` and `..` too. What a listing skips, the first `most` of it.
    ///
    /// # Errors
    /// Those of a directory that cannot be listed at all.
    pub(crate) fn list_all(
        &self,
        dir: &Inode,
        most: usize,
        emit: &mut dyn FnMut(Entry<'_>) -> Result<()>,
    ) -> Result<Vec<Error>> {
        let mut damage = Damage::up_to(most);
        self.list_noting(dir, 0, &mut damage, &mut |entry| emit(entry).map(|()| false))?;
        Ok(damage.met)
    }

    /// Names can be looked up in it, and it says what lies above it.
    pub(crate) fn check_dir(&self, dir: &Inode) -> Result<()> {
        if !dir.has(inline_flag::DENTRY) {
            super::levels(dir)?;
        }
        self.check_move(dir)
    }

    /// Calls find the entry by its name, and no other one.
    pub(crate) fn check_found(&self, dir: &Inode, entry: &Entry<'_>) -> Result<()> {
        let wrong = |what: String| Err(Error::Corrupt(what));
        match self.look_up(dir, entry.name)? {
            Some(found) if found == (entry.nid, entry.kind) => Ok(()),
            Some((nid, _)) => {
                wrong(format!("the name is there twice, and calls take it for that of inode {}", nid.0))
            }
            None => wrong("no call finds the name: its hash is another one's, or leads elsewhere".into()),
        }
    }

    /// The directory that `..` leads to is the one that has its name.
    pub(crate) fn check_above(&self, dir: &Inode, above: crate::ids::Nid) -> Result<()> {
        match self.look_up(dir, b"..")? {
            Some(found) if found != (above, FileKind::Directory) => Err(Error::Corrupt(format!(
                "`..` leads to inode {}, and its name is in directory {}",
                found.0.0, above.0
            ))),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_kept_up_to_a_number_and_once_at_least() {
        for (most, kept) in [(0, 1), (1, 1), (2, 2), (5, 3)] {
            let mut damage = Damage::up_to(most);
            assert!(!damage.is_met());
            for n in 0..3 {
                damage.note(|| Error::Corrupt(format!("{n}")));
                assert!(damage.is_met());
            }
            assert_eq!(damage.met.len(), kept, "{most}");
            assert_eq!(damage.end(), Err(Error::Corrupt("0".into())), "the first is told");
        }
        assert_eq!(Damage::up_to(1).end(), Ok(()));
    }
}
