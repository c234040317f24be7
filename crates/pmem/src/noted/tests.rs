//! The promises of notes that are seen by what a disk has got.

use super::{RANGES_MAX, REGIONS_MAX, TABLE};
use crate::{FailingDisk, Pos, Region};

const PAGE: u64 = 4096;
const LEN: u64 = 1 << 20;

/// The word at the start of a page, on the disk.
fn on_disk(disk: &FailingDisk, page: u64) -> u64 {
    let at = (page * PAGE) as usize;
    u64::from_le_bytes(disk.media()[at..at + 8].try_into().unwrap())
}

fn store(region: &Region, pages: impl Iterator<Item = u64>) {
    pages.for_each(|page| region.store_u64(Pos(page * PAGE), page + 1));
}

#[test]
fn a_fence_writes_the_pages_of_its_thread_and_region_alone() {
    let ((one, of_one), (two, of_two)) = (Region::on_failing_disk(LEN), Region::on_failing_disk(LEN));
    store(&one, [9, 2, 4, 3].into_iter());
    store(&two, [5].into_iter());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            store(&one, [6].into_iter());
            one.fence();
        });
    });
    assert_eq!([2, 3, 4, 6, 9].map(|page| on_disk(&of_one, page)), [0, 0, 0, 7, 0]);
    one.fence();
    assert_eq!([2, 3, 4, 6, 9].map(|page| on_disk(&of_one, page)), [3, 4, 5, 7, 10]);
    assert_eq!((of_one.write_backs(), on_disk(&of_two, 5)), (3, 0));
    one.fence();
    two.fence();
    assert_eq!((of_one.write_backs(), of_two.write_backs(), on_disk(&of_two, 5)), (3, 1, 6));
}

#[test]
fn a_fence_writes_more_ranges_than_a_thread_can_note() {
    let (region, disk) = Region::on_failing_disk(LEN);
    let far = 4 * RANGES_MAX as u64 + 8;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            store(&region, [far].into_iter());
        });
    });
    let scattered = || (0..2 * RANGES_MAX as u64).map(|n| n * 2).rev();
    store(&region, scattered());
    region.fence();
    assert!(scattered().all(|page| on_disk(&disk, page) == page + 1));
    assert_eq!(on_disk(&disk, far), 0, "the fence is not one of the whole region");
    assert!(disk.write_backs() <= RANGES_MAX as u64);
}

#[test]
fn a_region_that_finds_the_table_full_is_written_whole() {
    let (first, of_first) = Region::on_failing_disk(LEN);
    let (second, of_second) = Region::on_failing_disk(LEN);
    let scattered = || (0..RANGES_MAX as u64).map(|n| n * 2);
    store(&first, scattered());
    store(&second, [7, 90].into_iter());
    second.fence();
    assert_eq!([7, 90].map(|page| on_disk(&of_second, page)), [8, 91]);
    assert_eq!((of_first.write_backs(), of_second.write_backs()), (0, 1));
    first.fence();
    assert!(scattered().all(|page| on_disk(&of_first, page) == page + 1));
    // There is room again.
    store(&second, [3, 8].into_iter());
    second.fence();
    assert_eq!((of_second.write_backs(), on_disk(&of_second, 3), on_disk(&of_second, 8)), (3, 4, 9));
}

/// From then on each fence of the region wrote all of it, as long as the process lived.
#[test]
fn what_a_handler_stores_amid_a_note_is_fenced_with_all_once() {
    for handler_fences in [false, true] {
        let ((region, disk), (other, of_other)) =
            (Region::on_failing_disk(LEN), Region::on_failing_disk(LEN));
        store(&region, [2].into_iter());
        let handler = || {
            store(&region, [5].into_iter());
            if handler_fences {
                region.fence();
                assert_eq!(on_disk(&disk, 5), 6, "its own fence");
            }
        };
        TABLE.with(|table| table.change(handler)).unwrap();
        store(&other, [7, 9].into_iter());
        other.fence();
        assert_eq!(
            (of_other.write_backs(), on_disk(&of_other, 7)),
            (2, 8),
            "no range of this one was refused"
        );
        region.fence();
        assert_eq!([2, 5].map(|page| on_disk(&disk, page)), [3, 6]);
        std::thread::scope(|scope| scope.spawn(|| store(&region, [11].into_iter())).join().unwrap());
        store(&region, [13].into_iter());
        region.fence();
        assert_eq!([11, 13].map(|page| on_disk(&disk, page)), [0, 14], "this fence is one of its pages");
    }
}

#[test]
fn regions_that_are_gone_take_no_room() {
    for _ in 0..2 * REGIONS_MAX.max(RANGES_MAX) {
        let (region, _) = Region::on_failing_disk(PAGE);
        store(&region, [0].into_iter());
    }
    let (region, disk) = Region::on_failing_disk(LEN);
    store(&region, [3, 8].into_iter());
    region.fence();
    assert_eq!((disk.write_backs(), on_disk(&disk, 3), on_disk(&disk, 8)), (2, 4, 9));
}

#[test]
fn a_forked_child_fences_its_own_stores_alone() {
    let _alone = crate::tests::FORKS.write().unwrap_or_else(std::sync::PoisonError::into_inner);
    let (region, disk) = Region::on_failing_disk(LEN);
    store(&region, [3].into_iter());
    // SAFETY: the child stores and fences, looks at its copy of the disk, and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        store(&region, [8].into_iter());
        region.fence();
        let good = (disk.write_backs(), on_disk(&disk, 3), on_disk(&disk, 8)) == (1, 0, 9);
        // SAFETY: ends this process.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    let mut status = 0;
    // SAFETY: room for the answer.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    region.fence();
    assert_eq!((status, on_disk(&disk, 3), disk.write_backs()), (0, 4, 1));
}
