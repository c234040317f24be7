//! Node logs with forged fields, opened with the image that they extend, read, changed, unmounted, and the image opened alone.
//!
//! Promises    no panic and no hang, whatever the log says; an image that was unmounted can be read without its log.
//!
//! An edit changes a field or some bytes of one record, or of both heads; their checksums are put right, so that what they say is judged.

use super::Target;
use super::flash::{change, copy_of, forged, path_of};
use crate::image::walk::{Walk, kind};
use heddle_f2fs::format::{BLOCK_BYTES, LOG_CHUNKS_BYTES, LOG_HEADS_BYTES, LogHead, RecordHead};
use heddle_f2fs::{F2fs, LogRegion, LogState, OpenError, Variant};
use heddle_pmem::{Pos, Region};
use heddle_vfs::{
    Cred, FileKind, FileSystem, Ino, Name, NewNode, OpenFlags, RangeOp, SetAttr, SetXattr, XattrName,
};
use rustix::fs::MemfdFlags;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use zerocopy::FromBytes;

/// Which record (two bytes), where in it (two), what to do, a number (three).
const EDIT_BYTES: usize = 8;
const LOG_BYTES: u64 = 768 << 10;
const IMAGE_BYTES: u64 = 64 << 20;
const LINE_BYTES: usize = 64;

pub struct NodeLog {
    image: File,
    log: Vec<u8>,
    /// Where records begin.
    records: Vec<usize>,
}

impl NodeLog {
    /// An image and its log, as a killed process leaves them: a fold, an epoch, and files of all sorts fsynced after that.
    pub fn new() -> NodeLog {
        let image = File::from(rustix::fs::memfd_create("image", MemfdFlags::CLOEXEC).expect("memory"));
        image.set_len(IMAGE_BYTES).expect("a size");
        heddle_f2fs::make_image(&path_of(&image), "fuzz", &|_, _| ()).expect("an image");
        let region = Region::anonymous(LOG_BYTES).expect("memory");
        let again = region.map_again().expect("a mapping");
        let fs = opened(&image, region).expect("an open image");
        fill(&fs, 0);
        fs.fold_now().expect("a fold");
        fill(&fs, 1);
        fs.sync().expect("an epoch");
        fill(&fs, 2);
        drop(fs);
        let mut log = vec![0; LOG_BYTES as usize];
        again.read(Pos(0), &mut log);
        let is_record = |at: &usize| {
            let generation = LogHead::read_from_prefix(&log).map(|(head, _)| head.generation.get());
            let head = RecordHead::read_from_prefix(&log[*at..]).map(|(head, _)| head);
            matches!((generation, head), (Ok(ours), Ok(head)) if head.generation.get() == ours && head.members.get() > 0)
        };
        let records: Vec<usize> =
            (LOG_CHUNKS_BYTES as usize..log.len()).step_by(LINE_BYTES).filter(is_record).collect();
        assert!(records.len() > 30, "{} records", records.len());
        NodeLog { image, log, records }
    }
}

impl Target for NodeLog {
    fn seeds(&self) -> Vec<Vec<u8>> {
        let heads = [vec![], vec![0; EDIT_BYTES]];
        let records = (1..self.records.len() as u8).step_by(7).map(|n| vec![n, 0, 12, 0, 2, n, 0, 0]);
        heads.into_iter().chain(records).collect()
    }

    fn unit(&self) -> usize {
        EDIT_BYTES
    }

    fn run(&mut self, input: &[u8]) -> Result<u64, String> {
        let mut log = self.log.clone();
        input.chunks_exact(EDIT_BYTES).for_each(|edit| self.change(&mut log, edit));
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let image = copy_of(&self.image).map_err(|e| text(&e))?;
        let region = Region::anonymous(LOG_BYTES).map_err(|e| text(&e))?;
        region.nt_write(Pos(0), &log);
        // PERSIST: the forged log, as a killed process leaves it.
        region.fence();
        let mut hasher = DefaultHasher::new();
        match opened(&image, region) {
            Err(error) => kind(&error).hash(&mut hasher),
            Ok(fs) => {
                let _ = (fs.statfs(), fs.info());
                Walk::of(&fs).errors.hash(&mut hasher);
                change(&fs).hash(&mut hasher);
                let unmounted = fs.unmount();
                drop(fs);
                match F2fs::open(&path_of(&image)) {
                    Err(error) if unmounted.is_ok() => {
                        return Err(format!("the image that was unmounted: {error}"));
                    }
                    Err(_) => {}
                    Ok(fs) => Walk::of(&fs).errors.hash(&mut hasher),
                }
            }
        }
        Ok(hasher.finish())
    }
}

