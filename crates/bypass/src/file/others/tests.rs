use super::*;
use crate::tests::Scene;
use heddle_vfs::{FileSystem, Openers};
use std::cell::Cell;

/// A number, and how often the kernel was called by it.
#[derive(Clone, Copy)]
struct Counted<'t>(BorrowedFd<'t>, &'t Cell<u32>);

impl Number for Counted<'_> {
    fn while_ours<T>(self, call: impl FnOnce(BorrowedFd<'_>) -> T) -> Option<T> {
        self.1.set(self.1.get() + 1);
        Some(call(self.0))
    }
}

/// How often a write of a byte calls the kernel.
fn calls_of_write(file: &File, scene: &Scene) -> u32 {
    let calls = Cell::new(0);
    // SAFETY: one byte.
    let done = unsafe { file.write_at(Counted(scene.fd(), &calls), b"x".as_ptr(), 1, 0, false) };
    assert_eq!(done, Ok(Ok((1, 1))));
    calls.get()
}

fn calls_of_read(file: &File, scene: &Scene) -> u32 {
    let (calls, mut byte) = (Cell::new(0), [0]);
    // SAFETY: one byte.
    let done = unsafe { file.read_at(Counted(scene.fd(), &calls), byte.as_mut_ptr(), 1, 0) };
    assert!(matches!(done, Ok(Ok(_))), "{done:?}");
    calls.get()
}

fn told(file: &File) -> u8 {
    file.announced.to_mount.load(SeqCst)
}

#[test]
fn the_kernel_is_called_only_where_others_use_the_size() {
    let scene = Scene::new();
    let [file, reader] = [(); 2].map(|()| scene.open(libc::O_RDWR));
    let note = |open, past_kernel| scene.fs.note_openers(&scene.theirs, Openers { open, past_kernel });
    assert_eq!((file.engines_size(), told(&file)), (None, NOT_YET));
    assert_eq!((calls_of_write(&file, &scene), calls_of_read(&reader, &scene)), (0, 0));
    assert_eq!((file.engines_size(), told(&file)), (Some(1), NOT_YET));
    note(2, 0);
    assert_eq!(calls_of_write(&file, &scene), 2, "it announces itself, and tells the size");
    assert_eq!(told(&file), NEVER, "this kernel's file knows no announcements");
    assert_eq!(calls_of_write(&file, &scene), 1, "it tells the size");
    assert_eq!((calls_of_read(&reader, &scene), told(&reader)), (0, NOT_YET));
    note(2, 1);
    assert_eq!((calls_of_read(&reader, &scene), told(&reader)), (1, NEVER), "it was asked");
    assert_eq!(calls_of_read(&reader, &scene), 0);
    note(1, 0);
    assert_eq!(calls_of_write(&file, &scene), 0, "the others have closed");
    file.share_with_unknown_number(scene.fd());
    assert_eq!(
        calls_of_write(&file, &scene),
        2,
        "it was sent: the kernel says whether it appends, and is told the size"
    );
}

#[test]
fn each_change_of_the_size_beside_others_is_told() {
    let scene = Scene::new();
    let [cut, grown, alone] = [(); 3].map(|()| scene.open(libc::O_RDWR));
    assert_eq!(alone.truncate(scene.fd(), 9), Ok(Ok(())));
    assert_eq!(told(&alone), NOT_YET);
    scene.fs.note_openers(&scene.theirs, Openers { open: 2, past_kernel: 0 });
    assert_eq!(cut.truncate(scene.fd(), 5), Ok(Ok(())));
    let op = crate::RangeOp::Allocate { keep_size: false };
    assert_eq!(grown.allocate(scene.fd(), op, 5, 2), Ok(Ok(())));
    assert_eq!((told(&cut), told(&grown), cut.engines_size()), (NEVER, NEVER, Some(7)));
}

#[test]
fn what_the_kernel_gets_is_announced_no_more() {
    let scene = Scene::new();
    let [given, passed, told_of] = [(); 3].map(|()| scene.open(libc::O_RDWR));
    given.give_offset_away(scene.fd());
    passed.share_with_stranger(scene.fd());
    told_of.is_told(scene.fd());
    scene.fs.note_openers(&scene.theirs, Openers { open: 2, past_kernel: 1 });
    for file in [given, passed, told_of] {
        assert_eq!((told(&file), calls_of_write(&file, &scene).min(1)), (NEVER, 1));
        assert_eq!(calls_of_read(&file, &scene), 0, "it does not announce itself");
    }
}
