//! Coverage: how often each kind of record, transition and cleaning step occurred while the power could be
//! cut; and each call that stores or fences. No count of something that the rig claims to test may be 0.
//!
//! Only a build with the feature `planted` counts; in others everything is empty.

#[cfg(feature = "planted")]
use heddle_nvmfs::planted::{Counts, Met, take_counts};
use heddle_pmem::Simulator;
#[cfg(feature = "planted")]
use heddle_pmem::planted::Site;
#[cfg(feature = "planted")]
use std::collections::BTreeMap;

/// The coverage of one or many runs.
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    #[cfg(feature = "planted")]
    counts: Counts,
    /// Calls that store or fence.
    #[cfg(feature = "planted")]
    pub sites: BTreeMap<Site, u64>,
}

/// The part of the calling thread's counts to add.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Nothing: the counts come from set-up.
    Nothing,
    /// All of it.
    All,
    /// Only what recovery does: the judge caused the rest.
    Recovery,
}

impl Coverage {
    /// Adds the counts of another run.
    pub fn add(&mut self, other: Coverage) {
        #[cfg(feature = "planted")]
        {
            self.add_counts(&other.counts, |_| true);
            for (site, times) in other.sites {
                *self.sites.entry(site).or_default() += times;
            }
        }
        #[cfg(not(feature = "planted"))]
        let _ = other;
    }

    /// Adds what the calling thread has counted since the last call.
    pub fn add_thread(&mut self, part: Part) {
        #[cfg(feature = "planted")]
        {
            let counts = take_counts();
            let of_recovery = |met: Met| matches!(met, Met::DebtPaid | Met::Zeroed);
            match part {
                Part::Nothing => {}
                Part::All => self.add_counts(&counts, |_| true),
                Part::Recovery => self.add_counts(&counts, of_recovery),
            }
        }
        #[cfg(not(feature = "planted"))]
        let _ = part;
    }

    /// Adds the calls that have stored to a region or fenced it.
    pub fn add_sites(&mut self, simulator: &Simulator) {
        #[cfg(feature = "planted")]
        for (site, times) in simulator.sites() {
            *self.sites.entry(site).or_default() += times;
        }
        #[cfg(not(feature = "planted"))]
        let _ = simulator;
    }

    #[cfg(feature = "planted")]
    fn add_counts(&mut self, counts: &[u64], wanted: impl Fn(Met) -> bool) {
        self.counts.resize(Met::ALL.len(), 0);
        for (met, times) in Met::ALL.iter().zip(counts).filter(|(met, _)| wanted(**met)) {
            self.counts[*met as usize] += times;
        }
    }

    /// A table with one line per count, and the names of counts that are 0.
    #[cfg(feature = "planted")]
    pub fn table(&self) -> (String, Vec<&'static str>) {
        let times = |met: Met| self.counts.get(met as usize).copied().unwrap_or(0);
        let lines = Met::ALL.iter().map(|met| format!("{:>9} {}\n", times(*met), met.text())).collect();
        let missing = Met::ALL.iter().filter(|met| times(**met) == 0).map(|met| met.text()).collect();
        (lines, missing)
    }
}
