//! The cost of a write in each variant: fences per overwrite, and seconds for one thread to write 1 GiB.

use crate::engines::{self, Setup};
use anyhow::Result;
use heddle_nvmfs::{MountOptions, Variant, Volume, format_region, mount};
use heddle_pmem::{Region, Simulator};
use heddle_vfs::{Cred, FileSystem, Handle, Ino, Name, OpenFlags};
use serde::Serialize;
use std::time::Instant;

/// Fences of one variant.
#[derive(Serialize)]
pub struct Fences {
    pub variant: &'static str,
    /// Of a 4 KiB overwrite: the median of [`WRITES`].
    pub fences: u64,
}

/// Seconds for one thread to write 1 GiB (SRL paper, Eq. 4).
#[derive(Serialize)]
pub struct Gigabyte {
    pub variant: &'static str,
    pub secs: f64,
}

const PAGE_BYTES: usize = 4096;
const WRITES: u64 = 101;
const GIGABYTE: u64 = 1 << 30;

/// Counts the fences of an overwrite in each variant, on a simulated region.
pub fn fences() -> Result<Vec<Fences>> {
    Variant::ALL
        .into_iter()
        .map(|variant| Ok(Fences { variant: variant.name(), fences: fences_of(variant)? }))
        .collect()
}

fn fences_of(variant: Variant) -> Result<u64> {
    let (region, simulator): (Region, Simulator) = Region::simulated(16 << 20);
    format_region(&region, variant)?;
    let volume = mount(region, &MountOptions { arena_bytes: 1 << 30, ..MountOptions::default() })?;
    let fs = volume.fs();
    let file = file(&volume)?;
    let data = [1; PAGE_BYTES];
    fs.write(&file, 0, &data)?;
    let mut each = Vec::new();
    for _ in 0..WRITES {
        let before = simulator.fences();
        fs.write(&file, 0, &data)?;
        each.push(simulator.fences() - before);
    }
    fs.release(file);
    volume.close()?;
    each.sort_unstable();
    Ok(each[each.len() / 2])
}

/// One thread writes 1 GiB, 4 KiB at a time, to a new file of each variant.
pub fn gigabyte() -> Result<Vec<Gigabyte>> {
    Variant::ALL
        .into_iter()
        .map(|variant| Ok(Gigabyte { variant: variant.name(), secs: gigabyte_of(variant)? }))
        .collect()
}

fn gigabyte_of(variant: Variant) -> Result<f64> {
    let volume = engines::fresh(variant, Setup::default(), GIGABYTE / 4 * 5)?;
    let fs = volume.fs();
    let file = file(&volume)?;
    let data = [1; PAGE_BYTES];
    let began = Instant::now();
    for offset in (0..GIGABYTE).step_by(PAGE_BYTES) {
        fs.write(&file, offset, &data)?;
    }
    let secs = began.elapsed().as_secs_f64();
    fs.release(file);
    volume.close()?;
    Ok(secs)
}

fn file(volume: &Volume) -> Result<Handle> {
    let name = Name::new(b"file")?;
    Ok(volume.fs().create(&Cred::root(), Ino::ROOT, name, 0o600, OpenFlags::READ_WRITE)?.1)
}
