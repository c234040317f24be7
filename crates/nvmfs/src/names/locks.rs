//! All locks of one name operation, taken in one order: by inode number, within a directory by hash (`table`,
//! lock order).
//!
//! The inode to be removed or replaced is known only from a look-up without locks. So the caller looks up
//! again under the locks, and starts over if the answer has changed.

use crate::names::table::{Locked, Whole, lock, lock_whole};
use crate::state::core::Core;
use crate::state::inode::InodeRef;
use crate::state::lease;
use heddle_vfs::{Error, Result};

/// The place of a name: its directory and hash, which give its bucket.
#[derive(Clone, Copy)]
pub struct NamePlace<'c> {
    /// The directory.
    pub dir: InodeRef<'c>,
    /// Hash of the name.
    pub hash: u64,
}

/// The locks of one operation.
pub struct Locks<'c> {
    /// If both places are in one bucket, only the first is locked.
    places: [Option<Locked<'c>>; 2],
    /// The directory that is to be removed, locked as a whole.
    pub victim: Option<Whole<'c>>,
}

impl<'c> Locks<'c> {
    /// Locks one or two places, and a directory that is to be removed. Returns `None` if that directory is
    /// dead already.
    ///
    /// # Errors
    /// [`Error::NotFound`] if a place's directory is dead; [`Error::WouldDeadlock`] in a signal handler, if the interrupted call may hold
    /// one of the locks.
    pub fn take(
        core: &'c Core,
        one: NamePlace<'c>,
        other: Option<NamePlace<'c>>,
        victim: Option<InodeRef<'c>>,
    ) -> Result<Option<Locks<'c>>> {
        let mut places = [Some(one), other];
        if other.is_some_and(|other| (other.dir.ino, other.hash) < (one.dir.ino, one.hash)) {
            places.swap(0, 1);
        }
        // No bucket is held here. A call that starts over may meet other directories each time, and the intent has room for few.
        lease::with_current(|core, lane| core.lane(lane).intent.forget_dirs());
        let mut locks = Locks { places: [None, None], victim: None };
        let mut victim = victim;
        for (i, at) in places.into_iter().enumerate() {
            let Some(at) = at else { continue };
            if let Some(dir) = victim.take_if(|victim| victim.ino < at.dir.ino)
                && !locks.take_victim(core, dir)?
            {
                return Ok(None);
            }
            if locks.index(at).is_none() {
                locks.places[i] = Some(lock(core, at.dir, at.hash)?);
            }
        }
        match victim {
            Some(dir) if !locks.take_victim(core, dir)? => Ok(None),
            _ => Ok(Some(locks)),
        }
    }

    fn take_victim(&mut self, core: &'c Core, dir: InodeRef<'c>) -> Result<bool> {
        match lock_whole(core, dir) {
            Ok(whole) => self.victim = Some(whole),
            Err(Error::NotFound) => return Ok(false),
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    fn index(&self, at: NamePlace<'_>) -> Option<usize> {
        self.places.iter().position(|place| place.as_ref().is_some_and(|place| place.covers(at.dir, at.hash)))
    }

    /// The locked bucket of one of the places.
    ///
    /// # Errors
    /// [`Error::Stale`] if `take` did not lock that place.
    pub fn at(&mut self, at: NamePlace<'_>) -> Result<&mut Locked<'c>> {
        let index = self.index(at).ok_or(Error::Stale)?;
        self.places[index].as_mut().ok_or(Error::Stale)
    }
}
