use super::*;

fn mtime_and_ctime(inode: &VInode) -> [i64; 2] {
    let [mtime, ctime, ..] = inode.times();
    [mtime.0, ctime.0]
}

#[test]
fn a_writer_that_was_held_up_takes_no_time_back() {
    let inode = VInode::zeroed();
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
    let inode = VInode::zeroed();
    let now = crate::clock::exact().0;
    inode.set_times(Time(now + HOUR_NS), Time(now + HOUR_NS));
    inode.touch(Time(now));
    assert_eq!(mtime_and_ctime(&inode), [now; 2]);
}
