use super::*;
use heddle_vfs::OpenFlags;
use std::sync::atomic::AtomicBool;

const FILE: Ino = Ino(7);

fn handle() -> Handle {
    Handle { ino: FILE, flags: OpenFlags::READ, token: 0 }
}

/// A file that the kernel was told of `times` times has lost its name.
fn after_rm(threads: usize, times: u64) -> Orphans {
    let orphans = Orphans::new(threads);
    (0..times).for_each(|_| orphans.count_lookup(FILE));
    assert!(orphans.keep(handle()).is_none());
    orphans
}

#[test]
fn a_file_is_kept_until_the_kernel_has_forgotten_all_answers() {
    let orphans = after_rm(2, 3);
    assert!(!orphans.forget(FILE, 2) && orphans.forget(FILE, 1));
    assert!(orphans.take(FILE).is_some() && orphans.take(FILE).is_none());
    assert!(orphans.keep(handle()).is_some(), "nobody knows it");
}

#[test]
fn a_call_without_space_waits_for_what_is_about_to_be_forgotten() {
    let orphans = after_rm(2, 1);
    let (mut tries, over) = (0, AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while orphans.waiting.load(SeqCst) == 0 && !over.load(SeqCst) {
                std::thread::yield_now();
            }
            assert!(orphans.forget(FILE, 1) && orphans.take(FILE).is_some());
            orphans.ended();
        });
        let done = orphans.with_space(|| {
            tries += 1;
            if tries == 1 { Err(Error::NoSpace) } else { Ok(()) }
        });
        over.store(true, SeqCst);
        assert!(done.is_ok());
    });
}

#[test]
fn what_somebody_holds_is_not_waited_for_again() {
    let orphans = after_rm(2, 1);
    let none = || orphans.with_space(|| Err::<(), _>(Error::NoSpace));
    assert!(matches!(none(), Err(Error::NoSpace)));
    let began = Instant::now();
    (0..1000).for_each(|_| assert!(none().is_err()));
    assert!(began.elapsed() < FORGOTTEN_WITHIN, "it waits each time");
}

#[test]
fn the_last_serving_thread_does_not_wait_for_forgets() {
    let orphans = after_rm(1, 1);
    let mut tries = 0;
    let none = orphans.with_space(|| {
        tries += 1;
        Err::<(), _>(Error::NoSpace)
    });
    assert!(none.is_err() && tries == 1);
    assert!(orphans.kept.lock().unwrap().handles[&7].1.elapsed() < Duration::from_secs(1));
}
