//! Many threads in one file and one directory: nothing is lost, nothing old comes back, everything ends.

mod common;

use common::{Disk, Short, each_variant, fresh, root};
use heddle_nvmfs::{NvmFs, Variant};
use heddle_vfs::testkit::crowd::{
    THREADS, copies_are_one_read_and_one_write, one_wins_each_name, records_are_there, together,
    write_records, writes_are_seen,
};
use heddle_vfs::testkit::{FsFile, Tree, appenders};
use heddle_vfs::{Cookie, Error, FileSystem, Handle, Ino, OpenFlags, RangeOp, SetAttr, Time};
use std::collections::BTreeSet;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;

/// Runs `disturb` in threads of their own until `work` has returned.
fn disturbed_by(disturb: &[&(dyn Fn(u64) + Sync)], work: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for disturb in disturb {
            let stop = &stop;
            scope.spawn(move || {
                let mut round = 0;
                while !stop.load(SeqCst) {
                    disturb(round);
                    round += 1;
                }
            });
        }
        // Stops them also when `work` panics.
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, SeqCst);
            }
        }
        let _stop = Stop(&stop);
        work();
    });
}

#[test]
fn appends_never_overlap_nor_get_lost() {
    each_variant(|variant| {
        let disk = Disk::new(variant, 64 * MIB);
        let volume = disk.mount();
        let fs = volume.fs();
        let open = || FsFile::open(&fs, "/log", libc::O_RDWR | libc::O_CREAT);
        let reader = open().unwrap();
        let report = appenders::check(THREADS as u32, 400, &|| Ok(Box::new(open()?)), &reader).unwrap();
        assert!(report.is_clean() && report.records == THREADS * 400, "{variant:?}: {report:?}");
    });
}

#[test]
fn appended_files_are_the_same_after_a_remount() {
    each_variant(|variant| {
        let disk = Disk::new(variant, 64 * MIB);
        let volume = disk.mount();
        let fs = volume.fs();
        fs.release(fs.new_file(Ino::ROOT, "log"));
        together(|number| {
            let handle = fs.open_file(Ino::ROOT, "log");
            (0..300).for_each(|i| {
                fs.append(&handle, &vec![number as u8 + 1; 100 + i * 17 % 5000]).unwrap();
            });
            fs.release(handle);
        });
        let before = Tree::of(&fs).unwrap();
        drop(fs);
        volume.abandon();
        let after = Tree::of(&disk.mount().fs()).unwrap();
        assert_eq!(after.difference(&before), None, "{variant:?}");
    });
}

#[test]
fn concurrent_extending_writes_all_stay() {
    each_variant(|variant| {
        let disk = Disk::new(variant, 64 * MIB);
        let volume = disk.mount();
        write_records(&volume.fs());
        records_are_there(&volume.fs(), "before the remount");
        volume.abandon();
        records_are_there(&disk.mount().fs(), "after the remount");
    });
}

/// Writers fill the file with ones; the truncater cuts it. Whatever is read is a one, or a zero after a cut.
#[test]
fn truncation_against_writers_leaves_size_and_content_agreeing() {
    each_variant(|variant| {
        let disk = Disk::new(variant, 64 * MIB);
        let volume = disk.mount();
        let fs = volume.fs();
        let handle = fs.new_file(Ino::ROOT, "f");
        let write = |round: u64| {
            fs.write(&handle, round % 7 * 3000, &[1; 9000]).unwrap();
        };
        let read = |_| {
            let bytes = fs.read_vec(&handle, 0, 40_000);
            assert!(bytes.iter().all(|b| *b <= 1), "{variant:?}: a byte that nobody wrote");
        };
        disturbed_by(&[&write, &read], || {
            for round in 0..1500u64 {
                // A cut and a growth in one thread: nobody else grows the file beyond 27,000.
                fs.resize(&handle, round * 37 % 5000).unwrap();
                if round % 3 == 0 {
                    fs.resize(&handle, 100_000).unwrap();
                    let tail = fs.read_vec(&handle, 28_000, 100_000);
                    assert_eq!(tail.len(), 72_000, "{variant:?}: the file was grown to 100,000");
                    assert!(tail.iter().all(|b| *b == 0), "{variant:?}: bytes that were cut off came back");
                }
            }
        });
        let before = Tree::of(&fs).unwrap();
        fs.release(handle);
        drop(fs);
        volume.abandon();
        let after = Tree::of(&disk.mount().fs()).unwrap();
        assert_eq!(after.difference(&before), None, "{variant:?}");
    });
}

