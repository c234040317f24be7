//! Allocated ranges: writes find their space there, zeroing keeps them, and a truncation takes those beyond the end.

mod common;

use common::{Disk, Short, each_variant, root};
use heddle_nvmfs::NvmFs;
use heddle_vfs::{Error, FileSystem, Handle, Ino, OpenFlags, RangeOp};
use std::sync::Barrier;

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;

/// Pages that a file has blocks for.
fn allocated(fs: &NvmFs, handle: &Handle) -> u64 {
    fs.getattr(handle.ino).unwrap().blocks_512 / (PAGE / 512)
}

const KEEP: RangeOp = RangeOp::Allocate { keep_size: true };

#[test]
fn zeroing_a_range_keeps_its_blocks_and_allocates_its_holes() {
    each_variant(|variant| {
        let disk = Disk::new(variant, 16 * MIB);
        let volume = disk.mount();
        let fs = volume.fs();
        let handle = fs.new_file(Ino::ROOT, "f");
        // Every third page is a hole, and no two that are not lie side by side: more runs than fit one transaction.
        let pages = 300;
        for n in (0..pages).filter(|n| n % 3 != 2).rev() {
            fs.write(&handle, n * PAGE, &[7; PAGE as usize]).unwrap();
        }
        let (start, len) = (PAGE / 2, (pages - 1) * PAGE);
        fs.fallocate(&handle, RangeOp::Zero { keep_size: false }, start, len).unwrap();
        let good = |fs: &NvmFs, handle: &Handle, what: &str| {
            assert_eq!(allocated(fs, handle), pages, "{variant:?}, {what}");
            assert_eq!(fs.size(handle), (pages - 1) * PAGE + PAGE / 2, "{variant:?}, {what}");
            let mut expected = vec![0; fs.size(handle) as usize];
            expected[..start as usize].fill(7);
            assert!(fs.read_vec(handle, 0, expected.len()) == expected, "{variant:?}, {what}");
        };
        good(&fs, &handle, "at once");
        fs.release(handle);
        drop(fs);
        volume.abandon();
        common::sound(disk.region()).unwrap();
        let volume = disk.mount();
        let fs = volume.fs();
        let handle = fs.open_file(Ino::ROOT, "f");
        good(&fs, &handle, "after a remount");
        fs.write(&handle, 3 * PAGE, &[1; 2 * PAGE as usize]).unwrap();
        assert_eq!(fs.read_vec(&handle, 4 * PAGE, 2 * PAGE as usize)[PAGE as usize - 1..][..2], [1, 0]);
        fs.fallocate(&handle, RangeOp::Zero { keep_size: true }, 0, (pages + 10) * PAGE).unwrap();
        assert_eq!((allocated(&fs, &handle), fs.size(&handle)), (pages + 10, (pages - 1) * PAGE + PAGE / 2));
        fs.release(handle);
        drop(fs);
        volume.unmount();
        common::sound(disk.region()).unwrap();
    });
}

