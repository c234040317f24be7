//! One moment at which the power is cut, and which of its images are looked at.
//!
//! State       a [`Cut`]: what is sure and what is pending. [`explore`] forms images from it, in this order: nothing that is pending
//!             arrived; all of it did; then, over the stores that recovery looked at, every subset if they are few; else one
//!             alone and all but one, whole store operations first, then two; then random ones. Under a model that keeps the order of
//!             stores: all there are, one a word that was stored.
//! Pruning     an image that agrees with a checked one on every word that was looked at while that one was checked would behave the
//!             same: it counts as a state, and is not mounted. What was looked at is known exactly (`pmem::Probe`).
//! Source      Chipmunk (few missing stores suffice), Vinter (only what recovery reads matters), protocol in docs/crash.md.

use heddle_pmem::{CrashPoint, Pos};
use std::collections::HashSet;

/// A moment at which the power is cut.
pub struct Cut {
    /// Which of the workload's watched steps was running, or had just returned.
    pub step: usize,
    /// It had returned.
    pub returned: bool,
    /// Which fence of that step it was, from 1.
    pub fence: u64,
    /// What is sure and what is pending.
    pub point: CrashPoint<'static>,
    /// Tells cuts apart.
    pub id: u64,
}

/// How many images.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Images that are chosen in order, at most.
    pub ordered: usize,
    /// Images that are chosen at random besides.
    pub random: usize,
    /// Which.
    pub seed: u64,
}

/// Which pending stores arrived.
pub type Choice = Vec<bool>;

/// What was looked at while an image was checked: the pending stores (by place) whose words were read.
pub struct Looked {
    /// Sorted.
    pub units: Vec<usize>,
}

/// How much was looked at.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Explored {
    /// Different images that were formed.
    pub states: u64,
    /// Those that were mounted.
    pub images: u64,
}

/// Checks one image: the choice, and the words in which it differs from the point's memory. `None` ends the search.
pub type Check<'a> = &'a mut dyn FnMut(&Choice, &[(Pos, u64)]) -> Option<Looked>;

/// Forms the images of a cut and has them checked.
pub fn explore(cut: &Cut, bounds: Bounds, check: Check<'_>) -> Explored {
    let stores: Vec<u64> = cut.point.pending().map(|p| p.store).collect();
    let mut search = Search {
        cut,
        check,
        seen: HashSet::new(),
        checked: Vec::new(),
        relevant: vec![false; stores.len()],
        explored: Explored::default(),
        ended: false,
    };
    if cut.point.model().keeps_order() {
        search.word_by_word();
        return search.explored;
    }
    search.try_one(|_| false);
    search.try_one(|_| true);
    search.in_order(&stores, bounds.ordered);
    search.at_random(&stores, bounds);
    search.explored
}

struct Search<'a> {
    cut: &'a Cut,
    check: Check<'a>,
    seen: HashSet<Choice>,
    /// What was looked at, and how it was.
    checked: Vec<(Vec<usize>, Vec<bool>)>,
    relevant: Vec<bool>,
    explored: Explored,
    ended: bool,
}

