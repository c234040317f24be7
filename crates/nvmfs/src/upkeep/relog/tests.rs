use super::*;
use crate::fs::NvmFs;
use crate::state::lease;
use crate::variant::Variant;
use crate::volume::{MountOptions, format, mount};
use heddle_pmem::Region;
use heddle_vfs::{Cred, FileSystem, Handle, Ino, Name, OpenFlags, RangeOp};

const PAGE: u64 = 4096;

fn write(fs: &NvmFs, file: &Handle, pages: std::ops::Range<u64>) {
    pages.for_each(|page| assert_eq!(fs.write(file, page * PAGE, &[1; PAGE as usize]), Ok(PAGE as usize)));
}

/// The living records in the first page of the file's second chain.
fn second_chain(fs: &NvmFs, file: &Handle) -> Alive {
    let inode = fs.core.inode(file.ino).unwrap();
    let _inside = lease::enter(&fs.core).unwrap();
    let chain = chain::existing(&fs.core, inode).nth(1).unwrap();
    let alive = read_page(&fs.core, inode, chain.head().unwrap(), chain).unwrap();
    lease::leave(&fs.core);
    alive
}

/// A file whose first pages are written; a punch is alone in its second chain, and the first has older records.
fn punched(written: u64, pages: u64, and_then: impl FnOnce(&NvmFs, &Handle)) {
    let region = Region::anonymous(8 << 20).unwrap();
    format(&region, Variant::Heddle).unwrap();
    let volume = mount(region, &MountOptions { arena_bytes: 64 << 20, ..MountOptions::default() }).unwrap();
    let fs = volume.fs();
    let name = Name::new(b"f").unwrap();
    let (_, file) = fs.create(&Cred::root(), Ino::ROOT, name, 0o644, OpenFlags::READ_WRITE).unwrap();
    write(&fs, &file, 0..written);
    let punch = || fs.fallocate(&file, RangeOp::Punch, 0, pages * PAGE).unwrap();
    std::thread::scope(|scope| scope.spawn(punch).join().unwrap());
    and_then(&fs, &file);
    fs.release(file);
}

/// It was: a write that made the range too large to look at, while its page was moved, had the page freed.
#[test]
fn a_punch_that_cannot_be_moved_keeps_its_page() {
    punched(64, 1 << 20, |fs, file| {
        let found = second_chain(fs, file);
        assert!(found.movable && !found.only_verbatim() && found.punch_runs == 1);
        write(fs, file, 62..70);
        let again = second_chain(fs, file);
        assert!(!again.movable && again.punches.is_empty() && !again.only_verbatim());
    });
}

#[test]
fn a_punch_is_dead_when_all_its_pages_are_written_again() {
    punched(64, 60, |fs, file| {
        write(fs, file, 0..59);
        let found = second_chain(fs, file);
        assert_eq!(
            found.punches.iter().map(|(_, runs)| runs.clone()).collect::<Vec<_>>(),
            [[(PageNo(59), PageNo(60))]]
        );
        write(fs, file, 59..60);
        assert!(second_chain(fs, file).only_verbatim());
    });
}

#[test]
fn pages_that_come_later_are_not_decided_by_a_punch() {
    punched(4, 1 << 20, |fs, file| {
        // Page 5 gets a cell, and so do its neighbours.
        write(fs, file, 5..6);
        assert_eq!(second_chain(fs, file).punch_runs, 1, "pages 0 to 3");
        write(fs, file, 0..4);
        assert!(second_chain(fs, file).only_verbatim());
    });
}