#[test]
fn blocks_beyond_the_end_go_with_a_truncation_to_the_same_size() {
    each_variant(|variant| {
        let disk = Disk::new(variant, 8 * MIB);
        let mut volume = disk.mount();
        for size in [0, 10, PAGE, PAGE + 1] {
            let fs = volume.fs();
            let handle = fs.new_file(Ino::ROOT, "f");
            fs.write(&handle, 0, &vec![7; size as usize]).unwrap();
            let held = size.div_ceil(PAGE);
            let allocate = || {
                fs.fallocate(&handle, KEEP, 0, 64 * PAGE).unwrap();
                assert_eq!(allocated(&fs, &handle), 64, "{variant:?}, {size}");
            };
            allocate();
            fs.resize(&handle, size + 1).unwrap();
            assert_eq!(allocated(&fs, &handle), 64, "{variant:?}, {size}: a file that grows keeps them");
            fs.resize(&handle, size).unwrap();
            assert_eq!(allocated(&fs, &handle), held, "{variant:?}, {size}: cut by a byte");
            allocate();
            fs.resize(&handle, size).unwrap();
            assert_eq!(allocated(&fs, &handle), held, "{variant:?}, {size}: truncated to its size");
            assert_eq!(fs.read_vec(&handle, 0, 2 * PAGE as usize), vec![7; size as usize], "{variant:?}");
            let ino = handle.ino;
            allocate();
            let truncating = OpenFlags { truncate: true, ..OpenFlags::READ_WRITE };
            fs.release(fs.open(&root(), ino, truncating).unwrap());
            assert_eq!((allocated(&fs, &handle), fs.size(&handle)), (0, 0), "{variant:?}, {size}: O_TRUNC");
            fs.release(handle);
            drop(fs);
            volume.abandon();
            volume = disk.mount();
            let fs = volume.fs();
            assert_eq!(fs.find(Ino::ROOT, "f").unwrap().blocks_512, 0, "{variant:?}, {size}: after a mount");
            fs.remove(Ino::ROOT, "f").unwrap();
        }
        volume.unmount();
        common::sound(disk.region()).unwrap();
    });
}

/// Writes pages to the end of a new file until there is no space.
fn fill(fs: &NvmFs) {
    let handle = fs.new_file(Ino::ROOT, "rest");
    for piece in [vec![1; 16 * PAGE as usize], vec![1; PAGE as usize], vec![1]] {
        let error = (0..).find_map(|_| fs.append(&handle, &piece).err()).unwrap();
        assert!(matches!(error, Error::NoSpace), "{error:?}");
    }
    fs.release(handle);
}

#[test]
fn writes_into_allocated_space_and_over_data_succeed_on_a_full_image() {
    each_variant(|variant| {
        let disk = Disk::new(variant, 16 * MIB);
        let volume = disk.mount();
        let fs = volume.fs();
        let len = 4 * MIB;
        let handle = fs.new_file(Ino::ROOT, "f");
        fs.fallocate(&handle, KEEP, 0, len).unwrap();
        fill(&fs);
        let mut expected = vec![0; len as usize];
        // Into what is allocated, sizes of all kinds; then over the data, twice.
        for (round, step) in [12_345, 2 * PAGE, 32 * PAGE].into_iter().enumerate() {
            let value = round as u8 + 1;
            for start in (0..len).step_by(step as usize) {
                let end = (start + step).min(len);
                let bytes = vec![value; (end - start) as usize];
                let wrote = fs.write(&handle, start, &bytes);
                assert_eq!(wrote, Ok(bytes.len()), "{variant:?}, {step} bytes at {start}");
            }
            expected.fill(value);
            assert!(fs.read_vec(&handle, 0, len as usize) == expected, "{variant:?}, {step}");
        }
        // What has its blocks takes none.
        for start in [0, PAGE, len - PAGE] {
            assert_eq!(fs.fallocate(&handle, KEEP, start, len - start), Ok(()), "{variant:?}, {start}");
        }
        let before = fs.read_vec(&handle, 0, len as usize);
        let beyond = fs.write(&handle, len - PAGE, &[9; 3 * PAGE as usize]);
        assert_eq!(beyond, Err(Error::NoSpace), "{variant:?}: pages without blocks");
        assert!(
            fs.read_vec(&handle, 0, len as usize) == before,
            "{variant:?}: a write that failed changed data"
        );
        fs.release(handle);
        drop(fs);
        volume.abandon();
        common::sound(disk.region()).unwrap();
        let volume = disk.mount();
        let fs = volume.fs();
        let handle = fs.open_file(Ino::ROOT, "f");
        assert!(fs.read_vec(&handle, 0, len as usize) == expected, "{variant:?}, after a remount");
        fs.release(handle);
    });
}

