//! One power cut, and the choice of images that are checked for it.
//!
//! State       a [`Cut`]: the durable bytes and the pending stores. [`explore`] forms images from it in this order: no pending store
//!             arrived; all arrived; then, over the stores that recovery read, every subset if they are few. Otherwise each store
//!             operation arrives alone or is missing alone, then each word, then each two words; then random ones. A model that keeps the
//!             order of stores has only one image per stored word: all are formed.
//! Pruning     if an image agrees with a checked image on every word that was read during that check, it would behave the same: it
//!             counts as a state and is not mounted. The words read are known exactly (`pmem::Probe`).
//! Source      Chipmunk (few missing stores suffice), Vinter (only what recovery reads matters), protocol in docs/crash.md.

use heddle_pmem::{CrashPoint, Pos};
use std::collections::HashSet;
use std::ops::RangeInclusive;

/// One power cut.
pub struct Cut {
    /// The watched step of the workload that was running, or had just returned.
    pub step: usize,
    /// True if the step had returned.
    pub returned: bool,
    /// Number of the fence in that step, from 1; 0 after its return.
    pub fence: u64,
    /// The durable bytes and the pending stores.
    pub point: CrashPoint<'static>,
    /// Identifies the cut.
    pub id: u64,
}

/// Limits on the number of images.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Limit on states chosen systematically.
    pub ordered: usize,
    /// Limit on further states chosen at random.
    pub random: usize,
    /// Seed of the random choice.
    pub seed: u64,
}

/// The pending stores that arrived.
pub type Choice = Vec<bool>;

/// The pending stores whose words were read while an image was checked, by their index in `CrashPoint::pending`.
pub struct Looked {
    /// Sorted.
    pub units: Vec<usize>,
}

/// The counts of a search.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Explored {
    /// Number of different images formed.
    pub states: u64,
    /// Number of images, that is of checked states. An image that equals an earlier one is not mounted again.
    pub images: u64,
}

/// Checks one image, given by the choice and the words that differ from the point's memory. Returning `None`
/// ends the search.
pub type Check<'a> = &'a mut dyn FnMut(&Choice, &[(Pos, u64)]) -> Option<Looked>;

/// Forms the images of a cut and checks them.
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
    /// The stores that each check read, and their state then.
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

    /// A word that the check of the previous image did not read makes no new image.
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

    /// A pass may read stores that were not known to be read; then it starts again.
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

    /// The smallest store operations first: they are records, lists and marks. A large one is data, whose
    /// next page tells little more.
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
        // The model may admit fewer images than there are choices, so the number of fruitless tries is
        // bounded.
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

/// Each operation arrived completely, not at all, or torn at random; or each store is chosen separately.
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

/// SplitMix64: a seed gives the same choices on every machine.
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

/// Parses the text of [`choice_text`] for so many pending stores.
///
/// # Errors
/// A description of what is wrong with it.
pub fn read_choice(text: &str, units: usize) -> Result<Choice, String> {
    match text {
        "all" => return Ok(vec![true; units]),
        "none" => return Ok(vec![false; units]),
        _ => {}
    }
    let mut choice = vec![false; units];
    for run in read_runs(text)? {
        if *run.end() >= units {
            return Err(format!("{}: there are {units} pending stores at that point, from 0 on", run.end()));
        }
        choice[run].fill(true);
    }
    Ok(choice)
}

/// The stores of `0-3,7`.
///
/// # Errors
/// A description of what is wrong with it.
pub fn read_runs(text: &str) -> Result<Vec<RangeInclusive<usize>>, String> {
    let read = |run: &str| {
        let (from, to) = run.split_once('-').unwrap_or((run, run));
        let (from, to): (usize, usize) = (from.parse().ok()?, to.parse().ok()?);
        (from <= to).then_some(from..=to)
    };
    let read_or_told =
        |run| read(run).ok_or_else(|| format!("{run}: stores are written all, none, or 0-3,7"));
    text.split(',').map(read_or_told).collect()
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

    /// An extent list behind as many pages as there are images was once tried or not, depending on its
    /// address.
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
