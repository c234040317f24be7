//! Logs that belong elsewhere, are damaged, or say what no engine has written.

use crate::common::{self, Image};
use crate::machine::{LOG_BYTES, append_durably, fresh, log_in, name, open};
use crate::rig::{Random, blocks_of, put_down};
use heddle_f2fs::format::{BLOCK_BYTES, LOG_CHUNKS_BYTES, LOG_HEADS_BYTES, LogHead, RecordHead, record_flag};
use heddle_f2fs::{F2fs, OpenError, Variant};
use heddle_pmem::{CrashPoint, Region};
use heddle_vfs::testkit::Tree;
use heddle_vfs::{Cred, Error, FileSystem, Ino};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use zerocopy::{FromBytes, IntoBytes};

/// A log is refused where taking it in would lose something, and says what to do.
#[test]
fn a_log_that_does_not_belong_is_refused() {
    let image = Image::made(64);
    let refused = |image: &Image, variant: Variant, nvm: &[u8], why: &str| {
        let before = std::fs::read(&image.path).unwrap();
        let Err(error) = open(&image.path, variant, nvm).0 else { panic!("not refused: {why}") };
        assert!(error.to_string().contains(why), "{error}");
        assert!(before == std::fs::read(&image.path).unwrap(), "it was changed: {why}");
    };
    assert!(matches!(F2fs::open_as(&image.path, Variant::NodeLog), Err(OpenError::NodeLog { .. })));
    refused(&image, Variant::F2fs, &fresh(), "f2fs has none");
    refused(&image, Variant::NodeLog, &fresh()[..8192], "at least");
    refused(&image, Variant::NodeLog, &vec![7; LOG_BYTES as usize], "damaged");
    let (fs, nvm) = open(&image.path, Variant::NodeLog, &vec![0; LOG_BYTES as usize + 4096]);
    append_durably(&fs.unwrap(), "file", b"one");
    let log = nvm.crash_point().durable_image();
    refused(&Image::made(64), Variant::NodeLog, &log, "another image");
    refused(&image, Variant::NodeLog, &log[..log.len() - 4096], "cut short");
    // One head is enough.
    for at in LOG_HEADS_BYTES {
        let mut one = log.clone();
        one[at as usize + 20] ^= 4;
        let copy = put_down(&blocks_of(&image.path));
        let fs = open(&copy.path, Variant::NodeLog, &one).0.unwrap();
        assert_eq!(common::read(&fs, Path::new("/file")), b"one");
    }
    let mut none = log.clone();
    LOG_HEADS_BYTES.into_iter().for_each(|at| none[at as usize + 20] ^= 4);
    refused(&image, Variant::NodeLog, &none, "damaged");
    let mut last = log.clone();
    for at in LOG_HEADS_BYTES {
        let head = &mut last[at as usize..][..size_of::<LogHead>()];
        LogHead::mut_from_bytes(head).unwrap().seq.set(u64::MAX);
        let crc = crc32fast::hash(&head[..size_of::<LogHead>() - 4]);
        LogHead::mut_from_bytes(head).unwrap().crc.set(crc);
    }
    refused(&image, Variant::NodeLog, &last, "the last number");
    // Without its log the image has an older state, which can be read. Who goes on from there has to say so, and then the two do not fit
    // together any more.
    let older = F2fs::open(&image.path).unwrap();
    assert!(older.info().is_logged);
    assert_eq!(older.lookup(&Cred::root(), Ino::ROOT, name("file")), Err(Error::NotFound));
    drop(older);
    refused(&image, Variant::NodeLog, &fresh(), "another log");
    let plain = F2fs::open_for_writing(&image.path).map(drop).unwrap_err().to_string();
    assert!(plain.contains("--nvm") && plain.contains("-o discard-nvm"), "{plain}");
    let fs = F2fs::open_without_log(&image.path, Variant::F2fs).unwrap();
    assert_eq!(fs.lookup(&Cred::root(), Ino::ROOT, name("file")), Err(Error::NotFound));
    append_durably(&fs, "other", b"two");
    fs.unmount().unwrap();
    drop(fs);
    refused(&image, Variant::NodeLog, &log, "-o discard-nvm");
    let (region, _nvm) = Region::simulated_from(&log);
    let fs = F2fs::open_with_log(&image.path, Variant::NodeLog, log_in(region, &log, true)).unwrap();
    assert_eq!(common::read(&fs, Path::new("/other")), b"two");
    append_durably(&fs, "third", b"three");
    fs.unmount().unwrap();
}