/// A truncation that returned is seen by everyone, and a write that returned before it does not outlive it.
#[test]
fn what_was_cut_off_never_comes_back() {
    each_variant(|variant| {
        let volume = fresh(variant, 64 * MIB);
        let fs = volume.fs();
        let handle = fs.new_file(Ino::ROOT, "f");
        let inside = |round: u64| {
            // Inside the first page only: it never moves the end beyond what the main thread sets.
            fs.write(&handle, round % 1000, &[9; 64]).unwrap();
        };
        disturbed_by(&[&inside, &inside], || {
            for round in 0..1500u64 {
                let end = 2 * PAGE + round % 3 * PAGE + round % 4000;
                fs.write(&handle, PAGE, &vec![5; (end - PAGE) as usize]).unwrap();
                let cut = PAGE + 1 + round % PAGE;
                fs.resize(&handle, cut).unwrap();
                assert_eq!(fs.size(&handle), cut, "{variant:?}");
                fs.resize(&handle, 6 * PAGE).unwrap();
                let bytes = fs.read_vec(&handle, PAGE, 5 * PAGE as usize);
                let kept = (cut - PAGE) as usize;
                assert!(bytes[..kept].iter().all(|b| *b == 5), "{variant:?}: bytes before the cut are gone");
                assert!(bytes[kept..].iter().all(|b| *b == 0), "{variant:?}: bytes behind the cut are back");
                fs.resize(&handle, PAGE).unwrap();
            }
        });
    });
}

#[test]
fn punching_against_writers_shows_each_page_written_or_empty() {
    each_variant(|variant| {
        let disk = Disk::new(variant, 64 * MIB);
        let volume = disk.mount();
        let fs = volume.fs();
        let handle = fs.new_file(Ino::ROOT, "f");
        const PAGES: u64 = 64;
        fs.resize(&handle, PAGES * PAGE).unwrap();
        let write = |round: u64| {
            let at = round * 7 % (PAGES - 4);
            fs.write(&handle, at * PAGE, &vec![(round % 250) as u8 + 1; 3 * PAGE as usize]).unwrap();
        };
        let read = |round: u64| {
            let bytes = fs.read_vec(&handle, round % PAGES * PAGE, PAGE as usize);
            assert!(bytes.iter().all(|b| *b == bytes[0]), "{variant:?}: half a page");
        };
        disturbed_by(&[&write, &write, &read], || {
            for round in 0..1500u64 {
                let (at, pages) = (round * 11 % PAGES, 1 + round % 16);
                fs.fallocate(&handle, RangeOp::Punch, at * PAGE, pages * PAGE).unwrap();
            }
        });
        // Nobody writes any more: what is punched now is empty.
        fs.fallocate(&handle, RangeOp::Punch, 3 * PAGE, 20 * PAGE).unwrap();
        assert!(fs.read_vec(&handle, 3 * PAGE, 20 * PAGE as usize).iter().all(|b| *b == 0), "{variant:?}");
        assert_eq!(fs.size(&handle), PAGES * PAGE, "{variant:?}: punching keeps the size");
        let before = Tree::of(&fs).unwrap();
        fs.release(handle);
        drop(fs);
        volume.abandon();
        let after = Tree::of(&disk.mount().fs()).unwrap();
        assert_eq!(after.difference(&before), None, "{variant:?}");
    });
}

#[test]
fn a_write_that_returned_is_seen_by_every_later_read() {
    each_variant(|variant| writes_are_seen(&fresh(variant, 64 * MIB).fs()));
}

#[test]
fn a_copy_is_one_read_and_one_write() {
    each_variant(|variant| copies_are_one_read_and_one_write(&fresh(variant, 64 * MIB).fs()));
}

#[test]
fn long_reads_end_whatever_is_overwritten_meanwhile() {
    each_variant(|variant| {
        let volume = fresh(variant, 64 * MIB);
        let fs = volume.fs();
        let handle = fs.new_file(Ino::ROOT, "f");
        fs.write(&handle, 0, &vec![1; 2 * MIB as usize]).unwrap();
        let overwrite = |round: u64| {
            fs.write(&handle, round * 13 % 512 * PAGE, &[(round % 250) as u8 + 1; PAGE as usize]).unwrap();
        };
        disturbed_by(&[&overwrite, &overwrite], || {
            let mut longest = Duration::ZERO;
            for _ in 0..60 {
                let start = Instant::now();
                let bytes = fs.read_vec(&handle, 0, 2 * MIB as usize);
                longest = longest.max(start.elapsed());
                assert!(longest < Duration::from_secs(10), "{variant:?}: a read took {longest:?}");
                let whole = bytes
                    .chunks_exact(PAGE as usize)
                    .all(|page| page.iter().all(|b| *b == page[0] && *b != 0));
                assert!(whole, "{variant:?}: half a page");
            }
            println!("  longest read of 2 MiB against two writers: {longest:?}");
        });
    });
}

