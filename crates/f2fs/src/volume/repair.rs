//! A repair by another program, as a transaction: the old bytes of each block are in an undo file before the block changes.
//!
//! The repair ends in one of two ways. [`Repair::finish`]: the image is what the program made of it, and the undo file can restore what it
//! was. [`Repair::go_back`]: the old bytes are in the image again, and there is no undo file.
//!
//! Only superblock and checkpoint are read: damage behind them hinders nothing here.
//!
//! The image says that its repair is under way (`superblock::repair_mark`): nobody else writes it then, whatever becomes of the undo file.
//!
//! Crash order X1  the old bytes of a block are written to the undo file before its new ones are written to the image. So whenever this
//!                 process or the other program is killed, the undo file restores the image. The superblocks are first: they get the mark.
//!             X2  the undo file is flushed before each flush that the other program asks for, and some seconds after a write. A power cut
//!                 before that may keep blocks of the image whose old bytes are lost: the undo file covers a power cut only as far as the
//!                 system writes the image later than it.
//!             X3  the image is durable before the undo file says that the repair has ended; this, before the image says so.
//! Limits      Linux keeps the mark, and writes a marked image: the version of the checkpoint tells, if it has made one.

mod undo;

pub(crate) use undo::refuse_half_repaired;
pub use undo::{ReadLock, Restored, end_repair, is_undo_file, undo};

use crate::checkpoint::Checkpoint;
use crate::device::{Access, Device, Identity};
use crate::error::OpenError;
use crate::format::{BLOCK_BYTES, checkpoint_flag};
use crate::ids::BlockAddr;
use crate::node_log::mark;
use crate::superblock;
use crate::superblock::repair_mark::{self, RepairId, RepairMark, RepairState};
use crate::volume::lost::Lost;
use heddle_undo::{Block, Image, Writer};
use std::fs::File;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where both superblocks are.
const SUPERBLOCKS: Range<u64> = 0..2;
/// X2.
const SYNC_AFTER: Duration = Duration::from_secs(5);

/// Says the image that its node log may have what it has not? Only its superblock is read.
///
/// # Errors
/// See [`OpenError`].
pub fn needs_log(path: &Path) -> Result<bool, OpenError> {
    let device = Device::open(path, Access::Read)?;
    superblock::read(&device).map(|(superblock, _)| mark::of(&superblock).is_some())
}

/// Checks that nobody uses the image, by whatever name, and that it can be written.
///
/// # Errors
/// [`OpenError::InUse`], with the one that uses it, also if that only reads.
pub fn is_unused(path: &Path) -> Result<(), OpenError> {
    Device::open(path, Access::Write).map(drop)
}

/// What an earlier repair that was stopped half-way means to a new one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Earlier {
    /// The new one is refused: go back first.
    Counts,
    /// What only its undo file has is lost.
    GivenUp,
}

/// See the module.
pub struct Repair {
    device: Device,
    id: RepairId,
    /// Something was changed besides the mark.
    is_changed: bool,
    /// The image has the mark, or a part of it.
    is_marked: bool,
    /// The other program was about to write a superblock.
    is_mark_at_risk: bool,
    /// Keeps a block device from being mounted while the other program does not have it.
    held: Option<File>,
    undo: Writer,
    synced: Instant,
}

/// uuid of an image, and version of its checkpoint; zeros where they cannot be read.
fn signs(device: &Device) -> ([u8; 16], u64) {
    let uuid = superblock::uuid(device).unwrap_or_default();
    let checkpoint =
        superblock::read(device).and_then(|(_, geometry)| Checkpoint::read(device, &geometry)).ok();
    (uuid, checkpoint.map_or(0, |checkpoint| checkpoint.identity().version))
}

