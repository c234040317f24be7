//! Faults other than power cuts: each request for memory or blocks fails once, and each cache line of the
//! media is lost once.
//!
//! - [`refused`]: every operation on the tree of `ace`; its N-th request fails, for every N, and so for a
//!   mount. A call that fails has changed nothing, and succeeds when repeated; then the image has no issue
//!   (fsck), mounts again, and can be used and emptied.
//! - [`lost`]: each line of the image cannot be loaded, lost before the mount or while mounted. No call panics, and
//!   every read is correct or fails; a page that is written again can be read again.

use crate::ace;
use crate::judge::{is_empty, options, remove_everything, use_it, without_panic};
use crate::op::{File, Op, Step};
use crate::play::Player;
use crate::rig::{IMAGE_BYTES, model_like};
use heddle_nvmfs::{NvmFs, Variant, Volume, VolumeError, format_region, fsck, mount};
use heddle_pmem::{BLOCK_BYTES, LINE_BYTES, Pos, Probe, Region};
use heddle_vfs::model::ModelFs;
use heddle_vfs::tree::{Node, Tree};
use heddle_vfs::{Cred, Error, FileKind, FileSystem, OpenFlags, path};

/// Number of the first operation after those of the tree.
const FIRST: usize = 100;

/// Results of a run.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Figures {
    /// Injected faults.
    pub faults: u64,
    /// Calls and mounts that returned an error because of them.
    pub failed: u64,
}

impl Figures {
    /// Adds another run's.
    pub fn add(&mut self, other: Figures) {
        self.faults += other.faults;
        self.failed += other.failed;
    }
}

/// An image with the tree of `ace`, memory to mount it in, and its expected content.
struct Scene {
    image: Vec<u8>,
    probe: Probe,
    /// The same image is in `probe`, except for changes.
    loaded: bool,
    opens: Vec<Step>,
    tree: Tree,
}

impl Scene {
    fn new(variant: Variant) -> Result<Scene, String> {
        let say = |e: &dyn std::fmt::Display| e.to_string();
        let (region, probe) = Region::probed(IMAGE_BYTES);
        format_region(&region, variant).map_err(|e| say(&e))?;
        let volume = mount(region, &options()).map_err(|e| say(&e))?;
        let fs = volume.fs();
        let (opens, steps): (Vec<Step>, Vec<Step>) =
            ace::tree().into_iter().partition(|step| matches!(step.op, Op::Open { .. }));
        let mut player = Player::new(&fs);
        for (i, step) in steps.iter().enumerate() {
            player.play(i + 1, &step.op).map_err(|e| format!("{step}: {e}"))?;
        }
        let tree = Tree::of(&fs).map_err(|e| say(&e))?;
        drop(player);
        drop(fs);
        volume.unmount();
        Ok(Scene { image: probe.image(), probe, loaded: true, opens, tree })
    }

    /// Restores the image.
    fn load(&mut self) {
        self.probe.load(&self.image, &[], self.loaded);
        self.loaded = true;
    }

    fn mount(&self) -> Result<Volume, VolumeError> {
        mount(self.probe.region(), &options())
    }

    fn open(&self, player: &mut Player<'_>) -> Result<(), String> {
        self.opens.iter().try_for_each(|step| player.play(0, &step.op).map_err(|e| format!("{step}: {e}")))
    }

    /// A model that holds the tree.
    fn model(&self, like: &NvmFs) -> Result<ModelFs, String> {
        let model = model_like(like);
        let mut player = Player::new(&model);
        for (i, step) in ace::tree().iter().filter(|step| !matches!(step.op, Op::Open { .. })).enumerate() {
            player.play(i + 1, &step.op).map_err(|e| format!("{step}: {e}"))?;
        }
        drop(player);
        Ok(model)
    }

