//! Writers, daemons and the stopped: killed again and again while others work.
//!
//! What is measured, and must hold: no call of a survivor takes a second (what `PAUSE_MAX` says); nothing that was acknowledged is
//! lost, and nothing is there by half, while mounted and after two more mounts, the first of them as after a power cut; fsck has nothing
//! to say.
//! `HEDDLE_PROCESS_KILLS`, `HEDDLE_DAEMON_KILLS`, `HEDDLE_PROCESS_STOPS`: so many rounds. Half of the kills of writers are made under
//! each durability; `HEDDLE_DURABILITY` names that of all rounds. `cargo xtask kill-loop` sets them.

use super::children::{ROLE_PATIENCE, SharedMount, image, start_at, start_with};
use super::killing::{WriterPool, random_numbers};
use crate::common::{Short, by_durability, env, sound};
use crate::kill;
use crate::kill::history::History;
use heddle_nvmfs::adopt::{AdoptError, is_left_to_clients};
use heddle_nvmfs::client;
use heddle_nvmfs::server::ServerOptions;
use heddle_pmem::{Durability, OpenOptions, Region};
use heddle_vfs::{FileSystem, Ino};
use std::time::{Duration, Instant};

/// A call of a survivor never takes longer.
const PAUSE_MAX: Duration = Duration::from_secs(1);

#[test]
fn a_writer_that_is_killed_holds_nobody_up_and_loses_nothing_acknowledged() {
    by_durability(env("HEDDLE_PROCESS_KILLS", 60), |it, kills| kill_writers(it, "works-on-data", kills));
}

#[test]
fn a_process_killed_among_names_blocks_nobody_and_loses_nothing() {
    by_durability(env("HEDDLE_PROCESS_KILLS", 60), |it, kills| kill_writers(it, "works", kills));
}

/// The writers leave some files and appends behind: an image that lasts for so many rounds.
fn room(rounds: u64) -> u64 {
    (64 + rounds / 2) << 20
}

fn kill_writers(durability: Durability, role: &'static str, kills: u64) {
    let mut random = random_numbers();
    let mut shared = SharedMount::promising(durability, room(kills), ServerOptions::default());
    let free_before = shared.fs().statfs().unwrap().blocks_free;
    let mut pool = WriterPool::start(&shared, role);
    let began = Instant::now();
    for _ in 0..kills {
        std::thread::sleep(Duration::from_micros(random() % 10_000));
        pool.kill_one(&mut random);
    }
    let longest = pool.longest_call();
    let history = pool.end(role == "works");
    println!(
        "{durability}: {kills} kills, {} calls, longest call {longest:?}, in {:?}",
        history.len(),
        began.elapsed()
    );
    assert!(longest < PAUSE_MAX, "a call took {longest:?}");
    all_comes_back(&mut shared, &history, role == "works", free_before, kills);
}

/// What is there holds afterwards, and of the space of the dead a few blocks each at most were missing.
fn all_comes_back(shared: &mut SharedMount, history: &History, names: bool, free_before: u64, dead: u64) {
    let free = shared.fs().statfs().unwrap().blocks_free;
    let appended = shared.fs().find(Ino::ROOT, "log").unwrap().size_bytes;
    holds_afterwards(shared, history, names);
    let recovered = shared.fs().statfs().unwrap().blocks_free;
    println!(
        "blocks free: {free_before} at first, {free} at last, {recovered} when mounted again; {appended} bytes were appended"
    );
    assert!(recovered - free.min(recovered) <= 16 * dead, "{free} of {recovered} blocks came back");
}

/// Mounted again as after a power cut, and after a clean unmount: all is there, and fsck finds nothing.
fn holds_afterwards(shared: &mut SharedMount, history: &History, names: bool) {
    let verify = if names { kill::verify::verify } else { kill::verify::verify_data };
    for crash in [true, false] {
        shared.unmount_as(crash);
        let image = image(shared.place());
        sound(&image).unwrap_or_else(|finding| panic!("crash: {crash}: {finding}"));
        drop(image);
        shared.mount();
        verify(&shared.fs(), history).unwrap_or_else(|finding| panic!("mounted again: {finding}"));
    }
}

#[test]
fn a_stopped_writer_in_the_way_is_killed_after_the_patience() {
    let rounds = env("HEDDLE_PROCESS_STOPS", 10);
    let mut random = random_numbers();
    let patience = Duration::from_millis(250);
    let mut shared = SharedMount::with(
        room(3 * rounds),
        ServerOptions { patience: Some(patience), ..ServerOptions::default() },
    );
    let free_before = shared.fs().statfs().unwrap().blocks_free;
    let mut pool = WriterPool::start(&shared, "works-on-data");
    let (mut killed, mut continued) = (0, 0);
    for round in 0..rounds {
        // Every third one goes on in time: nobody touches it.
        if round % 3 == 2 {
            continued += u64::from(pool.stop_one_for_a_while(&mut random, patience));
        } else {
            killed += u64::from(pool.stop_one(&mut random, patience));
        }
    }
    let longest = pool.longest_call();
    let history = pool.end(false);
    println!(
        "{rounds} stops, {continued} continued in time, {killed} of the others killed, {} calls, longest call {longest:?}",
        history.len()
    );
    assert!(rounds < 3 || continued > 0, "nobody was continued in time");
    assert!(killed > 0, "nobody who was in others' way was killed");
    assert!(longest < patience + PAUSE_MAX, "a call took {longest:?}");
    all_comes_back(&mut shared, &history, false, free_before, killed);
}