impl NodeLog {
    fn change(&self, log: &mut [u8], edit: &[u8]) {
        let number = |i: usize| usize::from(u16::from_le_bytes([edit[i], edit[i + 1]]));
        let (how, value) = (edit[4], u32::from_le_bytes([edit[5], edit[6], edit[7], 0]));
        let forge = |word: &mut [u8]| {
            let old = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            let new = forged(old, how, value, (old & !0xff) | value & 0xff);
            word.copy_from_slice(&new.to_le_bytes());
        };
        match number(0) % (self.records.len() + 1) {
            0 => {
                for at in LOG_HEADS_BYTES.map(|at| at as usize) {
                    let head = &mut log[at..][..size_of::<LogHead>()];
                    let crc_at = head.len() - 4;
                    forge(&mut head[number(2) % (crc_at / 4) * 4..][..4]);
                    let crc = crc32(&head[..crc_at]);
                    head[crc_at..].copy_from_slice(&crc.to_le_bytes());
                }
            }
            n => {
                let at = self.records[n - 1];
                let Ok((head, _)) = RecordHead::read_from_prefix(&log[at..]) else { return };
                let len = size_of::<RecordHead>() + usize::from(head.payload_bytes.get());
                let word = 4 + number(2) % (len.saturating_sub(8) / 4).max(1) * 4;
                if at + word + 4 <= log.len() {
                    forge(&mut log[at + word..][..4]);
                }
                let Ok((head, _)) = RecordHead::read_from_prefix(&log[at..]) else { return };
                let len = size_of::<RecordHead>() + usize::from(head.payload_bytes.get());
                if at + len <= log.len() {
                    let crc = crc32(&log[at + 4..at + len]);
                    log[at..at + 4].copy_from_slice(&crc.to_le_bytes());
                }
            }
        }
    }
}

/// As the log's records and heads have it.
fn crc32(bytes: &[u8]) -> u32 {
    !heddle_f2fs::checksum::checksum(u32::MAX, bytes)
}

fn opened(image: &File, region: Region) -> Result<F2fs, OpenError> {
    let state = if region.load_u64(Pos(0)) == 0 { LogState::Free } else { LogState::HoldsLog };
    F2fs::open_with_log(&path_of(image), Variant::Integrated, LogRegion { region, state, discard: false })
}

/// Files and directories come, change and go; most of it is fsynced.
fn fill(fs: &F2fs, round: u64) {
    let root = Cred::root();
    let text = |what: &str, n: u64| format!("{what} {n}");
    let made = |dir: Ino, text: String| {
        fs.create(&root, dir, name(&text), 0o644, OpenFlags::READ_WRITE).map(|made| made.1)
    };
    let node = NewNode { kind: FileKind::Directory, perm: 0o755, rdev: 0, target: &[] };
    let dir = fs.make(&root, Ino::ROOT, name(&text("dir", round)), node).expect("a directory").ino;
    if round < 2 {
        fs.sync().expect("a sync");
    }
    for n in 0..8 {
        let file =
            made(if n % 2 == 0 { dir } else { Ino::ROOT }, text("file", 10 * round + n)).expect("a file");
        fs.write(&file, n * 700_000, &vec![n as u8 + 1; 3_000 * n as usize + 9]).expect("a write");
        // Behind the inode's own pointers, and cut off again.
        if n % 3 == 1 {
            fs.write(&file, 5 << 20, &[7; 9_000]).expect("a write");
            fs.fsync(&file, false).expect("an fsync");
            let size = SetAttr { size_bytes: Some(9_000), ..SetAttr::default() };
            fs.setattr(&root, file.ino, None, &size).expect("a size");
        }
        if n % 3 == 2 {
            let x = XattrName::new(b"user.x").expect("a name");
            fs.setxattr(&root, file.ino, x, &[5; 900], SetXattr::Any).expect("an attribute");
            fs.fallocate(&file, RangeOp::Punch, 0, 8192).expect("a hole");
        }
        if n != 3 {
            fs.fsync(&file, false).expect("an fsync");
        }
        fs.release(file);
    }
    if round > 0 {
        let _ = fs.unlink(&root, Ino::ROOT, name(&text("file", 10 * (round - 1) + 1)));
    }
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).expect("a name")
}

const _: () = assert!(LOG_BYTES.is_multiple_of(BLOCK_BYTES as u64));
