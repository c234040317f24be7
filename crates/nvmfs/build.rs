//! A hash of the sources that decide what lies in memory that processes share, and what they do with it. Processes of different builds must
//! not share an arena (`state::core::LAYOUT`): the sizes of structures do not tell that two fields have changed places.

use std::fs;
use std::path::{Path, PathBuf};

/// The engine, and what it is made of in shared memory.
const SOURCES: [&str; 3] = ["src", "../arena/src", "../range-lock/src"];

fn files(dir: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap_or_else(|error| panic!("cannot read {}: {error}", dir.display())) {
        let path = entry.unwrap_or_else(|error| panic!("cannot read {}: {error}", dir.display())).path();
        if path.is_dir() { files(&path, into) } else { into.push(path) }
    }
}

fn main() {
    let mut all = Vec::new();
    for dir in SOURCES {
        println!("cargo:rerun-if-changed={dir}");
        files(Path::new(dir), &mut all);
    }
    all.sort();
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for path in all {
        let bytes = fs::read(&path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
        for byte in bytes {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    println!("cargo:rustc-env=HEDDLE_SOURCES={hash:016x}");
}
