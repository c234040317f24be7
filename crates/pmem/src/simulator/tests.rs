//! What the simulated machine may lose and what it must keep.

use crate::{CrashPoint, Model, Pos, Region, Simulator};
use std::collections::HashSet;
use std::sync::{Arc, Barrier, Mutex};

const LEN: u64 = 64 << 10;

fn machine(model: Model) -> (Region, Simulator) {
    let (region, simulator) = Region::simulated(LEN);
    simulator.set_model(model);
    (region, simulator)
}

fn word(image: &[u8], at: u64) -> u64 {
    u64::from_le_bytes(image[at as usize..][..8].try_into().unwrap())
}

/// What the words at `at` may be after a crash now, over all choices.
fn outcomes(point: &CrashPoint<'_>, at: &[u64]) -> HashSet<Vec<u64>> {
    assert!(point.pending_units() < 16);
    point.images(1 << 16, 0).map(|image| at.iter().map(|at| word(&image, *at)).collect()).collect()
}

fn set(outcomes: &[&[u64]]) -> HashSet<Vec<u64>> {
    outcomes.iter().map(|words| words.to_vec()).collect()
}

#[test]
fn writes_of_any_offset_and_length_are_durable_after_their_fence() {
    let source: Vec<u8> = (0..200).map(|byte| byte as u8 | 1).collect();
    for offset in 0..64usize {
        for len in 0..=200 {
            let (region, simulator) = machine(Model::Ordered);
            region.nt_write(Pos(4096 + offset as u64), &source[..len]);
            let before = simulator.crash_point();
            assert!(before.durable_image().iter().all(|byte| *byte == 0));
            assert_eq!(&before.full_image()[4096 + offset..][..len], &source[..len]);
            region.fence();
            let after = simulator.crash_point();
            assert_eq!(after.pending_units(), 0, "{len} bytes at {offset}");
            assert_eq!(after.durable_image(), before.full_image());
        }
    }
}

#[test]
fn each_kind_of_store_is_durable_after_a_fence() {
    let (region, simulator) = machine(Model::Pessimistic);
    region.nt_write(Pos(0), &[3; 8192]);
    region.fence();
    region.nt_line(Pos(64), &[1; 8]);
    region.store_u64(Pos(200), 5);
    region.nt_zero(Pos(301), 77);
    region.nt_copy(Pos(5003), Pos(1), 100);
    assert!(simulator.crash_point().pending_units() > 8);
    region.fence();
    assert_eq!(simulator.crash_point().pending_units(), 0);
    let mut seen = vec![0; LEN as usize];
    region.read(Pos(0), &mut seen);
    assert_eq!(simulator.crash_point().durable_image(), seen);
    assert_eq!((word(&seen, 64), word(&seen, 200), seen[300..302].to_vec()), (1, 5, vec![3, 0]));
    assert_eq!(simulator.fences(), 2);
}

#[test]
fn before_the_fence_any_subset_of_the_words_may_be_there() {
    let (region, simulator) = machine(Model::Ordered);
    region.nt_line(Pos(0), &[1, 2, 3, 0, 0, 0, 0, 0]);
    let point = simulator.crash_point();
    assert_eq!(point.pending_units(), 3, "a word that does not change is no choice");
    assert_eq!(outcomes(&point, &[0, 8, 16]).len(), 8);
    let image = point.image(|unit| unit == 1);
    assert_eq!((word(&image, 0), word(&image, 8), word(&image, 16)), (0, 2, 0));
}

#[test]
fn a_later_store_of_a_line_never_survives_without_the_earlier_one() {
    let (region, simulator) = machine(Model::Ordered);
    region.store_u64(Pos(8), 1);
    region.store_u64(Pos(0), 2);
    region.store_u64(Pos(64), 3);
    let point = simulator.crash_point();
    let line = set(&[&[0, 0], &[1, 0], &[1, 2]]);
    assert_eq!(outcomes(&point, &[8, 0]), line);
    assert_eq!(outcomes(&point, &[8, 0, 64]).len(), 6, "another line is independent");
    let image = point.image(|unit| unit == 1);
    assert_eq!((word(&image, 8), word(&image, 0)), (1, 2));
}

#[test]
fn the_pessimistic_model_lets_the_words_of_a_line_go_separate_ways() {
    let (region, simulator) = machine(Model::Pessimistic);
    region.store_u64(Pos(8), 1);
    region.store_u64(Pos(0), 2);
    assert_eq!(outcomes(&simulator.crash_point(), &[8, 0]), set(&[&[0, 0], &[1, 0], &[0, 2], &[1, 2]]));
}