fn names_in(fs: &NvmFs, dir: Ino) -> BTreeSet<String> {
    let handle = fs.open(&root(), dir, OpenFlags::READ).unwrap();
    let (mut names, mut count) = (BTreeSet::new(), 0);
    fs.each_entry(&handle, Cookie::default(), &mut |entry| {
        names.insert(String::from_utf8(entry.name.bytes().to_vec()).unwrap());
        count += 1;
        true
    })
    .unwrap();
    fs.release(handle);
    assert_eq!(names.len(), count, "a name is listed twice");
    names
}

#[test]
fn storms_of_names_in_one_directory_leave_exactly_what_was_not_removed() {
    each_variant(|variant| {
        let disk = Disk::new(variant, 64 * MIB);
        let volume = disk.mount();
        let fs = volume.fs();
        let dir = fs.new_dir(Ino::ROOT, "d");
        let kept: Vec<_> = (0..THREADS).map(|_| std::sync::Mutex::new(BTreeSet::new())).collect();
        together(|me| {
            let mut mine = BTreeSet::new();
            for i in 0..600u64 {
                let (text, moved) = (format!("t{me}-{i}"), format!("moved-{me}-{i}"));
                fs.release(fs.new_file(dir, &text));
                match i % 4 {
                    0 => fs.remove(dir, &text).unwrap(),
                    1 => {
                        fs.replace((dir, &text), (dir, &moved)).unwrap();
                        mine.insert(moved);
                    }
                    2 => {
                        // One name that all threads fight over.
                        fs.replace((dir, &text), (dir, "common")).unwrap();
                    }
                    _ => {
                        mine.insert(text);
                    }
                }
            }
            *kept[me as usize].lock().unwrap() = mine;
        });
        let mut wanted: BTreeSet<String> = kept.iter().flat_map(|k| k.lock().unwrap().clone()).collect();
        wanted.insert("common".into());
        assert_eq!(names_in(&fs, dir), wanted, "{variant:?}");
        drop(fs);
        volume.abandon();
        let volume = disk.mount();
        assert_eq!(names_in(&volume.fs(), dir), wanted, "{variant:?} after a remount");
        assert_eq!(volume.fs().getattr(dir).unwrap().nlink, 2, "{variant:?}");
    });
}

/// One winner a name, whoever tries.
#[test]
fn of_many_that_create_or_remove_one_name_one_succeeds() {
    each_variant(|variant| one_wins_each_name(&fresh(variant, 64 * MIB).fs()));
}

/// Directories are made, moved into each other, and removed by all: in the end the tree is a tree, and can be removed.
#[test]
fn of_two_directories_moved_into_each_other_one_goes() {
    each_variant(|variant| {
        let volume = fresh(variant, 64 * MIB);
        let fs = volume.fs();
        let dirs = ["p", "q"].map(|text| fs.new_dir(Ino::ROOT, text));
        for _ in 0..500 {
            let start = Barrier::new(2);
            let into = |moved: &str, to: Ino| {
                start.wait();
                fs.replace((Ino::ROOT, moved), (to, moved))
            };
            let (first, second) = std::thread::scope(|scope| {
                let other = scope.spawn(|| into("q", dirs[0]));
                (into("p", dirs[1]), other.join().unwrap())
            });
            let (inside, outside, refused) = match (first, second) {
                (Ok(()), Err(error)) => ("p", dirs[1], error),
                (Err(error), Ok(())) => ("q", dirs[0], error),
                both => panic!("{variant:?}: {both:?}"),
            };
            assert!(
                matches!(refused, Error::InvalidArgument(_) | Error::NotFound),
                "{variant:?}: {refused:?}"
            );
            fs.replace((outside, inside), (Ino::ROOT, inside)).unwrap();
        }
    });
}

