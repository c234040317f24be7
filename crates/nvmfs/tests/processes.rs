//! Several processes on one file system: what holds among threads holds among them.
//!
//! The test is the daemon; it starts itself again as clients (the ignored test below), each of which attaches through the socket
//! and plays a role.

mod common;
#[path = "kill"]
#[allow(dead_code, reason = "each test file uses some of it")]
mod kill {
    pub mod child;
    pub mod history;
    pub mod operation;
    pub mod verify;
}
#[path = "processes"]
mod processes {
    mod attach_socket;
    pub mod children;
    mod deaths;
    pub mod killing;
    pub mod roles;
    pub mod rubbish;
    mod spaces;
    pub mod survivors;
}

use common::{Short, env, fresh};
use heddle_nvmfs::adopt::AdoptError;
use heddle_nvmfs::counters::{Kind, SAMPLED_EVERY};
use heddle_nvmfs::server::{Server, ServerOptions};
use heddle_nvmfs::{Variant, client};
use heddle_vfs::{FileSystem, Ino};
use processes::children::{ROLE, Role, SharedMount, image, start};
use std::time::{Duration, Instant};

#[test]
#[ignore = "run by the tests below"]
fn the_child_that_plays_a_role() {
    let Some(role) = std::env::var_os(ROLE) else { return };
    processes::roles::play(role.to_str().unwrap());
}

#[test]
fn what_one_process_writes_another_reads() {
    let shared = SharedMount::new(64 << 20);
    let fs = shared.fs();
    let file = fs.new_file(Ino::ROOT, "f");
    fs.write(&file, 0, &[7; 10_000]).unwrap();
    start(&shared, "reads-7-writes-8").succeeds();
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
        let server = Server::start(&volume, &options).unwrap();
        let refused = client::attach(server.socket()).err().unwrap().to_string();
        assert!(refused.contains(variant.name()) && refused.contains("one process"), "{refused}");
        drop(server);
        volume.unmount();
    }
}

#[test]
fn who_looks_on_sees_what_every_variant_has_done_and_by_whom() {
    for variant in Variant::ALL {
        let volume = fresh(variant, 16 << 20);
        let dir = tempfile::tempdir().unwrap();
        let options = ServerOptions { socket: Some(dir.path().join("s")), ..ServerOptions::default() };
        let server = Server::start(&volume, &options).unwrap();
        let fs = volume.fs();
        let file = fs.new_file(Ino::ROOT, "f");
        for page in 0..130 {
            fs.write(&file, page * 4096, &[1; 4096]).unwrap();
        }
        fs.read_vec(&file, 0, 5000);
        std::thread::scope(|scope| {
            // Joined, not only waited for: it has given its lane back by then.
            scope.spawn(|| fs.write(&file, 0, &[2; 10]).unwrap()).join().unwrap();
        });
        let seen = client::counters(server.socket()).unwrap();
        let (write, read) = (seen.totals.of(Kind::Write), seen.totals.of(Kind::Read));
        assert_eq!(
            (write.calls, write.bytes),
            (131, 130 * 4096 + 10),
            "{variant:?}: threads that have ended count"
        );
        assert_eq!((read.calls, read.bytes), (1, 5000), "{variant:?}");
        assert_eq!(write.timed, seen.spans[Kind::Write as usize].iter().sum::<u64>());
        assert!(write.timed >= 3 && write.timed_ns > 0, "{variant:?}: one call in {SAMPLED_EVERY} is timed");
        assert_eq!(seen.totals.of(Kind::Create).calls, 1, "{variant:?}");
        let me = seen.clients.iter().find(|client| client.pid == std::process::id()).unwrap();
        assert_eq!(me.totals.of(Kind::Write).calls, 130, "{variant:?}: a client is who is there now");
        assert!(
            seen.gauges.blocks_free < seen.gauges.blocks_total && seen.gauges.damaged == 0,
            "{variant:?}"
        );
        fs.release(file);
        drop((fs, server));
        volume.unmount();
    }
}

#[test]
fn a_mount_that_lets_nobody_attach_can_be_looked_at() {
    let volume = fresh(Variant::Heddle, 16 << 20);
    let dir = tempfile::tempdir().unwrap();
    let socket = Some(dir.path().join("s"));
    let server =
        Server::start(&volume, &ServerOptions { socket, no_attach: true, ..ServerOptions::default() })
            .unwrap();
    let refused = client::attach(server.socket()).err().unwrap().to_string();
    assert!(refused.contains("no_attach"), "{refused}");
    assert!(client::counters(server.socket()).unwrap().gauges.blocks_free > 0);
    drop(server);
    volume.unmount();
}