#[test]
fn with_persistent_caches_a_crash_leaves_a_prefix_of_all_stores() {
    let (region, simulator) = machine(Model::Eadr);
    region.store_u64(Pos(0), 1);
    region.nt_line(Pos(128), &[2, 0, 0, 0, 0, 0, 0, 0]);
    region.store_u64(Pos(64), 3);
    let prefixes = set(&[&[0, 0, 0], &[1, 0, 0], &[1, 2, 0], &[1, 2, 3]]);
    assert_eq!(outcomes(&simulator.crash_point(), &[0, 128, 64]), prefixes);
    std::thread::scope(|scope| scope.spawn(|| region.fence()).join().unwrap());
    assert_eq!(simulator.crash_point().pending_units(), 0, "whoever fences, what was stored is durable");
}

#[test]
fn a_fence_does_not_persist_what_another_thread_stored_past_the_cache() {
    let (region, simulator) = machine(Model::Ordered);
    region.nt_line(Pos(0), &[1; 8]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            region.nt_line(Pos(64), &[2; 8]);
            region.fence();
        });
    });
    let image = simulator.crash_point().durable_image();
    assert_eq!((word(&image, 0), word(&image, 64)), (0, 2));
    region.fence();
    assert_eq!(word(&simulator.crash_point().durable_image(), 0), 1);
}

#[test]
fn a_fence_persists_only_lines_its_own_thread_flushed() {
    let (region, simulator) = machine(Model::Ordered);
    let other = |action: &(dyn Fn() + Sync)| std::thread::scope(|scope| scope.spawn(action).join().unwrap());
    region.store_u64(Pos(0), 1);
    other(&|| region.fence());
    assert_eq!(word(&simulator.crash_point().durable_image(), 0), 0);
    // The flush of a line takes along what others stored in it before, and nothing they store after.
    other(&|| {
        region.store_u64(Pos(8), 2);
        std::thread::scope(|scope| scope.spawn(|| region.store_u64(Pos(16), 3)).join().unwrap());
        region.fence();
    });
    let image = simulator.crash_point().durable_image();
    assert_eq!([0, 8, 16].map(|at| word(&image, at)), [1, 2, 0]);
    region.fence();
    assert_eq!(simulator.crash_point().pending_units(), 1, "this thread flushed before the last store");
}

#[test]
fn an_older_value_never_comes_back_over_a_durable_newer_one() {
    let (region, simulator) = machine(Model::Ordered);
    region.nt_line(Pos(0), &[1; 8]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            region.nt_write(Pos(0), &[9; 4]);
            region.fence();
        });
    });
    let point = simulator.crash_point();
    for image in point.images(1000, 3) {
        assert_eq!(image[..4], [9; 4]);
    }
    let upper: HashSet<Vec<u8>> = point.images(1000, 3).map(|image| image[4..8].to_vec()).collect();
    assert!(upper.contains(&vec![0; 4]), "the rest of the older word is still undecided");
    region.store_u64(Pos(0), 7);
    region.fence();
    assert_eq!(word(&simulator.crash_point().durable_image(), 0), 7);
}

#[test]
fn the_hook_sees_every_fence_before_it_takes_effect() {
    let (region, simulator) = machine(Model::Ordered);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    simulator.on_fence(Box::new(move |point| {
        let (lost, kept) = (point.durable_image(), point.full_image());
        log.lock().unwrap().push((point.pending_units(), word(&lost, 0), word(&kept, 0)));
    }));
    region.store_u64(Pos(0), 1);
    region.fence();
    region.fence();
    region.store_u64(Pos(0), 2);
    region.map_again().unwrap().fence();
    simulator.stop_watching();
    region.fence();
    assert_eq!(*seen.lock().unwrap(), [(1, 0, 1), (0, 1, 1), (1, 1, 2)]);
    assert_eq!(simulator.fences(), 4);
}

#[test]
fn a_hook_that_uses_its_own_region_is_refused() {
    let (region, simulator) = machine(Model::Ordered);
    let region = Arc::new(region);
    let same = region.clone();
    simulator.on_fence(Box::new(move |_| same.store_u64(Pos(0), 1)));
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| region.fence())).unwrap_err();
    let text =
        panic.downcast_ref::<&str>().map(|text| text.to_string()).or(panic.downcast_ref::<String>().cloned());
    assert!(text.unwrap().contains("simulated_from"));
    simulator.stop_watching();
    region.fence();
}

#[test]
fn a_machine_started_from_an_image_has_all_of_it_durable() {
    let (region, simulator) = machine(Model::Ordered);
    region.nt_write(Pos(5000), &[5; 3000]);
    let image = simulator.crash_point().image(|unit| unit % 3 == 0);
    let (region, simulator) = Region::simulated_from(&image);
    assert_eq!(simulator.crash_point().durable_image(), image);
    let mut seen = vec![0; image.len()];
    region.read(Pos(0), &mut seen);
    assert_eq!(seen, image);
}