#[test]
fn an_arena_this_users_daemon_has_not_noted_is_not_adopted() {
    // A region is whole blocks; of larger powers of two it need not be a multiple.
    let mut shared = SharedMount::unmounted((16 << 20) + 4096);
    let notes = shared.place().join("notes");
    // It notes its arena where the next one does not look: to that it could be anybody's.
    let mut daemon = start_with(shared.socket(), "serves", &[("HEDDLE_RUNTIME_DIR", &notes)]);
    daemon.is_ready(shared.place());
    let note = std::fs::read_dir(&notes).unwrap().next().unwrap().unwrap().path();
    let client = client::attach(shared.socket()).unwrap();
    drop(daemon);
    let refused = shared.adopt().unwrap_err();
    assert!(matches!(refused, AdoptError::NotNoted { .. }), "{refused}");
    assert!(refused.to_string().contains("left a note"), "{refused}");
    // With another arena in the note it is that which is looked for.
    let text = std::fs::read_to_string(&note).unwrap();
    let mut words: Vec<&str> = text.split(' ').collect();
    words[4] = "4242";
    std::fs::write(&note, words.join(" ")).unwrap();
    let mut taker = start_with(shared.socket(), "takes-over", &[("HEDDLE_RUNTIME_DIR", &notes)]);
    assert!(!taker.ends(ROLE_PATIENCE).success(), "it took another's");
    std::fs::write(&note, text).unwrap();
    let mut taker = start_with(shared.socket(), "takes-over", &[("HEDDLE_RUNTIME_DIR", &notes)]);
    taker.is_ready(shared.place());
    client.sync().unwrap();
}

#[test]
fn a_daemon_that_starts_again_takes_over_what_the_clients_hold() {
    let rounds = env("HEDDLE_DAEMON_KILLS", 3);
    let mut random = random_numbers();
    let mut shared = SharedMount::unmounted(room(rounds));
    let mut daemon = start_at(shared.socket(), "serves");
    daemon.is_ready(shared.place());
    let refused = shared.adopt().unwrap_err();
    assert!(matches!(refused, AdoptError::Served { .. } | AdoptError::NotFound { .. }), "{refused}");
    let image = shared.place().join("image");
    let tells_holders = heddle_pmem::lock_holder(&image) == Some(daemon.pid());
    assert!(!is_left_to_clients(&image), "a daemon serves it");
    let mut pool = WriterPool::start(&shared, "works");
    let mut takeover = Duration::ZERO;
    for _ in 0..rounds {
        std::thread::sleep(Duration::from_micros(random() % 30_000));
        drop(daemon);
        let locked = Region::open(shared.place().join("image"), &OpenOptions::default()).unwrap_err();
        let in_use = matches!(locked, heddle_pmem::Error::InUse { .. });
        assert!(in_use, "the clients' image could be mounted: {locked}");
        assert!(is_left_to_clients(&image), "its daemon is dead");
        pool.others_go_on(u64::MAX);
        // One that dies while nobody looks is settled by those whose way it is in, or by the next daemon.
        let orphan = pool.kill_quietly(&mut random);
        daemon = start_at(shared.socket(), "takes-over");
        if random().is_multiple_of(4) {
            // One that dies in the midst of taking over is followed by another.
            std::thread::sleep(Duration::from_micros(random() % 8_000));
            drop(daemon);
            daemon = start_at(shared.socket(), "takes-over");
        }
        let began = Instant::now();
        daemon.is_ready(shared.place());
        takeover = takeover.max(began.elapsed());
        pool.replace(orphan);
    }
    let longest = pool.longest_call();
    let writers = pool.leave();
    drop(daemon);
    shared.adopt().unwrap();
    assert!(!is_left_to_clients(&image), "it has a daemon again");
    let mut pool = WriterPool::with(&shared, "works", writers);
    (0..5).for_each(|_| pool.kill_one(&mut random));
    let history = pool.end(true);
    println!(
        "{rounds} daemons killed, {} calls, longest call {longest:?}, slowest start of a successor {takeover:?}",
        history.len()
    );
    assert!(longest < PAUSE_MAX, "a call took {longest:?}");
    // The lock of the first daemon ended with the last client. By then this daemon takes one of its own.
    let began = Instant::now();
    while tells_holders && heddle_pmem::lock_holder(&image) != Some(std::process::id()) {
        assert!(began.elapsed() < ROLE_PATIENCE, "others could mount the image");
        std::thread::sleep(Duration::from_millis(5));
    }
    holds_afterwards(&mut shared, &history, true);
}