impl Repair {
    /// Takes the image, makes a new undo file, and marks the image. The image stays locked until the repair has ended. Programs that are
    /// started meanwhile inherit the lock: it is held until the last of them has ended, also if this process is killed before.
    /// `looked_at`: what was checked before. `Ok(Err(why))`: nothing was made or changed.
    ///
    /// # Errors
    /// The image may be marked, and the way back.
    pub fn begin(
        image: &Path,
        undo: &Path,
        looked_at: Identity,
        earlier: Earlier,
    ) -> Result<Result<Repair, String>, String> {
        let device = match Device::open(image, Access::Repair) {
            Ok(device) => device,
            Err(why) => return Ok(Err(why.to_string())),
        };
        if device.identity().ok() != Some(looked_at) {
            return Ok(Err("somebody has replaced the image since it was checked".into()));
        }
        match Repair::unmarked(device, undo, earlier) {
            Ok(repair) => repair.begun(),
            Err(why) => Ok(Err(why)),
        }
    }

    /// A repair that has changed nothing yet.
    fn unmarked(device: Device, undo: &Path, earlier: Earlier) -> Result<Repair, String> {
        let told = |error: OpenError| error.to_string();
        superblock::refuse_foreign(&device).map_err(told)?;
        let held = device.hold().map_err(told)?;
        device
            .share_lock()
            .map_err(|error| format!("cannot keep the lock of {}: {error}", device.path().display()))?;
        if earlier == Earlier::Counts {
            undo::refuse_half_repaired(&device).map_err(told)?;
        }
        if superblock::has_other_devices(&device) {
            return Err(
                "it lies on several devices, and heddle keeps old bytes of one alone. Copy all of them, and \
                        run fsck.f2fs"
                    .into(),
            );
        }
        let is_changed = repair_mark::read(&device).is_some_and(RepairMark::is_half);
        let id = RepairId::new();
        let (uuid, version) = signs(&device);
        let of = Image { uuid, epochs: [version; 2], blocks: device.blocks(), repair: id.0 };
        let undo = Writer::create(undo, of).map_err(|error| {
            let way = match error.kind() {
                ErrorKind::AlreadyExists => "name another one with --undo",
                _ => "choose a place for it with --undo",
            };
            format!("cannot make the undo file {}: {error}: {way}", undo.display())
        })?;
        let (synced, is_marked, is_mark_at_risk) = (Instant::now(), false, false);
        Ok(Repair { device, id, is_changed, is_marked, is_mark_at_risk, held, undo, synced })
    }

    fn begun(mut self) -> Result<Result<Repair, String>, String> {
        match self.mark() {
            Ok(()) => Ok(Ok(self)),
            Err(why) => match self.go_back() {
                Ok(()) => Ok(Err(why)),
                Err(also) => Err(format!("{why}; and then {also}")),
            },
        }
    }

    /// Marks the image, durably (X1).
    fn mark(&mut self) -> Result<(), String> {
        self.keep_blocks(SUPERBLOCKS)?;
        self.sync()?;
        let mark = self.mark_of(RepairState::UnderWay);
        self.is_marked = true;
        repair_mark::write(&self.device, Some(mark)).map_err(|error| error.to_string())?;
        if !repair_mark::is_on_all(&self.device, mark) {
            return Err("no superblock is whole, so that a repair could not be noted there".into());
        }
        Ok(())
    }

    fn mark_of(&self, state: RepairState) -> RepairMark {
        RepairMark { id: self.id, state }
    }

