//! Checks whether an image keeps the promises.
//!
//! Passes      1  mount (recover), walk the whole tree, compare it with the allowed ones;
//!             2  use it: make, write, append, truncate, move and remove, rewrite every file; unmount, fsck finds no issue, recover
//!                 again: the tree is the same, and names that were made again are there;
//!             3  delete everything and unmount: fsck finds no more blocks in use than the root needs;
//!             4  if recovery changed the image: cut the power at every fence of the recovery and recover that: the same result.
//! Pruning     passes 2 and 3 see the image as recovery left it. Images that recovery made equal take them once. Of those of them that
//!             recovery changed, the first takes pass 4.

mod using;

use using::remove_again;
pub(crate) use using::{remove_everything, use_it};

use crate::coverage::{Coverage, Part};
use crate::cut::{Choice, Cut, Looked};
use crate::op::Logs;
use heddle_nvmfs::{MountOptions, Volume, VolumeError, fsck, mount};
use heddle_pmem::{BLOCK_BYTES, CrashPoint, Model, Pos, Probe, Region};
use heddle_vfs::tree::Tree;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

/// Blocks that may stay in use when everything is deleted: inode chunks and the logs of the root.
const BLOCKS_LEFT_MAX: u64 = 40;
/// Address space of a mount's volatile memory.
const ARENA_BYTES: usize = 256 << 20;
/// Images per fence of a recovery.
const NESTED_IMAGES: usize = 5;

/// Options of the rig's mounts.
pub fn options() -> MountOptions<'static> {
    MountOptions { arena_bytes: ARENA_BYTES, ..MountOptions::default() }
}

/// What was done with images that recovery made equal.
struct Used {
    /// The blocks that passes 2 and 3 read.
    blocks: Vec<u64>,
    is_recovery_cut: bool,
}

/// Mounts for the rig.
///
/// # Errors
/// Those of a mount.
pub fn mounted(region: Region, logs: Logs) -> Result<Volume, VolumeError> {
    let volume = mount(region, &options())?;
    if logs == Logs::Short {
        volume.keep_logs_short();
    }
    Ok(volume)
}

/// Keeps freed memory: images are copied and dropped by the thousand, and faulting their memory in again
/// would be slow.
pub fn keep_memory() {
    // SAFETY: settings of the allocator that change only its speed.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 30);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 1 << 30);
    }
}

/// Checks images, one at a time, in its own memory.
pub struct Judge {
    probe: Probe,
    model: Model,
    /// The cut whose memory the probe was last loaded with.
    loaded: Option<u64>,
    /// Hash of each of its blocks, and of all.
    base: Vec<u64>,
    sum: u64,
    /// Recovered images that took passes 2 and 3.
    used: HashMap<(u64, u64), Used>,
    /// Images (all of their words) that were checked for a state.
    judged: HashSet<(u64, u64)>,
    /// The same for images of recoveries that were cut, in separate memory: see [`Judge::cut_recovery`].
    again: Probe,
    judged_again: HashSet<(u64, u64)>,
    logs: Logs,
    /// Paths that were allowed once.
    names: BTreeSet<Vec<u8>>,
    /// Number of recoveries that were cut.
    pub nested: u64,
    /// The coverage of recovery.
    pub coverage: Coverage,
}

/// The allowed contents of an image.
pub struct Allowed<'a> {
    /// The allowed trees.
    pub trees: &'a [Arc<Tree>],
    /// Identifies this set of trees.
    pub id: u64,
}

/// The verdict on an image.
pub struct Verdict {
    /// The reason why a promise is broken.
    pub failure: Option<String>,
    /// The words that were read.
    pub looked: Looked,
    /// An image with the same content was checked before, for the same trees.
    pub known: bool,
}

/// Words of an image that differ from those of another.
type Words = Vec<(Pos, u64)>;

