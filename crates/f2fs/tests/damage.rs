//! Every field of every structure is set to what it never is: its limits, its neighbour's value, random ones. Checksums are made right
//! again, and the image is mounted and used. Errors are fine; a panic, a call without end, a write outside the image, a changed byte of a
//! file that was not touched, and a call that ends all changes to the image are not.
//!
//! `HEDDLE_F2FS_DAMAGE_SECONDS`: for how long (`cargo xtask f2fs-damage`); `HEDDLE_F2FS_DAMAGE_SEED`: the first case.

#[path = "damage/base.rs"]
mod base;
mod common;
#[path = "damage/fields.rs"]
mod fields;
#[path = "damage/uses.rs"]
mod uses;

use base::{Base, GUARD, GUARD_BYTES, Seal, path_of};
use fields::Field;
use heddle_f2fs::format::BLOCK_BYTES;
use heddle_f2fs::{F2fs, LogRegion, LogState, Variant};
use heddle_pmem::Region;
use heddle_vfs::FileKind;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use uses::{View, use_all, view};

/// A case takes some hundredths of a second.
const CASE_MAX: Duration = Duration::from_secs(60);

/// Cases of the shortest run: some of them can be mounted.
const CASES_MIN: u64 = 12;
/// Cases that found something once: an inode of the checkpoint that has lost its attributes' node, and was fsynced since with it.
/// A table of nodes that names blocks which its segments do not have: their node's next change ended all others. A file with the flag of
/// inline entries: so did a write to it.
const ONCE_RED: [u64; 3] = [101_527, 900_083, 903_370];
/// Cases that may fail before the others are left.
const FAILURES_MAX: u32 = 20;

/// Numbers that follow from a seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

/// An image, and its log, with one field changed.
struct Damaged {
    file: File,
    log: Option<Vec<u8>>,
    what: String,
    is_log: bool,
}

impl Damaged {
    fn of(base: &Base, random: &mut Random) -> Damaged {
        let kind = &base.sites[random.below(base.sites.len())];
        let site = kind[random.below(kind.len())];
        let field = site.fields[random.below(site.fields.len())];
        let is_log = matches!(site.seal, Seal::LogHead | Seal::Record);
        let mut damaged = Damaged { file: base.copy(), log: base.log.clone(), what: String::new(), is_log };
        let element = random.below(field.bytes / field.unit);
        let at = site.at + field.at + element * field.unit;
        let neighbour = kind[random.below(kind.len())];
        let neighbour = damaged.number(&neighbour, neighbour.at + at - site.at, field.unit);
        let old = damaged.number(&site, at, field.unit);
        let (how, new) = forged(old, neighbour, field, random);
        damaged.what = format!(
            "{}: {}[{element}] of the structure at byte {} + {}: {old:#x} is {new:#x} ({how})",
            base.name, field.name, site.block, site.at
        );
        // Where it stands twice: here, or in both places.
        let both = random.below(2) == 0 || site.seal == Seal::Checkpoint;
        for block in [Some(site.block), site.other.filter(|_| both)].into_iter().flatten() {
            let mut bytes = damaged.bytes(is_log, block);
            bytes[at..at + field.unit].copy_from_slice(&new.to_le_bytes()[..field.unit]);
            base.seal(site.seal, &mut bytes);
            match damaged.log.as_mut().filter(|_| is_log) {
                Some(log) => log[block as usize..][..bytes.len()].copy_from_slice(&bytes),
                None => damaged.file.write_all_at(&bytes, block).unwrap(),
            }
        }
        damaged
    }

    fn bytes(&self, is_log: bool, at: u64) -> Vec<u8> {
        if let Some(log) = self.log.as_ref().filter(|_| is_log) {
            let end = log.len().min(at as usize + 2 * BLOCK_BYTES);
            return log[at as usize..end].to_vec();
        }
        let mut bytes = vec![0; BLOCK_BYTES];
        self.file.read_exact_at(&mut bytes, at).unwrap();
        bytes
    }

    fn number(&self, site: &base::Site, at: usize, unit: usize) -> u64 {
        let bytes = self.bytes(self.is_log, site.block);
        let mut word = [0; 8];
        let end = (at + unit).min(bytes.len());
        word[..end - at].copy_from_slice(&bytes[at..end]);
        u64::from_le_bytes(word)
    }

