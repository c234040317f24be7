//! A repair by another program, as a transaction: the old bytes of each block are in an undo file before the block changes.
//!
//! The repair ends in one of two ways. [`Repair::finish`]: the image is what the program made of it, and the undo file can restore what it
//! was. [`Repair::go_back`]: the old bytes are in the image again, and there is no undo file.
//!
//! Only superblock and checkpoint are read: damage behind them hinders nothing here.
//!
//! Crash order X1  the old bytes of a block are written to the undo file before its new ones are written to the image. So whenever this
//!                 process or the other program is killed, the undo file restores the image.
//!             X2  the undo file is flushed before each flush that the other program asks for, and some seconds after a write. A power cut
//!                 before that may keep blocks of the image whose old bytes are lost: the undo file covers a power cut only as far as the
//!                 system writes the image later than it.
//!             X3  the image is durable before the undo file says that the repair has ended.
//! Limits      an undo file is refused after a mount that made a checkpoint: the version of the checkpoint tells. A mount for writing that
//!             was killed before its first checkpoint leaves no such trace.

use crate::checkpoint::Checkpoint;
use crate::device::{Access, Device, Identity};
use crate::error::OpenError;
use crate::format::{BLOCK_BYTES, checkpoint_flag};
use crate::ids::BlockAddr;
use crate::node_log::mark;
use crate::superblock;
use crate::volume::lost::Lost;
use heddle_undo::{Block, Image, Undo, Writer};
use heddle_vfs::Error;
use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

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

/// See the module.
pub struct Repair {
    device: Device,
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
    /// Takes the image, and makes a new undo file. The image stays locked until the repair has ended. Programs that are started meanwhile
    /// inherit the lock: it is held until the last of them has ended, also if this process is killed before.
    ///
    /// # Errors
    /// The reason; then nothing was made.
    pub fn begin(image: &Path, undo: &Path) -> Result<Repair, String> {
        let told = |error: OpenError| error.to_string();
        let device = Device::open(image, Access::Repair).map_err(told)?;
        let held = device.hold().map_err(told)?;
        device
            .share_lock()
            .map_err(|error| format!("cannot keep the lock of {}: {error}", image.display()))?;
        let (uuid, version) = signs(&device);
        let of = Image { uuid, epochs: [version; 2], blocks: device.blocks() };
        let undo = Writer::create(undo, of).map_err(|error| {
            let way = match error.kind() {
                ErrorKind::AlreadyExists => "name another one with --undo",
                _ => "choose a place for it with --undo",
            };
            format!("cannot make the undo file {}: {error}: {way}", undo.display())
        })?;
        Ok(Repair { device, held, undo, synced: Instant::now() })
    }

    /// What tells that a descriptor leads to the image.
    ///
    /// # Errors
    /// Those of the system.
    pub fn identity(&self) -> std::io::Result<Identity> {
        self.device.identity()
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
        for block in at / block_bytes..end.div_ceil(block_bytes) {
            let addr = u32::try_from(block).map_err(|_| "it has more blocks than F2FS can have")?;
            if !self.undo.has(block) {
                let old = self.device.block(BlockAddr(addr)).map_err(|error| error.to_string())?;
                self.undo.keep(block, &old).map_err(|error| self.unkept(&error))?;
            }
        }
        if self.synced.elapsed() >= SYNC_AFTER { self.sync() } else { Ok(()) }
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
        let old = self.undo.old();
        let put_back = || -> Result<(), Error> {
            // Nobody else may have mounted it.
            let _held = match &self.held {
                Some(_) => None,
                None => self.device.hold().map_err(|error| Error::Io(error.to_string()))?,
            };
            let mut bytes = [0; BLOCK_BYTES];
            for block in old.blocks() {
                old.read(block, &mut bytes).map_err(|error| Error::Io(error.to_string()))?;
                restore(&self.device, block, &bytes)?;
            }
            self.device.flush()
        };
        put_back().map_err(|error| {
            let [undo, image] = [self.undo.path(), self.device.path()].map(Path::display);
            format!("{error}. The image is half repaired; to go back: heddle fsck --undo {undo} {image}")
        })?;
        // Its blocks are those of the image: restoring them changes nothing.
        let _ = self.undo.remove();
        Ok(())
    }