#[test]
fn discarding_gives_up_nothing_that_another_image_has_in_the_log() {
    let (owner, stranger) = (Image::made(64), Image::made(64));
    let (fs, nvm) = open(&owner.path, Variant::NodeLog, &fresh());
    let fs = fs.unwrap();
    for bytes in [&b"one"[..], b"two", b"three"] {
        append_durably(&fs, "file", bytes);
    }
    drop(fs);
    let log = nvm.crash_point().durable_image();
    // Damage before records that count: how many there were cannot be told.
    let mut damaged = log.clone();
    damaged[LOG_CHUNKS_BYTES as usize..][..64].fill(0x5a);
    for nvm in [&log, &damaged] {
        let (region, simulator) = Region::simulated_from(nvm);
        let discarding = F2fs::open_with_log(&stranger.path, Variant::NodeLog, log_in(region, nvm, true));
        let error = discarding.map(drop).unwrap_err().to_string();
        assert!(error.contains("another image") && error.contains("-o force-nvm"), "{error}");
        assert!(simulator.crash_point().durable_image() == *nvm, "it was changed");
    }
    let fs = open(&owner.path, Variant::NodeLog, &log).0.unwrap();
    assert_eq!(common::read(&fs, Path::new("/file")), b"onetwothree");
}

/// A kill between the two copies of the superblock leaves the mark on the first one. The next mount with the log puts it on both, so that
/// damage of the first one later does not hide the log.
#[test]
fn a_log_mark_on_one_copy_alone_is_put_on_both() {
    let image = Image::made(64);
    let device = File::options().read(true).write(true).open(&image.path).unwrap();
    let mut unmarked = vec![0; BLOCK_BYTES];
    device.read_exact_at(&mut unmarked, BLOCK_BYTES as u64).unwrap();
    let (fs, nvm) = open(&image.path, Variant::NodeLog, &fresh());
    append_durably(&fs.unwrap(), "file", b"one");
    device.write_all_at(&unmarked, BLOCK_BYTES as u64).unwrap();
    let again = open(&image.path, Variant::NodeLog, &nvm.crash_point().durable_image()).0;
    append_durably(&again.unwrap(), "file", b"two");
    device.write_all_at(&vec![0; BLOCK_BYTES], 0).unwrap();
    let plain = F2fs::open_for_writing(&image.path).map(drop).unwrap_err().to_string();
    assert!(plain.contains("--nvm"), "{plain}");
}

/// A cut left one head torn; a second one, while the next change of the head is written, leaves the other.
#[test]
fn two_cuts_leave_a_head() {
    let image = Image::made(64);
    let (fs, nvm) = open(&image.path, Variant::NodeLog, &fresh());
    append_durably(&fs.unwrap(), "file", b"one");
    let log = nvm.crash_point().durable_image();
    let base = blocks_of(&image.path);
    for at in LOG_HEADS_BYTES {
        let mut torn = log.clone();
        torn[at as usize + 16..][..8].fill(0);
        let (region, simulator) = Region::simulated_from(&torn);
        let second: Arc<Mutex<Option<Vec<u8>>>> = Arc::default();
        let seen = Arc::clone(&second);
        simulator.on_fence(Box::new(move |point: &CrashPoint<'_>| {
            seen.lock().unwrap().get_or_insert_with(|| point.image(|n| n % 2 == 0));
        }));
        let copy = put_down(&base);
        let log = log_in(region, &torn, false);
        F2fs::open_with_log(&copy.path, Variant::NodeLog, log).unwrap();
        let left = second.lock().unwrap().take().expect("a fold changes the head");
        assert!(left != torn);
        let fs = open(&put_down(&base).path, Variant::NodeLog, &left).0.unwrap();
        assert_eq!(common::read(&fs, Path::new("/file")), b"one");
    }
}

/// The records of a log, where they begin.
fn records(nvm: &[u8]) -> Vec<(usize, RecordHead)> {
    let heads = nvm[LOG_CHUNKS_BYTES as usize..].chunks(64).enumerate();
    let head = |(n, line): (usize, &[u8])| {
        let head = RecordHead::read_from_prefix(line).unwrap().0;
        let at = LOG_CHUNKS_BYTES as usize + 64 * n;
        let seems_one = head.members.get() > 0 && head.nid.get() > 0 && head.rest == [0; 3];
        // A line in the midst of a record may look like a head, but not sum up.
        (seems_one && is_sealed(nvm, at, &head)).then_some((at, head))
    };
    heads.filter_map(head).collect()
}

fn is_sealed(nvm: &[u8], at: usize, head: &RecordHead) -> bool {
    let end = at + 40 + usize::from(head.payload_bytes.get());
    let sum = nvm.get(at + 4..end).map(crc32fast::hash);
    sum.is_some_and(|sum| nvm[at..at + 4] == sum.to_le_bytes())
}

