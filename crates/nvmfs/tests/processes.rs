//! Several processes on one file system: what holds among threads holds among them.
//!
//! The test is the daemon; it starts itself again as clients (the ignored test below), each of which attaches through the socket
//! and plays a role.

mod common;
mod processes {
    pub mod children;
    pub mod roles;
}

use common::{Short, fresh};
use heddle_nvmfs::server::{Server, ServerError, ServerOptions};
use heddle_nvmfs::{Variant, client};
use heddle_vfs::{FileSystem, Ino};
use processes::children::{House, ROLE, start};

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
