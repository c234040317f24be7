//! Power cuts while a file system is made over another one.
//!
//! Until the new file system is complete, an image holds the old one with all its content, or none.
//! Afterwards it holds an empty one. It never holds an old one without its content.

use crate::coverage::Coverage;
use crate::cut::{Bounds, Cut, choice_text, explore};
use crate::judge::{Allowed, Judge, mounted, without_panic};
use crate::op::{File, Logs, Op};
use crate::play::Player;
use crate::rig::{Failure, IMAGE_BYTES, model_like};
use heddle_nvmfs::{Variant, VolumeError, format_region};
use heddle_pmem::{CrashPoint, Model, Region};
use heddle_vfs::tree::Tree;
use std::sync::{Arc, Mutex, PoisonError};

const BOUNDS: Bounds = Bounds { ordered: 256, random: 64, seed: 1 };

/// The first image that breaks a promise, and the coverage.
///
/// # Errors
/// The image cannot be made.
pub fn reformatted(variant: Variant, model: Model) -> Result<(Option<Failure>, Coverage), String> {
    let say = |e: VolumeError| e.to_string();
    let (region, simulator) = Region::simulated(IMAGE_BYTES);
    simulator.set_model(model);
    format_region(&region, variant).map_err(say)?;
    let old = filled(region.map_again().map_err(|e| e.to_string())?)?;
    let cuts: Arc<Mutex<Vec<Cut>>> = Arc::default();
    let (list, mut fence) = (cuts.clone(), 0);
    simulator.on_fence(Box::new(move |point: &CrashPoint<'_>| {
        fence += 1;
        let cut = Cut { step: 0, returned: false, fence, point: point.clone().into_owned(), id: fence };
        list.lock().unwrap_or_else(PoisonError::into_inner).push(cut);
    }));
    format_region(&region, variant).map_err(say)?;
    simulator.stop_watching();
    if model == Model::Process {
        // PERSIST: no store stays pending.
        region.fence();
    }
    let mut cuts = std::mem::take(&mut *cuts.lock().unwrap_or_else(PoisonError::into_inner));
    cuts.push(Cut { step: 0, returned: true, fence: 0, point: simulator.crash_point(), id: u64::MAX });
    let mut coverage = Coverage::default();
    coverage.add_sites(&simulator);
    let empty = empty(variant)?;
    Ok((cuts.iter().find_map(|cut| judge(variant, model, cut, [&old, &empty])), coverage))
}

/// Puts content into an image, and returns its tree.
fn filled(region: Region) -> Result<Arc<Tree>, String> {
    let volume = mounted(region, Logs::Usual).map_err(|e| e.to_string())?;
    let fs = volume.fs();
    let mut player = Player::new(&fs);
    let ops = [
        Op::Mkdir { path: "/d".into() },
        Op::Create { path: "/d/f".into() },
        Op::Write { file: File::Path("/d/f".into()), offset: 0, len: 9000 },
    ];
    for (i, op) in ops.iter().enumerate() {
        player.play(i + 1, op).map_err(|e| format!("{op}: {e}"))?;
    }
    let tree = Tree::of(&fs).map_err(|e| e.to_string())?;
    volume.unmount();
    Ok(Arc::new(tree))
}

fn empty(variant: Variant) -> Result<Arc<Tree>, String> {
    let (region, _) = Region::simulated(IMAGE_BYTES);
    format_region(&region, variant).map_err(|e| e.to_string())?;
    let volume = mounted(region, Logs::Usual).map_err(|e| e.to_string())?;
    let tree = Tree::of(&model_like(&volume.fs())).map_err(|e| e.to_string())?;
    volume.abandon();
    Ok(Arc::new(tree))
}

fn judge(variant: Variant, model: Model, cut: &Cut, [old, empty]: [&Arc<Tree>; 2]) -> Option<Failure> {
    let mut judge = Judge::new(IMAGE_BYTES, model, Logs::Usual);
    let both = [old.clone(), empty.clone()];
    let trees = if cut.returned { &both[1..] } else { &both[..] };
    let mut found = None;
    explore(cut, BOUNDS, &mut |choice, words| {
        let none = !cut.returned && is_none(cut, words);
        let verdict = judge.judge(cut, choice, words, &Allowed { trees, id: cut.id });
        if let Some(text) = verdict.failure.filter(|_| !none) {
            found = Some(Failure {
                workload: "a file system made over another".into(),
                variant,
                step: 0,
                op: "mkfs".into(),
                returned: cut.returned,
                fence: Some(cut.fence),
                arrived: choice_text(choice),
                text,
            });
            return None;
        }
        Some(verdict.looked)
    });
    found
}

/// Returns true if the image holds no file system.
fn is_none(cut: &Cut, words: &[(heddle_pmem::Pos, u64)]) -> bool {
    let mut image = cut.point.memory().to_vec();
    for (at, word) in words {
        image[at.0 as usize..][..8].copy_from_slice(&word.to_le_bytes());
    }
    let mounted =
        without_panic(|| Ok(mounted(Region::simulated_from(&image).0, Logs::Usual).map(|v| v.abandon())));
    matches!(mounted, Ok(Err(VolumeError::NotAnImage { .. } | VolumeError::SuperblockDamaged { .. })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_mkfs_leaves_the_old_image_none_or_an_empty_one() {
        for model in Model::ALL {
            let (failure, _) = reformatted(Variant::Heddle, model).unwrap();
            assert!(failure.is_none(), "{}: {}", model.name(), failure.unwrap());
        }
    }
}
