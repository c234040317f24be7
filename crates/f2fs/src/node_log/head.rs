//! The head: which image the log belongs to, and on top of which of its checkpoints records count.
//!
//! Each change of it is written to both places, one after the other, first to that which does not hold the newest whole one: a cut leaves
//! the old or the new one, also when it is the second cut; damage leaves the other. While the image is opened changes are kept in memory:
//! a mount that is refused leaves the head as it was.

use super::mark::Pairing;
use crate::format::{LOG_FORMAT, LOG_HEADS_BYTES, LOG_MAGIC, LogHead, log_state};
use heddle_pmem::{Pos, Region};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// The way out where what a log had cannot be had any more.
pub(super) const MAKE_ANOTHER: &str =
    "To go on without it, make another one: heddle mount -o force-nvm,discard-nvm";

/// A checkpoint of the image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CheckpointId {
    pub(crate) version: u64,
    pub(crate) crc: u32,
}

/// Whether records count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Validity {
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
    pending: Pending,
}

/// Whether changes are kept in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pending {
    /// Each is written at once.
    No,
    /// There was none so far.
    Unchanged,
    /// What NVM has is older.
    Changed,
}

impl Heads {
    /// The head of a log without records. It is in memory until [`Heads::write_pending`].
    pub(super) fn new(region: &Region, uuid: [u8; 16], base: CheckpointId, generation: u32) -> Heads {
        let mut now = LogHead::new_zeroed();
        (now.magic, now.format, now.uuid) = (LOG_MAGIC.into(), LOG_FORMAT.into(), uuid);
        (now.len_bytes, now.generation) = (region.len_bytes().into(), generation.into());
        (now.base_version, now.base_crc, now.state) =
            (base.version.into(), base.crc.into(), log_state::CLEAN.into());
        now.pairing.set(Pairing::new().0);
        Heads { now, first: 0, pending: Pending::Changed }
    }

    /// The head that counts. Changes of it are in memory until [`Heads::write_pending`].
    pub(super) fn read(region: &Region) -> Result<Heads, String> {
        let (mut whole, mut first): (Option<LogHead>, usize) = (None, 0);
        let mut other_format = None;
        for (place, at) in LOG_HEADS_BYTES.into_iter().enumerate() {
            let mut bytes = [0; size_of::<LogHead>()];
            region.read(Pos(at), &mut bytes);
            let head = LogHead::read_from_bytes(&bytes).map_err(|error| error.to_string())?;
            let is_ours = head.magic.get() == LOG_MAGIC && head.format.get() == LOG_FORMAT;
            let is_whole = is_ours && head.crc.get() == crc_of(&head);
            if head.magic.get() == LOG_MAGIC && head.format.get() != LOG_FORMAT {
                other_format = Some(head.format.get());
            }
            if is_whole && whole.as_ref().is_none_or(|other| other.seq.get() < head.seq.get()) {
                (whole, first) = (Some(head), 1 - place);
            }
        }
        match whole {
            Some(head) if head.seq.get() == u64::MAX => {
                Err(format!("it is damaged: its head has the last number that one can have. {MAKE_ANOTHER}"))
            }
            Some(head) if head.len_bytes.get() > region.len_bytes() => Err(format!(
                "it was cut short: it had {} bytes, and has {}; what only it had is lost. {MAKE_ANOTHER}",
                head.len_bytes,
                region.len_bytes()
            )),
            Some(now) => Ok(Heads { now, first, pending: Pending::Unchanged }),
            None if let Some(format) = other_format => Err(format!(
                "it has format {format}, and this program knows {LOG_FORMAT}. Unmount it with the program that wrote it. To give up what \
                 it has: heddle mount -o force-nvm,discard-nvm"
            )),
            None => Err(format!(
                "both heads of its node log are damaged: what only that has is lost (nothing, after an unmount). \
                 {MAKE_ANOTHER}"
            )),
        }
    }

    pub(super) fn generation(&self) -> u32 {
        self.now.generation.get()
    }

    pub(super) fn uuid(&self) -> [u8; 16] {
        self.now.uuid
    }

    pub(super) fn base(&self) -> CheckpointId {
        CheckpointId { version: self.now.base_version.get(), crc: self.now.base_crc.get() }
    }

    /// What the image's mark says if this is its log.
    pub(super) fn pairing(&self) -> Pairing {
        Pairing(self.now.pairing.get())
    }

    /// Is it the log that an image with this mark has, and with this checkpoint?
    pub(super) fn is_of(&self, uuid: [u8; 16], image: CheckpointId, mark: Pairing) -> bool {
        self.now.uuid == uuid
            && self.pairing() == mark
            && (self.base() == image || self.validity(image) == Validity::Clean && self.next() == image)
    }