    /// Checks an image that was just unmounted: no issue, this content, and it can be used and emptied.
    fn is_sound(&self, wanted: &Tree) -> Result<(), String> {
        let verdict =
            fsck::examine("image", &self.probe.silent_region()).map_err(|e| format!("fsck: {e}"))?;
        if verdict.found() > 0 {
            return Err(format!("fsck finds {:?}", verdict.issues[0].0));
        }
        let say = |e: &dyn std::fmt::Display| e.to_string();
        let volume = self.mount().map_err(|e| say(&e))?;
        let fs = volume.fs();
        same(&fs, wanted, "after a remount")?;
        use_it(&fs, wanted, std::iter::empty())?;
        remove_everything(&fs, wanted)?;
        volume.unmount();
        is_empty(&self.probe.silent_region())
    }
}

fn same(fs: &NvmFs, wanted: &Tree, when: &str) -> Result<(), String> {
    let tree = Tree::of(fs).map_err(|e| format!("{when}: {e}"))?;
    tree.difference(wanted).map_or(Ok(()), |text| Err(format!("{when}: {text}")))
}

fn operations() -> impl Iterator<Item = Op> {
    ace::operations().into_iter().map(|step| step.op).filter(|op| !matches!(op, Op::Remount))
}

/// A resource whose requests can be refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resource {
    /// Volatile memory.
    Memory,
    /// Blocks of the image.
    Blocks,
}

impl Resource {
    fn refuse(self, n: u64) {
        use heddle_nvmfs::planted::{memory, refuse_blocks};
        match self {
            Resource::Memory => memory::refuse(n),
            Resource::Blocks => refuse_blocks(n),
        }
    }

    /// Runs `work` and refuses its `n`-th request. Also returns false if it made fewer.
    fn during<T>(self, n: u64, work: impl FnOnce() -> T) -> (T, bool) {
        use heddle_nvmfs::planted::{block_requests, memory};
        self.refuse(n);
        let done = work();
        let made = if self == Resource::Memory { memory::requests() } else { block_requests() };
        self.refuse(0);
        (done, made >= n)
    }
}

/// Refuses the N-th request of each operation, and of a mount.
///
/// # Errors
/// The first finding.
pub fn refused(variant: Variant, resource: Resource) -> Result<Figures, String> {
    let mut scene = Scene::new(variant)?;
    let mut figures = Figures::default();
    for n in 1.. {
        scene.load();
        let (mounted, reached) = without_panic(|| Ok(resource.during(n, || scene.mount())))
            .map_err(|e| format!("a mount, {resource:?} {n}: {e}"))?;
        match mounted {
            Ok(volume) => volume.unmount(),
            Err(
                VolumeError::Memory { .. }
                | VolumeError::Recovery { source: Error::NoMemory | Error::NoSpace, .. },
            ) if reached => {
                figures.failed += 1;
                let volume = scene.mount().map_err(|e| format!("a mount after a failed one: {e}"))?;
                volume.unmount();
            }
            Err(other) => return Err(format!("a mount, {resource:?} {n}: {other}")),
        }
        scene.is_sound(&scene.tree).map_err(|e| format!("after a mount, {resource:?} {n}: {e}"))?;
        if !reached {
            break;
        }
        figures.faults += 1;
    }
    for op in operations() {
        for n in 1.. {
            let tried = without_panic(|| refused_once(&mut scene, &op, resource, n, &mut figures));
            let reached = tried.map_err(|e| format!("{}, {op}, {resource:?} {n}: {e}", variant.name()))?;
            if !reached {
                break;
            }
        }
    }
    Ok(figures)
}

