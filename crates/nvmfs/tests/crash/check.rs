//! Is an image what was promised?

use super::run::{Effort, REGION_BYTES};
use crate::common::{Short, options, remove_everything, sound};
use heddle_nvmfs::{NvmFs, mount};
use heddle_pmem::{CrashPoint, Region};
use heddle_vfs::testkit::Tree;
use heddle_vfs::{FileSystem, Ino};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

/// Of so many images one is also cut during its recovery.
const NESTED_EVERY: u64 = 16;
/// Blocks that may stay taken when all is deleted: inode chunks and the logs of the root.
const BLOCKS_LEFT_MAX: u64 = 40;

/// What the model held before the first watched call and after each.
pub struct Expected {
    pub trees: Vec<Tree>,
}

#[derive(Clone, Copy)]
pub struct Check<'a> {
    pub effort: Effort,
    pub expected: &'a Expected,
}

impl Check<'_> {
    /// Mounts, compares with the allowed states, uses, empties, and mounts again.
    pub fn image(&self, image: &[u8], allowed: Range<usize>, number: u64) -> Result<(), String> {
        let nested = number % NESTED_EVERY == NESTED_EVERY - 1;
        without_panic(|| {
            let region = Region::simulated_from(image).0;
            sound(&region)?;
            let state = self.recovered(region, allowed)?;
            if nested {
                self.cut_again(image, state)?;
            }
            Ok(())
        })
    }

    /// The number of the state that a region holds; it is used, emptied and mounted again.
    fn recovered(&self, region: Region, allowed: Range<usize>) -> Result<usize, String> {
        let again = region.map_again().map_err(|e| e.to_string())?;
        let third = region.map_again().map_err(|e| e.to_string())?;
        let volume = mount(region, &options()).map_err(|e| format!("it cannot be mounted: {e}"))?;
        let fs = volume.fs();
        let tree = Tree::of(&fs).map_err(|e| format!("it cannot be read: {e}"))?;
        let state = self.state_of(&tree, allowed)?;
        use_it(&fs).map_err(|e| format!("it cannot be used: {e}"))?;
        volume.unmount();
        sound(&again).map_err(|e| format!("after use: {e}"))?;
        let volume =
            mount(again, &options()).map_err(|e| format!("it cannot be mounted a second time: {e}"))?;
        let fs = volume.fs();
        let tree = Tree::of(&fs).map_err(|e| format!("it cannot be read after the second mount: {e}"))?;
        self.state_of(&tree, state..state + 1).map_err(|e| format!("after use and a second mount: {e}"))?;
        remove_everything(&fs).map_err(|e| format!("it cannot be emptied: {e}"))?;
        volume.unmount();
        sound(&third).map_err(|e| format!("after all was deleted: {e}"))?;
        let volume = mount(third, &options()).map_err(|e| format!("it cannot be mounted when empty: {e}"))?;
        let left = REGION_BYTES / 4096 - volume.fs().statfs().map_err(|e| e.to_string())?.blocks_free;
        volume.unmount();
        if left > BLOCKS_LEFT_MAX {
            return Err(format!("{left} blocks stay taken when all is deleted"));
        }
        Ok(state)
    }

    fn state_of(&self, tree: &Tree, allowed: Range<usize>) -> Result<usize, String> {
        let trees = &self.expected.trees;
        if let Some(state) = allowed.clone().find(|state| trees[*state] == *tree) {
            return Ok(state);
        }
        let mut text = String::from("it holds neither what was there before nor what was to be there after:");
        for state in allowed {
            let difference = tree.difference(&trees[state]).unwrap_or_default();
            text += &format!("\n  against state {state}: {difference}");
        }
        Err(text)
    }

    /// Power cuts during the recovery of an image: recovering again comes to the same.
    fn cut_again(&self, image: &[u8], state: usize) -> Result<(), String> {
        let (region, simulator) = Region::simulated_from(image);
        simulator.set_model(self.effort.model);
        let images = Arc::new(Mutex::new(Vec::new()));
        let (found, seed) = (images.clone(), self.effort.seed);
        simulator.on_fence(Box::new(move |point: &CrashPoint<'_>| {
            found.lock().unwrap().extend(point.images(3, seed));
        }));
        let volume = mount(region, &options()).map_err(|e| format!("it cannot be mounted: {e}"))?;
        simulator.stop_watching();
        volume.abandon();
        let images = std::mem::take(&mut *images.lock().unwrap());
        for (number, image) in images.iter().enumerate() {
            let volume = mount(Region::simulated_from(image).0, &options())
                .map_err(|e| format!("cut {number} of its recovery cannot be mounted: {e}"))?;
            let tree = Tree::of(&volume.fs()).map_err(|e| format!("cut {number} of its recovery: {e}"))?;
            self.state_of(&tree, state..state + 1)
                .map_err(|e| format!("cut {number} of its recovery: {e}"))?;
            volume.abandon();
        }
        Ok(())
    }
}

/// New names and data in every old directory and file, taken away again.
fn use_it(fs: &NvmFs) -> heddle_vfs::Result<()> {
    let handle = fs.try_file(Ino::ROOT, "used")?;
    let data: Vec<u8> = (0..9000u32).map(|i| (i % 251) as u8 | 1).collect();
    fs.write(&handle, 3000, &data)?;
    fs.append(&handle, &data)?;
    fs.resize(&handle, 12_500)?;
    let is = fs.read_vec(&handle, 0, 20_000);
    let wanted: Vec<u8> = [vec![0; 3000], data.clone(), data].concat();
    assert_eq!(is, wanted[..12_500], "a file that was written after recovery");
    fs.release(handle);
    let dir = fs.try_dir(Ino::ROOT, "used dir")?;
    fs.replace((Ino::ROOT, "used"), (dir, "moved"))?;
    fs.remove(dir, "moved")?;
    fs.rmdir(&crate::common::root(), Ino::ROOT, crate::common::name("used dir"))?;
    rewrite_all(fs)
}

/// Writes the first byte of every file anew, where that changes nothing a tree shows: what recovery left can be written.
fn rewrite_all(fs: &NvmFs) -> heddle_vfs::Result<()> {
    let cred = crate::common::root();
    for (path, node) in &Tree::of(fs)?.nodes {
        if node.kind != heddle_vfs::FileKind::Regular
            || node.size_bytes == 0
            || node.mtime.is_some()
            || node.perm & 0o6000 != 0
        {
            continue;
        }
        let path = std::str::from_utf8(path).unwrap();
        let ino = heddle_vfs::path::resolve(fs, &cred, path)?.ino;
        let handle = fs.open(&cred, ino, heddle_vfs::OpenFlags::READ_WRITE)?;
        let first = fs.read_vec(&handle, 0, 1);
        fs.write(&handle, 0, &first)?;
        fs.release(handle);
    }
    Ok(())
}

fn without_panic(work: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_string()));
        Err(format!("a panic: {}", text.unwrap_or_default()))
    })
}