    fn next(&self) -> CheckpointId {
        CheckpointId { version: self.now.next_version.get(), crc: self.now.next_crc.get() }
    }

    /// What it means for an image with this checkpoint.
    pub(super) fn validity(&self, image: CheckpointId) -> Validity {
        let state = self.now.state.get();
        match state {
            log_state::CLEAN => Validity::Clean,
            // The fold was done, and the head not yet changed.
            log_state::FOLDING if self.next() == image => Validity::Clean,
            _ if self.base() == image => Validity::Records,
            _ => Validity::Elsewhere,
        }
    }

    /// Another pairing than any copy of image or log has; no record counts.
    pub(super) fn pair_anew(&mut self, region: &Region) {
        self.now.pairing.set(Pairing::new().0);
        self.write(region);
    }

    /// Records count from now on.
    pub(super) fn make_active(&mut self, region: &Region) {
        if self.now.state.get() == log_state::CLEAN {
            self.now.state.set(log_state::ACTIVE);
            self.write(region);
        }
    }

    /// The image's next checkpoint will be this one, and have all that the records say. Also without records: after a cut the image with
    /// that checkpoint must be known for the log's.
    pub(super) fn make_folding(&mut self, region: &Region, next: CheckpointId) {
        if self.now.state.get() != log_state::CLEAN {
            self.now.state.set(log_state::FOLDING);
        }
        (self.now.next_version, self.now.next_crc) = (next.version.into(), next.crc.into());
        self.write(region);
    }

    /// What records say is given up: whatever image is paired with them is not any more.
    pub(super) fn give_up(&mut self, region: &Region, uuid: [u8; 16], base: CheckpointId) {
        self.begin_anew(region, uuid, base);
        self.pair_anew(region);
    }

    /// No record counts; those to come, of another generation, will extend this checkpoint.
    pub(super) fn begin_anew(&mut self, region: &Region, uuid: [u8; 16], base: CheckpointId) {
        let says_so =
            self.now.state.get() == log_state::CLEAN && self.now.uuid == uuid && self.base() == base;
        if !says_so {
            let (seq, generation) = (self.now.seq, self.generation().wrapping_add(1));
            let same = (self.now.uuid == uuid).then_some(self.now.pairing);
            self.now = Heads::new(region, uuid, base, generation).now;
            (self.now.seq, self.now.pairing) = (seq, same.unwrap_or(self.now.pairing));
            self.write(region);
        }
    }

    /// What was kept in memory is written, and what comes is written at once.
    pub(super) fn write_pending(&mut self, region: &Region) {
        if std::mem::replace(&mut self.pending, Pending::No) == Pending::Changed {
            self.write(region);
        }
    }