/// Returns false if the operation makes fewer requests.
fn refused_once(
    scene: &mut Scene,
    op: &Op,
    resource: Resource,
    n: u64,
    figures: &mut Figures,
) -> Result<bool, String> {
    scene.load();
    let volume = scene.mount().map_err(|e| e.to_string())?;
    let fs = volume.fs();
    let model = scene.model(&fs)?;
    let (mut engine, mut should) = (Player::new(&fs), Player::new(&model));
    scene.open(&mut engine)?;
    scene.open(&mut should)?;
    let (mut is, reached) = resource.during(n, || engine.play(FIRST, op));
    if matches!(is, Err(Error::NoMemory | Error::NoSpace | Error::NoInodes)) {
        figures.failed += 1;
        same(&fs, &Tree::of(&model).map_err(|e| e.to_string())?, "after a call that failed")?;
        let again = || resource.during(n, || engine.play(FIRST, op)).0;
        is = match leaks_nothing(&fs, again)? {
            Some(done) => done,
            None => engine.play(FIRST, op),
        };
    }
    let wanted = should.play(FIRST, op);
    if is.as_ref().map_err(Error::errno) != wanted.as_ref().map_err(Error::errno) {
        return Err(format!("it gave {is:?}, should give {wanted:?}"));
    }
    let tree = Tree::of(&model).map_err(|e| e.to_string())?;
    same(&fs, &tree, "after it")?;
    engine.close_all();
    should.close_all();
    volume.unmount();
    scene.is_sound(&tree)?;
    figures.faults += u64::from(reached);
    Ok(reached)
}

/// A call that fails keeps no block: the first may keep a page for its log, later ones must leave the same
/// free space. Returns the result if it did not fail again.
fn leaks_nothing(
    fs: &NvmFs,
    mut again: impl FnMut() -> Result<(), Error>,
) -> Result<Option<Result<(), Error>>, String> {
    let mut before = None;
    for _ in 0..3 {
        let is = again();
        if !matches!(is, Err(Error::NoMemory | Error::NoSpace | Error::NoInodes)) {
            return Ok(Some(is));
        }
        let free = fs.statfs().map_err(|e| e.to_string())?.blocks_free;
        if let Some(before) = before.filter(|before| *before != free) {
            return Err(format!("a call that fails again leaves {free} blocks free, there were {before}"));
        }
        before = Some(free);
    }
    Ok(None)
}

/// Every `step`-th line of the image is lost, from `first` on: before the image is mounted and, in a second run, while it is mounted.
///
/// # Errors
/// The first finding.
pub fn lost(variant: Variant, first: usize, step: usize) -> Result<Figures, String> {
    let mut scene = Scene::new(variant)?;
    let mut figures = Figures::default();
    // Lines of free blocks are never loaded.
    let used: Vec<u64> = (0..scene.image.len())
        .step_by(BLOCK_BYTES)
        .filter(|at| scene.image[*at..at + BLOCK_BYTES].iter().any(|byte| *byte != 0))
        .map(|at| at as u64)
        .collect();
    let lines = used.iter().flat_map(|at| (*at..at + BLOCK_BYTES as u64).step_by(LINE_BYTES)).map(Pos);
    for line in lines.skip(first).step_by(step.max(1)) {
        for mounted in [false, true] {
            let when = if mounted { "while mounted" } else { "before the mount" };
            without_panic(|| lost_once(&mut scene, line, mounted, &mut figures))
                .map_err(|e| format!("{}, line {} lost {when}: {e}", variant.name(), line.0))?;
            figures.faults += 1;
        }
    }
    Ok(figures)
}

fn lost_once(scene: &mut Scene, line: Pos, mounted: bool, figures: &mut Figures) -> Result<(), String> {
    scene.load();
    if !mounted {
        scene.probe.lose(line);
    }
    let volume = match scene.mount() {
        Ok(volume) => volume,
        Err(error) if mounted => return Err(error.to_string()),
        Err(_) => {
            figures.failed += 1;
            // fsck must end without a panic.
            let _verdict = fsck::examine("image", &scene.probe.region());
            return Ok(());
        }
    };
    if mounted {
        scene.probe.lose(line);
    }
    let fs = volume.fs();
    let unread = right_or_refused(&fs, &scene.tree)?;
    figures.failed += unread;
    let changed = change(&fs, scene, figures)?;
    if let Some(tree) = &changed {
        // Every file was written again completely.
        let still = right_or_refused(&fs, tree)?;
        if still > 0 {
            return Err(format!("{still} reads fail of files that were written anew"));
        }
    }
    volume.unmount();
    match scene.mount() {
        Ok(volume) => {
            if let Some(tree) = &changed {
                right_or_refused(&volume.fs(), tree)?;
            }
            volume.unmount();
        }
        Err(_) => figures.failed += 1,
    }
    Ok(())
}

