//! Do the models see? Each row makes one access of the engine wrong and names the model that must fail for it.
//!
//! The fault is planted by place (`heddle_arena::sync::plant`): the engine's source carries no switch for it. Each is tried in a process
//! of its own, this test binary again, for a failed model may abort.

use heddle_arena::sync::plant::{REACHED, VARIABLE};
use std::process::Command;

/// A fault and the model that sees it.
struct Plant {
    model: &'static str,
    file: &'static str,
    source: &'static str,
    /// The access is the first `access` behind `behind`.
    behind: &'static str,
    access: &'static str,
    /// See `Fault`.
    fault: &'static str,
}

macro_rules! plants {
    ($($model:literal: $file:literal, $behind:literal, $access:literal => $fault:literal;)*) => {
        &[$(Plant {
            model: $model,
            file: concat!("nvmfs/src/", $file),
            source: include_str!(concat!("../", $file)),
            behind: $behind,
            access: $access,
            fault: $fault,
        }),*]
    };
}

const PLANTS: &[Plant] = plants! {
    "pages::a_page_is_read_whole_while_its_block_is_reused": "cell.rs", "pub fn lv(", ".load(Acquire)" => "relaxed";
    "pages::a_page_is_read_whole_while_its_block_is_reused": "cell.rs", "pub fn map(", ".load(Acquire)" => "relaxed";
    "pages::a_page_is_read_whole_while_its_block_is_reused": "cell.rs", "pub fn publish(", ".store(map.0, Release)" => "relaxed";
    "pages::a_page_is_read_whole_while_its_block_is_reused": "cell.rs", "pub fn unlock(", ".swap(" => "relaxed";
    "pages::a_page_is_read_whole_while_its_block_is_reused": "file/read.rs", "fn read_page(", "fence(Acquire)" => "skip";
    "pages::a_page_is_read_whole_while_its_block_is_reused": "file/heddle.rs", "fn write_page(", "region.fence()" => "skip";
    "pages::two_pages_written_by_one_call_are_never_seen_apart": "file/read.rs", "fn read_once(", "fence(Acquire)" => "skip";
    "pages::two_pages_written_by_one_call_are_never_seen_apart": "lane.rs", "pub fn state(", ".load(Acquire)" => "relaxed";
    "pages::two_pages_written_by_one_call_are_never_seen_apart": "lane.rs", "pub fn commit(", ".store(state & " => "relaxed";
    "pages::two_pages_written_by_one_call_are_never_seen_apart": "lane.rs", "pub fn commit(", ".store(state & " => "skip";
    "pages::a_later_write_is_never_seen_without_the_earlier_one": "lane.rs", "pub fn begin(", ".store(" => "keep=3";
    "pages::a_later_write_is_never_seen_without_the_earlier_one": "lane.rs", "pub fn begin(", ".store(" => "relaxed";
    "pages::a_later_write_is_never_seen_without_the_earlier_one": "lane.rs", "pub fn end(", ".store(" => "relaxed";
    "pages::overlapping_writers_take_turns_and_both_end": "cell.rs", "pub fn try_lock(", ".compare_exchange(" => "relaxed";
    "pages::writers_who_grow_the_index_at_once_find_each_others_pages": "index.rs", "fn raise_to(", ".compare_exchange(" => "relaxed";
};

impl Plant {
    fn line(&self) -> usize {
        let from = self.source.find(self.behind).unwrap_or_else(|| panic!("{}: no {}", self.file, self.behind));
        let at = self.source[from..].find(self.access);
        let at = from + at.unwrap_or_else(|| panic!("{}: no {} behind {}", self.file, self.access, self.behind));
        self.source[..at].lines().count()
    }

    /// What the model says of it: true, it failed.
    fn is_seen(&self) -> bool {
        let place = format!("{}:{}:{}", self.file, self.line(), self.fault);
        let mut run = Command::new(std::env::current_exe().unwrap());
        run.args([&format!("models::{}", self.model), "--exact", "--nocapture"]).env(VARIABLE, &place);
        let output = run.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains(REACHED), "{place}: {} never comes there:\n{text}", self.model);
        !output.status.success()
    }
}

#[test]
fn every_planted_fault_is_seen() {
    // A process that was given a fault is one of ours.
    if std::env::var_os(VARIABLE).is_some() {
        return;
    }
    let unseen = |plant: &&Plant| {
        let seen = plant.is_seen();
        println!("{} {}:{} {} by {}", if seen { "seen" } else { "NOT SEEN" }, plant.file, plant.line(), plant.fault, plant.model);
        !seen
    };
    let unseen: Vec<_> = PLANTS.iter().filter(unseen).map(|p| (p.file, p.line(), p.fault, p.model)).collect();
    assert!(unseen.is_empty(), "not seen: {unseen:#?}");
}
