//! Processes on one file of a mount, some through the kernel, some with the bypass, some of each: no read is torn, no append is lost, sizes
//! and times never go back.
//!
//! The test starts itself again as its processes (the ignored test below), which use plain calls: half of them run under `heddle run`.
//! `HEDDLE_TORN_READS`: so many reads a shape and mixture (the largest shape gets a tenth). `HEDDLE_DURABILITY`: that of the mount.
//! `cargo xtask torn --processes`.

mod common;

use common::roles::{Role, role};
use common::traps::went_well;
use common::{Mounted, Place, durabilities, own_namespace};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Offset and length of what is written and read.
const SHAPES: [(u64, usize); 3] = [(0, 4096), (100, 16 << 10), (1000, 256 << 10)];

#[test]
#[ignore = "run by the tests below"]
fn the_process_that_plays_a_role() {
    let Some((name, numbers, file)) = role() else { return };
    match (name.as_str(), numbers.as_slice()) {
        ("stamps", [offset, len]) => stamps(&file, *offset, *len as usize),
        ("checks", [offset, len, reads]) => checks(&file, *offset, *len as usize, *reads),
        ("appends", [who, count]) => appends(&file, *who, *count),
        ("watches", [looks]) => watches(&file, *looks),
        other => panic!("no such role: {other:?}"),
    }
}

fn opened(file: &Path) -> File {
    File::options().read(true).write(true).open(file).unwrap()
}

/// One value after the other over the whole range, until it is killed.
fn stamps(file: &Path, offset: u64, len: usize) {
    let file = opened(file);
    for round in 0u64.. {
        let value = (round as u8 ^ std::process::id() as u8) | 1;
        assert_eq!(file.write_at(&vec![value; len], offset).unwrap(), len);
    }
}

/// Every read is of one value; they are not all of the same.
fn checks(file: &Path, offset: u64, len: usize, reads: u64) {
    let file = opened(file);
    let (mut bytes, mut values) = (vec![0; len], [false; 256]);
    let began = Instant::now();
    for read in 0.. {
        assert_eq!(file.read_at(&mut bytes, offset).unwrap(), len);
        let torn = bytes.iter().position(|byte| *byte != bytes[0]);
        assert_eq!(torn, None, "read {read} of {len} bytes at {offset} is torn");
        values[usize::from(bytes[0])] = true;
        let seen = values.iter().filter(|seen| **seen).count();
        if read >= reads && seen > 1 {
            return;
        }
        assert!(read < reads || began.elapsed() < Duration::from_secs(60), "nobody wrote meanwhile");
    }
}

const RECORD_HEAD: usize = 24;

/// Whose it is, which of his, how long; the rest follows from that.
fn record(who: u64, number: u64) -> Vec<u8> {
    let len = RECORD_HEAD + (who.wrapping_mul(0x9e37) ^ number.wrapping_mul(0x79b9)) as usize % 5000;
    let mut bytes = [who, number, len as u64].map(u64::to_le_bytes).concat();
    bytes.resize(len, (who * 31 + number) as u8);
    bytes
}

fn appends(file: &Path, who: u64, count: u64) {
    let mut file = File::options().append(true).open(file).unwrap();
    for number in 0..count {
        let record = record(who, number);
        // One call: what it leaves is one piece.
        assert_eq!(file.write(&record).unwrap(), record.len());
    }
}

/// Size and time of change, by name and by descriptor in turns.
fn watches(path: &Path, looks: u64) {
    let file = opened(path);
    let (mut size, mut time) = (0, (0, 0));
    for look in 0..looks {
        let meta = if look % 2 == 0 { file.metadata().unwrap() } else { fs::metadata(path).unwrap() };
        let changed = (meta.mtime(), meta.mtime_nsec());
        let how = if look % 2 == 0 { "descriptor" } else { "name" };
        assert!(meta.len() >= size, "look {look}, by {how}: {} bytes after {size}", meta.len());
        assert!(changed >= time, "look {look}, by {how}: changed at {changed:?} after {time:?}");
        (size, time) = (meta.len(), changed);
    }
}

/// All through the kernel, all past it, one of each.
const MIXTURES: [(&str, [bool; 2]); 3] =
    [("mount", [false, false]), ("bypass", [true, true]), ("both", [false, true])];

