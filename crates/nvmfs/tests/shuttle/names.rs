//! Two directories: names are made, linked, removed, moved within and across, looked up and listed, all at once.

use crate::common::{Short, name, root};
use crate::linear::{Machine, has_order};
use crate::rig::{Dice, Event, History, disk, together, told};
use heddle_nvmfs::NvmFs;
use heddle_vfs::{Cookie, Error, FileSystem, Ino, OpenFlags};
use std::collections::{BTreeMap, BTreeSet};

const NAMES: [&str; 3] = ["a", "b", "c"];

/// Which calls.
#[derive(Clone, Copy)]
pub enum Mix {
    /// All of them, on six names.
    All,
    /// One thread moves a file to and fro between two names, two look both up: it is never at both, and never gone.
    Moves,
}

/// A directory (0 or 1) and a name.
type Place = (usize, &'static str);

#[derive(Clone, Debug)]
pub enum Op {
    Create(Place),
    Unlink(Place),
    Rename(Place, Place),
    Lookup(Place),
    List(usize),
    /// Was the name listed?
    Listed(Place, bool),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// The inode that was made or found.
    Inode(u64),
    Exists,
    NotFound,
    Names(BTreeSet<String>),
}

/// What each name means.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Tree(BTreeMap<Place, u64>);

impl Machine for Tree {
    type Op = Op;
    type Outcome = Outcome;

    fn after(&self, op: &Op, outcome: &Outcome) -> Option<Tree> {
        let mut next = self.clone();
        let said = match *op {
            Op::Create(place) => match (self.0.get(&place), outcome) {
                (Some(_), _) => Outcome::Exists,
                (None, Outcome::Inode(made)) if !self.0.values().any(|known| known == made) => {
                    next.0.insert(place, *made);
                    outcome.clone()
                }
                (None, _) => return None,
            },
            Op::Unlink(place) => match next.0.remove(&place) {
                Some(_) => Outcome::Done,
                None => Outcome::NotFound,
            },
            Op::Rename(from, to) => match next.0.remove(&from) {
                Some(ino) => {
                    next.0.insert(to, ino);
                    Outcome::Done
                }
                None => Outcome::NotFound,
            },
            Op::Lookup(place) => self.0.get(&place).map_or(Outcome::NotFound, |ino| Outcome::Inode(*ino)),
            Op::Listed(place, listed) if self.0.contains_key(&place) == listed => Outcome::Done,
            Op::Listed(..) | Op::List(_) => return None,
        };
        (said == *outcome).then_some(next)
    }
}

fn place(dice: &mut Dice) -> Place {
    (dice.below(2) as usize, NAMES[dice.below(3) as usize])
}

fn any(dice: &mut Dice) -> Op {
    let (one, other) = (place(dice), place(dice));
    match dice.below(10) {
        0..3 => Op::Create(one),
        3..5 => Op::Unlink(one),
        5..7 => Op::Rename(one, other),
        7..9 => Op::Lookup(one),
        _ => Op::List(one.0),
    }
}

/// Where a file is at first, if there is one, and what each thread does.
fn programs(dice: &mut Dice, mix: Mix) -> (Option<Place>, [Vec<Op>; 3]) {
    match mix {
        Mix::All => (None, std::array::from_fn(|_| (0..5).map(|_| any(dice)).collect())),
        Mix::Moves => {
            let ends = [(0, "a"), (1 - dice.below(2) as usize, "b")];
            let moves = (0..3).map(|n| Op::Rename(ends[n % 2], ends[1 - n % 2])).collect();
            let mut looks = || (0..4).map(|_| Op::Lookup(ends[dice.below(2) as usize])).collect();
            (Some(ends[0]), [moves, looks(), looks()])
        }
    }
}

fn listed(fs: &NvmFs, dir: Ino) -> BTreeSet<String> {
    let handle = fs.open(&root(), dir, OpenFlags::READ).unwrap();
    let mut names = BTreeSet::new();
    fs.each_entry(&handle, Cookie::default(), &mut |entry| {
        let fresh = names.insert(String::from_utf8(entry.name.bytes().to_vec()).unwrap());
        assert!(fresh, "a name is listed twice");
        true
    })
    .unwrap();
    fs.release(handle);
    names
}

/// Makes a file; its number.
fn made(fs: &NvmFs, dir: Ino, text: &str) -> Result<u64, Error> {
    let handle = fs.try_file(dir, text)?;
    let ino = handle.ino.0;
    fs.release(handle);
    Ok(ino)
}

fn make(fs: &NvmFs, dirs: [Ino; 2], op: &Op) -> Outcome {
    let done = |result: Result<(), Error>| match result {
        Ok(()) => Outcome::Done,
        Err(Error::NotFound) => Outcome::NotFound,
        Err(error) => panic!("{op:?}: {error:?}"),
    };
    match *op {
        Op::Create(place) => match made(fs, dirs[place.0], place.1) {
            Ok(ino) => Outcome::Inode(ino),
            Err(Error::Exists) => Outcome::Exists,
            Err(error) => panic!("{op:?}: {error:?}"),
        },
        Op::Unlink(place) => done(fs.unlink(&root(), dirs[place.0], name(place.1))),
        Op::Rename(from, to) => done(fs.replace((dirs[from.0], from.1), (dirs[to.0], to.1))),
        Op::Lookup(place) => match fs.find(dirs[place.0], place.1) {
            Ok(attr) => Outcome::Inode(attr.ino.0),
            Err(Error::NotFound) => Outcome::NotFound,
            Err(error) => panic!("{op:?}: {error:?}"),
        },
        Op::List(dir) => Outcome::Names(listed(fs, dirs[dir])),
        Op::Listed(..) => unreachable!("made of a list afterwards"),
    }
}

/// A listing is not one moment: of each name by itself it says whether it was there at some moment of the call.
fn name_by_name(events: Vec<Event<Op, Outcome>>) -> Vec<Event<Op, Outcome>> {
    let one = |event: Event<Op, Outcome>| match (&event.op, &event.outcome) {
        (Op::List(dir), Outcome::Names(names)) => NAMES
            .map(|text| {
                let op = Op::Listed((*dir, text), names.contains(text));
                Event { op, outcome: Outcome::Done, ..event.clone() }
            })
            .to_vec(),
        _ => vec![event],
    };
    events.into_iter().flat_map(one).collect()
}

/// One program of three threads.
pub fn run(mut dice: Dice, mix: Mix) {
    let variant = dice.variant();
    let (disk, volume) = disk(variant);
    let fs = volume.fs();
    let dirs = ["d", "e"].map(|text| fs.new_dir(Ino::ROOT, text));
    let (file, programs) = programs(&mut dice, mix);
    let start = Tree(file.into_iter().map(|at| (at, made(&fs, dirs[at.0], at.1).unwrap())).collect());
    let history = History::new();
    let (calls, of) = (history.clone(), fs.clone());
    together(programs.into(), move |thread, program| {
        program.iter().for_each(|op| calls.record(thread, op, || make(&of, dirs, op)));
    });
    let looks = || (0..2).flat_map(|dir| NAMES.map(|text| Op::Lookup((dir, text))));
    for look in looks() {
        history.record(0, &look, || make(&fs, dirs, &look));
    }
    let events = name_by_name(history.events());
    assert!(
        has_order(start, &events),
        "{variant:?}: no order of these calls explains them:\n{}",
        told(&events)
    );
    let all = |fs: &NvmFs| -> Vec<Outcome> { looks().map(|look| make(fs, dirs, &look)).collect() };
    let now = all(&fs);
    drop(fs);
    if dice.below(2) == 0 {
        volume.abandon()
    } else {
        volume.unmount()
    }
    let volume = disk.mount();
    assert_eq!(all(&volume.fs()), now, "{variant:?}: other names after the remount");
    volume.unmount();
}

pub fn refuses_two_winners() {
    let made = |call, ino| Event {
        thread: 0,
        call,
        back: 9,
        op: Op::Create((0, "a")),
        outcome: Outcome::Inode(ino),
    };
    assert!(has_order(Tree::default(), &[made(0, 5)]));
    assert!(!has_order(Tree::default(), &[made(0, 5), made(1, 6)]));
}
