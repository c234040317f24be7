//! A hash of the sources that decide what lies in memory that processes share, and what they do with it. Processes of different builds must
//! not share an arena (`state::core::LAYOUT`): the sizes of structures do not tell that two fields have changed places.

use std::fs;
use std::path::{Path, PathBuf};

/// The engine, and what it is made of in shared memory.
const SOURCES: [&str; 3] = ["src", "../arena/src", "../range-lock/src"];

/// Files of other kinds, as editors and patch(1) leave them, do not count.
fn files(dir: &Path, into: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        if kind.is_dir() {
            files(&path, into)?;
        } else if kind.is_file() && !is_hidden && path.extension().is_some_and(|kind| kind == "rs") {
            into.push(path);
        }
    }
    Ok(())
}

fn main() -> std::io::Result<()> {
    let mut all = Vec::new();
    // A crate that lies alone has no siblings.
    for dir in SOURCES.into_iter().filter(|dir| Path::new(dir).is_dir()) {
        println!("cargo:rerun-if-changed={dir}");
        files(Path::new(dir), &mut all)?;
    }
    all.sort();
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut add = |bytes: &[u8]| {
        for byte in bytes.iter().chain(&(bytes.len() as u64).to_le_bytes()) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    };
    for path in all {
        add(path.as_os_str().as_encoded_bytes());
        add(&fs::read(&path)?);
    }
    println!("cargo:rustc-env=HEDDLE_SOURCES={hash:016x}");
    Ok(())
}
