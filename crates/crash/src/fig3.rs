//! The SRL paper's argument for commit marks (pNOVA, Fig. 3), as a scene: one writer stalls with its place in the log, another writer, of
//! another range, returns. What returned must survive.

use crate::cut::{Bounds, Cut, choice_text, explore};
use crate::judge::{Allowed, Judge, options};
use crate::op::{File, Op};
use crate::play::Player;
use crate::rig::{Failure, IMAGE_BYTES, model_like};
use heddle_nvmfs::planted::{Step, on_step};
use heddle_nvmfs::{Variant, format_region, mount};
use heddle_pmem::{Model, Region};
use heddle_vfs::tree::Tree;
use std::sync::Arc;
use std::sync::mpsc::channel;

fn open() -> Op {
    Op::Open { path: "/f".into(), name: "f".into() }
}

fn write(page: u64) -> Op {
    Op::Write { file: File::Descriptor("f".into()), offset: page * 4096, len: 4096 }
}

/// Plays the scene; the first image that is not as promised. `stall`: the step in which the first writer waits until the power is cut.
///
/// # Errors
/// The scene cannot be played.
pub fn play(variant: Variant, stall: Step) -> Result<Option<Failure>, String> {
    let (region, simulator) = Region::simulated(IMAGE_BYTES);
    format_region(&region, variant).map_err(|e| e.to_string())?;
    let volume = mount(region, &options()).map_err(|e| e.to_string())?;
    let fs = volume.fs();
    let before = [
        Op::Create { path: "/f".into() },
        Op::Write { file: File::Path("/f".into()), offset: 0, len: 12_288 },
    ];
    let mut first = Player::new(&fs);
    for (i, op) in before.iter().enumerate() {
        first.play(i + 1, op).map_err(|e| format!("{op}: {e}"))?;
    }
    let (stalled, is_stalled) = channel();
    let (go_on, goes_on) = channel::<()>();
    let point = std::thread::scope(|scope| {
        let one = scope.spawn(|| {
            let mut player = Player::new(&fs);
            let opened = player.play(0, &open());
            let (stalled, goes_on) = (std::sync::Mutex::new(Some(stalled)), std::sync::Mutex::new(goes_on));
            on_step(Some(Arc::new(move |step| {
                let Some(stalled) = stalled.lock().ok().filter(|_| step == stall).and_then(|mut s| s.take())
                else {
                    return;
                };
                let _ = stalled.send(());
                if let Ok(goes_on) = goes_on.lock() {
                    let _ = goes_on.recv();
                }
            })));
            let wrote = opened.and_then(|()| player.play(3, &write(0)));
            on_step(None);
            player.close_all();
            wrote.map_err(|e| e.to_string())
        });
        is_stalled.recv().map_err(|_| "the first writer never came to that step".to_string())?;
        let mut two = Player::new(&fs);
        let wrote = two.play(0, &open()).and_then(|()| two.play(4, &write(1))).map_err(|e| e.to_string());
        two.close_all();
        let point = simulator.crash_point();
        let _ = go_on.send(());
        one.join().map_err(|_| "the first writer panicked".to_string())??;
        wrote.map(|()| point)
    })?;
    let trees = [&[4][..], &[3, 4][..]].map(|numbers| {
        let model = model_like(&fs);
        let mut player = Player::new(&model);
        before
            .iter()
            .enumerate()
            .try_for_each(|(i, op)| player.play(i + 1, op))
            .and_then(|()| player.play(0, &open()))
            .ok()?;
        numbers.iter().try_for_each(|number| player.play(*number, &write(*number as u64 - 3))).ok()?;
        player.close_all();
        Tree::of(&model).ok().map(Arc::new)
    });
    volume.abandon();
    let trees: Vec<Arc<Tree>> = trees.into_iter().flatten().collect();
    let cut = Cut { step: 0, returned: false, fence: 0, point, id: 1 };
    Ok(judge(variant, &cut, &trees))
}

fn judge(variant: Variant, cut: &Cut, trees: &[Arc<Tree>]) -> Option<Failure> {
    let mut judge = Judge::new(IMAGE_BYTES, Model::Ordered);
    let mut found = None;
    let bounds = Bounds { ordered: 1 << 10, random: 16, seed: 1 };
    explore(cut, bounds, &mut |choice, words| {
        let verdict = judge.judge(cut, choice, words, &Allowed { trees, id: 1 });
        if let Some(text) = verdict.failure {
            found = Some(Failure {
                workload: "fig3".into(),
                variant,
                step: 0,
                op: "two writers".into(),
                returned: false,
                fence: Some(0),
                arrived: choice_text(choice),
                text,
            });
            return None;
        }
        Some(verdict.looked)
    });
    found
}
