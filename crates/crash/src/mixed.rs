//! Long lists of mixed operations, drawn at random, for cases that short sequences do not reach.
//!
//! They use a few names, so that operations interact; sizes around page boundaries; three threads and two
//! descriptors; and some remounts. Calls that fail as in the model are part of it. Every operation after a
//! short set-up is watched.

use crate::cut::Random;
use crate::op::{File, KINDS, ListKind, Logs, MODES, Op, Step, Workload, read_list};
use heddle_vfs::RangeOp;

/// Watched operations of a list.
const WATCHED: usize = 24;
/// Least number of operations before them; up to as many more follow. They bring logs to any fill level.
const SETUP: u64 = 30;

const DIRS: [&str; 4] = ["", "/d", "/e", "/d/s"];
const NAMES: [&str; 5] =
    ["a", "b", "c", "s", "a name that takes more than one line of the log, as longer ones do"];

/// The list for a seed.
pub fn list(seed: u64) -> Workload {
    let mut random = Random::new(seed ^ 0x6d69_7865_6400);
    let make = |path: &str| Step { op: Op::Mkdir { path: path.into() }, thread: 0, line: 0 };
    let mut setup: Vec<Step> = ["/d", "/e", "/d/s"].into_iter().map(make).collect();
    let before = SETUP + random.below(SETUP);
    // Half of the lists keep to a few files: then their logs fill.
    let narrow = random.below(2) == 0;
    let threads = if random.below(3) == 0 { 3 } else { 1 };
    let step = |random: &mut Random| Step {
        op: operation(random, narrow),
        thread: if threads == 1 { 0 } else { random.below(threads) as u32 },
        line: 0,
    };
    setup.extend((0..before).map(|_| step(&mut random)));
    let watched = (0..WATCHED).map(|_| step(&mut random)).collect();
    let logs = if random.below(2) == 0 { Logs::Short } else { Logs::Usual };
    Workload { name: format!("mixed, seed {seed}"), setup, watched, image_bytes: 0, logs }
}

fn pick<'a>(random: &mut Random, of: &[&'a str]) -> &'a str {
    of[random.below(of.len() as u64) as usize]
}

fn path(random: &mut Random, narrow: bool) -> String {
    let names = if narrow { 2 } else { NAMES.len() };
    let dirs = if narrow { 2 } else { DIRS.len() };
    format!("{}/{}", pick(random, &DIRS[..dirs]), pick(random, &NAMES[..names]))
}

fn file(random: &mut Random, narrow: bool) -> File {
    match random.below(3) {
        0 => File::Descriptor(pick(random, &["one", "two"]).into()),
        _ => File::Path(path(random, narrow)),
    }
}

/// An offset around the boundaries of the first pages.
fn offset(random: &mut Random) -> u64 {
    let edge = random.below(7) * 4096;
    match random.below(4) {
        0 | 1 => edge,
        2 => edge + 1 + random.below(4095),
        _ => (edge + random.below(3)).saturating_sub(1),
    }
}

fn length(random: &mut Random) -> u64 {
    match random.below(6) {
        0 => 1 + random.below(20),
        1 | 2 => 4096 * (1 + random.below(3)),
        3 => 4096 * (1 + random.below(16)),
        _ => 1 + random.below(9000),
    }
}

fn operation(random: &mut Random, narrow: bool) -> Op {
    let path = path(random, narrow);
    let other = self::path(random, narrow);
    let file = file(random, narrow);
    match random.below(45) {
        0..=3 => Op::Create { path },
        4 => Op::Mkdir { path },
        5 => Op::Rmdir { path },
        6..=8 => Op::Unlink { path },
        9 | 10 => Op::Link { from: path, to: other },
        11..=14 => Op::Rename { from: path, to: other },
        15 => Op::Exchange { from: path, to: other },
        16 => Op::Symlink { target: "t".repeat(1 + random.below(200) as usize), path },
        17..=22 => Op::Write { file, offset: offset(random), len: length(random) },
        23..=25 => Op::Append { file, len: length(random) },
        26 | 27 => Op::Truncate { file, size: offset(random) },
        28..=30 => range(random, file),
        31 => Op::Mode { path, perm: (random.below(0o1000)) as u16 },
        32 => Op::Owner { path, uid: random.below(9) as u32, gid: random.below(9) as u32 },
        33 => Op::Times { path, secs: random.below(86_400) as u32 },
        34 => Op::SetXattr {
            path,
            name: format!("user.{}", random.below(3)),
            value: "v".repeat(1 + random.below(500) as usize),
        },
        35 => Op::RemoveXattr { path, name: format!("user.{}", random.below(3)) },
        36 | 37 => Op::Open { path, name: pick(random, &["one", "two"]).into() },
        38 => Op::Fsync { file },
        39 => Op::Sync,
        40 => Op::Mknod { path, kind: KINDS[random.below(KINDS.len() as u64) as usize].0 },
        41 => Op::Tmpfile {
            dir: pick(random, &["/d", "/e"]).into(),
            name: pick(random, &["one", "two"]).into(),
        },
        42 => Op::Name { descriptor: pick(random, &["one", "two"]).into(), path },
        43 => list_of(random, path),
        _ => Op::Remount,
    }
}

fn list_of(random: &mut Random, path: String) -> Op {
    let kind = if random.below(2) == 0 { ListKind::Access } else { ListKind::Default };
    let text = format!("owner:7,user:{}:5,owning:{},mask:7,others:0", random.below(9), random.below(8));
    match read_list(&text) {
        Some(list) => Op::List { path, kind, list },
        None => Op::Sync,
    }
}

fn range(random: &mut Random, file: File) -> Op {
    let mode = MODES[random.below(MODES.len() as u64) as usize].0;
    let whole = matches!(mode, RangeOp::Collapse | RangeOp::Insert);
    let (offset, len) = (offset(random), length(random));
    let page = |n: u64| if whole { n & !4095 } else { n };
    Op::Fallocate { file, mode, offset: page(offset), len: page(len).max(if whole { 4096 } else { 1 }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_the_same_for_a_seed_and_hold_everything() {
        assert_eq!(list(3), list(3));
        assert_ne!(list(3).watched, list(4).watched);
        let steps: Vec<Step> = (0..200).flat_map(|seed| list(seed).watched).collect();
        let has = |what: fn(&Op) -> bool| assert!(steps.iter().any(|s| what(&s.op)));
        has(|op| matches!(op, Op::Remount));
        has(|op| matches!(op, Op::Exchange { .. }));
        has(|op| matches!(op, Op::Fallocate { mode: RangeOp::Collapse, .. }));
        has(|op| matches!(op, Op::RemoveXattr { .. }));
        has(|op| matches!(op, Op::Tmpfile { .. }));
        has(|op| matches!(op, Op::Name { .. }));
        has(|op| matches!(op, Op::List { .. }));
        has(|op| matches!(op, Op::Mknod { .. }));
        assert!(steps.iter().any(|s| s.thread == 2));
    }

    #[test]
    fn a_list_can_be_written_down_and_read() {
        for seed in 0..50 {
            let list = list(seed);
            let read = crate::text::parse("list", &list.to_string()).unwrap();
            let ops = |steps: &[Step]| steps.iter().map(ToString::to_string).collect::<Vec<_>>();
            assert_eq!((ops(&read.setup), ops(&read.watched)), (ops(&list.setup), ops(&list.watched)));
        }
    }
}