    fn open(&self, turn: u64) -> Result<F2fs, String> {
        let path = path_of(&self.file);
        let opened = match &self.log {
            Some(log) => {
                let (region, _) = Region::simulated_from(log);
                F2fs::open_with_log(
                    &path,
                    Variant::NodeLog,
                    LogRegion { region, state: LogState::HoldsLog, discard: false },
                )
            }
            None => F2fs::open_as(&path, [Variant::F2fs, Variant::RangeLock][turn as usize % 2]),
        };
        opened.map_err(|error| error.to_string())
    }
}

/// What becomes of a number, and why.
fn forged(old: u64, neighbour: u64, field: Field, random: &mut Random) -> (&'static str, u64) {
    let bits = field.unit as u32 * 8;
    let max = u64::MAX >> (64 - bits);
    let (how, new) = match random.below(10) {
        0 => ("nothing", 0),
        1 => ("the largest", max),
        2 => ("nearly the largest", max - 1 - random.next() % 3),
        3 => ("one more", old.wrapping_add(1)),
        4 => ("one less", old.wrapping_sub(1)),
        5 | 6 => ("its neighbour's", neighbour),
        7 => ("a bit", old ^ 1 << random.below(bits as usize)),
        8 => ("a small one", random.next() % 70),
        _ => ("a random one", random.next()),
    };
    (how, new & max)
}

/// Ends the process, with the name of the case, if one takes too long.
struct Watch {
    now: Arc<Mutex<String>>,
    case: Arc<AtomicU64>,
}

impl Watch {
    fn begin() -> Watch {
        let watch = Watch { now: Arc::default(), case: Arc::default() };
        let (now, case) = (Arc::clone(&watch.now), Arc::clone(&watch.case));
        std::thread::spawn(move || {
            let (mut last, mut since) = (0, Instant::now());
            loop {
                std::thread::park_timeout(Duration::from_millis(200));
                let at = case.load(SeqCst);
                if at != last {
                    (last, since) = (at, Instant::now());
                }
                if since.elapsed() > CASE_MAX {
                    eprintln!("no end: {}", now.lock().unwrap());
                    std::process::abort();
                }
            }
        });
        watch
    }

    fn set(&self, what: &str) {
        *self.now.lock().unwrap() = what.to_owned();
        self.case.fetch_add(1, SeqCst);
    }
}

/// Names of the root that are used, every other one, and whether a path is theirs.
fn targets(view: &View, random: &mut Random) -> BTreeSet<Vec<u8>> {
    let top = view.keys().filter(|path| !path[1..].contains(&b'/'));
    top.filter(|_| random.below(2) == 0).map(|path| path[1..].to_vec()).collect()
}

fn is_below(path: &[u8], targets: &BTreeSet<Vec<u8>>) -> bool {
    targets.contains(path[1..].split(|byte| *byte == b'/').next().unwrap_or_default())
}

/// What nobody has touched, and the damage has left as it was.
fn untouched(whole: &View, now: &View, targets: &BTreeSet<Vec<u8>>) -> View {
    // An entry that says another file's number is a name of it.
    let used: BTreeSet<_> =
        now.iter().filter(|(path, _)| is_below(path, targets)).map(|(_, seen)| seen.ino).collect();
    let stays = now.iter().filter(|(path, seen)| {
        let alike = whole.get(*path) == Some(*seen);
        alike && !is_below(path, targets) && !used.contains(&seen.ino)
    });
    stays.map(|(path, seen)| (path.clone(), seen.clone())).collect()
}

/// Each of these is there, with the same bytes. Directories have grown where files moved into them.
#[track_caller]
fn all_there(wanted: &View, now: &View, what: &str) {
    for (path, seen) in wanted {
        let is = now.get(path);
        let same =
            is.is_some_and(|is| is == seen || seen.kind == FileKind::Directory && is.kind == seen.kind);
        assert!(same, "{what}\n{}: {is:?}, not {seen:?}", String::from_utf8_lossy(path));
    }
}