/// Writes every regular file again: first five bytes of its first page, then the whole file. Then makes one new name. Returns the expected
/// tree, or `None` if a call failed.
fn change(fs: &NvmFs, scene: &Scene, figures: &mut Figures) -> Result<Option<Tree>, String> {
    let model = scene.model(fs)?;
    let (mut engine, mut should) = (Player::new(fs), Player::new(&model));
    let mut ops = Vec::new();
    for (at, node) in scene.tree.nodes.iter().filter(|(_, node)| node.kind == FileKind::Regular) {
        let file = File::Path(String::from_utf8_lossy(at).into_owned());
        ops.push(Op::Write { file: file.clone(), offset: 17, len: 5 });
        ops.push(Op::Write { file, offset: 0, len: node.size_bytes.next_multiple_of(4096).max(4096) });
    }
    ops.push(Op::Create { path: "/new".into() });
    let mut all = true;
    for (i, op) in ops.iter().enumerate() {
        // A write of less than a page needs the lost bytes; a write of the whole page does not.
        let may_fail = matches!(op, Op::Write { len: 5, .. });
        match engine.play(FIRST + i, op) {
            Ok(()) => should.play(FIRST + i, op).map_err(|e| format!("the model: {op}: {e}"))?,
            Err(Error::Io(_) | Error::Corrupt(_)) => {
                figures.failed += 1;
                all &= may_fail;
            }
            Err(other) => return Err(format!("{op}: {other}")),
        }
    }
    engine.close_all();
    should.close_all();
    if !all {
        return Ok(None);
    }
    Tree::of(&model).map(Some).map_err(|e| e.to_string())
}

/// Checks that everything is there and every read is correct or fails. Returns how many failed.
fn right_or_refused(fs: &NvmFs, wanted: &Tree) -> Result<u64, String> {
    let mut refused = 0;
    for (at, node) in &wanted.nodes {
        let at = String::from_utf8_lossy(at);
        refused += one_right_or_refused(fs, &at, node).map_err(|e| format!("{at}: {e}"))?;
    }
    Ok(refused)
}

fn one_right_or_refused(fs: &NvmFs, at: &str, node: &Node) -> Result<u64, String> {
    let cred = Cred::root();
    let attr = path::resolve_nofollow(fs, &cred, at).map_err(|e| e.to_string())?;
    if (attr.kind, attr.perm, attr.nlink) != (node.kind, node.perm, node.nlink) {
        return Err(format!("it is {attr:?}"));
    }
    if node.kind != FileKind::Regular {
        return Ok(0);
    }
    if attr.size_bytes != node.size_bytes {
        return Err(format!("it has {} bytes, should have {}", attr.size_bytes, node.size_bytes));
    }
    let handle = fs.open(&cred, attr.ino, OpenFlags::READ).map_err(|e| e.to_string())?;
    let mut refused = 0;
    let mut wrong = None;
    for piece in 0..node.size_bytes.div_ceil(BLOCK_BYTES as u64) {
        let mut bytes = vec![0; BLOCK_BYTES];
        match fs.read(&handle, piece * BLOCK_BYTES as u64, &mut bytes) {
            Err(Error::Io(_) | Error::Corrupt(_)) => refused += 1,
            Err(other) => wrong = Some(other.to_string()),
            Ok(n) => {
                let right = match node.pieces.get(&piece) {
                    Some(right) => bytes[..n] == right[..],
                    None => bytes[..n].iter().all(|byte| *byte == 0),
                };
                if !right {
                    wrong = Some(format!("page {piece} reads as something else"));
                }
            }
        }
    }
    fs.release(handle);
    wrong.map_or(Ok(refused), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_line_is_an_error_never_wrong_bytes() {
        for variant in Variant::ALL {
            let figures = lost(variant, 3, 97).unwrap();
            assert!(figures.failed > 10, "{figures:?}");
        }
    }
}
