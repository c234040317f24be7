//! What the clients do.

use super::children::SOCKET;
use crate::common::Short;
use heddle_nvmfs::{NvmFs, client};
use heddle_vfs::{FileSystem, Ino};

/// Attaches through the socket that the parent named.
pub fn attached() -> NvmFs {
    let socket = std::env::var_os(SOCKET).unwrap();
    client::attach(socket.as_ref()).unwrap_or_else(|e| panic!("{e}"))
}

pub fn play(role: &str) {
    let (name, _args) = role.split_once(' ').unwrap_or((role, ""));
    match name {
        "reads-7-writes-8" => reads_7_writes_8(),
        other => panic!("no such role: {other}"),
    }
}

fn reads_7_writes_8() {
    let fs = attached();
    let file = fs.open_file(Ino::ROOT, "f");
    assert_eq!(fs.read_vec(&file, 0, 20_000), [7; 10_000]);
    fs.write(&file, 0, &[8; 12_000]).unwrap();
    let made = fs.new_file(Ino::ROOT, "made-by-the-client");
    fs.append(&made, b"hello").unwrap();
    fs.release(made);
    fs.release(file);
}
