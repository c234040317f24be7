//! Parts of settling by themselves: what is found by a position, what is given back, and what is said.

use super::super::{chains, give_blocks, inode_of_latch, lanes, living, sweep};
use super::*;
use crate::format::inode::CHUNK_INODES;
use crate::format::pointer::{self, PointerLocation};
use crate::ids::{BlockNo, Extent};
use crate::log::chain;
use crate::state::free_map::Purpose;
use crate::state::inode::VolatileInode;
use crate::upkeep::settle::StillInside;
use crate::volume::bench::child;
use heddle_vfs::short::Short;
use std::sync::atomic::Ordering::SeqCst;

fn end(bench: Bench) {
    bench.volume.fs().release(bench.file);
    lease::leave(&bench.volume.fs().core);
    bench.volume.unmount();
}

#[test]
fn processes_that_are_still_inside_are_named() {
    let said = |processes: &[u32]| StillInside { processes: processes.to_vec() }.to_string();
    for (processes, who) in [
        (&[][..], "a process whose number is not known"),
        (&[7], "process 7"),
        (&[7, 8], "each of the processes 7, 8"),
    ] {
        assert!(said(processes).starts_with(&format!("{who} was still in a call after 10 seconds")), "{who}");
    }
}

#[test]
fn the_latch_of_a_file_is_found_by_its_position_alone() {
    let bench = bench();
    let fs = bench.volume.fs();
    (0..70).for_each(|n| fs.release(fs.new_file(Ino::ROOT, &n.to_string())));
    let core = &fs.core;
    let numbers = 1..core.chunks().len() as u64 * CHUNK_INODES;
    let all: Vec<_> = numbers.filter_map(|ino| core.slot(Ino(ino))).collect();
    assert!(all.len() > 70 && all[70].ino.0 >= CHUNK_INODES, "they are in several chunks");
    let found = |at| inode_of_latch(core, at).map(|inode| inode.ino);
    for inode in &all {
        let at = core.arena.offset_of(&inode.volatile.eof).raw();
        assert_eq!(found(at), Some(inode.ino));
        assert_eq!([at - 1, at + 1, at + 8].map(found), [None; 3]);
    }
    let last = core.arena.offset_of(&all.last().unwrap().volatile.eof).raw();
    assert_eq!([0, last + size_of::<VolatileInode>() as u64, u64::MAX].map(found), [None; 3]);
    drop(fs);
    end(bench);
}

#[test]
fn an_inode_lives_from_its_birth_to_its_end() {
    let bench = bench();
    let fs = bench.volume.fs();
    let gone = fs.new_file(Ino::ROOT, "g");
    let ino = gone.ino.0;
    let lives = |ino| living(&fs.core, ino).map(|inode| inode.ino.0);
    assert_eq!(lives(ino), Some(ino));
    fs.remove(Ino::ROOT, "g").unwrap();
    fs.release(gone);
    assert_eq!([0, ino, 1 << 40].map(lives), [None; 3]);
    drop(fs);
    end(bench);
}

#[test]
fn blocks_of_the_dead_come_back_once_however_often_they_are_noted() {
    let bench = bench();
    let fs = bench.volume.fs();
    let core = &fs.core;
    let guard = lease::enter(core).unwrap();
    let (mut cursor, mut taken) = (0, Vec::new());
    assert!(core.free_map().take(&mut cursor, 8, Purpose::Regain, &mut taken));
    let Extent { block: BlockNo(first), count: 8 } = taken[0] else { panic!("{taken:?}") };
    let mut give = |garbage| {
        give_blocks(core, guard.own, guard.lane, garbage, guard.id);
        core.free_map().count()
    };
    let before = give(Vec::new());
    let extent = |block, count| Extent { block: BlockNo(block), count };
    let after = give(vec![
        extent(first + 2, 4),
        extent(first, 4),
        extent(first + 1, 1),
        extent(first + 7, 0),
        // Forged ones.
        extent(core.layout.blocks_total, 3),
        extent(core.layout.blocks_total - 1, 64),
        extent(0, 1),
    ]);
    assert_eq!(after, before + 6);
    assert_eq!(give(vec![extent(first, 6), extent(first + 6, 2)]), before + 8, "free ones stay free");
    drop(guard);
    drop(fs);
    end(bench);
}

/// The dead may have used a number without counting it; and numbers that somebody scribbled must fit their fields of 60 bits.
#[test]
fn numbers_that_the_dead_may_have_used_are_passed_over() {
    for (number, next) in [(41, 42), ((1 << 60) - 2, (1 << 60) - 1), (1 << 60 | 5, 6), (u64::MAX, 0)] {
        let bench = bench();
        let fs = bench.volume.fs();
        let core = &fs.core;
        let pid = child(|| {
            let guard = lease::enter(core).unwrap();
            (guard.own.page_serial, guard.own.inode_serial) = (number, number);
            // SAFETY: ends this process.
            unsafe { libc::_exit(3) };
        });
        assert_eq!(libc::WEXITSTATUS(ended(pid, 0)), 3);
        let of_child = |lane: &u16| core.lane(*lane).intent.holder.load(SeqCst) >> 32 == pid as u64;
        let lane = lanes(core).find(of_child).unwrap();
        sweep(core);
        // SAFETY: nobody has the lane.
        let own = unsafe { core.lane(lane).own() };
        assert_eq!((own.page_serial, own.inode_serial), (next, next), "after {number}");
        drop(fs);
        end(bench);
    }
}

#[test]
fn the_head_of_a_chain_is_what_the_media_says() {
    let bench = bench();
    let fs = bench.volume.fs();
    let core = &fs.core;
    let inode = core.inode(bench.file.ino).unwrap();
    let chain = chain::existing(core, inode).next().unwrap();
    let all = core.arena.get(inode.volatile.chains.load(SeqCst));
    let (at, number) = (chain::head_pos(core, inode, all, chain.number()), chain.number());
    let (word, head) = (core.region.load_u64(at), chain.head().unwrap());
    let says = |word| {
        core.region.store_u64(at, word);
        chains::head_on_media(core, inode, chain).map_err(|damage| damage.0)
    };
    let wrong = Err(format!("inode {}: the pointer to chain {number} is wrong", inode.ino.0));
    let location = PointerLocation::Head(number);
    let outside = pointer::encode(core.seed, inode.id(), location, BlockNo(core.layout.blocks_total));
    assert_eq!(says(0), Ok(None));
    assert_eq!([outside, word ^ 1].map(says), [wrong.clone(), wrong]);
    assert_eq!(says(word), Ok(Some(head)));
    drop(fs);
    end(bench);
}