/// Uses an image; true: it could be mounted for writing.
fn case(whole: &View, damaged: &mut Damaged, random: &mut Random, turn: u64) -> bool {
    let path = path_of(&damaged.file);
    let len = damaged.file.metadata().unwrap().len();
    let read = F2fs::open(&path).map(|fs| {
        let _ = (fs.survey().problems.len(), fs.info());
        view(&fs)
    });
    let is_mounted = match damaged.open(turn) {
        Err(why) => {
            assert!(!why.is_empty());
            if let (Ok(before), Ok(fs)) = (&read, F2fs::open(&path)) {
                all_there(before, &view(&fs), &format!("{}: refused ({why}), and changed", damaged.what));
            }
            false
        }
        Ok(fs) => {
            let now = view(&fs);
            if damaged.log.is_none()
                && let Ok(read) = &read
            {
                let none = BTreeSet::new();
                all_there(&untouched(whole, read, &none), &now, &format!("{}: mounted", damaged.what));
            }
            let targets = targets(&now, random);
            let stays = untouched(whole, &now, &targets);
            let names: Vec<Vec<u8>> = targets.into_iter().collect();
            use_all(&fs, &names, turn);
            assert!(!fs.has_failed(), "{}: one call over it ended all changes", damaged.what);
            drop(fs);
            // After an unmount its log has nothing.
            if let Ok(fs) = F2fs::open(&path) {
                let failed = damaged.log.is_some() && fs.info().is_logged;
                if !failed {
                    all_there(&stays, &view(&fs), &format!("{}: used", damaged.what));
                }
            } else {
                assert!(stays.is_empty(), "{}: cannot be mounted after it was used", damaged.what);
            }
            true
        }
    };
    let mut guard = vec![0; GUARD_BYTES as usize];
    damaged.file.read_exact_at(&mut guard, len - GUARD_BYTES).unwrap();
    assert!(guard.iter().all(|byte| *byte == GUARD), "{}: a write behind the image", damaged.what);
    assert_eq!(damaged.file.metadata().unwrap().len(), len, "{}: it has grown", damaged.what);
    is_mounted
}

#[test]
fn a_damaged_image_never_costs_another_file_a_byte() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let seconds = number("HEDDLE_F2FS_DAMAGE_SECONDS").unwrap_or(8);
    let seed = number("HEDDLE_F2FS_DAMAGE_SEED");
    let end = Instant::now() + Duration::from_secs(seconds);
    let bases = Base::all();
    let whole: Vec<View> = bases
        .iter()
        .map(|base| {
            let log = base.log.clone();
            let copy = Damaged { file: base.copy(), log, what: String::new(), is_log: false };
            // That of a phone has quota files.
            let opened = copy.open(0).or_else(|_| F2fs::open(&path_of(&copy.file)));
            view(&opened.unwrap_or_else(|why| panic!("{}: {why}", base.name)))
        })
        .collect();
    whole.iter().for_each(|view| assert!(view.len() > 20));
    let watch = Watch::begin();
    let (mut cases, mut mounted, mut slowest) = (0_u64, 0_u64, (Duration::ZERO, String::new()));
    let (mut fields, mut failed) = (BTreeMap::new(), 0);
    for seed in ONCE_RED.into_iter().chain(seed.unwrap_or(1)..) {
        let mut random = Random(seed);
        let n = random.below(bases.len());
        let mut damaged = Damaged::of(&bases[n], &mut random);
        let begun = Instant::now();
        damaged.what = format!("HEDDLE_F2FS_DAMAGE_SEED={seed}: {}", damaged.what);
        watch.set(&damaged.what);
        let done = catch_unwind(AssertUnwindSafe(|| case(&whole[n], &mut damaged, &mut random, seed)));
        mounted += u64::from(*done.as_ref().unwrap_or(&false));
        failed += u32::from(done.is_err());
        if begun.elapsed() > slowest.0 {
            slowest = (begun.elapsed(), damaged.what.clone());
        }
        cases += 1;
        *fields
            .entry(
                damaged
                    .what
                    .rsplit(": ")
                    .nth(1)
                    .unwrap_or_default()
                    .split('[')
                    .next()
                    .unwrap_or_default()
                    .to_owned(),
            )
            .or_insert(0_u32) += 1;
        if Instant::now() > end && cases >= CASES_MIN || failed == FAILURES_MAX {
            break;
        }
    }
    println!("{cases} cases of {} fields, {mounted} mounted; the slowest: {slowest:?}", fields.len());
    assert!(failed == 0 && mounted > 0, "{failed} failed");
}
