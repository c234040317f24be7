//! The promises of fences to processes that fork, and to threads that a signal handler interrupts.

use super::{DirtyPages, Failure};
use crate::failing_disk::{Disk, FailingDisk};
use crate::mapping::Mapping;
use crate::{Backend, OpenOptions, Pos, Region};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const CHILDREN: u64 = 300;
const THREADS: u64 = 4;
const PAGE: u64 = 4096;

/// A folder of the build, which is rarely in memory as temporary ones are.
fn folder_on_disk() -> tempfile::TempDir {
    let program = std::env::current_exe().unwrap();
    tempfile::tempdir_in(program.parent().unwrap_or(Path::new("."))).unwrap()
}

/// Such a child slept for ever, at a mutex that a thread of its parent held.
#[test]
fn a_child_forked_while_threads_store_and_fence_can_do_both() {
    let _alone = crate::tests::FORKS.write().unwrap_or_else(std::sync::PoisonError::into_inner);
    let folder = folder_on_disk();
    let region = Region::create(folder.path().join("region.img"), 1 << 20, &OpenOptions::default()).unwrap();
    if region.backend() != Backend::File {
        eprintln!("SKIPPED: needs a disk below {:?}", folder.path());
        return;
    }
    let done = AtomicBool::new(false);
    let failed = std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (region, done) = (&region, &done);
            scope.spawn(move || {
                for value in 0.. {
                    region.store_u64(Pos(thread * PAGE + value % 500 * 8), value);
                    if value % 1000 == 0 {
                        region.fence();
                    }
                    if done.load(Ordering::SeqCst) {
                        return;
                    }
                }
            });
        }
        let failed = (0..CHILDREN).map(|value| (value, status_of_child(&region, value))).find(|of| of.1 != 0);
        done.store(true, Ordering::SeqCst);
        failed
    });
    assert_eq!(failed, None, "a child and how it ended");
    assert_eq!((region.load_u64(Pos(THREADS * PAGE)), region.failed()), (CHILDREN - 1, None));
}

#[test]
fn a_store_that_a_handlers_fence_precedes_is_fenced_by_its_thread() {
    let memory = Arc::new(Mapping::private(1 << 20).unwrap());
    let (base, disk) = (memory.base(), Arc::new(Disk::new(memory.clone())));
    let pages = DirtyPages::new(memory.len_bytes(), "disk".into(), Failure::default(), Some(disk.clone()));
    pages.store(0, 1, &|| {
        pages.write_back(base);
        // SAFETY: the first byte of a mapping that is this thread's.
        unsafe { base.write(7) };
    });
    let disk = FailingDisk { disk };
    assert_eq!(disk.media()[0], 0);
    pages.write_back(base);
    assert_eq!(disk.media()[0], 7);
}

/// A child that stores and fences once; an alarm ends it if it sleeps for ever.
fn status_of_child(region: &Region, value: u64) -> i32 {
    // SAFETY: the child makes no call but those below, none of which needs the heap.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: sets a timer.
        unsafe { libc::alarm(20) };
        region.store_u64(Pos(THREADS * PAGE), value);
        region.fence();
        // SAFETY: ends this process.
        unsafe { libc::_exit(i32::from(region.failed().is_some())) };
    }
    let mut status = 0;
    // SAFETY: room for the answer.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    status
}
