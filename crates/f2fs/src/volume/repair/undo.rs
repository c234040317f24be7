//! Images between two commands: half repaired, repaired, or as before.
//!
//! Order       U1  going back is noted in the mark first, and restores the superblocks last: the mark is there until all else is as it was.
//!                 If it is interrupted, the next one begins anew.
//!             U2  an undo file counts for an image that has the number of its repair, and for no other: old blocks would overwrite newer
//!                 ones. If the repair has ended, the blocks must be as it left them, too: another program may have repaired since.

use super::{SUPERBLOCKS, signs};
use crate::checksum::{SEED, checksum};
use crate::device::{Access, Device, Identity};
use crate::error::OpenError;
use crate::format::BLOCK_BYTES;
use crate::ids::BlockAddr;
use crate::superblock;
use crate::superblock::repair_mark::{self, RepairId, RepairMark, RepairState};
use heddle_undo::{Block, Undo};
use heddle_vfs::Error;
use std::io;
use std::path::{Path, PathBuf};

/// An image that no heddle writes as long as this is there.
pub struct ReadLock(Device);

impl ReadLock {
    /// Locks an image for reading.
    ///
    /// # Errors
    /// [`OpenError::InUse`]: somebody writes it. [`OpenError::System`].
    pub fn of(image: &Path) -> Result<ReadLock, OpenError> {
        Device::open(image, Access::Read).map(ReadLock)
    }

    /// What tells that a descriptor leads to the image.
    ///
    /// # Errors
    /// Those of the system.
    pub fn identity(&self) -> io::Result<Identity> {
        self.0.identity()
    }

    /// A path by which a program that looks at the image reaches it. That of a device is its own: fsck.f2fs finds by this path whether it
    /// is mounted, and looks at one that is mounted for reading alone.
    ///
    /// # Errors
    /// Those of the system: there is no such path.
    pub fn path_for_programs(&self) -> io::Result<PathBuf> {
        match self.0.is_block_device() {
            true => self.0.path().canonicalize(),
            false => self.0.path_for_programs(),
        }
    }

    /// Checks that no other format was made on it later.
    ///
    /// # Errors
    /// [`OpenError::Foreign`].
    pub fn is_ours(&self) -> Result<(), OpenError> {
        superblock::refuse_foreign(&self.0)
    }

    /// Checks that no repair of it was stopped half-way.
    ///
    /// # Errors
    /// [`OpenError::HalfRepaired`].
    pub fn is_whole(&self) -> Result<(), OpenError> {
        refuse_half_repaired(&self.0)
    }

    /// Returns true if nobody needs this undo file: a repair of the image was stopped before it changed anything, and the file has nothing
    /// that the image lacks.
    pub fn needs_not(&self, file: &Path) -> bool {
        let (device, mut old) = (&self.0, [0; BLOCK_BYTES]);
        let Ok(undo) = Undo::open(file) else { return false };
        let mut is_there = |(n, block): (usize, &u64)| {
            let is = addr(*block).and_then(|addr| device.block(addr));
            undo.read(n, &mut old).is_ok() && is.is_ok_and(|is| superblock::equal_but_for_marks([*is, old]))
        };
        changed_nothing(&undo, device)
            && undo.image.uuid != [0; 16]
            && is_of(&undo, device).is_ok()
            && undo.blocks().iter().enumerate().all(&mut is_there)
            && undo.is_left()
    }
}

/// Returns true if the repair of an undo file was stopped before it changed anything, or has been undone after no change but its mark.
fn changed_nothing(undo: &Undo, device: &Device) -> bool {
    let is_marked = repair_mark::read(device).is_some_and(|mark| mark.id.0 == undo.image.repair);
    let is_readable = superblock::uuid(device).is_some();
    !undo.is_finished
        && is_readable
        && !is_marked
        && undo.blocks().iter().all(|block| SUPERBLOCKS.contains(block))
}

/// Refuses an image of which a repair was stopped half-way, with the way out.
pub(crate) fn refuse_half_repaired(device: &Device) -> Result<(), OpenError> {
    let Some(mark) = repair_mark::read(device).filter(|mark| mark.is_half()) else { return Ok(()) };
    let (way, undo) = heddle_undo::way_back(device.path(), mark.id.0);
    let way = match undo {
        // It is whole, or there is no such way.
        Some(undo) if undo.is_finished && mark.state != RepairState::GoingBack => format!(
            "It had ended but for a note of that, which this makes: heddle fsck -y {}",
            heddle_undo::shell_word(device.path())
        ),
        _ => way,
    };
    Err(OpenError::HalfRepaired { image: device.path().into(), way })
}