fn word_at(image: &[u8], at: Pos) -> u64 {
    u64::from_le_bytes(image[at.0 as usize..][..8].try_into().unwrap_or_default())
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
    /// A judge for images of so many bytes.
    pub fn new(len_bytes: u64, model: Model, logs: Logs) -> Judge {
        let (_, probe) = Region::probed(len_bytes);
        let (_, again) = Region::probed(len_bytes);
        Judge {
            probe,
            again,
            judged_again: HashSet::new(),
            model,
            loaded: None,
            base: Vec::new(),
            sum: 0,
            used: HashMap::new(),
            judged: HashSet::new(),
            logs,
            names: BTreeSet::new(),
            nested: 0,
            coverage: Coverage::default(),
        }
    }

    /// Checks one image of a cut.
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
            hash ^= mixed(at.0 / 8, word_at(memory, *at)) ^ mixed(at.0 / 8, *word);
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
        self.coverage.add_thread(Part::Nothing);
        let failure = without_panic(|| self.passes(cut, words, hash, allowed, &mut later)).err();
        self.coverage.add_thread(Part::Recovery);
        let block_of = |pos: Pos| pos.0 / BLOCK_BYTES as u64;
        let looked = |pos: Pos| self.probe.was_read(pos) || later.binary_search(&block_of(pos)).is_ok();
        let units =
            cut.point.pending().enumerate().filter(|(_, p)| looked(p.word)).map(|(unit, _)| unit).collect();
        Verdict { failure, looked: Looked { units }, known: false }
    }

    /// Runs the passes. `hash`: of the image. `later`: blocks that an equal image read in passes that are not
    /// repeated.
    fn passes(
        &mut self,
        cut: &Cut,
        words: &[(Pos, u64)],
        hash: u64,
        allowed: &Allowed<'_>,
        later: &mut Vec<u64>,
    ) -> Result<(), String> {
        let volume =
            mounted(self.probe.region(), self.logs).map_err(|e| format!("it cannot be mounted: {e}"))?;
        let fs = volume.fs();
        let tree = Tree::of(&fs).map_err(|e| format!("it cannot be read: {e}"))?;
        let state = state_of(&tree, allowed.trees)?;
        let (recovered, changed) = self.hash_after(cut, words);
        let key = (allowed.id << 8 | state as u64, recovered);
        if let Some(known) = self.used.get_mut(&key) {
            later.clone_from(&known.blocks);
            volume.abandon();
            if !changed || std::mem::replace(&mut known.is_recovery_cut, true) {
                return Ok(());
            }
            return self.cut_recovery(&cut.point, words, (key.0, hash), &allowed.trees[state]);
        }
        let wanted = &allowed.trees[state];
        self.names.extend(allowed.trees.iter().flat_map(|tree| tree.nodes.keys().cloned()));
        let others = allowed.trees.iter().flat_map(|tree| tree.nodes.keys());
        let again =
            use_it(&fs, wanted, others.chain(&self.names)).map_err(|e| format!("it cannot be used: {e}"))?;
        volume.unmount();
        // A second check, whose reads must not count as reads of the image.
        let verdict =
            fsck::examine("image", &self.probe.silent_region()).map_err(|e| format!("fsck: {e}"))?;
        if verdict.found() > 0 {
            return Err(format!("after use and an unmount fsck finds: {:?}", verdict.issues[0].0));
        }
        let volume = mounted(self.probe.region(), self.logs)
            .map_err(|e| format!("it cannot be mounted a second time: {e}"))?;
        let fs = volume.fs();
        remove_again(&fs, &again).map_err(|e| format!("after use and a second mount: {e}"))?;
        let tree = Tree::of(&fs).map_err(|e| format!("it cannot be read after the second mount: {e}"))?;
        state_of(&tree, std::slice::from_ref(wanted))
            .map_err(|e| format!("after use and a second mount: {e}"))?;
        remove_everything(&fs, &tree).map_err(|e| format!("it cannot be emptied: {e}"))?;
        volume.unmount();
        is_empty(&self.probe.silent_region())?;
        if changed {
            self.cut_recovery(&cut.point, words, (key.0, hash), wanted)?;
        }
        self.used.insert(key, Used { blocks: self.probe.read_blocks(), is_recovery_cut: changed });
        Ok(())
    }

    /// Cuts the power during the recovery of an image: recovering again must give the same. Of images that
    /// differ only in the time that the mount wrote into its superblocks, one is checked; the arrived words
    /// of those superblocks tell others apart. `key`: the expected trees, and the hash of the image.
    fn cut_recovery(
        &mut self,
        point: &CrashPoint<'_>,
        words: &[(Pos, u64)],
        key: (u64, u64),
        wanted: &Arc<Tree>,
    ) -> Result<(), String> {
        self.nested += 1;
        let mut image = point.memory().to_vec();
        for (at, word) in words {
            image[at.0 as usize..][..8].copy_from_slice(&word.to_le_bytes());
        }
        let image = Arc::new(image);
        let (region, simulator) = Region::simulated_from(&image);
        simulator.set_model(self.model);
        let cuts: Arc<Mutex<Vec<(u64, Words)>>> = Arc::default();
        let (found, start, mut fence) = (cuts.clone(), image.clone(), 0);
        simulator.on_fence(Box::new(move |point: &CrashPoint<'_>| {
            fence += 1;
            let cuts = point.differences(&start, NESTED_IMAGES, fence).map(|words| (fence, words));
            found.lock().unwrap_or_else(PoisonError::into_inner).extend(cuts);
        }));
        let volume = mounted(region, self.logs).map_err(|e| format!("it cannot be mounted: {e}"))?;
        simulator.stop_watching();
        volume.abandon();
        self.coverage.add_sites(&simulator);
        let cuts = std::mem::take(&mut *cuts.lock().unwrap_or_else(PoisonError::into_inner));
        let superblocks = [0, (image.len() / BLOCK_BYTES) as u64 - 1];
        let mut same = false;
        for (fence, words) in &cuts {
            let hash = words.iter().fold(key.1, |hash, (at, word)| {
                if superblocks.contains(&(at.0 / BLOCK_BYTES as u64)) {
                    return hash ^ mixed(!at.0, 1);
                }
                hash ^ mixed(at.0 / 8, word_at(&image, *at)) ^ mixed(at.0 / 8, *word)
            });
            if !self.judged_again.insert((key.0, hash)) {
                continue;
            }
            let fails = |e: String| format!("a second power cut, at fence {fence} of its recovery: {e}");
            self.again.load(&image, words, same);
            same = true;
            let volume = mounted(self.again.region(), self.logs)
                .map_err(|e| fails(format!("it cannot be mounted: {e}")))?;
            let tree = Tree::of(&volume.fs()).map_err(|e| fails(format!("it cannot be read: {e}")))?;
            state_of(&tree, std::slice::from_ref(wanted)).map_err(fails)?;
            volume.abandon();
        }
        Ok(())
    }

    /// The hash of the image as recovery left it, without superblocks; and whether recovery changed more than
    /// those.
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