    fn write(&mut self, region: &Region) {
        if self.pending != Pending::No {
            self.pending = Pending::Changed;
            return;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    const ID: [u8; 16] = [7; 16];
    const OLD: CheckpointId = CheckpointId { version: 5, crc: 50 };
    const NEW: CheckpointId = CheckpointId { version: 6, crc: 60 };

    fn region() -> Region {
        Region::anonymous(1 << 20).unwrap()
    }

    fn made(region: &Region, uuid: [u8; 16], base: CheckpointId, generation: u32) -> Heads {
        let mut heads = Heads::new(region, uuid, base, generation);
        heads.write_pending(region);
        heads
    }

    fn read_written(region: &Region) -> Heads {
        let mut heads = Heads::read(region).unwrap();
        heads.write_pending(region);
        heads
    }

    #[test]
    fn changes_are_in_memory_until_they_are_written() {
        let region = region();
        let bytes = || {
            let mut bytes = [0; size_of::<LogHead>()];
            region.read(Pos(LOG_HEADS_BYTES[0]), &mut bytes);
            bytes
        };
        let mut heads = Heads::new(&region, ID, OLD, 3);
        assert_eq!(bytes(), [0; size_of::<LogHead>()]);
        heads.write_pending(&region);
        let old = bytes();
        let mut heads = Heads::read(&region).unwrap();
        heads.write_pending(&region);
        assert_eq!(bytes(), old, "nothing has changed");
        let mut heads = Heads::read(&region).unwrap();
        heads.begin_anew(&region, ID, NEW);
        assert_eq!((bytes(), heads.base()), (old, NEW));
        heads.write_pending(&region);
        assert_eq!(Heads::read(&region).unwrap().base(), NEW);
    }

    #[test]
    fn a_head_says_whether_records_count_for_a_checkpoint() {
        let region = region();
        let mut heads = made(&region, ID, OLD, 3);
        let own = heads.pairing();
        let of = |heads: &Heads| [OLD, NEW].map(|base| (heads.validity(base), heads.is_of(ID, base, own)));
        use Validity::{Clean, Elsewhere, Records};
        assert_eq!(of(&heads), [(Clean, true), (Clean, false)]);
        heads.make_folding(&region, NEW);
        assert_eq!(of(&heads), [(Clean, true), (Clean, true)], "without records both are its image");
        heads.make_active(&region);
        assert_eq!(of(&heads), [(Records, true), (Elsewhere, false)]);
        heads.make_folding(&region, NEW);
        assert_eq!(of(&heads), [(Records, true), (Clean, true)]);
        assert!(!heads.is_of([8; 16], OLD, own) && !heads.is_of([8; 16], NEW, own));
        assert!(!heads.is_of(ID, OLD, Pairing::new()), "another log's");
        assert_eq!(heads.validity(CheckpointId { crc: 61, ..NEW }), Elsewhere);
        heads.begin_anew(&region, ID, NEW);
        assert_eq!(of(&heads), [(Clean, false), (Clean, true)]);
        assert_eq!((heads.generation(), heads.uuid(), heads.base()), (4, ID, NEW));
        let seq = heads.now.seq.get();
        heads.begin_anew(&region, ID, NEW);
        assert_eq!((heads.generation(), heads.now.seq.get()), (4, seq), "it says so already");
        for (id, base) in [([9; 16], NEW), ([9; 16], OLD)] {
            heads.begin_anew(&region, id, base);
        }
        assert_eq!((heads.generation(), heads.now.seq.get()), (6, seq + 2));
    }

    #[test]
    fn a_pairing_stays_until_the_log_is_given_up_or_changes_hands() {
        let region = region();
        let mut heads = made(&region, ID, OLD, 3);
        let first = heads.pairing();
        heads.make_active(&region);
        heads.make_folding(&region, NEW);
        heads.begin_anew(&region, ID, NEW);
        assert_eq!((heads.pairing(), read_written(&region).pairing()), (first, first));
        heads.pair_anew(&region);
        let second = heads.pairing();
        heads.give_up(&region, ID, NEW);
        let third = heads.pairing();
        heads.begin_anew(&region, [8; 16], NEW);
        let all = [first, second, third, heads.pairing()];
        let differ = |(n, pairing)| all[..n].iter().all(|other: &Pairing| other != pairing);
        assert!(all.iter().enumerate().all(differ), "{all:?}");
        assert_eq!(read_written(&region).pairing(), all[3]);
    }

    #[test]
    fn the_newer_whole_head_counts_and_the_other_is_written_first() {
        let region = region();
        let mut heads = made(&region, ID, OLD, 3);
        heads.make_active(&region);
        let [first, second] = LOG_HEADS_BYTES;
        let damage = |at: u64| region.nt_write(Pos(at).plus(24), &[0xff; 8]);
        let read = || Heads::read(&region).map(|heads| (heads.now.seq.get(), heads.first));
        assert_eq!(read(), Ok((2, 1)), "both are alike");
        damage(first);
        assert_eq!(read(), Ok((2, 0)), "the damaged one is mended first");
        read_written(&region).begin_anew(&region, ID, NEW);
        assert_eq!(read(), Ok((3, 1)));
        damage(second);
        assert_eq!(read(), Ok((3, 1)));
        damage(first);
        assert!(read().unwrap_err().contains("both heads"));
        let older = made(&region, ID, OLD, 3).now;
        let mut newer = read_written(&region);
        newer.make_active(&region);
        region.nt_write(Pos(first), older.as_bytes());
        assert_eq!(read(), Ok((2, 0)));
        newer.write(&region);
        region.nt_write(Pos(second), older.as_bytes());
        assert_eq!(read(), Ok((3, 1)));
    }

    #[test]
    fn a_head_of_another_format_or_size_is_refused_by_name() {
        let region = region();
        let refusal = |change: &dyn Fn(&mut LogHead)| {
            let mut head = made(&region, ID, OLD, 3).now;
            change(&mut head);
            head.crc.set(crc_of(&head));
            LOG_HEADS_BYTES.into_iter().for_each(|at| region.nt_write(Pos(at), head.as_bytes()));
            Heads::read(&region).err()
        };
        assert_eq!(refusal(&|_| ()), None);
        assert_eq!(refusal(&|head| head.len_bytes.set((1 << 20) - 1)), None, "a region may grow");
        let says = |change: &dyn Fn(&mut LogHead), text: &str| {
            let said = refusal(change).unwrap();
            assert!(said.contains(text), "{said}");
        };
        says(&|head| head.format.set(1), "format 1");
        says(&|head| head.seq.set(u64::MAX), "last number");
        says(&|head| head.len_bytes.set((1 << 20) + 1), "cut short");
        says(&|head| head.magic.set(1), "both heads");
    }
}