/// A log page was asked for before a hole was looked for.
#[test]
fn zeroing_and_allocating_what_has_blocks_succeeds_on_a_full_image() {
    each_variant(|variant| {
        let disk = Disk::new(variant, 8 * MIB);
        let volume = disk.mount();
        let fs = volume.fs();
        let handle = fs.new_file(Ino::ROOT, "f");
        let pages = 64;
        fs.write(&handle, 0, &vec![1; (pages * PAGE) as usize]).unwrap();
        fill(&fs);
        // More calls than a log page has slots, whole pages and parts of pages.
        for round in 0..40 * pages {
            let (start, len) =
                (round % pages * PAGE, PAGE.min((pages - round % pages - 1) * PAGE) + 1 + round % PAGE);
            let len = len.min(pages * PAGE - start);
            for op in [KEEP, RangeOp::Zero { keep_size: round % 2 == 0 }] {
                let done = fs.fallocate(&handle, op, start, len);
                assert_eq!(done, Ok(()), "{variant:?}, round {round}: {op:?}, {len} bytes at {start}");
            }
            assert_eq!(fs.read_vec(&handle, start, len as usize), vec![0; len as usize], "{variant:?}");
            assert_eq!(
                fs.write(&handle, start, &[1; PAGE as usize]),
                Ok(PAGE as usize),
                "{variant:?}, round {round}"
            );
        }
        assert_eq!(allocated(&fs, &handle), pages, "{variant:?}");
        fs.release(handle);
        drop(fs);
        volume.abandon();
        common::sound(disk.region()).unwrap();
    });
}

/// It takes a block to list the pages that move: what frees no more than that could use the reserve up.
#[test]
fn on_a_full_image_a_collapse_must_free_more_than_it_takes() {
    each_variant(|variant| {
        let disk = Disk::new(variant, 8 * MIB);
        let volume = disk.mount();
        let fs = volume.fs();
        let handle = fs.new_file(Ino::ROOT, "f");
        for page in 0..8 {
            fs.write(&handle, page * PAGE, &[page as u8 + 1; PAGE as usize]).unwrap();
        }
        fill(&fs);
        let refused = fs.fallocate(&handle, RangeOp::Collapse, PAGE, PAGE);
        assert_eq!(refused, Err(Error::NoSpace), "{variant:?}: a block for a block");
        assert_eq!(fs.size(&handle), 8 * PAGE, "{variant:?}");
        assert_eq!(fs.fallocate(&handle, RangeOp::Collapse, PAGE, 2 * PAGE), Ok(()), "{variant:?}");
        assert_eq!(fs.read_vec(&handle, PAGE, 1), [4], "{variant:?}");
        fs.release(handle);
    });
}

/// Small writes leave a record each, and large ones go by pages.
#[test]
fn writes_over_a_third_of_a_full_image_find_log_space() {
    each_variant(|variant| {
        let disk = Disk::new(variant, 16 * MIB);
        let volume = disk.mount();
        let fs = volume.fs();
        let len = 6 * MIB;
        let handle = fs.new_file(Ino::ROOT, "f");
        fs.fallocate(&handle, KEEP, 0, len).unwrap();
        fill(&fs);
        let mut random = heddle_vfs::testkit::Random::new(7);
        let mut expected = vec![0; len as usize];
        fs.write(&handle, 0, &expected).unwrap();
        for n in 0..8000u64 {
            let most = if n % 1000 == 999 { len } else { 3 * PAGE };
            let start = random.below(len);
            let end = (start + 1 + random.below(most)).min(len);
            let bytes = vec![n as u8; (end - start) as usize];
            let wrote = fs.write(&handle, start, &bytes);
            assert_eq!(wrote, Ok(bytes.len()), "{variant:?}, {n}: {} bytes at {start}", bytes.len());
            expected[start as usize..end as usize].fill(n as u8);
        }
        assert!(fs.read_vec(&handle, 0, len as usize) == expected, "{variant:?}");
        fs.release(handle);
        drop(fs);
        volume.abandon();
        common::sound(disk.region()).unwrap();
        let volume = disk.mount();
        let fs = volume.fs();
        let handle = fs.open_file(Ino::ROOT, "f");
        assert!(fs.read_vec(&handle, 0, len as usize) == expected, "{variant:?}, after a remount");
        fs.release(handle);
    });
}

