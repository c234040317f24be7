//! Is an image what was promised?
//!
//! Passes      1 mount (recover), walk all of it, compare with what is allowed; 2 use it: make, write, append, truncate, move and
//!             remove, rewrite every file; unmount, recover again, and it is the same; 3 delete all, unmount, recover, and no more
//!             is taken than the root needs. 4 if recovery changed the image: cut the power at every fence of it, recover
//!             that: the same again.
//! Pruning     passes 2 to 4 see the image as recovery left it. Images that recovery made equal take them once.

use crate::cut::{Choice, Cut, Looked};
use heddle_nvmfs::{MountOptions, NvmFs, mount};
use heddle_pmem::{BLOCK_BYTES, CrashPoint, Model, Pos, Probe, Region};
use heddle_vfs::tree::Tree;
use heddle_vfs::{
    Cred, FileKind, FileSystem, Handle, Ino, Name, NewNode, OpenFlags, RenameMode, SetAttr, path,
};
use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

/// Blocks that may stay taken when all is deleted: inode chunks and the logs of the root.
const BLOCKS_LEFT_MAX: u64 = 40;
/// Address space of a mount's volatile memory.
const ARENA_BYTES: usize = 256 << 20;
/// Images of each fence of a recovery.
const NESTED_IMAGES: usize = 5;

/// Options of the rig's mounts.
pub fn options() -> MountOptions<'static> {
    MountOptions { arena_bytes: ARENA_BYTES, ..MountOptions::default() }
}

/// Images are copied and thrown away by the thousand: their memory is kept instead of being given back and faulted in anew.
pub fn keep_memory() {
    // SAFETY: settings of the allocator, which change speed and nothing else.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 30);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 1 << 30);
    }
}

/// Judges images, one after the other, in memory of its own.
pub struct Judge {
    probe: Probe,
    model: Model,
    /// The cut whose memory the probe was loaded with last.
    loaded: Option<u64>,
    /// Hash of each of its blocks, and of all.
    base: Vec<u64>,
    sum: u64,
    /// Recovered images that took passes 2 to 4, and the blocks that were looked at meanwhile.
    used: HashMap<(u64, u64), Vec<u64>>,
    /// Images (all of their words) that were judged for a state.
    judged: HashSet<(u64, u64)>,
    /// Recoveries that were cut themselves.
    pub nested: u64,
}

/// What an image may hold.
pub struct Allowed<'a> {
    /// Any of these.
    pub trees: &'a [Arc<Tree>],
    /// Tells what is allowed apart from what is allowed elsewhere.
    pub id: u64,
}

/// The verdict on an image.
pub struct Verdict {
    /// Why it is not as promised.
    pub failure: Option<String>,
    /// What was looked at.
    pub looked: Looked,
    /// An image with the same content was judged before, for the same.
    pub known: bool,
}

fn mixed(at: u64, word: u64) -> u64 {
    if word == 0 {
        return 0;
    }
    let mixed = (word ^ at.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ mixed >> 29).wrapping_mul(0x94d0_49bb_1331_11eb)
}

fn words_of(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()))
}

fn hash_block(block: u64, bytes: &[u8]) -> u64 {
    let first = block * (BLOCK_BYTES as u64 / 8);
    words_of(bytes).enumerate().fold(0, |sum, (i, word)| sum ^ mixed(first + i as u64, word))
}

impl Judge {
    /// For images of so many bytes.
    pub fn new(len_bytes: u64, model: Model) -> Judge {
        let (_, probe) = Region::probed(len_bytes);
        Judge {
            probe,
            model,
            loaded: None,
            base: Vec::new(),
            sum: 0,
            used: HashMap::new(),
            judged: HashSet::new(),
            nested: 0,
        }
    }

