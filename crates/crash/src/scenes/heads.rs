//! A writer stalls after it has linked the block of further chain heads, and another writer has its chain
//! there.

use super::{before, judge, machine, open, write};
use crate::coverage::Coverage;
use crate::cut::Cut;
use crate::judge::options;
use crate::op::{File, Op};
use crate::play::Player;
use crate::rig::{Failure, model_like};
use heddle_nvmfs::planted::{Met, take_counts};
use heddle_nvmfs::{Variant, format_region, mount};
use heddle_pmem::Model;
use heddle_vfs::tree::Tree;
use std::cell::Cell;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

/// More writers than an inode's slot has room for chain heads.
const WRITERS: usize = 9;
const PAGES: u64 = 100;

thread_local! {
    static STALLS: Cell<bool> = const { Cell::new(false) };
}

/// Events that a writer sends.
enum Event {
    Returned(Result<(), String>),
    Stalled,
}

fn page_of(writer: usize) -> u64 {
    20 + writer as u64
}

fn grow() -> Op {
    Op::Truncate { file: File::Path("/f".into()), size: PAGES * 4096 }
}

/// The first image that is not as promised, and what was met.
///
/// # Errors
/// The scene cannot be played.
pub fn head_block_linked(variant: Variant, model: Model) -> Result<(Option<Failure>, Coverage), String> {
    let (region, simulator) = machine(model);
    let again = region.map_again().map_err(|e| e.to_string())?;
    format_region(&region, variant).map_err(|e| e.to_string())?;
    let volume = mount(region, &options()).map_err(|e| e.to_string())?;
    let fs = volume.fs();
    let mut first = Player::new(&fs);
    for (i, op) in before(1).enumerate() {
        first.play(i + 1, &op).map_err(|e| format!("{op}: {e}"))?;
    }
    first.play(0, &grow()).map_err(|e| e.to_string())?;
    let (tell, told) = channel::<Event>();
    let stall: Mutex<Option<(Sender<Event>, _)>> = Mutex::new(None);
    let (go_on, goes_on) = channel::<()>();
    *stall.lock().map_err(|e| e.to_string())? = Some((tell.clone(), goes_on));
    let stall = Arc::new(stall);
    simulator.on_step(move || {
        if !STALLS.get() || take_counts().get(Met::HeadBlock as usize).is_none_or(|times| *times == 0) {
            return;
        }
        STALLS.set(false);
        if let Some((tell, goes_on)) = stall.lock().ok().and_then(|mut stall| stall.take()) {
            let _ = tell.send(Event::Stalled);
            let _ = goes_on.recv();
        }
    });
    let (point, stalled) = std::thread::scope(|scope| {
        let (fs, mut ends) = (&fs, Vec::new());
        let mut stalled = None;
        for writer in 0..WRITERS {
            let (end, ended) = channel::<()>();
            ends.push(end);
            let tell = tell.clone();
            scope.spawn(move || {
                let mut player = Player::new(fs);
                let opened = player.play(0, &open());
                STALLS.set(true);
                let wrote = opened.and_then(|()| player.play(10 + writer, &write(page_of(writer))));
                STALLS.set(false);
                let _ = tell.send(Event::Returned(wrote.map_err(|e| e.to_string())));
                // A thread that ends returns its chain.
                let _ = ended.recv();
                player.close_all();
            });
            match told.recv().map_err(|e| e.to_string())? {
                Event::Returned(wrote) => wrote?,
                Event::Stalled => stalled = Some(writer),
            }
        }
        let point = super::cut_now(&simulator, &again, model);
        let _ = go_on.send(());
        drop(ends);
        Ok::<_, String>((point, stalled))
    })?;
    simulator.stop_stepping();
    let mut coverage = Coverage::default();
    coverage.add_sites(&simulator);
    let tree = |with_stalled: bool| {
        let model = model_like(&fs);
        let mut player = Player::new(&model);
        before(1).enumerate().try_for_each(|(i, op)| player.play(i + 1, &op)).ok()?;
        player.play(0, &grow()).and_then(|()| player.play(0, &open())).ok()?;
        let there = |writer: &usize| with_stalled || Some(*writer) != stalled;
        let wrote = (0..WRITERS).filter(there);
        wrote.into_iter().try_for_each(|w| player.play(10 + w, &write(page_of(w)))).ok()?;
        player.close_all();
        Tree::of(&model).ok().map(Arc::new)
    };
    let trees: Vec<Arc<Tree>> = [tree(false), tree(true)].into_iter().flatten().collect();
    volume.abandon();
    let cut = Cut { step: 0, returned: false, fence: 0, point, id: 1 };
    Ok((judge(variant, model, &cut, &trees), coverage))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_returned_beside_the_maker_of_a_block_of_heads_is_there() {
        for model in [Model::Ordered, Model::Process] {
            let (failure, _) = head_block_linked(Variant::Heddle, model).unwrap();
            assert!(failure.is_none(), "{}", failure.unwrap());
        }
    }
}
