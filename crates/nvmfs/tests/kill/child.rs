//! The process that is killed.

use super::history::{Event, History};
use super::operation::{Operation, PAGE, THREADS, operation, record};
use crate::common::{Short, named_durability, options, promising, root};
use heddle_nvmfs::{NvmFs, mount};
use heddle_pmem::Region;
use heddle_vfs::{FileSystem, Handle, Ino};
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// Mounts the image at this place and works on it, for ever.
pub fn work_until_killed(place: &Path) {
    // A test that is killed itself takes its child along.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    let journal = place.join("journal");
    let first = History::read(&journal).next_number();
    let region = Region::open(place.join("image"), &promising(named_durability().unwrap())).unwrap();
    let volume = mount(region, &options()).unwrap();
    let fs = volume.fs();
    let files = Files::of(&fs);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (fs, files, journal) = (&fs, &files, &journal);
            scope.spawn(move || {
                let mut journal = File::options().append(true).create(true).open(journal).unwrap();
                for step in 0.. {
                    let number = first + step * THREADS + thread;
                    journal.write_all(&Event::Begun.line(number)).unwrap();
                    carry_out(fs, files, number);
                    journal.write_all(&Event::Done.line(number)).unwrap();
                }
            });
        }
    });
}

pub struct Files {
    pages: Handle,
    pub log: Handle,
    old: Ino,
    new: Ino,
}

impl Files {
    /// Opens them, made if they are missing.
    pub fn of(fs: &NvmFs) -> Files {
        let file = |text| fs.try_file(Ino::ROOT, text).unwrap_or_else(|_| fs.open_file(Ino::ROOT, text));
        let dir =
            |text| fs.try_dir(Ino::ROOT, text).or_else(|_| fs.find(Ino::ROOT, text).map(|a| a.ino)).unwrap();
        Files { pages: file("pages"), log: file("log"), old: dir("d"), new: dir("e") }
    }
}

/// A call of another life of this process may not have happened; then the ones that build on it are refused, in peace.
pub fn carry_out(fs: &NvmFs, files: &Files, number: u64) {
    match operation(number) {
        Operation::Pages { first, count } => {
            let bytes = number.to_le_bytes().repeat((count * PAGE / 8) as usize);
            fs.write(&files.pages, first * PAGE, &bytes).unwrap();
        }
        Operation::Append { len } => {
            fs.append(&files.log, &record(number, len)).unwrap();
        }
        Operation::Create => fs.release(fs.new_file(files.old, &number.to_string())),
        Operation::Unlink { of } => {
            let gone = [files.old, files.new]
                .map(|dir| fs.unlink(&root(), dir, crate::common::name(&of.to_string())));
            assert!(gone.iter().filter(|g| g.is_ok()).count() <= 1, "one name was in two directories");
        }
        Operation::Rename { of } => {
            let text = of.to_string();
            let _ = fs.replace((files.old, &text), (files.new, &text));
        }
    }
}