#[test]
fn crash_images_are_complete_or_a_repeatable_sample_at_both_grains() {
    let (region, simulator) = machine(Model::Ordered);
    region.nt_line(Pos(0), &[1; 8]);
    let point = simulator.crash_point();
    assert_eq!(point.images(256, 1).collect::<HashSet<_>>().len(), 256);

    region.nt_write(Pos(4096), &[2; 4096]);
    let point = simulator.crash_point();
    let images: Vec<Vec<u8>> = point.images(200, 1).collect();
    assert_eq!(images.iter().collect::<HashSet<_>>().len(), 200);
    assert_eq!(images, point.images(200, 1).collect::<Vec<_>>());
    assert_ne!(images, point.images(200, 2).collect::<Vec<_>>());
    let whole = |image: &[u8], at: usize, len: usize| {
        let stored = image[at..at + len].iter().filter(|byte| **byte != 0).count();
        if stored == 0 {
            Some(false)
        } else {
            (image[at..].iter().take(len).step_by(8).all(|b| *b != 0)).then_some(true)
        }
    };
    let fates: HashSet<_> =
        images.iter().map(|image| (whole(image, 0, 64), whole(image, 4096, 4096))).collect();
    for record in [Some(false), Some(true)] {
        for data in [Some(false), Some(true), None] {
            assert!(fates.contains(&(record, data)), "no image with record {record:?} and data {data:?}");
        }
    }
    for seed in 0..50 {
        let few: HashSet<Vec<u8>> = point.images(16, seed).collect();
        for wanted in [|unit| unit < 8, |unit| unit >= 8, |_| true, |_| false] {
            assert!(few.contains(&point.image(wanted)), "each operation alone, all and none come first");
        }
    }
    assert_eq!(point.images(1, 0).collect::<Vec<_>>(), [point.durable_image()]);
}

#[test]
fn a_limit_far_above_what_the_model_admits_ends() {
    let (region, simulator) = machine(Model::Ordered);
    for round in 1..=40 {
        region.store_u64(Pos(round % 8 * 8), round);
    }
    assert_eq!(simulator.crash_point().images(5000, 0).count(), 41, "forty stores of one line: its prefixes");
}

#[test]
fn many_threads_store_and_fence_and_every_fenced_word_is_durable() {
    let (region, simulator) = machine(Model::Pessimistic);
    let (threads, rounds) = (4u64, 200);
    let start = Barrier::new(threads as usize);
    let points = Arc::new(Mutex::new(0));
    let count = points.clone();
    simulator.on_fence(Box::new(move |point| {
        // A thread stores its round's number and fences before the next: the media lags by one at the most.
        let (lost, kept) = (point.durable_image(), point.full_image());
        for thread in 0..threads {
            assert!(word(&kept, thread * 8) - word(&lost, thread * 8) <= 1);
        }
        *count.lock().unwrap() += 1;
    }));
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (region, start) = (&region, &start);
            scope.spawn(move || {
                start.wait();
                for round in 1..=rounds {
                    region.nt_write(Pos(thread * 8), &u64::to_le_bytes(round));
                    region.nt_write(Pos(4096 + thread * 100), &[round as u8; 99]);
                    region.fence();
                }
            });
        }
    });
    assert_eq!((*points.lock().unwrap(), simulator.fences()), (threads * rounds, threads * rounds));
    let point = simulator.crash_point();
    assert_eq!((point.pending_units(), word(&point.durable_image(), 24)), (0, rounds));
}

#[test]
fn images_as_differences_from_the_start_are_the_same_images() {
    let mut start = vec![0; LEN as usize];
    start[100..300].fill(7);
    let (region, simulator) = Region::simulated_from(&start);
    region.nt_write(Pos(90), &[1; 5000]);
    region.fence();
    region.nt_line(Pos(128), &[3; 8]);
    region.store_u64(Pos(8192), 5);
    region.nt_write(Pos(200), &[7; 50]);
    let point = simulator.crash_point();
    let images: Vec<Vec<u8>> = point.images(40, 2).collect();
    let differences: Vec<_> = point.differences(&start, 40, 2).collect();
    assert_eq!(images.len(), differences.len());
    for (image, words) in images.iter().zip(&differences) {
        let mut made = start.clone();
        for (at, word) in words {
            assert_ne!(start[at.0 as usize..][..8], word.to_le_bytes(), "a word that does not differ");
            made[at.0 as usize..][..8].copy_from_slice(&word.to_le_bytes());
        }
        assert!(made == *image);
    }
}
