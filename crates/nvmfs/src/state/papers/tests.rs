//! The papers' locks: when they are made, what they tell, and when their memory comes back.

use super::*;
use crate::state::lease;
use crate::variant::Variant;
use crate::volume::bench::Bench;
use crate::volume::{MountOptions, format};
use heddle_vfs::short::{Short, root};
use heddle_vfs::{FileSystem, Ino, OpenFlags};

const PAGE: u64 = heddle_pmem::BLOCK_BYTES as u64;

#[test]
fn a_range_beyond_the_largest_file_is_no_lack_of_memory() {
    let too_big = heddle_range_lock::Error::TooBig { end_bytes: 2, max_bytes: 1 };
    assert_eq!(lock_error(too_big), Error::FileTooBig);
    assert_eq!(lock_error(heddle_range_lock::Error::Empty), Error::NoMemory);
}

#[test]
fn handles_are_counted_under_a_latch_where_a_close_frees_locks() {
    for variant in Variant::ALL {
        let bench = Bench::of(variant);
        let latch = || bench.inode().volatile.heads.is_held();
        let held = opening(bench.core(), bench.inode());
        assert_eq!((held.is_some(), latch()), (variant.lock().is_some(), variant.lock().is_some()));
        drop(held);
        assert!(!latch());
    }
}

/// Nodes of the tree of segments (SRL paper IV-A).
#[test]
fn the_last_close_frees_the_memory_of_a_files_locks() {
    let Bench { file, fs, volume: _volume, .. } = Bench::of(Variant::NovaTree);
    let ino = file.ino;
    let inode = fs.core.inode(ino).unwrap();
    make_locks(&fs.core, lease::enter(&fs.core).unwrap().own, inode).unwrap();
    let locks = paper_locks(&fs.core, inode).unwrap();
    let lock = fs.core.locks.as_ref().unwrap();
    let bytes = || lock.memory_bytes(&fs.core.arena, &locks.range);
    let before = bytes();
    (0..20).for_each(|n| _ = fs.write(&file, n << 35, &[1; PAGE as usize]).unwrap());
    let grown = bytes();
    assert!(grown > before, "{grown} bytes");
    let other = fs.open(&root(), ino, OpenFlags::READ_WRITE).unwrap();
    fs.release(other);
    assert_eq!(bytes(), grown, "it is open");
    fs.release(file);
    assert_eq!(bytes(), before);
}

#[test]
fn the_wait_for_a_range_is_told_once_a_call() {
    use std::sync::atomic::AtomicU32;
    static TOLD: AtomicU32 = AtomicU32::new(0);
    fn told(_took: Duration) {
        TOLD.fetch_add(1, SeqCst);
    }
    let region = crate::region::Region::anonymous(8 << 20).unwrap();
    format(&region, Variant::NovaInterval).unwrap();
    let options = MountOptions { arena_bytes: 64 << 20, on_lock: Some(told), ..MountOptions::default() };
    let bench = Bench::on(region, &options, |fs| fs.new_file(Ino::ROOT, "file"));
    let before = TOLD.load(SeqCst);
    for n in 0..30 {
        bench.write(0, 1, PAGE);
        assert_eq!(bench.read(0, PAGE).len(), PAGE as usize);
        assert_eq!(TOLD.load(SeqCst), before + 2 * (n + 1));
    }
}
