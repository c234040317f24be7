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

/// A tick of the coarse clock, by which two threads may differ, takes less than 20 ms. All are in the future.
#[test]
fn a_later_time_stays_unless_it_lies_a_tick_ahead() {
    const HOUR_NS: i64 = 3_600_000_000_000;
    const TICK_NS: i64 = 20_000_000;
    let last = crate::clock::exact().0 + HOUR_NS;
    for (ahead_ns, stays) in [(1, true), (TICK_NS - 1, true), (TICK_NS, false), (TICK_NS + 1, false)] {
        let inode = VolatileInode::zeroed();
        inode.set_times(Time(last), Time(last));
        inode.touch(Time(last - ahead_ns));
        let left = if stays { last } else { last - ahead_ns };
        assert_eq!(mtime_and_ctime(&inode), [left; 2], "{ahead_ns} ns ahead");
    }
}

#[test]
fn a_writers_time_is_no_earlier_than_one_that_was_just_set() {
    let inode = VolatileInode::zeroed();
    for _ in 0..200 {
        let last = crate::clock::exact();
        inode.set_mtime(last);
        assert!(inode.write_time() >= last);
    }
    let now = crate::clock::coarse();
    inode.set_mtime(Time(now.0 + 3_600_000_000_000));
    let written = inode.write_time();
    assert!(written >= now && written < inode.times()[0], "that has not come yet");
    inode.set_mtime(Time(5));
    assert!(inode.write_time() >= now);
}

#[test]
fn a_time_that_was_taken_counts_unless_a_later_change_came() {
    let inode = VolatileInode::zeroed();
    for (mtime, is_taken) in [(4, true), (5, true), (6, false)] {
        inode.set_mtime(Time(mtime));
        assert_eq!(inode.write_time_since(Time(5)) == Time(5), is_taken, "{mtime}");
    }
    assert!(inode.write_time_since(Time(5)) > Time(6));
}

#[test]
fn a_truncation_covers_older_records_from_its_page_on() {
    let inode = VolatileInode::zeroed();
    let is_covered = |page, version| inode.is_covered_later(PageNo(page), Version(version));
    assert!(!is_covered(10, 0), "there was none");
    inode.note_tombstone(PageNo(10), Version(7));
    let cases = [(10, 6, true), (11, 6, true), (9, 6, false), (10, 7, false), (10, 8, false), (9, 8, false)];
    for (page, version, covered) in cases {
        assert_eq!(is_covered(page, version), covered, "page {page}, version {version}");
    }
}

#[test]
fn a_gate_is_up_while_its_guard_lives() {
    let inode = VolatileInode::zeroed();
    assert!(!inode.gate_up());
    let gate = inode.raise_gate();
    assert!(inode.gate_up());
    drop(gate);
    assert!(!inode.gate_up());
    std::mem::forget(inode.raise_gate());
    assert!(inode.gate_up());
    inode.lower_gate();
    assert!(!inode.gate_up(), "its holder died");
}

#[test]
fn a_floor_only_rises() {
    let inode = VolatileInode::zeroed();
    for (to, floor) in [(0, 0), (5, 5), (3, 5), (6, 6)] {
        inode.raise_floor(Version(to));
        assert_eq!(inode.floor(), Version(floor));
    }
}

fn is_alive(inode: &VolatileInode) -> (bool, u64, u16) {
    (inode.lives(), inode.generation(), inode.claimer())
}

#[test]
fn one_at_a_time_claims_a_living_inode() {
    let inode = VolatileInode::zeroed();
    for lane in [None, Some(3)] {
        assert!(!inode.claim(lane), "nothing lives here");
        assert_eq!(is_alive(&inode), (false, 0, 0));
    }
    let kind = FileKind::Regular;
    inode.be_born(&Birth { generation: 9, kind, perm: 0o644, uid: 1, gid: 2, rdev: 0, now: Time(1) });
    let id = InodeId { ino: Ino(4), generation: 9 };
    assert!(inode.is(id) && !inode.is(InodeId { generation: 8, ..id }));
    assert_eq!((is_alive(&inode), inode.owner()), ((true, 9, 0), (1, 2)));
    assert!(inode.claim(Some(3)) && !inode.is(id));
    assert_eq!(is_alive(&inode), (false, 9, 3));
    assert!(!inode.claim(Some(4)) && !inode.claim(Some(3)) && !inode.claim(None));
    inode.forget_claim(Some(4));
    assert_eq!(is_alive(&inode), (false, 9, 3), "it is another lane's");
    inode.unclaim(Some(3));
    assert_eq!(is_alive(&inode), (true, 9, 0));
    assert!(inode.claim(None) && !inode.claim(None) && !inode.claim(Some(5)));
    assert_eq!(is_alive(&inode), (false, 9, 0));
    inode.die();
    inode.unclaim(None);
    assert_eq!((is_alive(&inode), inode.attr(Ino(4), false)), ((false, 0, 0), None));
}

#[test]
fn a_foreign_record_counts_until_later_attributes_are_durable() {
    let inode = VolatileInode::zeroed();
    assert!(!inode.foreign_record_may_count());
    for change_count in [5, 5, 4] {
        inode.note_foreign_record(change_count);
        for (durable, may_count) in [(0, true), (5, true), (6, false), (7, false)] {
            inode.attributes_change_count.store(durable, Relaxed);
            assert_eq!(inode.foreign_record_may_count(), may_count, "{change_count}, {durable}");
        }
    }
    inode.note_foreign_record(6);
    inode.attributes_change_count.store(6, Relaxed);
    assert!(inode.foreign_record_may_count());
}

#[test]
fn a_count_of_blocks_below_zero_is_shown_as_none() {
    let inode = VolatileInode::zeroed();
    let counted = [-3, 5, 0, 40].map(|change| {
        inode.count_blocks(change);
        inode.blocks_counted()
    });
    assert_eq!(counted, [0, 2, 2, 42]);
}

#[test]
fn callers_past_the_kernel_see_size_and_rights() {
    let inode = VolatileInode::zeroed();
    let seen = || (KernelPages::of(&inode).size_bytes(), KernelPages::of(&inode).changes_take_rights());
    inode.set_mode(FileKind::Regular, 0o755, 0);
    inode.set_size(12_345);
    assert_eq!(seen(), (12_345, false));
    inode.set_mode(FileKind::Regular, 0o4755, 0);
    assert_eq!(seen(), (12_345, true));
}
