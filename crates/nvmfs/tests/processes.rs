//! Several processes on one file system: what holds among threads holds among them.
//!
//! The test is the daemon; it starts itself again as clients (the ignored test below), each of which attaches through the socket
//! and plays a role.

mod common;
mod kill {
    pub mod child;
    pub mod history;
    pub mod operation;
    pub mod verify;
}
mod processes {
    pub mod children;
    pub mod killing;
    pub mod roles;
}

use common::{Short, env, fresh};
use heddle_nvmfs::server::{Server, ServerError, ServerOptions};
use heddle_nvmfs::{Variant, client};
use heddle_vfs::{FileSystem, Ino};
use processes::children::{House, ROLE, start};
use processes::killing::{Crew, random_numbers};
use std::time::{Duration, Instant};

#[test]
#[ignore = "run by the tests below"]
fn the_child_that_plays_a_role() {
    let Some(role) = std::env::var_os(ROLE) else { return };
    processes::roles::play(role.to_str().unwrap());
}

#[test]
fn what_one_process_writes_another_reads() {
    let house = House::new(64 << 20);
    let fs = house.fs();
    let file = fs.new_file(Ino::ROOT, "f");
    fs.write(&file, 0, &[7; 10_000]).unwrap();
    start(&house, "reads-7-writes-8").succeeds();
    assert_eq!(fs.read_vec(&file, 0, 20_000), [8; 12_000]);
    assert_eq!(fs.size(&fs.open_file(Ino::ROOT, "made-by-the-client")), 5);
    fs.release(file);
}

#[test]
fn the_papers_variants_stay_in_one_process_and_say_so() {
    for variant in Variant::ALL.into_iter().filter(|v| *v != Variant::Heddle) {
        let volume = fresh(variant, 16 << 20);
        let dir = tempfile::tempdir().unwrap();
        let options = ServerOptions { socket: Some(dir.path().join("s")), ..ServerOptions::default() };
        let refused = Server::start(&volume, &options).err().unwrap();
        assert!(matches!(refused, ServerError::OneProcess { .. }), "{refused}");
        assert!(refused.to_string().contains(variant.name()), "{refused}");
        volume.unmount();
    }
}

#[test]
fn two_attachments_of_one_process_are_one_file_system() {
    let house = House::new(64 << 20);
    let (here, there) = (house.fs(), client::attach(house.socket()).unwrap());
    let file = here.new_file(Ino::ROOT, "f");
    let seen = there.open_file(Ino::ROOT, "f");
    for round in 0..100u8 {
        here.write(&file, u64::from(round) * 100, &[round; 100]).unwrap();
        assert_eq!(there.read_vec(&seen, u64::from(round) * 100, 100), [round; 100]);
    }
    there.release(seen);
    here.release(file);
}

#[test]
fn a_writer_that_is_killed_holds_nobody_up_and_loses_nothing_acknowledged() {
    let mut random = random_numbers();
    let mut house = House::new(64 << 20);
    let free_before = house.fs().statfs().unwrap().blocks_free;
    let mut crew = Crew::start(&house, "works-on-data");
    let began = Instant::now();
    let kills = env("HEDDLE_PROCESS_KILLS", 60);
    for _ in 0..kills {
        std::thread::sleep(Duration::from_micros(random() % 10_000));
        crew.kill_one(&mut random);
    }
    let longest = crew.longest_call();
    let history = crew.end(false);
    println!("{kills} kills, {} calls, longest call {longest:?}, in {:?}", history.len(), began.elapsed());
    assert!(longest < Duration::from_secs(1), "a call took {longest:?}");
    let free = house.fs().statfs().unwrap().blocks_free;
    for crash in [true, false] {
        house.mount_again(crash);
        kill::verify::verify_data(&house.fs(), &history).unwrap_or_else(|finding| panic!("mounted again: {finding}"));
    }
    let recovered = house.fs().statfs().unwrap().blocks_free;
    println!("blocks free: {free_before} at first, {free} at last, {recovered} when mounted again");
    assert!(recovered - free.min(recovered) <= 16 * kills, "{free} of {recovered} blocks came back");
}