    /// The mark is on the image again, also if the other program has overwritten it. Called behind each of its writes.
    ///
    /// # Errors
    /// The mark cannot be written.
    pub fn see_to_mark(&mut self) -> Result<(), String> {
        let mark = self.mark_of(RepairState::UnderWay);
        if std::mem::take(&mut self.is_mark_at_risk) && !repair_mark::is_on_all(&self.device, mark) {
            repair_mark::write(&self.device, Some(mark)).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Returns true if something was about to be changed besides the mark.
    pub fn is_changed(&self) -> bool {
        self.is_changed
    }

    /// The number of the repair, which no other one has.
    pub fn id(&self) -> RepairId {
        self.id
    }

    /// What tells that a descriptor leads to the image.
    ///
    /// # Errors
    /// Those of the system.
    pub fn identity(&self) -> std::io::Result<Identity> {
        self.device.identity()
    }

    /// A path by which a program that repairs reaches the image, and no other: the image's own path may lead elsewhere by then.
    ///
    /// # Errors
    /// Those of the system: there is no such path.
    pub fn path_for_programs(&self) -> std::io::Result<PathBuf> {
        self.device.path_for_programs()
    }

    /// Checks that the image's path still leads to it. The user is told of that path, and of no other.
    ///
    /// # Errors
    /// The reason.
    pub fn is_in_place(&self) -> Result<(), String> {
        let now = self.device.path().metadata().map(|meta| Identity::of(&meta));
        match (now, self.device.identity()) {
            (Ok(now), Ok(own)) if now == own => Ok(()),
            _ => Err("somebody has moved or replaced the image meanwhile".into()),
        }
    }

    /// Where the undo file is.
    pub fn undo_file(&self) -> &Path {
        self.undo.path()
    }

    /// Lets another program open the device exclusively.
    pub fn lend(&mut self) {
        self.held = None;
    }

    /// That program has ended.
    ///
    /// # Errors
    /// Somebody else has mounted the device meanwhile.
    pub fn take_back(&mut self) -> Result<(), String> {
        self.held = self.device.hold().map_err(|error| error.to_string())?;
        Ok(())
    }

    /// Keeps the old bytes of all blocks in which these bytes lie (X1).
    ///
    /// # Errors
    /// The reason why they cannot be kept: they must not be changed.
    pub fn keep(&mut self, at: u64, len_bytes: u64) -> Result<(), String> {
        let block_bytes = BLOCK_BYTES as u64;
        let end = at.saturating_add(len_bytes);
        if end > self.device.blocks() * block_bytes {
            return Err("it would write behind the end of the image".into());
        }
        let blocks = at / block_bytes..end.div_ceil(block_bytes);
        self.is_changed = true;
        self.is_mark_at_risk |= blocks.start < SUPERBLOCKS.end;
        self.keep_blocks(blocks)?;
        if self.synced.elapsed() >= SYNC_AFTER { self.sync() } else { Ok(()) }
    }

    fn keep_blocks(&mut self, blocks: Range<u64>) -> Result<(), String> {
        for block in blocks {
            let addr = u32::try_from(block).map_err(|_| "it has more blocks than F2FS can have")?;
            if !self.undo.has(block) {
                let old = self.device.block(BlockAddr(addr)).map_err(|error| error.to_string())?;
                self.undo.keep(block, &old).map_err(|error| self.unkept(&error))?;
            }
        }
        Ok(())
    }

    /// All that is kept is durable when this returns (X2).
    ///
    /// # Errors
    /// The reason.
    pub fn sync(&mut self) -> Result<(), String> {
        self.synced = Instant::now();
        self.undo.sync().map_err(|error| self.unkept(&error))
    }

    fn unkept(&self, error: &std::io::Error) -> String {
        let undo = self.undo.path().display();
        format!(
            "the undo file {undo} cannot be written: {error}: make room there, or choose another place with --undo"
        )
    }

    /// What only the node log has is given up: the image is what its last checkpoint says. Durable when this returns.
    ///
    /// # Errors
    /// The reason.
    pub fn give_up_log(&mut self) -> Result<(), String> {
        superblock::read(&self.device).map_err(|error| error.to_string())?;
        self.keep(0, 2 * BLOCK_BYTES as u64)?;
        self.sync()?;
        let done = superblock::repair(&self.device).and_then(|()| mark::write(&self.device, None));
        done.map_err(|error| error.to_string())
    }

    /// The checkpoint says no more that a check is needed: one was made, and found nothing wrong. Durable when this returns.
    ///
    /// # Errors
    /// The reason.
    pub fn note_checked(&mut self) -> Result<(), String> {
        let read = superblock::read(&self.device)
            .and_then(|(_, geometry)| Checkpoint::read(&self.device, &geometry));
        let checkpoint = read.map_err(|error| error.to_string())?;
        for addr in checkpoint.blocks_with_flags() {
            self.keep(u64::from(addr.0) * BLOCK_BYTES as u64, BLOCK_BYTES as u64)?;
        }
        self.sync()?;
        let note = checkpoint_flag::FSCK | checkpoint_flag::ERROR;
        checkpoint.without_flags(&self.device, note).map_err(|error| error.to_string())
    }

    /// Returns true if the checkpoint says that a check is needed.
    pub fn asks_for_check(&self) -> bool {
        let read = superblock::read(&self.device)
            .and_then(|(_, geometry)| Checkpoint::read(&self.device, &geometry));
        read.is_ok_and(|checkpoint| checkpoint.has(checkpoint_flag::FSCK | checkpoint_flag::ERROR))
    }

    /// Checks that heddle can read the image as it was.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn is_readable(&self) -> Result<(), OpenError> {
        Lost::open(self.device.view(Some(self.undo.old()))?).map(drop)
    }

    /// Files that the repair has taken from the image as it was, or changed.
    ///
    /// # Errors
    /// See [`OpenError`]: heddle cannot read the image, as it was or as it is.
    pub fn losses(&self) -> Result<Lost, OpenError> {
        let old = self.undo.old();
        let before = Lost::open(self.device.view(Some(old.clone()))?)?;
        before.since(&Lost::open(self.device.view(None)?)?, &old)
    }

    /// Writes the old bytes back, and removes the undo file. Durable when this returns.
    ///
    /// # Errors
    /// The reason, and the way out: the undo file stays.
    pub fn go_back(self) -> Result<(), String> {
        let (undo, image) = (self.undo.path(), self.device.path());
        self.put_back().map_err(|error| undo::half_way(&error, undo, image))?;
        // Its blocks are those of the image: restoring them changes nothing.
        let _ = self.undo.remove();
        Ok(())
    }

    fn put_back(&self) -> Result<(), String> {
        if !self.is_marked {
            return Ok(());
        }
        // Nobody else may have mounted it.
        let _held = match &self.held {
            Some(_) => None,
            None => self.device.hold().map_err(|error| error.to_string())?,
        };
        self.device.forget_loss();
        let old = self.undo.old();
        let read = |block: u64, bytes: &mut Block| old.read(block, bytes).map(drop);
        let done = undo::restore(&self.device, self.id, old.blocks().collect(), read);
        done.map(drop).map_err(|error| error.to_string())
    }

    /// The repair is done, but for [`Repair::note_end`]. Returns how many blocks the undo file has; none: nothing was changed, and there is
    /// no such file. Durable when this returns.
    ///
    /// # Errors
    /// Why it cannot end so: go back.
    pub fn finish(&mut self) -> Result<u64, String> {
        if !self.is_changed {
            self.put_back()?;
            let _ = self.undo.remove();
            return Ok(0);
        }
        let before = self.undo.image().epochs[0];
        // PERSIST: X3.
        self.device.flush().map_err(|error| error.to_string())?;
        let after = signs(&self.device).1;
        let left = undo::sum(&self.device, self.undo.old().blocks().collect());
        let left = left.map_err(|error| error.to_string())?;
        self.undo.finish([before, after], left).map_err(|error| self.unkept(&error))?;
        Ok(self.undo.count())
    }

    /// The image says that its repair has ended. Durable when this returns.
    ///
    /// # Errors
    /// The reason: go back.
    pub fn note_end(&mut self) -> Result<(), String> {
        if !self.is_changed {
            return Ok(());
        }
        // PERSIST: X3. From here on the undo file is not needed for a whole image.
        let done = repair_mark::write(&self.device, Some(self.mark_of(RepairState::Done)));
        done.map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests;
