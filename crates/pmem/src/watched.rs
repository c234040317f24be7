//! Regions for tests: one on a machine that can lose its power ([`Simulator`]), one on a disk whose write-backs can fail
//! ([`FailingDisk`]), and one that records which of its words were read ([`Probe`]).

use crate::BLOCK_BYTES;
use crate::dirty::Failure;
use crate::failing_disk::{Disk, FailingDisk};
use crate::mapping::Mapping;
use crate::probe::{Probe, ProbeLog};
use crate::region::Region;
use crate::simulator::{Recorder, Simulator};
use std::sync::Arc;

impl Region {
    /// A region of zeros that can lose power. `len_bytes` is rounded down to whole blocks.
    ///
    /// Panics without memory for it, or below one block: it is for tests.
    pub fn simulated(len_bytes: u64) -> (Region, Simulator) {
        let len_bytes = len_bytes & !(BLOCK_BYTES as u64 - 1);
        let mapping = Arc::new(Mapping::private(len_bytes).expect("no memory for a simulated region"));
        let recorder = Arc::new(Recorder::new(mapping.clone()));
        (Region::recorded(mapping, recorder.clone()), Simulator { recorder })
    }

    /// A simulated region that starts as `image`, all of it durable: the machine after a power cut.
    ///
    /// Panics if the image is not whole blocks.
    pub fn simulated_from(image: &[u8]) -> (Region, Simulator) {
        assert_eq!(image.len() % BLOCK_BYTES, 0, "an image is whole blocks");
        let (region, simulator) = Region::simulated(image.len() as u64);
        simulator.start_as(image);
        (region, simulator)
    }

    /// A region of zeros in a file on a disk that is simulated. `len_bytes` is rounded down to whole blocks.
    ///
    /// Panics without memory for it, or below one block: it is for tests.
    pub fn on_failing_disk(len_bytes: u64) -> (Region, FailingDisk) {
        let len_bytes = len_bytes & !(BLOCK_BYTES as u64 - 1);
        let mapping = Arc::new(Mapping::private(len_bytes).expect("no memory for a simulated region"));
        let disk = Arc::new(Disk::new(mapping.clone()));
        (Region::on_disk(mapping, disk.clone(), Failure::default()), FailingDisk { disk })
    }

    /// A region of zeros whose loads and stores are noted. `len_bytes` is rounded down to whole blocks.
    ///
    /// Panics without memory for it, or below one block: it is for tests.
    pub fn probed(len_bytes: u64) -> (Region, Probe) {
        let len_bytes = len_bytes & !(BLOCK_BYTES as u64 - 1);
        let memory = Arc::new(Mapping::private(len_bytes).expect("no memory for a probed region"));
        let log = Arc::new(ProbeLog::new(len_bytes));
        let probe = Probe { memory, log };
        (probe.region(), probe)
    }
}

impl Probe {
    /// A handle on the probed memory, as any region.
    pub fn region(&self) -> Region {
        Region::noted(self.memory.clone(), self.log.clone())
    }

    /// A handle on the probed memory that records nothing: for a second check that must not count.
    pub fn silent_region(&self) -> Region {
        Region::unwatched(self.memory.clone(), &self.log)
    }
}
