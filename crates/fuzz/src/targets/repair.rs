//! Damaged images, mended by fsck.
//!
//! Promises    R1  what fsck says it mends is mended: a second look finds nothing more than it left, and changes nothing.
//!             R2  an image of which nothing is left to mend mounts.
//!             R3  where bits were flipped and nothing else, a file none of whose own structures was hit keeps its content, by
//!                 whatever name.
//!             R4  no panic and no hang, also where fields are forged.

use super::Target;
use super::mount::{number, seeds};
use crate::image::walk::{Content, Walk, kind};
use crate::image::{EDIT_BYTES, Edited, Images, edit};
use heddle_crash::judge::options;
use heddle_nvmfs::format::inode::{CHUNK_INODES, INODE_BYTES};
use heddle_nvmfs::fsck::{self, Code, Issue, Owner, Verdict};
use heddle_nvmfs::mount;
use heddle_pmem::{BLOCK_BYTES, Pos, Region};
use heddle_vfs::Ino;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

/// What an image holds before anything is done to it.
struct Sound {
    owners: Vec<Owner>,
    files: BTreeMap<Ino, Content>,
}

pub struct Repair {
    images: Images,
    sound: HashMap<usize, Sound>,
    undo: tempfile::TempDir,
}

impl Repair {
    pub fn new(wide: bool) -> Repair {
        let undo = tempfile::tempdir().expect("a folder for undo files");
        Repair { images: Images::new(wide), sound: HashMap::new(), undo }
    }
}

impl Target for Repair {
    fn seeds(&self) -> Vec<Vec<u8>> {
        seeds(self.images.count())
    }

    fn unit(&self) -> usize {
        EDIT_BYTES
    }

    fn run(&mut self, input: &[u8]) -> Result<u64, String> {
        let (head, edits) = input.split_at(input.len().min(EDIT_BYTES));
        let (which, forge) =
            (number(head) % self.images.count(), head.get(2).is_some_and(|flags| flags & 1 == 1));
        if !self.sound.contains_key(&which) {
            let region = self.images.choose(which)?.region;
            self.sound.insert(which, look(region)?);
        }
        let sound = &self.sound[&which];
        // Looking at it has changed it: it is put there again.
        let chosen = self.images.choose(which)?;
        let (region, what) = (chosen.region, chosen.what);
        let made: Vec<Edited> =
            edits.chunks(EDIT_BYTES).map(|bytes| edit(region, &chosen.sites, bytes, forge)).collect();
        let told = |promise: &str| format!("{what}: {promise}; the changes: {made:?}");

        let mut hasher = DefaultHasher::new();
        let first = match examine(region, &mut hasher) {
            Ok(verdict) => verdict,
            Err(kind) => {
                kind.hash(&mut hasher);
                return Ok(hasher.finish());
            }
        };
        if first.issues.iter().any(|(issue, _)| issue.code == Code::UNSETTLED) {
            return Err(told(&format!("R1: the repair does not come to an end{}", list(&first))));
        }
        let file = self.undo.path().join("undo");
        let _ = std::fs::remove_file(&file);
        first.apply(region, &file).map_err(|e| told(&e.to_string()))?;
        let second =
            examine(region, &mut hasher).map_err(|kind| told(&format!("after the repair: {kind}")))?;
        if second.left() != second.found() || second.changes().count() != 0 {
            return Err(told(&format!(
                "R1: the first look found{}\na second finds{}",
                list(&first),
                list(&second)
            )));
        }
        match mount(region.map_again().map_err(|e| e.to_string())?, &options()) {
            Err(error) if second.found() == 0 => {
                return Err(told(&format!("R2: it does not mount: {error}; fsck found{}", list(&first))));
            }
            Err(error) => kind(&error).hash(&mut hasher),
            Ok(volume) => {
                let fs = volume.fs();
                let walk = Walk::of(&fs);
                drop(fs);
                volume.unmount();
                walk.errors.hash(&mut hasher);
                if let Some(hit) = hit(sound, &made) {
                    for (ino, content) in sound.files.iter().filter(|(ino, _)| !hit.contains(ino)) {
                        if walk.files.get(ino) != Some(content) {
                            let now = walk.files.get(ino);
                            let found = list(&first);
                            return Err(told(&format!("R3: {ino:?} was {content:?} and is {now:?}:{found}")));
                        }
                    }
                }
            }
        }
        Ok(hasher.finish())
    }
}

fn look(region: &Region) -> Result<Sound, String> {
    let survey = fsck::survey("image", region).map_err(|e| e.to_string())?.ok_or("no superblock")?;
    let volume =
        mount(region.map_again().map_err(|e| e.to_string())?, &options()).map_err(|e| e.to_string())?;
    let files = Walk::of(&volume.fs()).files;
    volume.unmount();
    Ok(Sound { owners: survey.owners, files })
}

fn examine(region: &Region, hasher: &mut DefaultHasher) -> Result<Verdict, String> {
    let verdict = fsck::examine("image", region).map_err(|error| kind(&error))?;
    for (issue, mended) in &verdict.issues {
        (format!("{:?}", issue.code), mended).hash(hasher);
    }
    Ok(verdict)
}

/// The issues, one a line; a plus: mended.
fn list(verdict: &Verdict) -> String {
    let line = |(issue, mended): &(Issue, bool)| {
        let sign = if *mended { '+' } else { ' ' };
        format!("\n  {sign}{} {}: {}", issue.code, issue.location, issue.what)
    };
    verdict.issues.iter().map(line).collect()
}

/// The inodes whose structures were hit; `None`: it cannot be told, or lies were told.
fn hit(sound: &Sound, made: &[Edited]) -> Option<BTreeSet<Ino>> {
    let mut hit = BTreeSet::new();
    for edited in made {
        match *edited {
            Edited::Not => {}
            Edited::Damaged(pos, len) => hit.extend(owners_at(sound, pos, len)?),
            Edited::Forged | Edited::Erased => return None,
        }
    }
    Some(hit)
}

fn owners_at(sound: &Sound, pos: Pos, len: u64) -> Option<Vec<Ino>> {
    let blocks = pos.0 / BLOCK_BYTES as u64..(pos.0 + len).div_ceil(BLOCK_BYTES as u64);
    let owner =
        sound.owners.iter().find(|o| blocks.start >= o.block.0 && blocks.end <= o.block.0 + o.count)?;
    match (owner.ino, owner.what.starts_with("inode chunk")) {
        (Some(ino), _) => Some(vec![ino]),
        // Of a chunk whose slot: its number follows from the place.
        (None, true) => {
            let number: u64 = owner.what.rsplit(' ').next()?.parse().ok()?;
            let within = pos.0 - owner.block.0 * BLOCK_BYTES as u64;
            Some(vec![Ino(number * CHUNK_INODES + within / INODE_BYTES)])
        }
        (None, false) => Some(Vec::new()),
    }
}
