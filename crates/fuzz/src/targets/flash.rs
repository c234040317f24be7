//! F2FS images with forged fields, opened, read and surveyed, and opened once more, changed and unmounted.
//!
//! Promises    no panic and no hang, whatever the image says.
//!
//! The images are those that Linux wrote for the tests of the engine. What an edit changes is put back after each input, checksums of
//! checkpoints and inodes are put right: what they cover is to be judged, not only that it was changed.

use super::Target;
use crate::image::walk::{Walk, kind};
use heddle_f2fs::checksum::{SEED, checksum, inode_seed, of_inode};
use heddle_f2fs::format::{BLOCK_BYTES, Block, INODE_CHECKSUM_OFFSET_BYTES, InodeBlock};
use heddle_f2fs::{F2fs, Geometry};
use heddle_vfs::{
    Cookie, Cred, DirEntry, FileSystem, Ino, Name, OpenFlags, RangeOp, SetAttr, SetXattr, XattrName,
};
use rustix::fs::MemfdFlags;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use zerocopy::FromBytes;

/// Place, word in it, what to do, a number.
const EDIT_BYTES: usize = 8;
const NAMES: [&str; 3] = ["plain", "phone", "reset"];

pub struct Flash {
    images: Vec<Image>,
}

/// An image in memory.
struct Image {
    file: File,
    geometry: Geometry,
    inode_seed: u32,
    /// Blocks that say something, those of the first areas many times over: there are few of them.
    places: Vec<u64>,
}

impl Flash {
    pub fn new() -> Flash {
        Flash { images: NAMES.iter().map(|name| Image::unpacked(name)).collect() }
    }
}

impl Target for Flash {
    fn seeds(&self) -> Vec<Vec<u8>> {
        (0..self.images.len() as u8).map(|image| vec![image, 0, 0, 0, 0, 0, 0, 0]).collect()
    }

    fn unit(&self) -> usize {
        EDIT_BYTES
    }

    fn run(&mut self, input: &[u8]) -> Result<u64, String> {
        let (head, edits) = input.split_at(input.len().min(EDIT_BYTES));
        let image = &self.images[usize::from(head.first().copied().unwrap_or_default()) % self.images.len()];
        let before: Vec<(u64, Box<Block>)> =
            edits.chunks_exact(EDIT_BYTES).flat_map(|edit| image.change(edit)).collect();
        let mut hasher = DefaultHasher::new();
        match F2fs::open(&image.path()) {
            Err(error) => kind(&error).hash(&mut hasher),
            Ok(fs) => {
                let _ = (fs.statfs(), fs.info());
                Walk::of(&fs).errors.hash(&mut hasher);
                fs.survey().problems.len().hash(&mut hasher);
            }
        }
        let written =
            copy_of(&image.file).and_then(|copy| Ok((F2fs::open_for_writing(&path_of(&copy))?, copy)));
        match written {
            Err(error) => error.to_string().len().hash(&mut hasher),
            Ok((fs, _copy)) => change(&fs).hash(&mut hasher),
        }
        // The last first: one may have changed what another had.
        for (at, block) in before.iter().rev() {
            image.file.write_all_at(&block[..], *at).map_err(|e| e.to_string())?;
        }
        Ok(hasher.finish())
    }
}

impl Image {
    fn unpacked(name: &str) -> Image {
        let packed = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("../f2fs/tests/images")
            .join(name.to_owned() + ".gz");
        let file = File::from(rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC).expect("memory"));
        let to = file.try_clone().expect("a descriptor");
        let from = File::open(&packed).unwrap_or_else(|error| panic!("{}: {error}", packed.display()));
        let done = Command::new("gzip").arg("-dc").stdin(Stdio::from(from)).stdout(to).status();
        assert!(done.is_ok_and(|status| status.success()), "gzip");
        let info = F2fs::open(&path_of(&file)).expect("an image").info();
        let places = places(&file, &info.geometry);
        Image { file, geometry: info.geometry, inode_seed: inode_seed(&info.uuid), places }
    }

    fn path(&self) -> PathBuf {
        path_of(&self.file)
    }

    fn block(&self, at: u64) -> Box<Block> {
        let mut block = Box::new([0; BLOCK_BYTES]);
        // The image is in memory, and whole.
        let _ = self.file.read_exact_at(&mut block[..], at);
        block
    }

    /// Makes an edit, in both copies where there are two; what was there before.
    fn change(&self, edit: &[u8]) -> Vec<(u64, Box<Block>)> {
        let number = |i: usize| u16::from_le_bytes([edit[i], edit[i + 1]]);
        let at = self.places[usize::from(number(0)) % self.places.len()];
        let mut block = self.block(at);
        let word = usize::from(number(2)) % (BLOCK_BYTES / 4) * 4;
        let (how, value) = (edit[4], u32::from_le_bytes([edit[5], edit[6], edit[7], 0]));
        let old = u32::from_le_bytes([block[word], block[word + 1], block[word + 2], block[word + 3]]);
        let other = value as usize % (BLOCK_BYTES / 4) * 4;
        let other = u32::from_le_bytes([block[other], block[other + 1], block[other + 2], block[other + 3]]);
        let new = forged(old, how, value, other);
        block[word..word + 4].copy_from_slice(&new.to_le_bytes());
        self.put_right(&mut block);
        let copies = [Some(at), self.other_copy(at)];
        let replace = |at| {
            let before = self.block(at);
            let _ = self.file.write_all_at(&block[..], at);
            (at, before)
        };
        copies.into_iter().flatten().map(replace).collect()
    }

    /// Superblocks stand side by side, checkpoint packs a segment apart.
    fn other_copy(&self, at: u64) -> Option<u64> {
        let (block, first) = (at / BLOCK_BYTES as u64, u64::from(self.geometry.checkpoint.0));
        let other = match block {
            0 | 1 => 1 - block,
            block if (first..first + 512).contains(&block) => block + 512,
            block if (first + 512..first + 1024).contains(&block) => block - 512,
            _ => return None,
        };
        Some(other * BLOCK_BYTES as u64)
    }

    /// Checksums of what could be a checkpoint or an inode; of anything else that is one more edit.
    fn put_right(&self, block: &mut Block) {
        const CHECKPOINT_CRC: usize = BLOCK_BYTES - 4;
        if u32::from_le_bytes([block[164], block[165], block[166], block[167]]) as usize == CHECKPOINT_CRC {
            let crc = checksum(SEED, &block[..CHECKPOINT_CRC]);
            block[CHECKPOINT_CRC..].copy_from_slice(&crc.to_le_bytes());
        }
        let Ok(inode) = InodeBlock::ref_from_bytes(&block[..]) else { return };
        if inode.footer.nid == inode.footer.ino && inode.footer.nid.get() != 0 {
            let crc = of_inode(self.inode_seed, inode);
            block[INODE_CHECKSUM_OFFSET_BYTES..][..4].copy_from_slice(&crc.to_le_bytes());
        }
    }
}