/// Each page by itself, in no order: a record for each is alive in the end.
#[test]
fn each_page_of_a_file_that_fills_its_image_can_be_overwritten() {
    each_variant(|variant| {
        let disk = Disk::new(variant, 16 * MIB);
        let volume = disk.mount();
        let fs = volume.fs();
        let handle = fs.new_file(Ino::ROOT, "f");
        let mut pages = 16 * MIB / PAGE;
        while fs.fallocate(&handle, KEEP, 0, pages * PAGE).is_err() {
            pages -= 1;
        }
        fill(&fs);
        let mut random = heddle_vfs::testkit::Random::new(11);
        let mut order: Vec<u64> = (0..pages).collect();
        for round in 1..=3u8 {
            (1..order.len()).rev().for_each(|n| order.swap(n, random.below(n as u64 + 1) as usize));
            for page in &order {
                let wrote = fs.write(&handle, page * PAGE, &[round; PAGE as usize]);
                assert_eq!(wrote, Ok(PAGE as usize), "{variant:?}, round {round}: page {page} of {pages}");
            }
        }
        assert!(
            fs.read_vec(&handle, 0, (pages * PAGE) as usize).iter().all(|byte| *byte == 3),
            "{variant:?}"
        );
        fs.release(handle);
        drop(fs);
        volume.abandon();
        common::sound(disk.region()).unwrap();
    });
}

/// Its log has room for no page more than the records need: the last ones have to be moved.
#[test]
fn pages_of_a_full_small_image_can_be_overwritten_again_and_again() {
    overwrites_a_full_image(4 * MIB, 1, 3);
}

/// Each has a chain of its own, with a last page that is not full.
#[test]
fn several_threads_can_overwrite_each_page_of_a_full_image() {
    overwrites_a_full_image(16 * MIB, 4, 6);
}

/// Every thread overwrites its own pages at random, one at a time.
fn overwrites_a_full_image(bytes: u64, threads: u64, rounds: u8) {
    each_variant(|variant| {
        let disk = Disk::new(variant, bytes);
        let volume = disk.mount();
        let fs = volume.fs();
        let handle = fs.new_file(Ino::ROOT, "f");
        let pages = filled(&fs, &handle);
        let overwrites = |thread: u64| {
            let mut random = heddle_vfs::testkit::Random::new(thread);
            let mut last = vec![FILLED; (pages / threads) as usize];
            for round in 1..=rounds {
                for _ in 0..last.len() {
                    let nth = random.below(last.len() as u64);
                    let page = nth * threads + thread;
                    let wrote = fs.write(&handle, page * PAGE, &[round; PAGE as usize]);
                    assert_eq!(
                        wrote,
                        Ok(PAGE as usize),
                        "{variant:?}, round {round}: page {page} of {pages}"
                    );
                    last[nth as usize] = round;
                }
            }
            last
        };
        // Readers would keep replaced blocks, so that others find no space: they come later.
        let written: Vec<Vec<u8>> = std::thread::scope(|scope| {
            let overwrites = &overwrites;
            let others: Vec<_> = (1..threads).map(|thread| scope.spawn(move || overwrites(thread))).collect();
            let own = overwrites(0);
            std::iter::once(own).chain(others.into_iter().map(|other| other.join().unwrap())).collect()
        });
        for (thread, last) in (0..).zip(written) {
            for (nth, byte) in (0..).zip(last) {
                let page = nth * threads + thread;
                let read = fs.read_vec(&handle, page * PAGE, PAGE as usize);
                assert_eq!(read, [byte; PAGE as usize], "{variant:?}: page {page}");
            }
        }
        fs.release(handle);
        drop(fs);
        volume.abandon();
        common::sound(disk.region()).unwrap();
    });
}

/// What [`filled`] writes.
const FILLED: u8 = 99;

