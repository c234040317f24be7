use super::*;
use crate::tests::Scene;
use heddle_vfs::short::Short;
use rustix::fd::AsFd;
use std::os::unix::fs::FileExt;

#[test]
fn a_write_that_a_mapping_missed_is_repeated_whole() {
    const FAR: u64 = 1 << 62;
    let scene = Scene::new();
    let file = scene.open(libc::O_RDWR);
    let kernels = rustix::fs::memfd_create("kernels", rustix::fs::MemfdFlags::empty()).unwrap();
    let kernels = std::fs::File::from(kernels);
    for (bytes, at) in [(b"once", 0), (b"more", 2), (b"last", FAR)] {
        assert_eq!(file.write_again(kernels.as_fd(), bytes, at, false), Ok(()));
    }
    let mut near = [0; 6];
    kernels.read_exact_at(&mut near, 0).unwrap();
    assert_eq!((&near, kernels.metadata().unwrap().len()), (b"onmore", FAR + 4));
    assert_eq!(file.write_again(kernels.as_fd(), b"x", 0, true), Ok(()));
    kernels.read_exact_at(&mut near, 0).unwrap();
    assert_eq!(&near, b"onmore", "the mount would have appended it");
    file.close();
}

#[test]
fn a_thread_waits_until_no_other_uses_the_offset() {
    let scene = Scene::new();
    let file = scene.open(libc::O_RDWR);
    let has_waited = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let waiter = file.with_kernel_offset(scene.fd(), || {
            let waiter = scope.spawn(|| {
                file.wait_until_unlocked();
                has_waited.store(true, SeqCst);
            });
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!has_waited.load(SeqCst), "a call of the kernel uses it");
            waiter
        });
        waiter.unwrap().join().unwrap();
    });
}

#[test]
fn a_disowned_file_is_not_given_back() {
    let scene = Scene::new();
    let (ino, engine) = (scene.theirs.ino, scene.fs.clone());
    let file = scene.open(libc::O_RDWR);
    assert_eq!(file.sync(true), Ok(Ok(())));
    engine.unlink(&Cred::root(), Ino::ROOT, heddle_vfs::short::name("f")).unwrap();
    engine.release(scene.theirs);
    crate::process::disown_all_opened();
    file.close();
    assert!(engine.getattr(ino).is_ok(), "its engine is not to be called");
}

/// The number of a descriptor whose `O_APPEND` another process clears after each look.
#[derive(Clone, Copy)]
struct ClearedAfterALook<'f>(BorrowedFd<'f>);

impl Number for ClearedAfterALook<'_> {
    fn while_ours<T>(self, call: impl FnOnce(BorrowedFd<'_>) -> T) -> Option<T> {
        let done = call(self.0);
        rustix::fs::fcntl_setfl(self.0, rustix::fs::OFlags::empty()).unwrap();
        Some(done)
    }
}

#[test]
fn an_append_is_one_though_another_process_clears_the_flag() {
    let scene = Scene::new();
    let file = scene.open(libc::O_RDWR | libc::O_APPEND);
    let number = ClearedAfterALook(scene.fd());
    let write = |number, bytes: &[u8]| {
        // SAFETY: a slice.
        unsafe { file.write(number, bytes.as_ptr(), bytes.len(), false) }
    };
    assert_eq!(write(number, b"first "), Ok(Ok(6)));
    file.share_with_stranger(scene.fd());
    rustix::fs::fcntl_setfl(scene.fd(), rustix::fs::OFlags::APPEND).unwrap();
    assert_eq!(write(number, b"second"), Ok(Ok(6)));
    assert_eq!(scene.fs.read_vec(&scene.theirs, 0, 100), b"first second");
    assert_eq!(write(number, b"third"), Err(Passed::KernelOffset), "it does not append any more");
    file.close();
}

thread_local! {
    static IS_HANDLER: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Runs `call` in a thread that counts as a signal handler, while this thread uses the offset.
fn in_a_handler<T: Send>(call: impl FnOnce() -> T + Send) -> T {
    crate::patience::handlers_are_known_by(|| IS_HANDLER.get());
    let handler = || {
        IS_HANDLER.set(true);
        call()
    };
    std::thread::scope(|scope| scope.spawn(handler).join().unwrap())
}

#[test]
fn a_handler_waits_for_no_call_of_the_engine_for_ever() {
    let scene = Scene::new();
    let (file, fd) = (scene.open(libc::O_RDWR), scene.fd());
    let kernels_offset = || rustix::fs::tell(fd).unwrap();
    assert_eq!(file.seek(fd, 3, libc::SEEK_SET), Ok(Ok(3)));
    let done = file.with_offset(fd, |offset| {
        let refused = in_a_handler(|| file.with_kernel_offset_in_handler(fd, || ()));
        assert_eq!((refused, kernels_offset()), (Some(Err(Errno::DEADLK)), 0), "nothing was called");
        in_a_handler(|| file.give_offset_away(fd));
        assert_eq!((file.offset_is_the_kernels(), kernels_offset()), (true, 3));
        Ok(Ok(((), offset + 4)))
    });
    assert_eq!((done, kernels_offset()), (Ok(Ok(())), 7), "the call has moved it");
    assert_eq!(in_a_handler(|| file.with_kernel_offset_in_handler(fd, || 5)), Some(Ok(5)));
    file.close();
}

#[test]
fn an_offset_given_away_during_a_kernels_call_stays_there() {
    let scene = Scene::new();
    let (file, fd) = (scene.open(libc::O_RDWR), scene.fd());
    let to = |offset| rustix::fs::seek(fd, rustix::fs::SeekFrom::Start(offset)).unwrap();
    let calls = file.with_kernel_offset(fd, || {
        to(5);
        in_a_handler(|| file.give_offset_away(fd));
        rustix::fs::tell(fd).unwrap()
    });
    assert_eq!((calls, file.offset_is_the_kernels()), (Some(5), true));
    to(9);
    let seen = file.with_kernel_offset(fd, || rustix::fs::tell(fd).unwrap());
    assert_eq!(seen, Some(9));
    file.close();
}