/// What becomes of a word; `other`: one from nearby.
pub fn forged(old: u32, how: u8, value: u32, other: u32) -> u32 {
    match how % 6 {
        0 => value,
        1 => u32::MAX - value % 3,
        2 => old ^ 1 << (value % 32),
        3 => old.wrapping_add(value % 16).wrapping_sub(8),
        4 => (value & 0xffff) << 16 | old & 0xffff,
        _ => other,
    }
}

/// A file in memory with the same bytes; what is a hole stays one.
pub fn copy_of(file: &File) -> Result<File, Box<dyn std::error::Error>> {
    let copy = File::from(rustix::fs::memfd_create("copy", MemfdFlags::CLOEXEC)?);
    copy.set_len(file.metadata()?.len())?;
    let mut at = 0;
    while let Ok(data) = rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
        let end = rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(data))?;
        let mut bytes = vec![0; (end - data) as usize];
        file.read_exact_at(&mut bytes, data)?;
        copy.write_all_at(&bytes, data)?;
        at = end;
    }
    Ok(copy)
}

/// Names come and go, files grow and shrink; errors are as good as anything. What became of it.
pub fn change(fs: &F2fs) -> usize {
    let root = Cred::root();
    let mut done = 0;
    let mut names = Vec::new();
    if let Ok(dir) = fs.open(&root, Ino::ROOT, OpenFlags::READ) {
        let mut keep = |entry: DirEntry<'_>| {
            names.push(entry.name.bytes().to_vec());
            names.len() < 12
        };
        let _ = fs.each_entry(&dir, Cookie::default(), &mut keep);
        fs.release(dir);
    }
    for (n, name) in names.iter().enumerate() {
        let Ok(name) = Name::new(name) else { continue };
        let Ok(attr) = fs.lookup(&root, Ino::ROOT, name) else { continue };
        let flags = OpenFlags { direct: n % 2 == 1, ..OpenFlags::READ_WRITE };
        if let Ok(file) = fs.open(&root, attr.ino, flags) {
            done += usize::from(fs.write(&file, 5000 * n as u64, &[7; 9000]).is_ok());
            done += usize::from(fs.write(&file, 4096 * n as u64, &[8; 20 * BLOCK_BYTES]).is_ok());
            done += usize::from(fs.fallocate(&file, RangeOp::Punch, 4096, 1 << 20).is_ok());
            fs.release(file);
        }
        let size = SetAttr { size_bytes: Some(100 * n as u64), ..SetAttr::default() };
        done += usize::from(fs.setattr(&root, attr.ino, None, &size).is_ok());
        let note =
            XattrName::new(b"user.note").map(|x| fs.setxattr(&root, attr.ino, x, &[5; 300], SetXattr::Any));
        done += usize::from(matches!(note, Ok(Ok(()))));
        done += usize::from(
            fs.create(&root, attr.ino, name, 0o600, OpenFlags::WRITE).map(|(_, f)| fs.release(f)).is_ok(),
        );
        let gone = fs.unlink(&root, Ino::ROOT, name).or_else(|_| fs.rmdir(&root, Ino::ROOT, name));
        done += usize::from(gone.is_ok());
        if n % 4 == 0 {
            done += usize::from(fs.sync().is_ok());
        }
    }
    done + usize::from(fs.unmount().is_ok())
}

/// The descriptor as a path.
pub fn path_of(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

fn places(file: &File, geometry: &Geometry) -> Vec<u64> {
    let used = |from: u32, to: u32| -> Vec<u64> {
        let starts = (from..to).map(|block| u64::from(block) * BLOCK_BYTES as u64);
        let is_used = |at: &u64| {
            let mut bytes = [0; BLOCK_BYTES];
            file.read_exact_at(&mut bytes, *at).is_ok() && bytes.iter().any(|byte| *byte != 0)
        };
        starts.filter(is_used).collect()
    };
    let main_end = geometry.main.0 + geometry.main_segments * 512;
    let mut places = used(geometry.main.0, main_end);
    let few = [used(0, geometry.sit.0), used(geometry.nat.0, geometry.ssa.0)].concat();
    let often = places.len().min(1 << 15) / few.len().max(1);
    for _ in 0..often {
        places.extend(&few);
    }
    places
}
