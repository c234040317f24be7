//! Power cuts in a part of the corpus, every variant, a few images a cut. All of it: `cargo xtask crash`.

use heddle_crash::cut::Bounds;
use heddle_crash::rig::{Config, Judged, Nobody, Observer, Report, run};
use heddle_crash::{corpus, text};
use heddle_nvmfs::Variant;
use heddle_pmem::Model;

fn config(variant: Variant, model: Model) -> Config {
    Config { variant, model, bounds: Bounds { ordered: 4, random: 1, seed: 1 }, only: None }
}

fn survives(variant: Variant, names: &[&str]) {
    let mut sum = Report::default();
    for name in names {
        let workload = corpus::workload(name).unwrap();
        sum.add(run(&workload, &config(variant, Model::Ordered), &mut Nobody).unwrap());
    }
    println!("{}: {} cuts, {} states, {} images", variant.name(), sum.cuts, sum.states, sum.images);
    assert!(sum.failures.is_empty(), "{} failures, the first:\n{}", sum.failures.len(), sum.failures[0]);
    assert!(sum.images > 100, "only {} images were judged", sum.images);
}

/// Short ones, that go through every kind of record.
const SOME: &[&str] = &["sizes", "ranges", "names", "renames", "attributes", "kinds", "remounts"];

#[test]
fn nova_survives_a_power_cut_at_every_fence() {
    survives(Variant::Nova, SOME);
}

#[test]
fn nova_interval_survives_a_power_cut_at_every_fence() {
    survives(Variant::NovaInterval, SOME);
}

#[test]
fn nova_array_survives_a_power_cut_at_every_fence() {
    survives(Variant::NovaArray, SOME);
}

#[test]
fn nova_tree_survives_a_power_cut_at_every_fence() {
    survives(Variant::NovaTree, SOME);
}

#[test]
fn heddle_survives_a_power_cut_at_every_fence() {
    survives(Variant::Heddle, SOME);
    survives(
        Variant::Heddle,
        &["data", "threads", "log-page", "open-files", "inode-chunks", "slots-ended", "chunks-given-back"],
    );
}

/// Two pages out of the middle, two in at the front. More of it: the corpus' `shifts`.
#[test]
fn a_collapse_cut_by_power_is_done_or_not() {
    let workload = text::parse(
        "w",
        "create /a\nwrite /a 0 20000\nfallocate /a punch 12288 4096\nwatch\nfallocate /a collapse 4096 8192\n\
         fallocate /a insert 0 8192",
    )
    .unwrap();
    for variant in Variant::ALL {
        let report = run(&workload, &config(variant, Model::Ordered), &mut Nobody).unwrap();
        assert!(report.failures.is_empty(), "{}: {}", variant.name(), report.failures[0]);
        assert!(report.images > 10, "{}: only {} images were judged", variant.name(), report.images);
    }
}

/// All of the corpus: `cargo xtask crash --model process`.
#[test]
fn a_death_between_any_two_stores_loses_nothing_that_returned() {
    let mut sum = Report::default();
    for variant in Variant::ALL {
        for name in ["renames", "remounts"] {
            let workload = corpus::workload(name).unwrap();
            sum.add(run(&workload, &config(variant, Model::Process), &mut Nobody).unwrap());
        }
    }
    println!("{} cuts, {} states, {} images", sum.cuts, sum.states, sum.images);
    assert!(sum.failures.is_empty(), "{} failures, the first:\n{}", sum.failures.len(), sum.failures[0]);
    assert!(sum.states > 5 * sum.cuts, "{} states of {} cuts: not one a word", sum.states, sum.cuts);
}

/// A store that no fence covers is lost by a power cut, and by no death.
#[test]
fn a_death_keeps_what_returned_without_a_fence() {
    use heddle_pmem::{Pos, Region};
    for model in Model::ALL {
        let (region, simulator) = Region::simulated(8192);
        simulator.set_model(model);
        region.store_line(Pos(64), &[7; 8]);
        assert_eq!(simulator.crash_point().pending_units(), 8, "{model:?}: any moment inside the call");
        // PERSIST: what the rig does when a call has returned; a flush is what the model asks for.
        region.fence();
        assert_eq!(simulator.crash_point().pending_units(), 0, "{model:?}");
        region.nt_line(Pos(128), &[7; 8]);
        let point = simulator.crash_point();
        let out_of_order = point.choose(|unit| unit == 7).contains(&false);
        assert_eq!(out_of_order, !model.keeps_order(), "{model:?}");
    }
}

#[test]
fn cuts_that_lose_nothing_or_everything_survive_in_every_memory_model() {
    let workload =
        text::parse("w", "create /a\nwrite /a 100 5000\nrename /a /b\ntruncate /b 10\nunlink /b").unwrap();
    for model in Model::ALL {
        for variant in Variant::ALL {
            let report = run(&workload, &config(variant, model), &mut Nobody).unwrap();
            assert!(report.failures.is_empty(), "{model:?}: {}", report.failures[0]);
        }
    }
}