/// Notes the end of a repair that was killed between the end of its undo file and that note, after `before`.
/// Returns false if there is none.
///
/// # Errors
/// See [`OpenError`]. The image must not be in use.
pub fn end_repair(
    image: &Path,
    before: &mut dyn FnMut(RepairId) -> io::Result<()>,
) -> Result<bool, OpenError> {
    let device = Device::open(image, Access::Write)?;
    superblock::refuse_foreign(&device)?;
    let Some(RepairMark { id, state: RepairState::UnderWay }) = repair_mark::read(&device) else {
        return Ok(false);
    };
    if !heddle_undo::undo_file(image, id.0).is_some_and(|undo| undo.is_finished && undo.is_whole) {
        return Ok(false);
    }
    before(id).map_err(|source| OpenError::System {
        image: image.into(),
        what: "end the repair of",
        source,
    })?;
    let written = repair_mark::write(&device, Some(RepairMark { id, state: RepairState::Done }));
    let failed = |error: Error| OpenError::System {
        image: image.into(),
        what: "write the superblock of",
        source: io::Error::other(error.to_string()),
    };
    written.map(|()| true).map_err(failed)
}

/// What an undo file has restored.
pub struct Restored {
    /// Number of blocks; 0: all of them were as they had been.
    pub blocks: u64,
    /// The repair that had changed them.
    pub repair: RepairId,
}

/// Restores what the undo file has.
///
/// # Errors
/// The reason: the file is damaged, or of another image, or the image was mounted since; the image is in use, or cannot be written.
pub fn undo(image: &Path, file: &Path) -> Result<Restored, String> {
    let opened = Device::open(image, Access::Write)
        .and_then(|device| superblock::refuse_foreign(&device).map(|()| device));
    let device = opened.map_err(|error| error.to_string())?;
    let wrong = |why: String| format!("cannot use the undo file {}: {why}", file.display());
    let half = repair_mark::read(&device).filter(|mark| mark.is_half());
    let useless = |why: String| wrong(heddle_undo::useless(&why, image, half.map(|mark| mark.id.0)));
    let undo = Undo::open(file).map_err(useless)?;
    is_of(&undo, &device).map_err(useless)?;
    if changed_nothing(&undo, &device) {
        // The image may be anything: it must not be told that it is as it was.
        return Err(wrong(
            "its repair was stopped before it changed anything: there is nothing to restore".into(),
        ));
    }
    let repair = RepairId(undo.image.repair);
    let places: std::collections::HashMap<u64, usize> =
        undo.blocks().iter().enumerate().map(|(n, block)| (*block, n)).collect();
    let read = |block: u64, bytes: &mut Block| match places.get(&block) {
        Some(n) => undo.read(*n, bytes),
        None => Err(io::ErrorKind::NotFound.into()),
    };
    if !differs(&device, undo.blocks(), read).map_err(|error| wrong(error.to_string()))? {
        return Ok(Restored { blocks: 0, repair });
    }
    is_last(&undo, &device).map_err(wrong)?;
    let done = restore(&device, repair, undo.blocks().to_vec(), read);
    let blocks = done.map_err(|error| half_way(&error.to_string(), file, image))?;
    Ok(Restored { blocks, repair })
}

