use super::*;
use heddle_vfs::Openers;

fn mtime_and_ctime(inode: &VolatileInode) -> [i64; 2] {
    let [mtime, ctime, ..] = inode.times();
    [mtime.0, ctime.0]
}

#[test]
fn a_writer_that_was_held_up_takes_no_time_back() {
    let inode = VolatileInode::zeroed();
    let now = crate::clock::exact().0;
    inode.touch(Time(now));
    for held_up_ns in [1, 1_000_000, 48_000_000, 3_000_000_000] {
        inode.touch(Time(now - held_up_ns));
        inode.touch_state(Time(now - held_up_ns));
        assert_eq!(mtime_and_ctime(&inode), [now; 2], "held up for {held_up_ns} ns");
    }
    // A change of attributes came later than the write whose time follows.
    inode.touch_state(Time(now + 10));
    inode.touch(Time(now + 5));
    assert_eq!(mtime_and_ctime(&inode), [now + 5, now + 10]);
}

#[test]
fn a_time_that_has_not_come_yet_gives_way_to_a_write() {
    const HOUR_NS: i64 = 3_600_000_000_000;
    let inode = VolatileInode::zeroed();
    let now = crate::clock::exact().0;
    inode.set_times(Time(now + HOUR_NS), Time(now + HOUR_NS));
    inode.touch(Time(now));
    assert_eq!(mtime_and_ctime(&inode), [now; 2]);
}

#[test]
fn kind_bits_device_and_flags_stand_beside_each_other() {
    let inode = VolatileInode::zeroed();
    assert_eq!(inode.kind_perm(), None, "nothing lives here");
    inode.set_mode(FileKind::CharDevice, 0o1777, u32::MAX);
    assert_eq!((inode.kind_perm(), inode.rdev()), (Some((FileKind::CharDevice, 0o1777)), u32::MAX));
    assert!(!inode.is_directory() && !inode.mode().gives_rights() && !inode.linkable());
    inode.set_has_list(List::Default, true);
    assert!(inode.has_list(List::Default) && !inode.has_list(List::Access));
    inode.set_has_list(List::Access, true);
    inode.set_linkable(true);
    inode.set_has_file_capabilities(true);
    inode.set_mode(FileKind::Directory, 0o755, 0);
    assert!(inode.is_directory() && inode.linkable() && inode.mode().gives_rights());
    assert!(inode.has_list(List::Default) && inode.has_list(List::Access), "the flags stay");
    assert_eq!((inode.kind_perm(), inode.rdev()), (Some((FileKind::Directory, 0o755)), 0));
    inode.set_has_file_capabilities(false);
    inode.set_linkable(false);
    inode.set_has_list(List::Default, false);
    assert!(!inode.mode().gives_rights() && !inode.linkable() && !inode.has_list(List::Default));
    assert!(inode.has_list(List::Access));
    for (perm, gives) in [(0o4755, true), (0o2755, true), (0o1777, false)] {
        inode.set_mode(FileKind::Regular, perm, 0);
        assert_eq!((inode.mode().perm(), inode.mode().gives_rights()), (perm, gives));
    }
}

#[test]
fn pages_and_descriptors_of_the_kernel_are_noted_beside_each_other() {
    let inode = VolatileInode::zeroed();
    let seen = || {
        let noted = KernelPages::of(&inode);
        [noted.are_kept(), noted.have_others(), noted.are_asked(), noted.concern_readers()]
    };
    let notes = |open, past_kernel| inode.kernel.note_openers(Openers { open, past_kernel });
    notes(1, 0);
    assert_eq!(seen(), [false; 4], "one alone");
    notes(2, 0);
    assert_eq!(seen(), [false, true, false, false], "readers need not tell whose they are yet");
    notes(2, 1);
    assert_eq!(seen(), [false, true, true, true]);
    inode.kernel.count_pages(true);
    notes(2, 2);
    assert_eq!(seen(), [true, false, false, true], "all go past the kernel");
    notes(3, 2);
    inode.kernel.count_pages(false);
    assert_eq!(seen(), [false, true, true, true]);
    inode.kernel.forget();
    assert_eq!(seen(), [false; 4]);
}
