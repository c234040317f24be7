//! The undo file of a repair: the old content of the blocks that the repair changes.
//!
//! | bytes | what |
//! |-------|------|
//! | 16 | `HEDDLE UNDO 3\n`, two NULs |
//! | 16 | uuid of the image |
//! | 8, 8 | epoch of the image before the repair and after it: its count of mounts (NVM), the version of its checkpoint (F2FS) |
//! | 8, 8 | blocks of the image, blocks in this file; the largest number: the repair has not ended |
//! | 8 | number of the repair, which the image has too |
//! | 8 | checksum of the blocks as the repair left them, of the kind that the image has; 0: none. While it has not ended: so many blocks or more are durable |
//! | 4112 each | number of the block, its old bytes, crc32c of both, four NULs |
//! | 4 | crc32c of all before it; only if the repair has ended |
//!
//! All numbers are little-endian. No block is there twice.
//!
//! Crash order the blocks become durable before the header says how many they are. Behind these, torn blocks say nothing: a power cut
//!             leaves them, and their writer had not been told that they are there.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod beside;
mod reader;
mod writer;

pub use beside::{FoundUndo, shell_word, undo_file, useless, way_back, without_it};
pub use reader::{Head, Undo, head_of};
pub use writer::{Old, Writer};

/// Bytes of a block.
pub const BLOCK_BYTES: usize = 4096;
const MAGIC: &[u8; 16] = b"HEDDLE UNDO 3\n\0\0";
/// What the files of all versions begin with.
const FAMILY: &[u8] = b"HEDDLE UNDO ";
const HEAD_BYTES: usize = 80;
const ENTRY_BYTES: usize = 8 + BLOCK_BYTES + 8;
/// In place of a number of blocks: the repair has not ended.
const UNFINISHED: u64 = u64::MAX;

/// The bytes of a block.
pub type Block = [u8; BLOCK_BYTES];

/// The image that an undo file belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Image {
    /// Its uuid.
    pub uuid: [u8; 16],
    /// Its epoch before the repair and after it.
    pub epochs: [u64; 2],
    /// Its size.
    pub blocks: u64,
    /// The number of the repair, which the image has too.
    pub repair: u64,
}

fn head(image: &Image, entries: u64, left: u32) -> [u8; HEAD_BYTES] {
    let mut bytes = [0; HEAD_BYTES];
    bytes[..16].copy_from_slice(MAGIC);
    bytes[16..32].copy_from_slice(&image.uuid);
    let numbers = [image.epochs[0], image.epochs[1], image.blocks, entries, image.repair, left.into()];
    for (n, number) in numbers.into_iter().enumerate() {
        bytes[32 + n * 8..][..8].copy_from_slice(&number.to_le_bytes());
    }
    bytes
}

/// Position of a block in the file.
fn place(n: u64) -> u64 {
    HEAD_BYTES as u64 + n * ENTRY_BYTES as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    const IMAGE: Image = Image { uuid: [7; 16], epochs: [3, 3], blocks: 100, repair: 9 };

    fn written(place: &tempfile::TempDir, is_finished: bool) -> PathBuf {
        let path = place.path().join("undo");
        let mut undo = Writer::create(&path, IMAGE).unwrap();
        assert!(!Undo::open(&path).unwrap().is_left(), "it is being written");
        for block in [5, 99, 5] {
            undo.keep(block, &[block as u8; BLOCK_BYTES]).unwrap();
        }
        let old = undo.old();
        let mut found = [0; BLOCK_BYTES];
        assert!(old.read(99, &mut found).unwrap() && found == [99; BLOCK_BYTES]);
        assert!(!old.read(4, &mut found).unwrap());
        if is_finished {
            undo.finish([3, 4], 5).unwrap();
        }
        path
    }

    #[test]
    fn each_block_is_kept_once_and_read_again() {
        let place = tempfile::tempdir().unwrap();
        for is_finished in [true, false] {
            let path = written(&place, is_finished);
            let undo = Undo::open(&path).unwrap();
            // A child that another test starts may hold the lock until it executes its program.
            let start = std::time::Instant::now();
            while !undo.is_left() {
                assert!(
                    start.elapsed().as_secs() < 10,
                    "somebody holds the file that its writer has let go of"
                );
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            assert_eq!((undo.is_finished, undo.blocks()), (is_finished, &[5, 99][..]));
            assert_eq!(head_of(&path), Some(Head { image: undo.image, is_finished }));
            assert_eq!(undo.left, if is_finished { 5 } else { 0 });
            assert_eq!(undo.image.epochs, if is_finished { [3, 4] } else { [3, 3] });
            let mut found = [0; BLOCK_BYTES];
            undo.read(1, &mut found).unwrap();
            assert_eq!(found, [99; BLOCK_BYTES]);
            assert!(Writer::create(&path, IMAGE).is_err(), "no file is overwritten");
            std::fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn a_file_with_fewer_blocks_than_were_durable_is_cut() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("undo");
        let mut undo = Writer::create(&path, IMAGE).unwrap();
        for block in 0..3 {
            undo.keep(block, &[7; BLOCK_BYTES]).unwrap();
        }
        undo.sync().unwrap();
        undo.keep(3, &[7; BLOCK_BYTES]).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for blocks in 0..=4 {
            std::fs::write(&path, &whole[..HEAD_BYTES + blocks * ENTRY_BYTES]).unwrap();
            match Undo::open(&path) {
                Ok(undo) => assert!(blocks >= 3 && undo.blocks().len() == blocks),
                Err(why) => assert!(blocks < 3 && why.contains("cut short"), "{blocks}: {why}"),
            }
        }
        let mut damaged = whole;
        damaged[HEAD_BYTES + 2 * ENTRY_BYTES + 20] ^= 1;
        std::fs::write(&path, damaged).unwrap();
        assert!(Undo::open(&path).unwrap_err().contains("damaged"), "it was durable");
    }

    #[test]
    fn a_torn_last_block_counts_only_if_the_repair_has_ended() {
        let place = tempfile::tempdir().unwrap();
        for is_finished in [true, false] {
            let path = written(&place, is_finished);
            let whole = std::fs::read(&path).unwrap();
            for cut in [1, 5, 4000, 4112] {
                std::fs::write(&path, &whole[..whole.len() - cut]).unwrap();
                match Undo::open(&path) {
                    Ok(undo) => assert!(!is_finished && undo.blocks() == [5], "{cut}"),
                    Err(why) => assert!(is_finished && why.contains("cut short"), "{cut}: {why}"),
                }
            }
            // The checksum of the head counts when the repair has ended: the number in a damaged one fits no image.
            let in_head = is_finished.then_some(70);
            for at in in_head.into_iter().chain([HEAD_BYTES + 6, HEAD_BYTES + 20]) {
                let mut bytes = whole.clone();
                bytes[at] ^= 1;
                std::fs::write(&path, bytes).unwrap();
                // Nothing says that it was durable, if the repair has not ended.
                match Undo::open(&path) {
                    Ok(undo) => {
                        assert!(!is_finished && undo.blocks() == [99], "{at}");
                        let mut found = [0; BLOCK_BYTES];
                        undo.read(0, &mut found).unwrap();
                        assert_eq!(found, [99; BLOCK_BYTES]);
                        assert!(
                            undo.old(|_| true).read(99, &mut found).unwrap() && found == [99; BLOCK_BYTES]
                        );
                    }
                    Err(why) => assert!(is_finished && why.contains("damaged"), "{at}: {why}"),
                }
            }
            std::fs::remove_file(path).unwrap();
        }
    }
}
