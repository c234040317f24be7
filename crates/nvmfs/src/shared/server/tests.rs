//! The notes that a daemon leaves, what it refuses, and a daemon that offers counters alone.

use super::*;
use crate::shared::client;
use crate::state::lease;
use crate::variant::Variant;
use crate::volume::{MountOptions, format, mount};
use heddle_pmem::{OpenOptions, Region};
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::UnixListener;

fn mounted(region: Region, read_only: bool) -> Volume {
    let options = MountOptions { arena_bytes: 64 << 20, read_only, ..MountOptions::default() };
    mount(region, &options).unwrap()
}

fn unmount(volume: Volume) {
    lease::leave(&volume.fs().core);
    volume.unmount();
}

#[test]
fn a_note_is_left_only_where_a_successor_could_take_over() {
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("link");
    symlink(dir.path(), &link).unwrap();
    let path = link.join("image");
    let region = Region::create(&path, 8 << 20, &OpenOptions::default()).unwrap();
    format(&region, Variant::Heddle).unwrap();
    let meta = path.metadata().unwrap();
    let note = || notes::read([meta.dev(), meta.ino()]).unwrap();
    let start = |volume: &Volume, options| Server::start(volume, &options).unwrap();
    let volume = mounted(region, false);
    let server = start(&volume, ServerOptions::default());
    assert!(server.no_note().is_none());
    let (noted, author) = note().unwrap();
    assert_eq!(author, notes::Author::Lives);
    assert_eq!(noted.path, dir.path().canonicalize().unwrap().join("image"));
    let (notes_dir, name) =
        (notes::runtime_directory(false).unwrap(), format!("{:x}-{:x}.mount", meta.dev(), meta.ino()));
    let its = rustix::fs::statat(&notes_dir, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
    assert_eq!(its.st_mode & 0o7777, 0o600, "it is for the daemon's user alone");
    drop(server);
    assert!(note().is_none(), "it is left behind");
    let server = start(&volume, ServerOptions { no_attach: true, ..ServerOptions::default() });
    assert!(note().is_none(), "nobody can attach");
    drop(server);
    start(&volume, ServerOptions::default()).abandon();
    assert!(note().is_some(), "a successor needs it");
    // Another daemon's note of that name is not removed by one that ends later.
    let earlier = start(&volume, ServerOptions::default());
    let later = start(&volume, ServerOptions::default());
    drop(earlier);
    assert!(note().is_some());
    drop(later);
    assert!(note().is_none());
    unmount(volume);
    let volume = mounted(
        Region::open(&path, &OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap(),
        true,
    );
    let server = start(&volume, ServerOptions::default());
    assert!(note().is_none(), "nothing can be taken over that changes nothing");
    drop(server);
    unmount(volume);
}

#[test]
fn a_simulated_region_is_refused_to_other_processes() {
    let (region, _simulator) = Region::simulated(8 << 20);
    format(&region, Variant::Heddle).unwrap();
    let volume = mounted(region, false);
    let why = refusal(&volume.fs().core, &ServerOptions::default());
    assert!(why.is_some_and(|why| why.contains("simulated")));
    unmount(volume);
}

#[test]
fn an_engine_without_attachment_offers_counters_and_says_why() {
    let dir = tempfile::tempdir().unwrap();
    // The image is not opened: what that does is a matter of devices, and of this socket.
    let image = dir.path().join("image");
    let _there = UnixListener::bind(&image).unwrap();
    let options = ServerOptions { socket: Some(dir.path().join("attach")), ..ServerOptions::default() };
    let volume = {
        let region = Region::anonymous(8 << 20).unwrap();
        format(&region, Variant::Heddle).unwrap();
        mounted(region, false)
    };
    let reading = Counters::read(&volume.fs().core);
    let offered = reading.clone();
    let mut server =
        Server::start_for_counters(move || offered.clone(), &image, "it is of flash", &options).unwrap();
    assert_eq!(server.socket(), dir.path().join("attach"));
    let (seen, id) = client::counters_and_image(server.socket()).unwrap();
    assert_eq!(seen, reading);
    let meta = image.symlink_metadata().unwrap();
    assert_eq!(id, [meta.dev(), meta.ino()]);
    let refused = client::attach(server.socket()).err().unwrap().to_string();
    assert_eq!(refused, format!("cannot attach through {}: it is of flash", server.socket().display()));
    assert!(server.no_note().is_none());
    server.note = Some(Err(NoteError::NotSafe { dir: "/dir".into(), why: "it is another's".into() }));
    assert!(server.no_note().is_some_and(|error| error.to_string().contains("it is another's")));
    drop(server);
    unmount(volume);
}

#[test]
fn each_token_is_another_one() {
    let [one, two] = [fresh_token(), fresh_token()];
    assert!(one != two && one != AttachToken::default());
}