fn differs(
    device: &Device,
    blocks: &[u64],
    old: impl Fn(u64, &mut Block) -> io::Result<()>,
) -> heddle_vfs::Result<bool> {
    let mut bytes = [0; BLOCK_BYTES];
    for block in blocks {
        old(*block, &mut bytes).map_err(|error| Error::Io(error.to_string()))?;
        // One that cannot be read may be restored by a write.
        if !device.block(addr(*block)?).is_ok_and(|is| *is == bytes) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn addr(block: u64) -> heddle_vfs::Result<BlockAddr> {
    u32::try_from(block).map(BlockAddr).map_err(|_| Error::Corrupt("more blocks than F2FS can have".into()))
}

/// Gives blocks their old bytes, the superblocks last (U1). Returns their number. One that has its bytes is not written: a hole of an image
/// on a full disk has no room for zeros. Durable when this returns.
pub(super) fn restore(
    device: &Device,
    id: RepairId,
    mut blocks: Vec<u64>,
    old: impl Fn(u64, &mut Block) -> io::Result<()>,
) -> heddle_vfs::Result<u64> {
    blocks.sort_unstable();
    let behind = blocks.partition_point(|block| *block < SUPERBLOCKS.end);
    let (superblocks, others) = blocks.split_at(behind);
    // Nothing was changed, nor marked, before both superblocks were kept.
    if superblocks.len() as u64 == SUPERBLOCKS.end {
        // PERSIST: U1.
        repair_mark::write(device, Some(RepairMark { id, state: RepairState::GoingBack }))?;
    }
    let mut bytes = [0; BLOCK_BYTES];
    for part in [others, superblocks] {
        for block in part {
            let addr = addr(*block)?;
            old(*block, &mut bytes).map_err(|error| Error::Io(error.to_string()))?;
            if !device.block(addr).is_ok_and(|is| *is == bytes) {
                device.write(addr, &bytes)?;
            }
        }
        // PERSIST: U1.
        device.flush()?;
    }
    Ok(blocks.len() as u64)
}

/// Checksum of the blocks as they are, without the superblocks, which a mark changes.
pub(super) fn sum(device: &Device, mut blocks: Vec<u64>) -> heddle_vfs::Result<u32> {
    blocks.sort_unstable();
    let mut sum = SEED;
    for block in blocks.into_iter().filter(|block| !SUPERBLOCKS.contains(block)) {
        sum = checksum(sum, &device.block(addr(block)?)?[..]);
    }
    Ok(sum)
}

/// Checks that the undo file is of this image.
fn is_of(undo: &Undo, device: &Device) -> Result<(), String> {
    let (of, have) = (undo.image, device.blocks());
    if of.blocks != have {
        return Err(format!("it belongs to an image of {} blocks, this one has {have}", of.blocks));
    }
    let is_unread = |uuid: [u8; 16]| uuid == [0; 16];
    let uuid = signs(device).0;
    if uuid != of.uuid && !is_unread(uuid) && !is_unread(of.uuid) {
        return Err("it belongs to another image".into());
    }
    Ok(())
}

/// The version of the checkpoint, found where the superblocks of the undo file say; 0: it cannot be read.
fn version_by_old_superblocks(undo: &Undo, device: &Device) -> u64 {
    let old = undo.old(|block| SUPERBLOCKS.contains(&block));
    device.view(Some(old)).map_or(0, |view| signs(&view).1)
}

/// Returns true if this is the undo file of an F2FS image: it has a superblock.
pub fn is_undo_file(file: &Path) -> bool {
    let Ok(undo) = Undo::open(file) else { return false };
    let old = undo.old(|block| SUPERBLOCKS.contains(&block));
    let mut bytes = [0; BLOCK_BYTES];
    let mut is_superblock =
        |block| old.read(block, &mut bytes).is_ok_and(|found| found) && superblock::is_whole(&bytes);
    SUPERBLOCKS.into_iter().any(&mut is_superblock)
}

/// The error of a way back that has ended half-way.
pub(super) fn half_way(error: &str, undo: &Path, image: &Path) -> String {
    let [undo, image] = [undo, image].map(heddle_undo::shell_word);
    format!("{error}. The image is half repaired; to go back: heddle fsck --undo {undo} {image}")
}

/// Checks that nothing has changed the image since its repair (U2).
fn is_last(undo: &Undo, device: &Device) -> Result<(), String> {
    let of = undo.image;
    let mark = repair_mark::read(device);
    let is_readable = superblock::uuid(device).is_some();
    let version = if is_readable { signs(device).1 } else { version_by_old_superblocks(undo, device) };
    // An image whose superblocks are gone has no mark: the file itself says whether its repair has ended.
    let is_its = mark.map_or(!is_readable, |mark| mark.id.0 == of.repair);
    let is_half = if is_readable { mark.is_some_and(RepairMark::is_half) } else { !undo.is_finished };
    if !is_readable && is_half && version == 0 && of.epochs[0] != 0 {
        return Err(
            "it cannot be told whether it belongs to this image, which has neither superblock nor checkpoint"
                .into(),
        );
    }
    if is_half && !is_its {
        return Err(
            "another repair of the image was stopped half-way: its undo file is to be used first".into()
        );
    }
    // Before the repair, after it, or in the midst of it; zero: the checkpoint could not be read.
    let is_since = version != 0 && !of.epochs.contains(&version) && (undo.is_finished || of.epochs[0] != 0);
    let is_as_left = || sum(device, undo.blocks().to_vec()).is_ok_and(|sum| sum == undo.left);
    match (is_its && !is_since, is_half) {
        (true, true) => Ok(()),
        (true, false) if is_as_left() => Ok(()),
        (_, true) => Err(format!(
            "the image was mounted since, by another system: old blocks would overwrite newer ones. {}",
            heddle_undo::without_it(device.path())
        )),
        _ => Err("the image was mounted or repaired since: old blocks would overwrite newer ones".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Traffic;
    use heddle_undo::{Image, Writer};
    use std::fs::File;

    const OLD: Block = [0x11; BLOCK_BYTES];

    fn device(place: &tempfile::TempDir) -> Device {
        let path = place.path().join("image");
        File::create(&path).unwrap().set_len(crate::IMAGE_BYTES_MIN).unwrap();
        crate::make_image(&path, "", &|_, _| ()).unwrap();
        Device::open(&path, Access::Write).unwrap()
    }

    #[test]
    fn an_undo_file_fits_its_image_or_one_that_cannot_be_told() {
        let place = tempfile::tempdir().unwrap();
        let device = device(&place);
        let own = superblock::uuid(&device).unwrap();
        let fits = |uuid, blocks| {
            let path = place.path().join("undo");
            drop(Writer::create(&path, Image { uuid, epochs: [1; 2], blocks, repair: 9 }).unwrap());
            let undo = Undo::open(&path).unwrap();
            std::fs::remove_file(path).unwrap();
            is_of(&undo, &device)
        };
        let (blocks, other) = (device.blocks(), own.map(|byte| !byte));
        let told = [fits(own, blocks), fits([0; 16], blocks), fits(other, blocks), fits(own, blocks + 1)];
        let [Ok(()), Ok(()), Err(another), Err(size)] = told else { panic!("{told:?}") };
        assert_eq!(another, "it belongs to another image");
        assert_eq!(size, format!("it belongs to an image of {} blocks, this one has {blocks}", blocks + 1));
        (0..2).for_each(|copy| device.write(BlockAddr(copy), &[0; BLOCK_BYTES]).unwrap());
        assert_eq!((fits(own, blocks), fits(other, blocks)), (Ok(()), Ok(())));
    }

    #[test]
    fn a_way_back_writes_what_differs_and_the_superblocks_last() {
        for kept in [&[6, 1, 5, 2, 0][..], &[6, 5, 0], &[6, 5]] {
            let place = tempfile::tempdir().unwrap();
            let device = device(&place);
            device.write(BlockAddr(6), &OLD).unwrap();
            device.traffic.lock().unwrap().clear();
            let old = |_: u64, bytes: &mut Block| {
                *bytes = OLD;
                Ok(())
            };
            assert_eq!(differs(&device, &[6], old), Ok(false));
            assert_eq!(differs(&device, kept, old), Ok(true));
            assert_eq!(restore(&device, RepairId(9), kept.to_vec(), old), Ok(kept.len() as u64));
            let traffic = device.traffic.lock().unwrap();
            let order = traffic.iter().map(|one| match one {
                Traffic::Write(addr, bytes) if bytes[..] == OLD => format!("{}", addr.0),
                Traffic::Write(addr, _) => format!("mark {}", addr.0),
                _ => "flush".to_owned(),
            });
            let wanted: &[&str] = match kept.len() {
                5 => &["mark 0", "flush", "mark 1", "flush", "2", "5", "flush", "0", "1", "flush"],
                // Nothing was marked before both were kept.
                3 => &["5", "flush", "0", "flush"],
                _ => &["5", "flush", "flush"],
            };
            assert_eq!(order.collect::<Vec<_>>(), wanted);
        }
    }

    #[test]
    fn the_sum_of_blocks_is_theirs_without_the_superblocks() {
        let place = tempfile::tempdir().unwrap();
        let device = device(&place);
        for block in [5_u8, 6] {
            device.write(BlockAddr(block.into()), &[block; BLOCK_BYTES]).unwrap();
        }
        let wanted = checksum(checksum(SEED, &[5; BLOCK_BYTES]), &[6; BLOCK_BYTES]);
        assert_eq!(sum(&device, vec![6, 0, 5, 1]), Ok(wanted));
        assert_eq!(sum(&device, vec![0, 1]), Ok(SEED));
        assert!(sum(&device, vec![1 << 32]).is_err());
    }
}