/// A block of the image, with its differing words.
fn patched(memory: &[u8], block: u64, words: &[(Pos, u64)]) -> Vec<u8> {
    let start = block * BLOCK_BYTES as u64;
    let mut bytes = memory[start as usize..][..BLOCK_BYTES].to_vec();
    for (at, word) in words.iter().filter(|(at, _)| at.0 / BLOCK_BYTES as u64 == block) {
        bytes[(at.0 - start) as usize..][..8].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Checks an image that was emptied and unmounted: it has no issue, and no more blocks are in use than the
/// root needs.
pub(crate) fn is_empty(region: &Region) -> Result<(), String> {
    let survey = fsck::survey("image", region).map_err(|e| format!("fsck: {e}"))?;
    let survey = survey.ok_or("the superblock is lost when all is deleted")?;
    if survey.issues > 0 {
        return Err(format!("fsck finds {} issues when all is deleted", survey.issues));
    }
    let left: u64 = survey.owners.iter().map(|owner| owner.count).sum();
    if left > BLOCKS_LEFT_MAX || survey.inodes.len() != 1 {
        let inodes = survey.inodes.len();
        return Err(format!("{left} blocks and {inodes} inodes stay taken when all is deleted"));
    }
    Ok(())
}

/// The index of the allowed tree that equals this tree.
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

/// Turns a panic into a finding.
pub fn without_panic<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_string()));
        Err(format!("a panic: {}", text.unwrap_or_default()))
    })
}