#[test]
fn two_attachments_of_one_process_are_one_file_system() {
    let shared = SharedMount::new(64 << 20);
    let (here, there) = (shared.fs(), client::attach(shared.socket()).unwrap());
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
fn reads_see_writes_of_other_processes_whole_or_not_at_all() {
    let reads = env("HEDDLE_TORN_READS", 3000);
    for (offset, len) in [(0, 4096), (100, 16 << 10), (1000, 256 << 10)] {
        let shared = SharedMount::new(64 << 20);
        let file = shared.fs().new_file(Ino::ROOT, "torn");
        shared.fs().write(&file, 0, &vec![1; 300 << 10]).unwrap();
        // Of two readers; the largest costs some fifty times the smallest.
        let each = (if len > 64 << 10 { reads / 10 } else { reads }).div_ceil(2);
        let writers: Vec<_> = (0..2).map(|_| start(&shared, &format!("stamps {offset} {len}"))).collect();
        let readers: Vec<_> =
            (0..2).map(|_| start(&shared, &format!("checks {offset} {len} {each}"))).collect();
        readers.into_iter().for_each(|reader| reader.succeeds_within(Duration::from_secs(3600)));
        println!("{len} bytes at {offset}: {} reads, none torn", 2 * each);
        for mut writer in writers {
            assert!(writer.0.try_wait().unwrap().is_none(), "a writer has given up: its own output says why");
        }
    }
}

#[test]
fn appends_of_several_processes_neither_overlap_nor_get_lost() {
    let shared = SharedMount::new(128 << 20);
    let file = shared.fs().new_file(Ino::ROOT, "log");
    let appenders: Vec<_> = (0..4).map(|who| start(&shared, &format!("appends {who} 500"))).collect();
    appenders.into_iter().for_each(Role::succeeds);
    let bytes = shared.fs().read_vec(&file, 0, shared.fs().size(&file) as usize);
    let (mut at, mut seen) = (0, std::collections::BTreeSet::new());
    while at < bytes.len() {
        let word = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().unwrap());
        let (number, len) = (word(at), word(at + 8) as usize);
        assert!(bytes[at..].starts_with(&kill::operation::record(number, len)), "byte {at} begins no record");
        assert!(seen.insert(number), "record {number} is there twice");
        at += len;
    }
    assert_eq!(seen.len(), 2000);
}

#[test]
fn an_image_locked_by_a_living_process_is_not_adopted() {
    let shared = SharedMount::unmounted(16 << 20);
    let mut owner = processes::children::start_at(shared.socket(), "mounts-for-itself");
    while !shared.place().join("mounted").exists() {
        assert!(owner.0.try_wait().unwrap().is_none(), "it did not mount");
        std::thread::sleep(Duration::from_millis(5));
    }
    let refused = heddle_nvmfs::adopt::adopt(&shared.place().join("image")).err().unwrap();
    assert!(matches!(refused, AdoptError::Served { .. }), "{refused}");
    drop(owner);
    // Nor one that this very process has.
    let shared = SharedMount::new(16 << 20);
    let refused = heddle_nvmfs::adopt::adopt(&shared.place().join("image")).err().unwrap();
    assert!(matches!(refused, AdoptError::Served { .. }), "{refused}");
}

#[test]
fn unmounting_under_clients_fails_their_calls_and_leaves_it_clean() {
    let mut shared = SharedMount::new(32 << 20);
    let file = shared.fs().new_file(Ino::ROOT, "f");
    shared.fs().release(file);
    let clients: Vec<_> = (0..2).map(|_| start(&shared, "writes-until-unmounted")).collect();
    let began = |client: &Role| shared.socket().with_extension(format!("began-{}", client.pid())).exists();
    while !clients.iter().all(began) {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(20));
    shared.unmount();
    let region = image(shared.place());
    let info =
        heddle_nvmfs::inspect(shared.place(), region.len_bytes(), &|at, into| region.read(at, into)).unwrap();
    assert!(info.clean, "the image was not marked clean");
    clients.into_iter().for_each(Role::succeeds);
}

#[test]
fn clients_may_execute_fork_and_close_what_they_like() {
    let shared = SharedMount::new(64 << 20);
    let fs = shared.fs();
    let file = fs.new_file(Ino::ROOT, "f");
    for role in ["executes-something-else", "closes-its-descriptors", "forks"] {
        let mut client = start(&shared, role);
        assert!(client.ends(Duration::from_secs(60)).success(), "{role}: its own output says why");
        let began = Instant::now();
        fs.write(&file, 0, &vec![6; 30_000]).unwrap();
        fs.append(&file, &[7; 100]).unwrap();
        assert!(began.elapsed() < Duration::from_secs(1), "{role}: held up for {:?}", began.elapsed());
        assert_eq!(fs.read_vec(&file, 0, 30_000), [6; 30_000]);
    }
    fs.release(file);
}
