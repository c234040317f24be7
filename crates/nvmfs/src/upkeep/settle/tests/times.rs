//! A call that changes attributes dies, and a write comes before anybody settles it: what is left of the times.

use super::{Bench, CALLS, PAGE, bench, dies};
use crate::file::resize::{self, NewAttributes};
use crate::state::lease;
use crate::steps::hook;
use crate::upkeep::settle::sweep;
use heddle_vfs::{Cred, FileSystem, SetAttr, SetTime, Time};
use std::time::Duration;

fn mtime(bench: &Bench) -> Time {
    let fs = bench.volume.fs();
    let inode = fs.core.inode(bench.file.ino).unwrap();
    inode.volatile.times()[0]
}

fn end(bench: Bench) {
    hook::set(None);
    bench.volume.fs().release(bench.file);
    bench.volume.unmount();
}

#[test]
fn settling_a_dead_change_of_attributes_sets_no_later_write_back() {
    for (what, call) in
        CALLS.iter().filter(|(what, _)| ["cuts in a page", "grows", "changes the mode"].contains(what))
    {
        let mut deaths = 0;
        for nth in 1.. {
            let bench = bench();
            let fs = bench.volume.fs();
            if !dies(nth, || call(&fs, &bench.file)) {
                drop(fs);
                end(bench);
                break;
            }
            deaths += 1;
            // The clock of writes has ticked.
            std::thread::sleep(Duration::from_millis(10));
            // It needs nothing that the dead call holds.
            fs.write(&bench.file, 0, &[7; PAGE as usize]).unwrap();
            let written = mtime(&bench);
            sweep(&fs.core);
            assert_eq!(mtime(&bench), written, "{what}, step {nth}");
            drop(fs);
            end(bench);
        }
        assert!(deaths > 1, "{what}: it died in {deaths} steps");
    }
}

/// A settler applied the record again, over what others had done since the latch was free, if the holder died later in the call.
#[test]
fn attributes_that_are_visible_are_not_settled_again() {
    let bench = bench();
    let fs = bench.volume.fs();
    let inode = fs.core.inode(bench.file.ino).unwrap();
    let mut guard = lease::enter(&fs.core).unwrap();
    let eof = inode.volatile.eof.lock();
    let new = NewAttributes { size: Some(20 * PAGE), ..NewAttributes::default() };
    resize::set_attributes(&fs.core, &mut guard, inode, &new).unwrap();
    assert_eq!(guard.lane.intent.log(), None);
    drop((eof, guard));
    drop(fs);
    end(bench);
}

#[test]
fn settling_a_dead_utimens_sets_the_time_that_it_was_given() {
    let given = Time::from_parts(1_000_000, 5);
    let mut seen = Vec::new();
    for nth in 1.. {
        let bench = bench();
        let fs = bench.volume.fs();
        let before = mtime(&bench);
        let set = SetAttr { mtime: Some(SetTime::At(given)), ..SetAttr::default() };
        let died = dies(nth, || {
            fs.setattr(&Cred::root(), bench.file.ino, None, &set).unwrap();
        });
        sweep(&fs.core);
        let after = mtime(&bench);
        assert!(after == before || after == given, "step {nth}: {after:?}");
        seen.push(after == given);
        drop(fs);
        end(bench);
        if !died {
            break;
        }
    }
    assert_eq!(seen.last(), Some(&true), "the call that nobody ended");
    assert!(seen.len() > 1 && seen[seen.len() - 2], "the call that died after its record was durable");
}