impl Search<'_> {
    fn try_one(&mut self, arrived: impl FnMut(usize) -> bool) {
        if self.ended {
            return;
        }
        let choice = self.cut.point.choose(arrived);
        if !self.seen.insert(choice.clone()) {
            return;
        }
        self.explored.states += 1;
        let known = self
            .checked
            .iter()
            .any(|(units, values)| units.iter().zip(values).all(|(u, v)| choice[*u] == *v));
        if known {
            return;
        }
        self.explored.images += 1;
        let Some(looked) = (self.check)(&choice, &self.cut.point.words(&choice)) else {
            self.ended = true;
            return;
        };
        looked.units.iter().for_each(|unit| self.relevant[*unit] = true);
        let values = looked.units.iter().map(|unit| choice[*unit]).collect();
        self.checked.push((looked.units, values));
    }

    /// A word that was not looked at in the image before it makes no other image.
    fn word_by_word(&mut self) {
        let mut looked: Option<Vec<usize>> = None;
        for arrived in 0..=self.relevant.len() {
            self.explored.states += 1;
            if looked.as_ref().is_some_and(|units| units.binary_search(&(arrived - 1)).is_err()) {
                continue;
            }
            let choice: Choice = (0..self.relevant.len()).map(|unit| unit < arrived).collect();
            self.explored.images += 1;
            let Some(now) = (self.check)(&choice, &self.cut.point.words(&choice)) else { return };
            looked = Some(now.units);
        }
    }

    fn relevant(&self) -> Vec<usize> {
        (0..self.relevant.len()).filter(|unit| self.relevant[*unit]).collect()
    }

    /// Each pass may show that more is looked at than was known; then it begins again.
    fn in_order(&mut self, stores: &[u64], limit: usize) {
        loop {
            let units = self.relevant();
            if units.len() < 24 && 1usize << units.len() <= limit {
                for bits in 0..1usize << units.len() {
                    let on = |unit: usize| units.binary_search(&unit).is_ok_and(|i| bits >> i & 1 == 1);
                    self.try_one(on);
                }
            } else {
                self.few_missing(stores, &units, limit);
            }
            if self.ended || self.relevant() == units || self.explored.states as usize >= limit {
                return;
            }
        }
    }

    /// The smallest store operations first: these are records, lists and marks; a large one is data, of which the next page tells little.
    fn few_missing(&mut self, stores: &[u64], units: &[usize], limit: usize) {
        let mut by_size: Vec<&[usize]> = units.chunk_by(|one, next| stores[*one] == stores[*next]).collect();
        by_size.sort_by_key(|operation| operation.len());
        let operations: Vec<u64> = by_size.iter().map(|operation| stores[operation[0]]).collect();
        let units = &by_size.concat();
        for alone in [true, false] {
            for operation in &operations {
                if self.explored.states as usize >= limit {
                    return;
                }
                self.try_one(|unit| (stores[unit] == *operation) == alone);
            }
        }
        for alone in [false, true] {
            for single in units {
                if self.explored.states as usize >= limit {
                    return;
                }
                self.try_one(|unit| (unit == *single) == alone);
            }
        }
        for alone in [false, true] {
            for (i, first) in units.iter().enumerate() {
                for second in &units[i + 1..] {
                    if self.explored.states as usize >= limit {
                        return;
                    }
                    self.try_one(|unit| (unit == *first || unit == *second) == alone);
                }
            }
        }
    }

    fn at_random(&mut self, stores: &[u64], bounds: Bounds) {
        let mut random = Random::new(bounds.seed ^ self.cut.id.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        // The model may admit fewer images than there are choices; a bound on fruitless tries ends the search.
        let wanted = self.explored.states + bounds.random as u64;
        for _ in 0..bounds.random * 2 {
            if self.ended || self.explored.states >= wanted || stores.is_empty() {
                return;
            }
            let choice = random_choice(stores, &mut random);
            self.try_one(|unit| choice[unit]);
        }
    }
}

/// Each operation arrived whole, not at all, or torn at random; or every store to a word for itself.
fn random_choice(stores: &[u64], random: &mut Random) -> Choice {
    let words_alone = random.below(4) == 0;
    let mut choice = Choice::with_capacity(stores.len());
    for operation in stores.chunk_by(|one, next| one == next) {
        let fate = if words_alone { 2 } else { random.below(3) };
        choice.extend(operation.iter().map(|_| match fate {
            0 => false,
            1 => true,
            _ => random.below(2) == 1,
        }));
    }
    choice
}

/// SplitMix64: a seed gives the same choices on every machine and for ever.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// From a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `limit`, which is not 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.number() % limit
    }
}

/// A choice as text: `none`, `all`, or the stores that arrived as `0-3,7`.
pub fn choice_text(choice: &Choice) -> String {
    if choice.iter().all(|c| *c) {
        return "all".into();
    }
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for unit in (0..choice.len()).filter(|unit| choice[*unit]) {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == unit => *last = unit,
            _ => runs.push((unit, unit)),
        }
    }
    let texts: Vec<String> =
        runs.iter().map(|(a, b)| if a == b { a.to_string() } else { format!("{a}-{b}") }).collect();
    if texts.is_empty() { "none".into() } else { texts.join(",") }
}

