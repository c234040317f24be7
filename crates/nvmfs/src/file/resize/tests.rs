//! What a change of attributes logs, takes and leaves alone.

use super::*;
use crate::file::write_heddle::cell_state;
use crate::log::chain;
use crate::variant::Variant;
use crate::volume::bench::Bench;
use heddle_vfs::short::{Short, root};
use heddle_vfs::{FileSystem, Ino, RangeOp, SetXattr, XattrName};

const PAGE: u64 = 4096;

fn name() -> XattrName<'static> {
    XattrName::new(b"user.a").unwrap()
}

#[test]
fn cleaning_logs_attributes_again_at_a_new_change_count() {
    for variant in Variant::ALL {
        let bench = Bench::of(variant);
        let dir = bench.fs.new_dir(Ino::ROOT, "d");
        let core = bench.core();
        for ino in [bench.file.ino, dir] {
            let inode = core.inode(ino).unwrap();
            let counts = || (inode.volatile.change_count(), xattr::change_count(core, inode));
            let again = || log_attributes_again(core, &mut bench.guard(), inode, Eof::NotHeld);
            let before = counts().0;
            assert_eq!(again(), Ok(()), "{variant:?}");
            assert_eq!(counts(), (before + 1, None), "{variant:?}");
            bench.fs.setxattr(&root(), ino, name(), b"1", SetXattr::Any).unwrap();
            assert_eq!(counts(), (before + 2, Some(before + 2)), "{variant:?}");
            assert_eq!(again(), Ok(()), "{variant:?}");
            assert_eq!(counts(), (before + 3, Some(before + 3)), "{variant:?}");
            let logged = inode.volatile.attributes_change_count.load(Relaxed);
            assert_eq!(logged, before + 3, "{variant:?}");
        }
        let bench = bench.mounted_again();
        for ino in [bench.file.ino, dir] {
            assert_eq!(bench.fs.getxattr(&root(), ino, name()).as_deref(), Ok(&b"1"[..]), "{variant:?}");
        }
    }
}

#[test]
fn who_moves_the_end_of_a_file_is_not_waited_for() {
    let bench = Bench::new();
    let inode = bench.inode();
    assert!(matches!(Eof::Held.try_hold(inode), Some(None)));
    let held = Eof::NotHeld.try_hold(inode);
    assert!(matches!(held, Some(Some(_))) && inode.volatile.eof.is_held());
    assert!(Eof::NotHeld.try_hold(inode).is_none());
    let before = inode.volatile.change_count();
    assert_eq!(log_attributes_again(bench.core(), &mut bench.guard(), inode, Eof::NotHeld), Ok(()));
    assert_eq!(inode.volatile.change_count(), before, "another caller does it");
    drop(held);
    assert!(!inode.volatile.eof.is_held());
}

/// The log of the file has no room, and no block is left but for changes that free one.
#[test]
fn only_a_clearing_that_frees_a_block_takes_one_of_the_last() {
    let bench = Bench::new();
    let (core, inode) = (bench.core(), bench.inode());
    bench.write(0, 1, PAGE);
    let slot = || chain::existing(core, inode).next().unwrap().tail().1;
    while slot() <= 58 {
        bench.write(0, 2, 10);
    }
    let guard = bench.guard();
    while take_block(core.free_map(), &core.region, guard.own, Purpose::Free).is_some() {}
    drop(guard);
    let punch = |page: u64| bench.fs.fallocate(&bench.file, RangeOp::Punch, page * PAGE, PAGE);
    assert_eq!([punch(5), punch(0)], [Err(Error::NoSpace), Ok(())]);
    assert_eq!(bench.read(0, PAGE), vec![0; PAGE as usize]);
}

#[test]
fn a_truncation_to_the_same_size_copies_no_page() {
    let bench = Bench::new();
    bench.write(0, 1, PAGE + 100);
    let state = || [0, 1].map(|page| cell_state(bench.core(), bench.inode(), PageNo(page)));
    let before = state();
    bench.fs.resize(&bench.file, PAGE + 100).unwrap();
    assert_eq!(state(), before);
}

#[test]
fn only_a_truncation_covers_all_later_pages() {
    let bench = Bench::new();
    bench.write(0, 1, 20 * PAGE);
    let inode = bench.inode();
    let covers = |page| inode.volatile.is_covered_later(PageNo(page), Version(0));
    bench.fs.fallocate(&bench.file, RangeOp::Punch, PAGE, PAGE).unwrap();
    bench.fs.fallocate(&bench.file, RangeOp::Zero { keep_size: true }, 2 * PAGE, 4 * PAGE).unwrap();
    assert!(!covers(19));
    let version = cell_state(bench.core(), inode, PageNo(1)).1;
    assert!(inode.volatile.floor() >= version, "a page without a cell gets a later version");
    bench.fs.resize(&bench.file, 4 * PAGE + 1).unwrap();
    assert_eq!([4, 5, 19, 1 << 30].map(covers), [false, true, true, true]);
}