#[test]
fn moving_directories_against_each_other_keeps_the_tree_a_tree() {
    each_variant(|variant| {
        let disk = Disk::new(variant, 64 * MIB);
        let volume = disk.mount();
        let fs = volume.fs();
        for text in ["a", "b", "c"] {
            fs.new_dir(Ino::ROOT, text);
        }
        together(|me| {
            let expected = [
                Error::NotFound,
                Error::NotEmpty,
                Error::Exists,
                Error::Stale,
                Error::InvalidArgument("a directory cannot be moved into itself"),
                Error::Loop,
            ];
            let dirs = || ["a", "b", "c"].map(|text| fs.find(Ino::ROOT, text).map(|a| a.ino));
            let allow = |done: Result<(), Error>| {
                if let Err(error) = done {
                    assert!(expected.contains(&error), "{variant:?}: {error:?}");
                }
            };
            for i in 0..400u64 {
                let (from, to) = ((me + i) % 3, (me + i * i + 1) % 3);
                let known = dirs();
                let (Ok(from), Ok(to)) = (&known[from as usize], &known[to as usize]) else { continue };
                let text = format!("x{}", i % 5);
                match i % 5 {
                    0 | 1 => allow(fs.try_dir(*from, &text).map(|_| ())),
                    2 => allow(fs.replace((*from, &text), (*to, &text))),
                    3 => allow(match fs.find(*from, "x0") {
                        Ok(inner) => fs.replace((*to, "x1"), (inner.ino, "x1")),
                        Err(error) => Err(error),
                    }),
                    _ => allow(fs.rmdir(&root(), *from, common::name(&text))),
                }
            }
        });
        let before = Tree::of(&fs).unwrap();
        drop(fs);
        volume.abandon();
        let volume = disk.mount();
        let after = Tree::of(&volume.fs()).unwrap();
        assert_eq!(after.difference(&before), None, "{variant:?}");
        common::remove_everything(&volume.fs()).unwrap();
    });
}

#[test]
fn an_unlinked_file_lives_until_its_last_handle_goes() {
    each_variant(|variant| {
        let disk = Disk::new(variant, 64 * MIB);
        let volume = disk.mount();
        let fs = volume.fs();
        let free = || fs.statfs().unwrap().blocks_free;
        fs.release(fs.new_file(Ino::ROOT, "warm"));
        let before = free();
        let handles: Vec<Handle> = (0..8)
            .map(|i| {
                let handle = fs.new_file(Ino::ROOT, "f");
                fs.write(&handle, 0, &vec![i + 1; 40 * PAGE as usize]).unwrap();
                fs.remove(Ino::ROOT, "f").unwrap();
                handle
            })
            .collect();
        let held = before - free();
        assert!(held >= 8 * 40, "{variant:?}: unlinked files keep their blocks while open, {held} are held");
        std::thread::scope(|scope| {
            for (i, handle) in handles.iter().enumerate() {
                let fs = &fs;
                scope.spawn(move || {
                    for round in 0..50u64 {
                        fs.write(handle, round * PAGE, &[i as u8 + 1; PAGE as usize]).unwrap();
                    }
                    let bytes = fs.read_vec(handle, 0, 50 * PAGE as usize);
                    assert!(
                        bytes.len() == 50 * PAGE as usize && bytes.iter().all(|b| *b == i as u8 + 1),
                        "{variant:?}"
                    );
                    assert_eq!(fs.getattr(handle.ino).unwrap().nlink, 0, "{variant:?}");
                });
            }
        });
        handles.into_iter().for_each(|handle| fs.release(handle));
        let left = before.saturating_sub(free());
        assert!(left <= 8, "{variant:?}: {left} blocks of dead files stay taken");
        // One more is open at the power cut: its space is found again.
        let handle = fs.new_file(Ino::ROOT, "g");
        fs.write(&handle, 0, &vec![1; 100 * PAGE as usize]).unwrap();
        fs.remove(Ino::ROOT, "g").unwrap();
        drop(fs);
        volume.abandon();
        let volume = disk.mount();
        let left = before.saturating_sub(volume.fs().statfs().unwrap().blocks_free);
        assert!(left <= 8, "{variant:?}: {left} blocks of a file without a name stay taken after recovery");
    });
}