/// What [`choice_text`] wrote, for so many pending stores.
///
/// # Errors
/// What is wrong with it.
pub fn read_choice(text: &str, units: usize) -> Result<Choice, String> {
    match text {
        "all" => return Ok(vec![true; units]),
        "none" => return Ok(vec![false; units]),
        _ => {}
    }
    let mut choice = vec![false; units];
    for run in text.split(',') {
        let (from, to) = run.split_once('-').unwrap_or((run, run));
        let number = |s: &str| {
            s.parse::<usize>().map_err(|_| format!("{run}: stores are written all, none, or 0-3,7"))
        };
        let (from, to) = (number(from)?, number(to)?);
        if from > to || to >= units {
            return Err(format!("{run}: there are {units} pending stores at that point, from 0 on"));
        }
        choice[from..=to].fill(true);
    }
    Ok(choice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_pmem::{Model, Region};

    fn cut(store: impl FnOnce(&Region)) -> Cut {
        let (region, simulator) = Region::simulated(8192);
        store(&region);
        Cut { step: 0, returned: false, fence: 1, point: simulator.crash_point(), id: 1 }
    }

    const BOUNDS: Bounds = Bounds { ordered: 1 << 10, random: 0, seed: 1 };

    #[test]
    fn all_subsets_of_what_is_looked_at_are_checked_and_nothing_else() {
        let cut = cut(|region| {
            region.nt_write(Pos(0), &[1; 4096]);
            region.nt_line(Pos(4096), &[1, 2, 3, 0, 0, 0, 0, 0]);
        });
        let mut images = HashSet::new();
        let explored = explore(&cut, BOUNDS, &mut |choice, _| {
            images.insert(choice[512..].to_vec());
            Some(Looked { units: vec![512, 513, 514] })
        });
        assert_eq!((explored.images, images.len()), (8, 8));
    }

    #[test]
    fn the_process_model_cuts_between_all_words_in_their_order() {
        for model in [Model::Eadr, Model::Process] {
            let (region, simulator) = Region::simulated(8192);
            simulator.set_model(model);
            region.nt_line(Pos(4096), &[1, 2, 3, 4, 0, 0, 0, 0]);
            region.store_u64(Pos(0), 5);
            region.nt_line(Pos(128), &[6; 8]);
            let cut = Cut { step: 0, returned: false, fence: 1, point: simulator.crash_point(), id: 1 };
            let mut tried = Vec::new();
            let few = Bounds { ordered: 1, random: 1, seed: 1 };
            let explored = explore(&cut, few, &mut |choice, _| {
                tried.push(choice.iter().filter(|arrived| **arrived).count());
                assert!(choice.is_sorted_by(|one, next| one >= next), "a word without one stored before it");
                Some(Looked { units: vec![0, 1, 2, 4] })
            });
            assert_eq!((tried, explored.states), (vec![0, 1, 2, 3, 5], 14));
            region.fence();
            assert_eq!(simulator.crash_point().pending_units(), 0);
        }
    }

    /// An extent list behind as many pages as there are images: where it lay decided whether it was tried.
    #[test]
    fn a_small_store_is_tried_before_many_large_ones() {
        let cut = cut(|region| {
            region.nt_write(Pos(0), &[1; 4096]);
            region.store_u64(Pos(4096), 1);
        });
        let mut tried = Vec::new();
        explore(&cut, Bounds { ordered: 3, random: 0, seed: 1 }, &mut |choice, _| {
            tried.push(choice[512] && !choice[0]);
            Some(Looked { units: (0..513).collect() })
        });
        assert_eq!(tried, [false, false, true], "none, all, then the word alone");
    }

    #[test]
    fn what_one_image_alone_makes_recovery_look_at_is_found() {
        let cut = cut(|region| region.nt_write(Pos(0), &[1; 4096]));
        let mut deep = 0;
        explore(&cut, BOUNDS, &mut |choice, _| {
            deep += u64::from(choice[0] && choice[1] && !choice[2]);
            let units = match (choice[0], choice[1]) {
                (false, _) => vec![0],
                (true, false) => vec![0, 1],
                (true, true) => vec![0, 1, 2],
            };
            Some(Looked { units })
        });
        assert!(deep > 0);
    }

    #[test]
    fn many_units_are_sampled_repeatably_for_a_seed() {
        let cut = cut(|region| (0..40).for_each(|i| region.nt_line(Pos(i * 64), &[1; 8])));
        let run = |seed| {
            let mut seen = Vec::new();
            let bounds = Bounds { ordered: 700, random: 300, seed };
            let explored = explore(&cut, bounds, &mut |choice, _| {
                seen.push(choice.clone());
                Some(Looked { units: (0..320).collect() })
            });
            assert!(explored.states > 900, "{explored:?}");
            seen
        };
        let seen = run(3);
        assert!(seen.iter().any(|c| c.iter().filter(|a| **a).count() == 8), "one operation alone");
        assert!(seen.iter().any(|c| c.iter().filter(|a| !**a).count() == 1), "one word missing");
        assert_eq!(seen, run(3));
        assert_ne!(seen, run(4));
    }

    #[test]
    fn a_choice_is_written_and_read() {
        for choice in [vec![true; 5], vec![false; 5], vec![true, true, false, true, false]] {
            assert_eq!(read_choice(&choice_text(&choice), 5).unwrap(), choice);
        }
        assert!(
            read_choice("0-9", 5).is_err() && read_choice("x", 5).is_err() && read_choice("3-1", 5).is_err()
        );
    }
}
