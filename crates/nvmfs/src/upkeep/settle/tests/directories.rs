//! Directories that the dead were changing: attributes that are durable count, and what comes after them counts more.

use super::super::sweep;
use super::*;
use crate::alloc::{Purpose, take_block};
use crate::log::chain;
use crate::names::locks::{Locks, NamePlace};
use crate::names::{in_place_removal, life};
use crate::volume::bench::child;
use heddle_vfs::short::Short;
use heddle_vfs::{SetXattr, XattrName};

fn attribute() -> XattrName<'static> {
    XattrName::new(b"user.a").unwrap()
}

fn chmod(fs: &NvmFs, dir: Ino, perm: u16) {
    let set = SetAttr { perm: Some(perm), ..SetAttr::default() };
    fs.setattr(&Cred::root(), dir, None, &set).unwrap();
}

fn set(fs: &NvmFs, dir: Ino, value: &[u8]) {
    fs.setxattr(&Cred::root(), dir, attribute(), value, SetXattr::Any).unwrap();
}

/// Its settler left the count of changes as it was. So the next change had the number of the dead one's, and the next mount took either.
#[test]
fn a_change_of_a_directory_after_that_of_the_dead_stays() {
    let changes: [fn(&NvmFs, Ino, u8); 2] =
        [|fs, dir, n| chmod(fs, dir, 0o700 + u16::from(n)), |fs, dir, n| set(fs, dir, &[n; 3000])];
    let (root, d) = (Cred::root(), Name::new(b"d").unwrap());
    for (which, change) in changes.into_iter().enumerate() {
        for nth in 1.. {
            let Bench { region, volume, file } = bench();
            let fs = volume.fs();
            let dir = fs.new_dir(Ino::ROOT, "d");
            change(&fs, dir, 1);
            let state = |fs: &NvmFs| {
                let value = fs.getxattr(&root, dir, attribute()).ok();
                (fs.getattr(dir).unwrap().perm & 7, value.map(|value| value[0]))
            };
            let died = dies(nth, || change(&fs, dir, 2));
            sweep(&fs.core);
            let found = state(&fs);
            let is = |n: u8| if which == 0 { found.0 == u16::from(n) } else { found.1 == Some(n) };
            assert!(is(1) || is(2), "change {which}, step {nth}: neither before nor after: {found:?}");
            change(&fs, dir, 3);
            let last = state(&fs);
            // What the change before had on media is another file's now.
            while fs.append(&file, &[9; PAGE as usize]).is_ok() {}
            fs.release(file);
            lease::leave(&fs.core);
            drop(fs);
            volume.abandon();
            let volume = mount_again(&region);
            let fs = volume.fs();
            assert_eq!(fs.lookup(&root, Ino::ROOT, d).unwrap().ino, dir);
            assert!(state(&fs) == last, "change {which}, step {nth}: {last:?} is lost");
            lease::leave(&fs.core);
            drop(fs);
            volume.unmount();
            if !died {
                assert!(nth > 2, "it has no steps");
                break;
            }
        }
    }
}

/// A call that starts over meets another directory each time: the fifth was not noted, and stayed locked.
#[test]
fn the_last_directory_that_a_call_locked_is_noted() {
    let bench = bench();
    let fs = bench.volume.fs();
    let core = &fs.core;
    let dirs = ["1", "2", "3", "4", "5"].map(|name| fs.new_dir(Ino::ROOT, name));
    let guard = lease::enter(core).unwrap();
    for dir in dirs {
        let at = NamePlace { dir: core.inode(Ino::ROOT).unwrap(), hash: 0 };
        let victim = core.inode(dir).ok();
        let locks = Locks::take(core, at, None, victim).unwrap().unwrap();
        let noted: Vec<u64> = guard.lane.intent.dirs().collect();
        assert!(noted.contains(&dir.0) && noted.contains(&Ino::ROOT.0), "{dir:?}: {noted:?}");
        drop(locks);
    }
    drop(guard);
    fs.release(bench.file);
    lease::leave(core);
}

/// All chains were in use when the call began, so the lane has none of them: nobody found what it had borrowed.
#[test]
fn chains_that_the_dead_borrowed_are_free_again() {
    let bench = bench();
    let fs = bench.volume.fs();
    let core = &fs.core;
    fs.release(fs.new_file(Ino::ROOT, "g"));
    let dir = core.inode(Ino::ROOT).unwrap();
    // The parent keeps the chains that there are.
    let pid = child(|| {
        let guard = lease::enter(core).unwrap();
        let key = table::key(core, b"g");
        let place = NamePlace { dir, hash: key.hash };
        let mut locks = Locks::take(core, place, None, None).unwrap().unwrap();
        let named = locks.at(place).unwrap().find(key).unwrap().unwrap();
        let records = in_place_removal::find(core, guard.id, dir, b"g", named.version).unwrap().unwrap();
        assert!(!records.is_empty() && chain::existing(core, dir).all(|chain| chain.is_busy_for(guard.id)));
        // SAFETY: ends this process.
        unsafe { libc::_exit(3) };
    });
    assert_eq!(libc::WEXITSTATUS(ended(pid, 0)), 3);
    sweep(core);
    let guard = lease::enter(core).unwrap();
    let free = |chain: &chain::Chain| chain.borrow(guard.id).map(|owner| chain.put_back(owner)).is_some();
    assert!(chain::existing(core, dir).all(free), "a chain is the dead one's for ever");
    while take_block(core.free_map(), &core.region, guard.own, Purpose::Regain).is_some() {}
    drop(guard);
    fs.remove(Ino::ROOT, "g").unwrap();
    fs.release(bench.file);
    lease::leave(core);
}

/// Its name became visible, while nothing could be looked up by it, and its directory could not be emptied.
#[test]
fn a_name_without_an_inode_stays_hidden_from_settlers() {
    let (root, d, n) = (Cred::root(), Name::new(b"d").unwrap(), Name::new(b"n").unwrap());
    for nth in 1.. {
        let Bench { region, volume, file } = bench();
        let fs = volume.fs();
        let made = fs.new_file(fs.new_dir(Ino::ROOT, "d"), "n");
        // So does a power cut leave a creation of which only the name became durable.
        life::zero_slot(&fs.core, fs.core.slot(made.ino).unwrap());
        [made, file].into_iter().for_each(|file| fs.release(file));
        lease::leave(&fs.core);
        drop(fs);
        volume.abandon();
        let volume = mount_again(&region);
        let fs = volume.fs();
        let dir = fs.lookup(&root, Ino::ROOT, d).unwrap().ino;
        let is_absent = || fs.lookup(&root, dir, n).err() == Some(Error::NotFound);
        assert!(is_absent());
        let died = dies(nth, || fs.release(fs.new_file(dir, "m")));
        sweep(&fs.core);
        assert!(is_absent(), "step {nth}: {:?}", fs.lookup(&root, dir, n));
        fs.release(fs.new_file(dir, "n"));
        fs.remove(dir, "n").unwrap();
        let removed = fs.remove(dir, "m");
        assert!(matches!(removed, Ok(()) | Err(Error::NotFound)), "step {nth}: {removed:?}");
        fs.rmdir(&root, Ino::ROOT, d).unwrap();
        assert_eq!(fs.core.damage_found(), None);
        lease::leave(&fs.core);
        drop(fs);
        volume.unmount();
        if !died {
            assert!(nth > 3, "it has no steps");
            break;
        }
    }
}
