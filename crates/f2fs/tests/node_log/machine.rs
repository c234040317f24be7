//! An image with its node log on a machine that can lose its power: device and NVM at one instant.

use crate::rig::Random;
use heddle_f2fs::format::LOG_CHUNKS_BYTES;
use heddle_f2fs::{F2fs, LogRegion, LogState, OpenError, Traffic, Variant};
use heddle_pmem::{CrashPoint, Region, Simulator};
use heddle_vfs::{Cred, FileSystem, Handle, Ino, Name, OpenFlags};
use std::path::Path;
use std::sync::{Arc, Mutex};

/// As small as a log may be: some lists fill it.
pub const LOG_BYTES: u64 = 8192 + 8 * (64 << 10);

/// What NVM has at an instant: when so much had happened, and either the fence that comes next is done, or only some of what it is for.
pub struct Moment {
    at: usize,
    before: Vec<u8>,
    after: Vec<u8>,
}

/// A machine: the device's traffic, in which each fence of the log is noted, and what NVM held at each of them.
#[derive(Clone, Default)]
pub struct Watch(Arc<Mutex<Vec<Moment>>>);

impl Watch {
    /// Watches a file system from here on.
    pub fn of(fs: &F2fs, nvm: &Simulator, seed: u64) -> Watch {
        let watch = Watch::default();
        let (moments, traffic) = (Arc::clone(&watch.0), fs.traffic_log());
        let mut random = Random(seed);
        nvm.on_fence(Box::new(move |point: &CrashPoint<'_>| {
            let mut traffic = traffic.lock().unwrap();
            // None of what is pending, all of it, whole stores, or words.
            let (mode, coins) = (random.below(4), random.below(1 << 20));
            let stores: Vec<u64> = point.pending().map(|pending| pending.store).collect();
            let before = point.image(|n| match mode {
                0 => false,
                1 => true,
                2 => coins >> (stores[n] % 20) & 1 == 0,
                _ => random.below(2) == 0,
            });
            moments.lock().unwrap().push(Moment { at: traffic.len(), before, after: point.full_image() });
            traffic.push(Traffic::Fence);
        }));
        watch
    }

    /// A cut at one of the fences, or at something that the device was given soon after: how much had happened, and NVM.
    pub fn cut(&self, traffic: &[Traffic], random: &mut Random) -> Option<(usize, Vec<u8>)> {
        let moments = self.0.lock().unwrap();
        let moment = &moments[(!moments.is_empty()).then(|| random.below(moments.len() as u64) as usize)?];
        let behind = &traffic[moment.at + 1..];
        let quiet = behind.iter().position(|t| matches!(t, Traffic::Fence)).unwrap_or(behind.len());
        Some(if random.below(2) == 0 {
            (moment.at, moment.before.clone())
        } else {
            (moment.at + 1 + random.below(quiet as u64 + 1) as usize, moment.after.clone())
        })
    }
}

pub fn open(path: &Path, variant: Variant, nvm: &[u8]) -> (Result<F2fs, OpenError>, Simulator) {
    let (region, simulator) = Region::simulated_from(nvm);
    (F2fs::open_with_log(path, variant, log_in(region, nvm, false)), simulator)
}

/// A region with these bytes: zeros are free.
pub fn log_in(region: Region, nvm: &[u8], discard: bool) -> LogRegion {
    let is_free = nvm[..LOG_CHUNKS_BYTES as usize].iter().all(|byte| *byte == 0);
    LogRegion { region, state: if is_free { LogState::Free } else { LogState::HoldsLog }, discard }
}

pub fn fresh() -> Vec<u8> {
    vec![0; LOG_BYTES as usize]
}

pub fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

/// Opens a file, made if it is not there, appends to it and makes that durable; where that began.
pub fn append_durably(fs: &F2fs, text: &str, bytes: &[u8]) -> u64 {
    let file = made(fs, text);
    let at = fs.append(&file, bytes).unwrap();
    fs.fsync(&file, false).unwrap();
    fs.release(file);
    at
}

pub fn made(fs: &F2fs, text: &str) -> Handle {
    let root = Cred::root();
    match fs.lookup(&root, Ino::ROOT, name(text)) {
        Ok(attr) => fs.open(&root, attr.ino, OpenFlags::READ_WRITE).unwrap(),
        Err(_) => fs.create(&root, Ino::ROOT, name(text), 0o600, OpenFlags::READ_WRITE).unwrap().1,
    }
}
