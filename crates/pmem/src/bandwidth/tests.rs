//! The figures themselves are the machine's; what is tested is that the work was done and counted.

use super::*;

#[test]
fn every_thread_writes_its_whole_private_buffer_and_is_counted() {
    let plan =
        Plan { threads: vec![1, 2], buffer_bytes: 2 << 20, time: Duration::from_millis(20), repeats: 3 };
    let region = Region::anonymous(plan.region_bytes()).unwrap();
    let rows = measure(&region, &plan);
    assert_eq!(rows.iter().map(|row| row.threads).collect::<Vec<_>>(), [1, 2]);
    for rate in rows.iter().flat_map(|row| [row.write, row.read]) {
        assert!(0.0 < rate.min_gb_s && rate.min_gb_s <= rate.gb_s && rate.gb_s <= rate.max_gb_s, "{rate:?}");
    }
    for at in (0..region.len_bytes()).step_by(LINE_BYTES) {
        assert_ne!(region.load_u64(Pos(at + 8)), 0, "the line at {at} was not written");
    }
}

#[test]
fn a_summary_is_the_median_and_the_extremes() {
    assert_eq!(summary(vec![3.0, 1.0, 2.0]), Rate { gb_s: 2.0, min_gb_s: 1.0, max_gb_s: 3.0 });
    assert_eq!(summary(vec![4.0, 1.0]).gb_s, 2.5);
}

#[test]
fn copies_are_counted_and_left_as_they_were_made() {
    let region = Region::anonymous_as(2 * COPIES_REGION_BYTES, crate::Durability::Power).unwrap();
    let done = copies(&region, 2, Duration::from_millis(5)).unwrap();
    for (worker, one) in (0..).zip(&done) {
        assert!(one.done > 0 && one.time >= Duration::from_millis(5), "{one:?}");
        let last = one.done + 2;
        let at = Pos(worker * COPIES_REGION_BYTES + last % 3 * BLOCK_BYTES as u64);
        assert_eq!((region.load_u64(at), region.load_u64(at.plus(8))), (last, 3), "worker {worker}");
    }
}