    /// Judges one image of a cut.
    pub fn judge(
        &mut self,
        cut: &Cut,
        choice: &Choice,
        words: &[(Pos, u64)],
        allowed: &Allowed<'_>,
    ) -> Verdict {
        let memory = cut.point.memory();
        let same = self.loaded == Some(cut.id);
        if !same {
            self.base = memory
                .chunks_exact(BLOCK_BYTES)
                .enumerate()
                .map(|(b, bytes)| hash_block(b as u64, bytes))
                .collect();
            self.sum = self.base.iter().fold(0, |sum, h| sum ^ h);
            self.loaded = Some(cut.id);
        }
        let mut hash = self.sum;
        for (at, word) in words {
            let was = u64::from_le_bytes(memory[at.0 as usize..][..8].try_into().unwrap_or_default());
            hash ^= mixed(at.0 / 8, was) ^ mixed(at.0 / 8, *word);
        }
        self.probe.load(memory, words, same);
        if !self.judged.insert((allowed.id, hash)) {
            return Verdict {
                failure: None,
                looked: Looked { units: (0..choice.len()).collect() },
                known: true,
            };
        }
        let mut later = Vec::new();
        let failure = without_panic(|| self.passes(cut, words, allowed, &mut later)).err();
        let block_of = |pos: Pos| pos.0 / BLOCK_BYTES as u64;
        let looked = |pos: Pos| self.probe.was_read(pos) || later.binary_search(&block_of(pos)).is_ok();
        let units =
            cut.point.pending().enumerate().filter(|(_, p)| looked(p.word)).map(|(unit, _)| unit).collect();
        Verdict { failure, looked: Looked { units }, known: false }
    }

    /// `later`: blocks that an equal image was looked at in, in passes that are not taken again.
    fn passes(
        &mut self,
        cut: &Cut,
        words: &[(Pos, u64)],
        allowed: &Allowed<'_>,
        later: &mut Vec<u64>,
    ) -> Result<(), String> {
        let volume =
            mount(self.probe.region(), &options()).map_err(|e| format!("it cannot be mounted: {e}"))?;
        let fs = volume.fs();
        let tree = Tree::of(&fs).map_err(|e| format!("it cannot be read: {e}"))?;
        let state = state_of(&tree, allowed.trees)?;
        let (recovered, changed) = self.hash_after(cut, words);
        let key = (allowed.id << 8 | state as u64, recovered);
        if let Some(known) = self.used.get(&key) {
            later.clone_from(known);
            volume.abandon();
            return Ok(());
        }
        let wanted = &allowed.trees[state];
        use_it(&fs, wanted).map_err(|e| format!("it cannot be used: {e}"))?;
        volume.unmount();
        let volume = mount(self.probe.region(), &options())
            .map_err(|e| format!("it cannot be mounted a second time: {e}"))?;
        let fs = volume.fs();
        let tree = Tree::of(&fs).map_err(|e| format!("it cannot be read after the second mount: {e}"))?;
        state_of(&tree, std::slice::from_ref(wanted))
            .map_err(|e| format!("after use and a second mount: {e}"))?;
        remove_everything(&fs, &tree).map_err(|e| format!("it cannot be emptied: {e}"))?;
        volume.unmount();
        let volume = mount(self.probe.region(), &options())
            .map_err(|e| format!("it cannot be mounted when empty: {e}"))?;
        let free = volume.fs().statfs().map_err(|e| e.to_string())?.blocks_free;
        volume.unmount();
        let left = (cut.point.memory().len() / BLOCK_BYTES) as u64 - free;
        if left > BLOCKS_LEFT_MAX {
            return Err(format!("{left} blocks stay taken when all is deleted"));
        }
        if changed {
            self.nested += 1;
            cut_recovery(self.model, &cut.point, words, wanted)?;
        }
        self.used.insert(key, self.probe.read_blocks());
        Ok(())
    }

    /// The image as recovery left it, superblock aside, and whether recovery changed more than that.
    fn hash_after(&self, cut: &Cut, words: &[(Pos, u64)]) -> (u64, bool) {
        let last = (self.base.len() - 1) as u64;
        let (mut hash, mut changed) = (self.sum ^ self.base[0] ^ self.base[last as usize], false);
        for (block, bytes) in self.probe.changed_blocks().filter(|(block, _)| *block != 0 && *block != last) {
            let now = hash_block(block, bytes);
            hash ^= self.base[block as usize] ^ now;
            changed |= bytes != patched(cut.point.memory(), block, words);
        }
        (hash, changed)
    }
}

