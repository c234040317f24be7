//! An image with one file that is open, for unit tests of the layers below.

use super::{MountOptions, Volume, format, mount};
use crate::fs::NvmFs;
use crate::ids::PageNo;
use crate::region::Region;
use crate::state::cell::Cell;
use crate::state::core::Core;
use crate::state::inode::InodeRef;
use crate::state::latch::WAITERS;
use crate::state::lease::{self, LaneGuard};
use crate::steps::{Step, hook};
use crate::variant::Variant;
use heddle_vfs::short::Short;
use heddle_vfs::{FileSystem, Handle, Ino};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex};
use std::thread::yield_now;

const NAME: &str = "file";

/// The mounted image and its file.
pub struct Bench {
    pub file: Handle,
    pub fs: NvmFs,
    pub volume: Volume,
    region: Region,
}

impl Bench {
    /// A new image of 8 MiB for `heddle`, and an empty file.
    pub fn new() -> Bench {
        Bench::of(Variant::Heddle)
    }

    /// The same for a variant.
    pub fn of(variant: Variant) -> Bench {
        let region = Region::anonymous(8 << 20).unwrap();
        format(&region, variant).unwrap();
        Bench::on(region, &options(), |fs| fs.new_file(Ino::ROOT, NAME))
    }

    /// Mounts a formatted image, and has `open` open the file.
    pub fn on(region: Region, options: &MountOptions<'_>, open: impl FnOnce(&NvmFs) -> Handle) -> Bench {
        let volume = mount(region.map_again().unwrap(), options).unwrap();
        let fs = volume.fs();
        let file = open(&fs);
        Bench { file, fs, volume, region }
    }

    /// What the next mount finds if the power is cut now.
    pub fn mounted_again(self) -> Bench {
        let Bench { file, fs, volume, region } = self;
        fs.release(file);
        lease::leave(&fs.core);
        drop(fs);
        volume.abandon();
        Bench::on(region, &options(), |fs| fs.open_file(Ino::ROOT, NAME))
    }

    pub fn core(&self) -> &Core {
        &self.fs.core
    }

    pub fn inode(&self) -> InodeRef<'_> {
        self.core().inode(self.file.ino).unwrap()
    }

    /// A call of this thread.
    pub fn guard(&self) -> LaneGuard<'_> {
        lease::enter(&self.fs.core).unwrap()
    }

    /// The cell of a page, which exists.
    pub fn cell(&self, page: u64) -> &Cell {
        &self.inode().volatile.index().find(&self.core().arena, PageNo(page)).unwrap().cells[0]
    }

    /// Writes so many bytes of this value.
    pub fn write(&self, offset: u64, value: u8, len: u64) {
        self.fs.write(&self.file, offset, &vec![value; len as usize]).unwrap();
    }

    pub fn read(&self, offset: u64, len: u64) -> Vec<u8> {
        self.fs.read_vec(&self.file, offset, len as usize)
    }

    pub fn size(&self) -> u64 {
        self.inode().volatile.size()
    }

    pub fn free(&self) -> u64 {
        self.fs.statfs().unwrap().blocks_free
    }

    /// Another thread does `before`, then `work` while this one holds the latch of the file's end, and has raised the gate if so wanted.
    /// Returns true if the work waits for the latch, which is free then.
    pub fn waits_for_latch(
        &self,
        gate: bool,
        before: impl FnOnce() + Send,
        work: impl FnOnce() + Send,
    ) -> bool {
        let (volatile, turn) = (self.inode().volatile, &Barrier::new(2));
        std::thread::scope(|scope| {
            let other = scope.spawn(move || {
                before();
                turn.wait();
                turn.wait();
                work();
            });
            turn.wait();
            let _call = self.guard();
            let latched = volatile.eof.lock();
            let gate = gate.then(|| volatile.raise_gate());
            turn.wait();
            let waits = || volatile.eof.0.load(SeqCst) & WAITERS != 0;
            while !waits() && !other.is_finished() {
                yield_now();
            }
            let waited = waits();
            drop(gate);
            drop(latched);
            other.join().unwrap();
            waited
        })
    }

    /// Runs `work` in a process that ends then, with all that it has.
    pub fn dies_after(&self, work: impl FnOnce()) {
        let pid = child(work);
        let mut status = 0;
        // SAFETY: room for the answer.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert_eq!(status, 0);
    }
}

/// Runs `work` in a child.
pub fn child(work: impl FnOnce()) -> libc::pid_t {
    // SAFETY: the child works and leaves by `_exit`; it touches no lock that another thread of this program may have held at the fork, but
    // the allocator's, which glibc keeps usable.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        work();
        // SAFETY: ends this process.
        unsafe { libc::_exit(0) };
    }
    pid
}

fn options() -> MountOptions<'static> {
    MountOptions { arena_bytes: 64 << 20, ..MountOptions::default() }
}

/// Another thread does `before`, and `work` until it comes to this step. There it is parked until `look` has looked.
pub fn parked(at: Step, before: impl FnOnce() + Send, work: impl FnOnce() + Send, look: impl FnOnce()) {
    std::thread::scope(|scope| {
        let (comes, has_come) = channel();
        let (goes_on, may_go_on) = channel::<()>();
        let other = scope.spawn(move || {
            before();
            let parks = Mutex::new(Some((comes, may_go_on)));
            hook::set(Some(Arc::new(move |step| {
                if step == at
                    && let Some((comes, may_go_on)) = parks.lock().unwrap().take()
                {
                    comes.send(()).unwrap();
                    // Ends also when the test fails and drops its side.
                    let _ = may_go_on.recv();
                }
            })));
            work();
            hook::set(None);
        });
        has_come.recv().expect("it comes to this step");
        look();
        drop(goes_on);
        other.join().unwrap();
    });
}

/// Waits until a thread sleeps on a locked cell.
pub fn until_one_waits_for(cell: &Cell) {
    while !cell.still(cell.lock_version()) {
        yield_now();
    }
}
