//! Pages of logs: how many a file takes, and who may write to those that there are.

mod common;

use common::{Disk, Short, each_variant, name, root};
use heddle_nvmfs::NvmFs;
use heddle_vfs::testkit::Tree;
use heddle_vfs::{Error, FileSystem, Handle, Ino, RangeOp};
use std::sync::mpsc::channel;

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;

fn free(fs: &NvmFs) -> u64 {
    fs.statfs().unwrap().blocks_free
}

/// More files than a thread keeps chains for.
#[test]
fn a_thread_that_goes_round_many_files_keeps_their_logs_short() {
    const FILES: u64 = 50;
    each_variant(|variant| {
        let disk = Disk::new(variant, 16 * MIB);
        let volume = disk.mount();
        let fs = volume.fs();
        let files: Vec<Handle> = (0..FILES).map(|n| fs.new_file(Ino::ROOT, &format!("f{n}"))).collect();
        let before = free(&fs);
        for round in 0..50 {
            for file in &files {
                fs.write(file, 0, &[round; PAGE as usize]).unwrap();
            }
        }
        // A file's page and its log, and a few that the thread has at hand.
        let taken = before - free(&fs);
        assert!(taken <= 3 * FILES, "{variant:?}: {taken} blocks for {FILES} files");
        files.into_iter().for_each(|file| fs.release(file));
    });
}

/// The room that another thread has in its log of a directory is not lost when no block is left.
#[test]
fn on_a_full_image_names_go_where_another_threads_log_has_room() {
    each_variant(|variant| {
        let disk = Disk::new(variant, 4 * MIB);
        let volume = disk.mount();
        let fs = &volume.fs();
        let tiny = fs.new_file(Ino::ROOT, "tiny");
        let dir = fs.new_dir(Ino::ROOT, "d");
        let link = |text: &str| fs.link(&root(), tiny.ino, dir, name(text)).map(|_| ());
        let (begin, begun) = channel();
        let (go_on, gone_on) = channel::<()>();
        std::thread::scope(|scope| {
            let other = scope.spawn(move || {
                link("early").unwrap();
                begin.send(()).unwrap();
                gone_on.recv().unwrap();
                link("late")
            });
            begun.recv().unwrap();
            let ballast = fs.new_file(Ino::ROOT, "ballast");
            while fs.append(&ballast, &[7; PAGE as usize]).is_ok() {}
            let refused = (0..).find_map(|n| link(&format!("n{n}")).err());
            assert_eq!(refused, Some(Error::NoSpace), "{variant:?}");
            go_on.send(()).unwrap();
            assert_eq!(other.join().unwrap(), Err(Error::NoSpace), "{variant:?}: its log had room");
            fs.release(ballast);
        });
        fs.release(tiny);
    });
}

/// Such a write kept its page, and with it all later punches: each had decided a page, and none was in the first page.
#[test]
fn a_write_of_many_pieces_lets_its_log_be_cleaned() {
    const ROUNDS: u64 = 3_000;
    each_variant(|variant| {
        for pages in [40, 300] {
            let disk = Disk::new(variant, 16 * MIB);
            let volume = disk.mount();
            let fs = volume.fs();
            // Free space in single blocks.
            let ballast = fs.new_file(Ino::ROOT, "ballast");
            let mut size = 0;
            while fs.append(&ballast, &[7; PAGE as usize]).is_ok() {
                size += 1;
            }
            for page in (0..size).step_by(2) {
                fs.fallocate(&ballast, RangeOp::Punch, page * PAGE, PAGE).unwrap();
            }
            let file = fs.new_file(Ino::ROOT, "f");
            let bytes: Vec<u8> = (0..pages * PAGE - 7).map(|n| (n / 1000) as u8).collect();
            assert_eq!(fs.write(&file, 0, &bytes), Ok(bytes.len()));
            fs.release(ballast);
            fs.remove(Ino::ROOT, "ballast").unwrap();
            let before = free(&fs);
            for page in 1000..1000 + ROUNDS {
                let done = fs
                    .write(&file, page * PAGE, &[1; PAGE as usize])
                    .and_then(|_| fs.fallocate(&file, RangeOp::Punch, page * PAGE, PAGE));
                done.unwrap_or_else(|e| panic!("{variant:?}: {e} at page {page}"));
            }
            let taken = before.saturating_sub(free(&fs));
            println!("  {variant:?}: {pages} pages: {taken} blocks more");
            assert!(taken < 64, "{variant:?}: {taken} blocks more after a write of {pages} pieces");
            assert!(fs.read_vec(&file, 0, bytes.len()) == bytes, "{variant:?}");
            let tree = Tree::of(&fs).unwrap();
            fs.release(file);
            drop(fs);
            volume.abandon();
            let volume = disk.mount();
            assert_eq!(Tree::of(&volume.fs()).unwrap().difference(&tree), None, "{variant:?}");
        }
    });
}