/// Fills the image by large writes to the file, then small ones. Returns the file's pages.
fn filled(fs: &impl FileSystem, handle: &heddle_vfs::Handle) -> u64 {
    let mut size = 0;
    for len in [64 * PAGE, PAGE] {
        while let Ok(wrote) = fs.write(handle, size, &vec![FILLED; len as usize]) {
            size += wrote as u64;
        }
    }
    size / PAGE
}

/// The tombstone lies in another chain than the write that it covers, and its own chain is cleaned.
#[test]
fn a_hole_stays_one_when_the_log_that_made_it_is_cleaned() {
    each_variant(|variant| {
        let disk = Disk::new(variant, 16 * MIB);
        let volume = disk.mount();
        let fs = volume.fs();
        let handle = fs.new_file(Ino::ROOT, "f");
        let [written, cleaned] = [(); 2].map(|()| Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                fs.write(&handle, 0, &[1; 2 * PAGE as usize]).unwrap();
                written.wait();
                // Its lane, and so its chain, stays its own until it ends.
                cleaned.wait();
            });
            scope.spawn(|| {
                written.wait();
                fs.fallocate(&handle, RangeOp::Punch, 0, PAGE).unwrap();
                for round in 0..1000u32 {
                    fs.write(&handle, 5 * PAGE, &[round as u8; PAGE as usize]).unwrap();
                }
                cleaned.wait();
            });
        });
        fs.release(handle);
        drop(fs);
        volume.abandon();
        let volume = disk.mount();
        let fs = volume.fs();
        let handle = fs.open_file(Ino::ROOT, "f");
        let firsts = [0, 1, 5].map(|page| fs.read_vec(&handle, page * PAGE, 1)[0]);
        assert_eq!(firsts, [0, 1, 231], "{variant:?}");
        fs.release(handle);
    });
}

#[test]
fn an_allocation_up_to_the_end_takes_no_block_beyond_it() {
    each_variant(|variant| {
        let volume = Disk::new(variant, 8 * MIB).mount();
        let fs = volume.fs();
        let handle = fs.new_file(Ino::ROOT, "f");
        fs.write(&handle, 0, &[7; 2 * PAGE as usize]).unwrap();
        fs.fallocate(&handle, KEEP, 0, 8 * PAGE).unwrap();
        for op in [RangeOp::Allocate { keep_size: false }, RangeOp::Zero { keep_size: false }] {
            fs.fallocate(&handle, op, PAGE, PAGE).unwrap();
            assert_eq!((allocated(&fs, &handle), fs.size(&handle)), (8, 2 * PAGE), "{variant:?}, {op:?}");
        }
        fs.release(handle);
    });
}

/// The record of the write that made the last page is dead then, and its log page is cleaned away.
#[test]
fn a_hole_in_the_last_page_keeps_the_size_through_cleaning() {
    each_variant(|variant| {
        for size in [PAGE + 2, PAGE + 700, 2 * PAGE - 1] {
            let disk = Disk::new(variant, 8 * MIB);
            let volume = disk.mount();
            let fs = volume.fs();
            let handle = fs.new_file(Ino::ROOT, "f");
            let overwrite = |times: u32| {
                (0..times).for_each(|_| _ = fs.write(&handle, 0, &[9; PAGE as usize]).unwrap());
            };
            fs.write(&handle, 0, &vec![7; size as usize]).unwrap();
            // More than a log page has records.
            overwrite(70);
            fs.fallocate(&handle, RangeOp::Punch, PAGE, 1).unwrap();
            overwrite(200);
            fs.release(handle);
            drop(fs);
            volume.abandon();
            let volume = disk.mount();
            let fs = volume.fs();
            let handle = fs.open_file(Ino::ROOT, "f");
            let mut wanted = vec![7; size as usize];
            wanted[..PAGE as usize].fill(9);
            wanted[PAGE as usize] = 0;
            assert_eq!(fs.size(&handle), size, "{variant:?}");
            assert!(fs.read_vec(&handle, 0, 3 * PAGE as usize) == wanted, "{variant:?}, {size} bytes");
            fs.release(handle);
        }
    });
}