#[test]
fn a_run_is_the_same_for_a_seed() {
    let workload = corpus::workload("renames").unwrap();
    let run = || {
        let report = run(&workload, &config(Variant::Heddle, Model::Ordered), &mut Nobody).unwrap();
        (report.cuts, report.states, report.images)
    };
    assert_eq!(run(), run());
}

#[test]
fn calls_that_fail_as_they_should_are_part_of_a_workload() {
    // The engine has no room for the append, which the model would have; the others fail on both sides.
    let workload =
        text::parse("w", "create /a\nappend /a 64M\nwrite nobody 0 1\nmkdir /a\nrmdir /nothing").unwrap();
    let report = run(&workload, &config(Variant::Heddle, Model::Ordered), &mut Nobody).unwrap();
    assert!(report.failures.is_empty(), "{}", report.failures[0]);
}

#[test]
fn more_writers_at_once_than_an_inode_has_heads_for_lose_nothing() {
    for variant in Variant::ALL {
        let found = heddle_crash::scenes::many_lanes(variant, Model::Ordered).unwrap();
        assert!(found.is_none(), "{}", found.unwrap());
    }
}

#[test]
fn threads_inside_at_a_power_cut_leave_a_cut_of_their_history() {
    use heddle_crash::threads;
    for variant in Variant::ALL {
        for seed in 0..6 {
            let bounds = Bounds { ordered: 4, random: 1, seed };
            let config = threads::Config {
                variant,
                model: Model::Ordered,
                threads: 2 + seed as usize % 2,
                calls: 3,
                seed,
                cuts: 6,
                bounds,
            };
            let report = threads::run(&config).unwrap();
            assert!(report.failures.is_empty(), "{}", report.failures[0]);
            assert!(report.images > 0);
        }
    }
}

#[test]
fn an_image_whose_making_was_cut_is_none_or_is_empty() {
    use heddle_crash::judge::options;
    use heddle_nvmfs::{VolumeError, format_region, mount};
    use heddle_pmem::{CrashPoint, Region};
    use heddle_vfs::tree::Tree;
    use std::sync::{Arc, Mutex};
    for variant in Variant::ALL {
        let (region, simulator) = Region::simulated(heddle_crash::rig::IMAGE_BYTES);
        let images: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
        let found = images.clone();
        simulator.on_fence(Box::new(move |point: &CrashPoint<'_>| {
            found.lock().unwrap().extend(point.images(12, 1));
        }));
        format_region(&region, variant).unwrap();
        simulator.stop_watching();
        let (mut none, mut empty) = (0, 0);
        for image in images.lock().unwrap().iter() {
            match mount(Region::simulated_from(image).0, &options()) {
                Ok(volume) => {
                    assert_eq!(Tree::of(&volume.fs()).unwrap().nodes.len(), 1);
                    volume.abandon();
                    empty += 1;
                }
                Err(VolumeError::NotAnImage { .. } | VolumeError::SuperblockDamaged { .. }) => none += 1,
                Err(other) => panic!("{}: {other}", variant.name()),
            }
        }
        assert!(none > 0 && empty > 0, "{none} were no image, {empty} were empty");
    }
}

fn survives_text(name: &str, text: &str) {
    let workload = text::parse(name, text).unwrap();
    for variant in Variant::ALL {
        let config =
            Config { bounds: Bounds { ordered: 16, random: 4, seed: 1 }, ..config(variant, Model::Ordered) };
        let report = run(&workload, &config, &mut Nobody).unwrap();
        assert!(report.failures.is_empty(), "{}", report.failures[0]);
    }
}

/// An allocation is records of blocks, then the state: cut in between, the mtime of the records was there without the size.
#[test]
fn crash_an_allocation_that_was_cut_changed_the_mtime_alone() {
    survives_text(
        "allocate",
        "create /a\nappend /a 21180\ntimes /a 5\nwatch\nfallocate /a allocate 20480 8192\n",
    );
}

/// Name and inode become durable at one fence: cut in between, the name is not shown, and its time was the directory's all the same.
#[test]
fn crash_a_creation_that_was_cut_changed_the_directorys_mtime() {
    let text =
        "mkdir /d\nwatch\ntimes /d 5\ncreate /d/f\ntimes /d 6\nmkdir /d/e\ntimes /d 7\nsymlink /d/f /d/s\n";
    survives_text("create", text);
}

/// Which lane a thread got decided where its blocks lay, and so which images were chosen: one process in some saw a planted bug no more.
#[test]
fn a_run_is_the_same_whatever_lane_its_thread_had_before() {
    let workload = corpus::workload("threads").unwrap();
    let figures = |lane: u32| {
        heddle_nvmfs::look_first_at(lane);
        let mut chosen = Vec::new();
        let run = run(&workload, &config(Variant::Heddle, Model::Ordered), &mut Chosen(&mut chosen)).unwrap();
        (run.states, run.images, chosen)
    };
    assert_eq!(figures(3), figures(700));
}

/// The words of each judged image: where they lie tells the lane's blocks.
struct Chosen<'a>(&'a mut Vec<Vec<u64>>);

impl Observer for Chosen<'_> {
    fn judged(&mut self, image: &Judged<'_>) {
        self.0.push(image.words.iter().map(|(at, _)| at.0).collect());
    }
}
