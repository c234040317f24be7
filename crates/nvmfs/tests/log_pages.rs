//! Pages of logs: how many a file takes, and who may write to those that there are.

mod common;

use common::{Disk, Short, each_variant, name, root};
use heddle_nvmfs::NvmFs;
use heddle_vfs::{Error, FileSystem, Handle, Ino};
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
