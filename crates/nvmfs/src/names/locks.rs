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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::variant::Variant;
    use crate::volume::{MountOptions, format, mount};
    use heddle_pmem::Region;
    use heddle_vfs::short::Short;
    use heddle_vfs::{FileSystem, Ino};

    /// Two calls that lock the same two places in different orders wait for each other for ever.
    #[test]
    fn places_are_locked_by_directory_and_then_by_hash() {
        let region = Region::anonymous(8 << 20).unwrap();
        format(&region, Variant::Heddle).unwrap();
        let options = MountOptions { arena_bytes: 64 << 20, ..MountOptions::default() };
        let volume = mount(region, &options).unwrap();
        let fs = volume.fs();
        let [first, second] = ["a", "b"].map(|text| fs.new_dir(Ino::ROOT, text));
        // With nine names it has four buckets.
        (0..9).for_each(|n| fs.release(fs.new_file(Ino::ROOT, &format!("{n}"))));
        let core = &fs.core;
        let guard = lease::enter(core).unwrap();
        let at = |ino, hash| NamePlace { dir: core.inode(ino).unwrap(), hash };
        let last = (1 << 63) - 1;
        assert!(Ino::ROOT < first && first < second);
        for [low, high] in [
            [at(Ino::ROOT, 0), at(Ino::ROOT, last)],
            [at(first, last), at(second, 0)],
            [at(Ino::ROOT, last), at(first, 0)],
        ] {
            for (one, other) in [(low, high), (high, low)] {
                let mut locks = Locks::take(core, one, Some(other), None).unwrap().unwrap();
                let covers = |n: usize, at: NamePlace<'_>| {
                    locks.places[n].as_ref().is_some_and(|place| place.covers(at.dir, at.hash))
                };
                let said = [covers(0, low), covers(1, high), covers(0, high), covers(1, low)];
                assert_eq!(said, [true, true, false, false]);
                assert!(locks.at(low).is_ok() && locks.at(high).is_ok());
            }
        }
        let locks = Locks::take(core, at(first, 5), Some(at(first, last)), None).unwrap().unwrap();
        assert!(locks.places[0].is_some() && locks.places[1].is_none(), "both are in one bucket");
        drop(locks);
        let mut locks =
            Locks::take(core, at(Ino::ROOT, 0), None, Some(core.inode(first).unwrap())).unwrap().unwrap();
        assert!(locks.victim.as_ref().is_some_and(|victim| victim.is_empty()));
        locks.victim.take().unwrap().kill();
        drop(locks);
        let dead = Locks::take(core, at(Ino::ROOT, 0), None, Some(core.inode(first).unwrap())).unwrap();
        assert!(dead.is_none(), "the directory is dead already");
        drop(guard);
        volume.abandon();
    }
}