fn sealed(nvm: &mut [u8], at: usize, head: &RecordHead) {
    let len = 40 + usize::from(head.payload_bytes.get());
    nvm[at..at + 40].copy_from_slice(head.as_bytes());
    if at + len <= nvm.len() {
        let crc = crc32fast::hash(&nvm[at + 4..at + len]);
        nvm[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    }
}

/// One flipped bit is mended, more damage is told, unless it hits what nothing lies behind; and forged records, with right checksums, are
/// taken in or refused.
#[test]
fn damaged_and_forged_records_are_errors_and_no_panics() {
    let image = Image::made(64);
    let (fs, nvm) = open(&image.path, Variant::NodeLog, &fresh());
    let fs = fs.unwrap();
    for n in 0..40 {
        append_durably(&fs, &format!("file {}", n % 5), &[n + 1; 3_000]);
        if n == 20 {
            fs.sync().unwrap();
        }
    }
    let whole = Tree::of(&fs).unwrap();
    drop(fs);
    let log = nvm.crash_point().durable_image();
    let base = blocks_of(&image.path);
    let records = records(&log);
    assert!(records.len() > 40, "{}", records.len());
    let mut random = Random(5);
    let (last, mut told, mut mended, mut forged) = (records.last().unwrap().0, 0, 0, [0; 2]);
    for n in 0..180 {
        let (at, mut head) = records[random.below(records.len() as u64) as usize].clone();
        let mut nvm = log.clone();
        let len = 40 + u64::from(head.payload_bytes.get());
        if n % 3 == 0 {
            let mut flip =
                |from: usize, to: u64| nvm[at + from + random.below(to) as usize] ^= 1 << random.below(8);
            if n / 3 % 2 == 0 {
                flip(0, len);
            } else {
                flip(0, 20);
                flip(20, len - 20);
            }
        } else {
            let bytes = head.as_mut_bytes();
            let field = 4 + random.below(33) as usize;
            bytes[field] = [0, 1, 0xff, random.below(256) as u8][random.below(4) as usize];
            let payload = usize::from(head.payload_bytes.get()).min(nvm.len() - at - 40);
            if payload > 0 && random.below(2) == 0 {
                nvm[at + 40 + random.below(payload as u64) as usize] = random.below(256) as u8;
            }
            sealed(&mut nvm, at, &head);
        }
        let copy = put_down(&base);
        let opened = open(&copy.path, Variant::NodeLog, &nvm);
        match (n % 3, opened.0) {
            (0, opened) if n / 3 % 2 == 0 => {
                assert!(Tree::of(&opened.unwrap()).unwrap().difference(&whole).is_none(), "record at {at}");
                mended += 1;
            }
            (0, opened) if at < last => {
                assert!(opened.is_err_and(|error| error.to_string().contains("damaged")), "record at {at}");
                told += 1;
            }
            (0, _) => {}
            (_, Err(_)) => forged[0] += 1,
            (_, Ok(fs)) => {
                forged[1] += 1;
                let _ = Tree::of(&fs);
                let _ = fs.unmount();
            }
        }
    }
    assert!(told > 15 && mended > 25, "{told} told, {mended} mended");
    assert!(forged.iter().all(|count| *count > 5), "{forged:?} forged");
}

/// A record that says that the root is free, or a file, is refused, and the image stays what it was (found by the fuzzer).
#[test]
fn a_log_without_a_root_is_refused_before_anything_of_it_counts() {
    let image = Image::made(64);
    let (fs, nvm) = open(&image.path, Variant::NodeLog, &fresh());
    let fs = fs.unwrap();
    append_durably(&fs, "file", b"one");
    fs.sync().unwrap();
    drop(fs);
    let log = nvm.crash_point().durable_image();
    let (at, head) = records(&log).into_iter().find(|(_, head)| head.nid.get() == 3).expect("the root's");
    let (mut free, mut file) = (head.clone(), head.clone());
    free.flags |= record_flag::DELETED;
    // One run: the mode and what follows it in the first word.
    file.payload_bytes.set(8);
    for (n, head) in [free, file].into_iter().enumerate() {
        let mut nvm = log.clone();
        nvm[at + 40..at + 48].copy_from_slice(&[0, 0, 1, 0, 0xa4, 0x81, 0, 0]);
        sealed(&mut nvm, at, &head);
        let Err(error) = open(&image.path, Variant::NodeLog, &nvm).0 else { panic!("taken in: {n}") };
        assert!(error.to_string().contains("node log"), "{error}");
    }
    let fs = open(&image.path, Variant::NodeLog, &log).0.unwrap();
    assert_eq!(common::read(&fs, Path::new("/file")), b"one");
}