/// Runs it on a mount, or says loudly that nothing is tested. One at a time.
fn on_a_mount(test: impl FnOnce(&Mounted<'_>)) {
    static ONE: Mutex<()> = Mutex::new(());
    let _alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    if !own_namespace() {
        return;
    }
    common::build_preload();
    let place = Place::with_image_of("heddle", "64M");
    let durability = format!("durability={}", durabilities()[0]);
    test(&Mounted::new(&place, &["-o", "log=/dev/null", "-o", &durability]));
}

fn reads() -> u64 {
    std::env::var("HEDDLE_TORN_READS").map_or(1000, |reads| reads.parse().unwrap())
}

#[test]
fn no_read_is_torn_whichever_way_readers_and_writers_go() {
    on_a_mount(|mounted| {
        let file = mounted.path("torn");
        fs::write(&file, vec![1; 300 << 10]).unwrap();
        for (offset, len) in SHAPES {
            let reads = (if len > 64 << 10 { reads() / 10 } else { reads() }).div_ceil(2);
            for (name, ways) in MIXTURES {
                // The last shape's bytes are of many values.
                opened(&file).write_at(&vec![1; len], offset).unwrap();
                let writers = ways.map(|way| Role::start(&format!("stamps {offset} {len}"), &file, way));
                let readers =
                    ways.map(|way| Role::start(&format!("checks {offset} {len} {reads}"), &file, way));
                readers.into_iter().for_each(Role::succeeds);
                println!("{len} bytes at {offset}, {name}: {} reads, none torn", 2 * reads);
                drop(writers);
            }
        }
    });
}

/// So many ask for the size at once that answers overtake each other: of two under way, the kernel once kept the older one.
const WATCHERS: usize = 6;

#[test]
fn no_append_is_lost_and_sizes_and_times_never_go_back() {
    on_a_mount(|mounted| {
        let count = (reads() / 10).clamp(500, 2000);
        for (name, ways) in MIXTURES {
            let file = mounted.path(name);
            File::create(&file).unwrap();
            let watchers: Vec<Role> = (0..WATCHERS)
                .map(|who| Role::start(&format!("watches {}", 20 * count), &file, ways[who % 2]))
                .collect();
            let appenders: Vec<Role> = (0..4)
                .map(|who| Role::start(&format!("appends {who} {count}"), &file, ways[who % 2]))
                .collect();
            appenders.into_iter().for_each(Role::succeeds);
            watchers.into_iter().for_each(Role::succeeds);
            all_there(&fs::read(&file).unwrap(), 4, count);
            let looks = WATCHERS as u64 * 20 * count;
            println!("{name}: {} appends, all there; {looks} looks at size and time", 4 * count);
            fs::remove_file(&file)
                .or_else(|e| if e.kind() == ErrorKind::NotFound { Ok(()) } else { Err(e) })
                .unwrap();
        }
    });
}

/// The kernel serves some calls by the size that it has cached: an append overwrote what others had appended past it, copies ended early.
#[test]
fn a_program_through_the_mount_finds_what_was_written_past_it() {
    on_a_mount(|mounted| {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/old_sizes.py");
        let run = [env!("CARGO_BIN_EXE_heddle"), "run", "--"];
        let said = Command::new("python3").arg(script).arg(mounted.path("file")).args(run).output().unwrap();
        went_well(&said);
    });
}

/// Each record once, whole, and each appender's in its order.
fn all_there(bytes: &[u8], appenders: u64, count: u64) {
    let (mut at, mut next) = (0, BTreeMap::new());
    while at < bytes.len() {
        let word = |n: usize| bytes[at + 8 * n..].first_chunk().map_or(u64::MAX, |w| u64::from_le_bytes(*w));
        let (who, number) = (word(0), word(1));
        assert!(who < appenders && number < count, "byte {at} begins no record");
        let record = record(who, number);
        assert!(bytes[at..].starts_with(&record), "record {number} of {who} at byte {at} is not whole");
        let expected = next.entry(who).or_insert(0);
        assert_eq!(number, *expected, "records of {who} are lost, or out of order, at byte {at}");
        *expected += 1;
        at += record.len();
    }
    assert!(
        (0..appenders).all(|who| next.get(&who) == Some(&count)),
        "records are lost: {next:?} of {count} each"
    );
}