    /// The repair is done. Returns how many blocks the undo file has; none: nothing was changed, and there is no such file. Durable when
    /// this returns.
    ///
    /// # Errors
    /// Why it cannot end so: go back.
    pub fn finish(&mut self) -> Result<u64, String> {
        if self.undo.count() == 0 {
            let _ = self.undo.remove();
            return Ok(0);
        }
        let before = self.undo.image().epochs[0];
        // X3.
        self.device.flush().map_err(|error| error.to_string())?;
        let after = signs(&self.device).1;
        self.undo.finish([before, after]).map_err(|error| self.unkept(&error))?;
        Ok(self.undo.count())
    }
}

/// Restores what the undo file has. Returns the number of blocks.
///
/// # Errors
/// The reason: the file is damaged, or of another image, or the image was mounted since; the image is in use, or cannot be written.
pub fn undo(image: &Path, file: &Path) -> Result<u64, String> {
    let device = Device::open(image, Access::Write).map_err(|error| error.to_string())?;
    let wrong = |why: String| format!("cannot use the undo file {}: {why}", file.display());
    let undo = Undo::open(file).map_err(wrong)?;
    belongs(&undo, &device).map_err(wrong)?;
    let mut bytes = [0; BLOCK_BYTES];
    for (n, block) in undo.blocks().iter().enumerate() {
        undo.read(n, &mut bytes).map_err(|error| wrong(error.to_string()))?;
        restore(&device, *block, &bytes).map_err(|error| error.to_string())?;
    }
    device.flush().map_err(|error| error.to_string())?;
    Ok(undo.blocks().len() as u64)
}

/// Gives a block its old bytes. One that has them is not written: a hole of an image on a full disk has no room for zeros.
fn restore(device: &Device, block: u64, old: &Block) -> heddle_vfs::Result<()> {
    let addr = u32::try_from(block).map_err(|_| Error::Corrupt("more blocks than F2FS can have".into()))?;
    let addr = BlockAddr(addr);
    if *device.block(addr)? == *old { Ok(()) } else { device.write(addr, old) }
}

/// Returns true if this is the undo file of a repair of the image that was stopped half-way, and that nobody has undone.
pub fn is_half_repaired(image: &Path, file: &Path) -> bool {
    // Those of repairs that have ended may be many, and long.
    if !heddle_undo::is_unfinished(file) {
        return false;
    }
    let Ok(device) = Device::open(image, Access::Read) else { return false };
    let Ok(undo) = Undo::open(file) else { return false };
    if undo.is_finished || belongs(&undo, &device).is_err() {
        return false;
    }
    let mut bytes = [0; BLOCK_BYTES];
    undo.blocks().iter().enumerate().any(|(n, block)| {
        let is = device.block(BlockAddr(*block as u32));
        undo.read(n, &mut bytes).is_ok() && is.is_ok_and(|is| *is != bytes)
    })
}

/// Checks that these bytes may go back.
fn belongs(undo: &Undo, device: &Device) -> Result<(), String> {
    let (of, have) = (undo.image, device.blocks());
    if of.blocks != have {
        return Err(format!("it belongs to an image of {} blocks, this one has {have}", of.blocks));
    }
    let (uuid, version) = signs(device);
    let is_unread = |uuid: [u8; 16]| uuid == [0; 16];
    if uuid != of.uuid && !is_unread(uuid) && !is_unread(of.uuid) {
        return Err("it belongs to another image".into());
    }
    // Before the repair, after it, or in the midst of it; zero: the checkpoint could not be read.
    let is_since = version != 0 && !of.epochs.contains(&version) && (undo.is_finished || of.epochs[0] != 0);
    if is_since {
        return Err("the image was mounted or repaired since: old blocks would overwrite newer ones".into());
    }
    Ok(())
}
