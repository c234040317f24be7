//! A writer of part of a page stalls after it has copied the rest, and another writer changes that rest. The
//! bytes that the first writer then copies again must be durable before its record.

use super::{before, cut_now, judge, machine, open};
use crate::coverage::Coverage;
use crate::cut::Cut;
use crate::judge::options;
use crate::op::{File, Op};
use crate::play::Player;
use crate::rig::{Failure, model_like};
use heddle_nvmfs::planted::{Step, on_step};
use heddle_nvmfs::{NvmFs, Variant, format_region, mount};
use heddle_pmem::{CrashPoint, Model};
use heddle_vfs::tree::Tree;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};

/// The bytes of the first and the second writer in one page.
fn parts() -> [(usize, Op); 2] {
    [(3, 100, 200), (4, 1000, 100)]
        .map(|(number, offset, len)| (number, Op::Write { file: File::Descriptor("f".into()), offset, len }))
}

/// The first image that is not as promised, and what was met.
///
/// # Errors
/// The scene cannot be played.
pub fn edge_copied_anew(variant: Variant, model: Model) -> Result<(Option<Failure>, Coverage), String> {
    let (region, simulator) = machine(model);
    let again = region.map_again().map_err(|e| e.to_string())?;
    format_region(&region, variant).map_err(|e| e.to_string())?;
    let volume = mount(region, &options()).map_err(|e| e.to_string())?;
    let fs = volume.fs();
    let mut first = Player::new(&fs);
    for (i, op) in before(1).enumerate() {
        first.play(i + 1, &op).map_err(|e| format!("{op}: {e}"))?;
    }
    let (stalled, is_stalled) = channel();
    let (go_on, goes_on) = channel::<()>();
    let cuts: Arc<Mutex<Vec<Cut>>> = Arc::default();
    let [one, two] = parts();
    std::thread::scope(|scope| {
        let fs = &fs;
        let writer = scope.spawn(move || {
            let mut player = Player::new(fs);
            let opened = player.play(0, &open());
            let (stalled, goes_on) = (Mutex::new(Some(stalled)), Mutex::new(goes_on));
            on_step(Some(Arc::new(move |step| {
                let first = stalled.lock().ok().filter(|_| step == Step::Filled).and_then(|mut s| s.take());
                let (Some(stalled), Ok(goes_on)) = (first, goes_on.lock()) else { return };
                let _ = stalled.send(());
                let _ = goes_on.recv();
            })));
            let wrote = opened.and_then(|()| player.play(one.0, &one.1));
            on_step(None);
            player.close_all();
            wrote.map_err(|e| e.to_string())
        });
        is_stalled.recv().map_err(|_| "the first writer never came to that step".to_string())?;
        let mut second = Player::new(fs);
        let wrote = second.play(0, &open()).and_then(|()| second.play(two.0, &two.1));
        second.close_all();
        let (list, mut fence) = (cuts.clone(), 0);
        simulator.on_fence(Box::new(move |point: &CrashPoint<'_>| {
            fence += 1;
            let cut = Cut { step: 0, returned: false, fence, point: point.clone().into_owned(), id: fence };
            list.lock().unwrap_or_else(PoisonError::into_inner).push(cut);
        }));
        let _ = go_on.send(());
        writer.join().map_err(|_| "the first writer panicked".to_string())??;
        wrote.map_err(|e| e.to_string())
    })?;
    simulator.stop_watching();
    let mut coverage = Coverage::default();
    coverage.add_sites(&simulator);
    let trees: Vec<Arc<Tree>> = [tree(&fs, false), tree(&fs, true)].into_iter().flatten().collect();
    volume.abandon();
    let mut cuts = std::mem::take(&mut *cuts.lock().unwrap_or_else(PoisonError::into_inner));
    let point = cut_now(&simulator, &again, model);
    cuts.push(Cut { step: 0, returned: true, fence: 0, point, id: u64::MAX });
    let allowed = |cut: &Cut| if cut.returned { &trees[1..] } else { &trees[..] };
    Ok((cuts.iter().find_map(|cut| judge(variant, model, cut, allowed(cut))), coverage))
}

/// The tree after the second writer has returned, with or without the first.
fn tree(fs: &NvmFs, with_first: bool) -> Option<Arc<Tree>> {
    let model = model_like(fs);
    let mut player = Player::new(&model);
    before(1).enumerate().try_for_each(|(i, op)| player.play(i + 1, &op)).ok()?;
    player.play(0, &open()).ok()?;
    let [one, two] = parts();
    player.play(two.0, &two.1).ok()?;
    if with_first {
        player.play(one.0, &one.1).ok()?;
    }
    player.close_all();
    Tree::of(&model).ok().map(Arc::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_copied_anew_are_durable_before_the_record_that_names_them() {
        for model in Model::ALL {
            let (failure, _) = edge_copied_anew(Variant::Heddle, model).unwrap();
            assert!(failure.is_none(), "{}: {}", model.name(), failure.unwrap());
        }
    }
}