/// A block of the image.
fn patched(memory: &[u8], block: u64, words: &[(Pos, u64)]) -> Vec<u8> {
    let start = block * BLOCK_BYTES as u64;
    let mut bytes = memory[start as usize..][..BLOCK_BYTES].to_vec();
    for (at, word) in words.iter().filter(|(at, _)| at.0 / BLOCK_BYTES as u64 == block) {
        bytes[(at.0 - start) as usize..][..8].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// The number of the allowed state that a tree is.
fn state_of(tree: &Tree, allowed: &[Arc<Tree>]) -> Result<usize, String> {
    if let Some(state) = allowed.iter().position(|wanted| **wanted == *tree) {
        return Ok(state);
    }
    let names: &[&str] =
        if allowed.len() == 1 { &["what it must hold"] } else { &["the state before", "the state after"] };
    let mut text = String::from("it holds something else:");
    for (wanted, name) in
        allowed.iter().zip(names.iter().chain(std::iter::repeat(&"another allowed state"))).take(4)
    {
        text += &format!("\n  against {name}: {}", tree.difference(wanted).unwrap_or_default());
    }
    Err(text)
}

/// Power cuts during the recovery of an image: recovering again comes to the same.
fn cut_recovery(
    model: Model,
    point: &CrashPoint<'_>,
    words: &[(Pos, u64)],
    wanted: &Arc<Tree>,
) -> Result<(), String> {
    let mut image = point.memory().to_vec();
    for (at, word) in words {
        image[at.0 as usize..][..8].copy_from_slice(&word.to_le_bytes());
    }
    let (region, simulator) = Region::simulated_from(&image);
    simulator.set_model(model);
    let images = Arc::new(Mutex::new(Vec::new()));
    let (found, mut fence) = (images.clone(), 0);
    simulator.on_fence(Box::new(move |point: &CrashPoint<'_>| {
        fence += 1;
        let images = point.images(NESTED_IMAGES, fence).map(|image| (fence, image));
        found.lock().unwrap_or_else(std::sync::PoisonError::into_inner).extend(images);
    }));
    let volume = mount(region, &options()).map_err(|e| format!("it cannot be mounted: {e}"))?;
    simulator.stop_watching();
    volume.abandon();
    let images = std::mem::take(&mut *images.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
    let (_, probe) = Region::probed(image.len() as u64);
    for (fence, image) in &images {
        let fails = |e: String| format!("a second power cut, at fence {fence} of its recovery: {e}");
        probe.load(image, &[], false);
        let volume =
            mount(probe.region(), &options()).map_err(|e| fails(format!("it cannot be mounted: {e}")))?;
        let tree = Tree::of(&volume.fs()).map_err(|e| fails(format!("it cannot be read: {e}")))?;
        state_of(&tree, std::slice::from_ref(wanted)).map_err(fails)?;
        volume.abandon();
    }
    Ok(())
}

fn name(text: &str) -> heddle_vfs::Result<Name<'_>> {
    Name::new(text.as_bytes())
}

fn read_all(fs: &NvmFs, handle: &Handle, len: usize) -> heddle_vfs::Result<Vec<u8>> {
    let mut bytes = vec![0xee; len];
    let n = fs.read(handle, 0, &mut bytes)?;
    bytes.truncate(n);
    Ok(bytes)
}

/// New names and data, taken away again; every old file is rewritten in place.
fn use_it(fs: &NvmFs, tree: &Tree) -> Result<(), String> {
    let say = |e: heddle_vfs::Error| e.to_string();
    let cred = Cred::root();
    match made_and_removed(fs, &cred) {
        // A full image cannot take new data; what is there must still be removable (pass 3).
        Err(heddle_vfs::Error::NoSpace | heddle_vfs::Error::NoInodes) => tidy_up(fs, &cred).map_err(say),
        Err(other) => Err(say(other)),
        Ok(true) => rewrite_all(fs, &cred, tree),
        Ok(false) => Err("a file that was written after recovery reads as something else".into()),
    }
}

fn made_and_removed(fs: &NvmFs, cred: &Cred) -> heddle_vfs::Result<bool> {
    let (_, handle) = fs.create(cred, Ino::ROOT, name("used")?, 0o644, OpenFlags::READ_WRITE)?;
    let data: Vec<u8> = (0..9000u32).map(|i| (i % 251) as u8 | 1).collect();
    let written = (|| {
        fs.write(&handle, 3000, &data)?;
        fs.append(&handle, &data)?;
        let size = SetAttr { size_bytes: Some(12_500), ..SetAttr::default() };
        fs.setattr(cred, handle.ino, Some(&handle), &size)?;
        let wanted = [vec![0; 3000], data.clone(), data[..500].to_vec()].concat();
        Ok(read_all(fs, &handle, 20_000)? == wanted)
    })();
    fs.release(handle);
    let right = written?;
    let node = NewNode { kind: FileKind::Directory, perm: 0o755, rdev: 0, target: &[] };
    let dir = fs.make(cred, Ino::ROOT, name("used dir")?, node)?.ino;
    fs.rename(cred, Ino::ROOT, name("used")?, dir, name("moved")?, RenameMode::Replace)?;
    fs.unlink(cred, dir, name("moved")?)?;
    fs.rmdir(cred, Ino::ROOT, name("used dir")?)?;
    Ok(right)
}

fn tidy_up(fs: &NvmFs, cred: &Cred) -> heddle_vfs::Result<()> {
    if let Ok(dir) = fs.lookup(cred, Ino::ROOT, name("used dir")?) {
        let _absent = fs.unlink(cred, dir.ino, name("moved")?);
        fs.rmdir(cred, Ino::ROOT, name("used dir")?)?;
    }
    match fs.unlink(cred, Ino::ROOT, name("used")?) {
        Err(heddle_vfs::Error::NotFound) => Ok(()),
        other => other,
    }
}

/// Writes the first byte of every file anew, where that changes nothing a tree shows: what recovery left can be written.
fn rewrite_all(fs: &NvmFs, cred: &Cred, tree: &Tree) -> Result<(), String> {
    for (path, node) in &tree.nodes {
        let plain = node.kind == FileKind::Regular && node.size_bytes > 0;
        if !plain || node.mtime.is_some() || node.perm & 0o6000 != 0 {
            continue;
        }
        let path = String::from_utf8_lossy(path);
        let rewritten = (|| {
            let handle = fs.open(cred, path::resolve(fs, cred, &*path)?.ino, OpenFlags::READ_WRITE)?;
            let done = read_all(fs, &handle, 1).and_then(|first| fs.write(&handle, 0, &first));
            fs.release(handle);
            done
        })();
        match rewritten {
            Ok(_) | Err(heddle_vfs::Error::NoSpace) => {}
            Err(error) => return Err(format!("{path} cannot be written: {error}")),
        }
    }
    Ok(())
}

/// Removes every name below the root.
fn remove_everything(fs: &NvmFs, tree: &Tree) -> Result<(), String> {
    for (path, node) in tree.nodes.iter().rev().filter(|(path, _)| path.as_slice() != b"/") {
        let path = String::from_utf8_lossy(path);
        let removed =
            path::resolve_parent(fs, &Cred::root(), &*path).and_then(|(dir, last)| match node.kind {
                FileKind::Directory => fs.rmdir(&Cred::root(), dir, last),
                _ => fs.unlink(&Cred::root(), dir, last),
            });
        removed.map_err(|e| format!("{path}: {e}"))?;
    }
    Ok(())
}

/// A panic is a finding like any other.
pub fn without_panic<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_string()));
        Err(format!("a panic: {}", text.unwrap_or_default()))
    })
}
