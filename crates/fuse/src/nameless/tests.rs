use super::*;
use heddle_vfs::OpenFlags;
use std::sync::atomic::AtomicBool;

const FILE: Ino = Ino(7);

fn handle() -> Handle {
    Handle { ino: FILE, flags: OpenFlags::READ, token: 0 }
}

/// A file that the kernel was told of `times` times has lost its name.
fn after_rm(threads: usize, times: u64) -> Nameless {
    let nameless = Nameless::new(threads);
    (0..times).for_each(|_| nameless.told(FILE));
    assert!(nameless.keep(handle()).is_none());
    nameless
}

#[test]
fn a_file_is_kept_until_the_kernel_has_forgotten_all_answers() {
    let nameless = after_rm(2, 3);
    assert!(!nameless.forgets(FILE, 2) && nameless.forgets(FILE, 1));
    assert!(nameless.take(FILE).is_some() && nameless.take(FILE).is_none());
    assert!(nameless.keep(handle()).is_some(), "nobody knows it");
}

#[test]
fn a_call_without_space_waits_for_what_is_about_to_be_forgotten() {
    let nameless = after_rm(2, 1);
    let (mut tries, over) = (0, AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while nameless.waiting.load(SeqCst) == 0 && !over.load(SeqCst) {
                std::thread::yield_now();
            }
            assert!(nameless.forgets(FILE, 1) && nameless.take(FILE).is_some());
            nameless.ended();
        });
        let done = nameless.with_space(|| {
            tries += 1;
            if tries == 1 { Err(Error::NoSpace) } else { Ok(()) }
        });
        over.store(true, SeqCst);
        assert!(done.is_ok());
    });
}

#[test]
fn what_somebody_holds_is_not_waited_for_again() {
    let nameless = after_rm(2, 1);
    let none = || nameless.with_space(|| Err::<(), _>(Error::NoSpace));
    assert!(matches!(none(), Err(Error::NoSpace)));
    let began = Instant::now();
    (0..1000).for_each(|_| assert!(none().is_err()));
    assert!(began.elapsed() < FORGOTTEN_WITHIN, "it waits each time");
}

#[test]
fn the_last_serving_thread_does_not_wait_for_forgets() {
    let nameless = after_rm(1, 1);
    let mut tries = 0;
    let none = nameless.with_space(|| {
        tries += 1;
        Err::<(), _>(Error::NoSpace)
    });
    assert!(none.is_err() && tries == 1);
    assert!(nameless.kept.lock().unwrap().handles[&7].1.elapsed() < Duration::from_secs(1));
}
