//! The head: which image the log belongs to, and on top of which of its checkpoints records count.
//!
//! Each change of it is written to both places, one after the other, first to that which does not hold the newest whole one: a cut leaves
//! the old or the new one, also when it is the second cut; damage leaves the other.

use crate::format::{LOG_FORMAT, LOG_HEADS_BYTES, LOG_MAGIC, LogHead, log_state};
use heddle_pmem::{Pos, Region};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// A checkpoint of the image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Base {
    pub(crate) version: u64,
    pub(crate) crc: u32,
}

/// Whether records count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    /// None do.
    Clean,
    /// Those that are there do, on top of the image as it is.
    Records,
    /// Those that are there count on top of another checkpoint than the image has.
    Elsewhere,
}

/// See the module.
pub(super) struct Heads {
    now: LogHead,
    /// Which place is written first.
    first: usize,
}

impl Heads {
    /// The head of a log without records, written.
    pub(super) fn make(region: &Region, uuid: [u8; 16], base: Base, generation: u32) -> Heads {
        let mut made = Heads::new(region, uuid, base, generation);
        made.write(region);
        made
    }

    fn new(region: &Region, uuid: [u8; 16], base: Base, generation: u32) -> Heads {
        let mut now = LogHead::new_zeroed();
        (now.magic, now.format, now.uuid) = (LOG_MAGIC.into(), LOG_FORMAT.into(), uuid);
        (now.len_bytes, now.generation) = (region.len_bytes().into(), generation.into());
        (now.base_version, now.base_crc, now.state) =
            (base.version.into(), base.crc.into(), log_state::CLEAN.into());
        Heads { now, first: 0 }
    }

    /// The head that counts.
    pub(super) fn read(region: &Region) -> Result<Heads, String> {
        let (mut whole, mut first): (Option<LogHead>, usize) = (None, 0);
        for (place, at) in LOG_HEADS_BYTES.into_iter().enumerate() {
            let mut bytes = [0; size_of::<LogHead>()];
            region.read(Pos(at), &mut bytes);
            let head = LogHead::read_from_bytes(&bytes).map_err(|error| error.to_string())?;
            let is_whole = head.magic.get() == LOG_MAGIC && head.crc.get() == crc_of(&head);
            if is_whole && whole.as_ref().is_none_or(|other| other.seq.get() < head.seq.get()) {
                (whole, first) = (Some(head), 1 - place);
            }
        }
        match whole {
            Some(head) if head.format.get() != LOG_FORMAT => {
                Err(format!("it has format {}, and this program knows {LOG_FORMAT}", head.format))
            }
            Some(head) if head.seq.get() == u64::MAX => {
                Err("it is damaged: its head has the last number that one can have".into())
            }
            Some(head) if head.len_bytes.get() > region.len_bytes() => Err(format!(
                "it was cut short: it had {} bytes, and has {}",
                head.len_bytes,
                region.len_bytes()
            )),
            Some(now) => Ok(Heads { now, first }),
            None => Err("both heads of its node log are damaged: what only that has is lost. To go on without it, make another one: \
                         mount with -o force-nvm,discard-nvm"
                .into()),
        }
    }

    pub(super) fn generation(&self) -> u32 {
        self.now.generation.get()
    }

    pub(super) fn uuid(&self) -> [u8; 16] {
        self.now.uuid
    }

    pub(super) fn base(&self) -> Base {
        Base { version: self.now.base_version.get(), crc: self.now.base_crc.get() }
    }

    /// Was it the log of this image, with this checkpoint, when it was last used?
    pub(super) fn is_of(&self, uuid: [u8; 16], image: Base) -> bool {
        self.now.uuid == uuid
            && (self.base() == image || self.standing(image) == Standing::Clean && self.is_folding())
    }

    fn is_folding(&self) -> bool {
        self.now.state.get() == log_state::FOLDING
    }

    fn next(&self) -> Base {
        Base { version: self.now.next_version.get(), crc: self.now.next_crc.get() }
    }

    /// What it means for an image with this checkpoint.
    pub(super) fn standing(&self, image: Base) -> Standing {
        let state = self.now.state.get();
        match state {
            log_state::CLEAN => Standing::Clean,
            // The fold was done, and the head not yet changed.
            log_state::FOLDING if self.next() == image => Standing::Clean,
            _ if self.base() == image => Standing::Records,
            _ => Standing::Elsewhere,
        }
    }

    /// Records count from now on.
    pub(super) fn make_active(&mut self, region: &Region) {
        if self.now.state.get() == log_state::CLEAN {
            self.now.state.set(log_state::ACTIVE);
            self.write(region);
        }
    }

    /// The image's next checkpoint will be this one, and have all that the records say.
    pub(super) fn make_folding(&mut self, region: &Region, next: Base) {
        if self.now.state.get() != log_state::CLEAN {
            self.now.state.set(log_state::FOLDING);
            (self.now.next_version, self.now.next_crc) = (next.version.into(), next.crc.into());
            self.write(region);
        }
    }

    /// No record counts; those to come, of another generation, will extend this checkpoint.
    pub(super) fn begin_anew(&mut self, region: &Region, uuid: [u8; 16], base: Base) {
        let says_so =
            self.now.state.get() == log_state::CLEAN && self.now.uuid == uuid && self.base() == base;
        if !says_so {
            let (seq, generation) = (self.now.seq, self.generation().wrapping_add(1));
            self.now = Heads::new(region, uuid, base, generation).now;
            self.now.seq = seq;
            self.write(region);
        }
    }

    fn write(&mut self, region: &Region) {
        self.now.seq.set(self.now.seq.get().saturating_add(1));
        self.now.crc.set(crc_of(&self.now));
        for place in [self.first, 1 - self.first] {
            region.nt_write(Pos(LOG_HEADS_BYTES[place]), self.now.as_bytes());
            // PERSIST: one place is whole before the other is written over.
            region.fence();
        }
    }
}

fn crc_of(head: &LogHead) -> u32 {
    let bytes = head.as_bytes();
    crc32fast::hash(&bytes[..bytes.len() - size_of::<u32>()])
}