#[test]
fn files_made_written_and_removed_by_all_threads_leave_no_block_taken() {
    each_variant(|variant| {
        let disk = Disk::new(variant, 64 * MIB);
        let volume = disk.mount();
        let fs = volume.fs();
        let dir = fs.new_dir(Ino::ROOT, "d");
        together(|me| {
            for i in 0..200u64 {
                let text = format!("{me}-{i}");
                let handle = fs.new_file(dir, &text);
                fs.write(&handle, i % 3 * 1000, &vec![7; (i * 331 % 30_000) as usize + 1]).unwrap();
                fs.release(handle);
                // Another thread's file as well as one's own: whoever comes first.
                for other in [me, (me + 1) % THREADS] {
                    if let Err(error) = fs.remove(dir, &format!("{other}-{}", i / 2)) {
                        assert_eq!(error, Error::NotFound, "{variant:?}");
                    }
                }
            }
        });
        common::remove_everything(&fs).unwrap();
        let used = |fs: &NvmFs| fs.statfs().map(|s| s.blocks_total - s.blocks_free).unwrap();
        let live = used(&fs);
        drop(fs);
        volume.unmount();
        let recovered = used(&disk.mount().fs());
        println!("  {live} blocks taken when all is removed, {recovered} after a remount");
        assert!(
            live <= recovered + 40,
            "{variant:?}: {live} blocks taken, {recovered} after a remount: leaked"
        );
        assert!(recovered <= 100, "{variant:?}: {recovered} blocks stay taken");
    });
}

#[test]
fn a_write_after_a_stat_changes_mtime() {
    for variant in [Variant::Heddle, Variant::Nova] {
        let disk = Disk::new(variant, 16 << 20);
        let volume = disk.mount();
        let fs = volume.fs();
        let file = fs.new_file(Ino::ROOT, "f");
        let mut before = fs.getattr(file.ino).unwrap().mtime;
        for round in 0..500u64 {
            // The second write takes the coarse clock, which lags behind the exact one of the first.
            for _ in 0..2 {
                fs.write(&file, 0, &[round as u8 | 1; 100]).unwrap();
            }
            let now = fs.getattr(file.ino).unwrap().mtime;
            assert!(now > before, "{variant:?}: round {round}: {now:?} after {before:?}");
            before = now;
        }
        fs.release(file);
    }
}

#[test]
fn times_never_go_back_whatever_writes_and_changes_at_once() {
    each_variant(|variant| {
        let volume = fresh(variant, 16 << 20);
        let fs = volume.fs();
        let file = fs.new_file(Ino::ROOT, "f");
        fs.write(&file, 0, &[1; 4 * PAGE as usize]).unwrap();
        // A write of a whole page reads the clock long before it shows the time.
        let page_at = |page: u64, round: u64| {
            let written = fs.write(&file, page * PAGE, &[round as u8; PAGE as usize]);
            assert_eq!(written, Ok(PAGE as usize));
        };
        let own_page = |round: u64| page_at(1, round);
        let shared_page = |round: u64| page_at(2 + round % 2, round);
        let change = |round: u64| {
            let set = SetAttr { perm: Some(0o600 | (round as u16 & 0o77)), ..SetAttr::default() };
            fs.setattr(&root(), file.ino, Some(&file), &set).unwrap();
        };
        disturbed_by(&[&own_page, &shared_page, &change], || {
            let until = Instant::now() + Duration::from_millis(300);
            let mut before = (Time(0), Time(0));
            while Instant::now() < until {
                // Two processors run this thread and one writer: so this thread shows the times that a slower writer is behind.
                assert_eq!(fs.write(&file, 100, &[1; 100]), Ok(100));
                for _ in 0..8 {
                    let attr = fs.getattr(file.ino).unwrap();
                    let now = (attr.mtime, attr.ctime);
                    assert!(now.0 >= before.0 && now.1 >= before.1, "{variant:?}: {now:?} after {before:?}");
                    before = now;
                }
            }
        });
        fs.release(file);
    });
}

#[test]
fn a_write_after_a_stat_is_later_beside_other_writers() {
    each_variant(|variant| {
        let volume = fresh(variant, 16 << 20);
        let fs = volume.fs();
        let file = fs.new_file(Ino::ROOT, "f");
        fs.write(&file, 0, &[1; 2 * PAGE as usize]).unwrap();
        let write = |round: u64| assert_eq!(fs.write(&file, PAGE, &[round as u8; 100]), Ok(100));
        disturbed_by(&[&write], || {
            let until = Instant::now() + Duration::from_millis(1_500);
            while Instant::now() < until {
                let before = fs.getattr(file.ino).unwrap().mtime;
                fs.write(&file, 0, &[2; 100]).unwrap();
                let after = fs.getattr(file.ino).unwrap().mtime;
                assert!(after > before, "{variant:?}: {after:?} after {before:?}");
            }
        });
        fs.release(file);
    });
}
