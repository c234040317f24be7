//! Processes that are killed at a random moment: what they were told is done is done, what was running is whole or absent.
//!
//! A child mounts an image in `/dev/shm` and works on it in four threads. Before and after each call it writes a line to a
//! journal, so that the journal's order tells which calls were over before others began. The parent kills it, mounts the image,
//! and holds it to the journal. `HEDDLE_KILL_ROUNDS` rounds, dealt out to the variants and to both durabilities.

mod common;
mod kill {
    pub mod child;
    pub mod history;
    pub mod operation;
    pub mod verify;
}

use common::{by_durability, env, options, promising};
use heddle_nvmfs::{Variant, format_region, mount};
use heddle_pmem::{Durability, Region};
use kill::history::History;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

/// Name of the test that is the child, and of the variable that tells it where to work.
const CHILD: &str = "the_child_that_is_killed";
const PLACE: &str = "HEDDLE_KILL_PLACE";
const IMAGE_BYTES: u64 = 24 << 20;
/// Rounds on one image: what a recovery left is what the next child works on.
const ROUNDS_AN_IMAGE: u64 = 4;

/// A child that does not outlive its round, also when the round fails.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "run by the test below"]
fn the_child_that_is_killed() {
    let Some(place) = std::env::var_os(PLACE) else { return };
    kill::child::work_until_killed(Path::new(&place));
}

fn start_child(place: &Path, durability: Durability) -> Killed {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", CHILD, "--ignored", "--nocapture", "--test-threads=1"])
        .env(PLACE, place)
        .env("HEDDLE_DURABILITY", durability.name())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    Killed(child)
}

/// Runs a child until a random moment after its first call; its journal afterwards.
fn one_kill(place: &Path, durability: Durability, random: &mut impl FnMut() -> u64) -> History {
    let journal = place.join("journal");
    let len_before = std::fs::metadata(&journal).map_or(0, |m| m.len());
    let mut child = start_child(place, durability);
    let start = Instant::now();
    while std::fs::metadata(&journal).map_or(0, |m| m.len()) == len_before {
        assert!(child.0.try_wait().unwrap().is_none(), "the child ended before it was killed");
        assert!(start.elapsed() < Duration::from_secs(60), "the child does nothing");
        std::thread::sleep(Duration::from_micros(200));
    }
    std::thread::sleep(Duration::from_micros(random() % 40_000));
    assert!(child.0.try_wait().unwrap().is_none(), "the child ended by itself: its own output says why");
    drop(child);
    History::read(&journal)
}

fn kill_rounds(durability: Durability, rounds: u64) {
    let mut seed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64;
    println!("seed {seed}");
    let mut random = move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        seed >> 33
    };
    let mut done = 0;
    let mut acknowledged = 0;
    while done < rounds {
        let variant = Variant::ALL[(done / ROUNDS_AN_IMAGE) as usize % Variant::ALL.len()];
        let place = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let image = place.path().join("image");
        let region = Region::create(&image, IMAGE_BYTES, &promising(durability)).unwrap();
        format_region(&region, variant).unwrap();
        drop(region);
        let mut history = History::default();
        for round in 0..ROUNDS_AN_IMAGE.min(rounds - done) {
            let journal = one_kill(place.path(), durability, &mut random);
            history.continued_by(journal);
            let region = Region::open(&image, &promising(durability)).unwrap();
            let volume = mount(region, &options()).unwrap_or_else(|e| {
                panic!("{variant:?}, {durability}, round {round} of an image: after a kill: {e}")
            });
            if let Err(finding) = kill::verify::verify(&volume.fs(), &history) {
                panic!(
                    "{variant:?}, {durability}, round {round} of an image, {} calls: {finding}",
                    history.len()
                );
            }
            if round % 2 == 0 { volume.unmount() } else { volume.abandon() }
        }
        acknowledged += history.len();
        done += ROUNDS_AN_IMAGE;
    }
    println!("{durability}: {done} kills, {acknowledged} calls");
    assert!(acknowledged > done * 20, "the children hardly worked: {acknowledged} calls in {done} rounds");
}

#[test]
fn acknowledged_calls_survive_a_kill_and_none_is_half_done() {
    by_durability(env("HEDDLE_KILL_ROUNDS", 200), kill_rounds);
}
