//! Selects crash images when there are too many possible ones.
//!
//! Most crash bugs appear if just one or two stores are missing, or one came too early. They appear at the
//! grain of whole store operations (the record without its data) and at that of words (half a record). So
//! both grains are tried one at a time, then at random.

use std::collections::HashSet;

/// For each pending unit: true if it arrived.
pub(super) type Choice = Vec<bool>;

/// At most `limit` different choices over units, of which unit `i` is part of store operation `stores[i]`. `close`
/// makes a choice admissible.
pub(super) fn choices(stores: &[u64], limit: usize, seed: u64, close: impl Fn(&mut Choice)) -> Vec<Choice> {
    let units = stores.len();
    let mut found = Found { list: Vec::new(), seen: HashSet::new(), limit, close };
    if units < usize::BITS as usize - 1 && 1 << units <= limit {
        for bits in 0..1usize << units {
            found.add((0..units).map(|unit| bits >> unit & 1 == 1).collect());
        }
        return found.list;
    }
    found.add(vec![false; units]);
    found.add(vec![true; units]);
    let mut random = Random(seed);
    let mut operations: Vec<u64> = stores.to_vec();
    operations.dedup();
    let systematic = limit - limit / 4;
    random.shuffle(&mut operations);
    for alone in [true, false] {
        for operation in operations.iter().take(systematic / 4) {
            found.add(stores.iter().map(|store| (store == operation) == alone).collect());
        }
    }
    let mut order: Vec<usize> = (0..units).collect();
    random.shuffle(&mut order);
    for (single, alone) in order.iter().flat_map(|unit| [(*unit, true), (*unit, false)]) {
        if found.list.len() >= systematic {
            break;
        }
        found.add((0..units).map(|unit| (unit == single) == alone).collect());
    }
    // The model may admit far fewer images than there are choices; a limit of unsuccessful attempts ends the
    // search.
    for _ in 0..limit.saturating_mul(4) {
        let units_alone = random.next().is_multiple_of(4);
        found.add(random_choice(stores, &mut random, units_alone));
        if found.list.len() == limit {
            break;
        }
    }
    found.list
}

/// Each operation arrives whole, not at all, or torn at random; or every unit independently.
fn random_choice(stores: &[u64], random: &mut Random, units_alone: bool) -> Choice {
    let mut choice = Choice::with_capacity(stores.len());
    for operation in stores.chunk_by(|one, next| one == next) {
        let fate = if units_alone { 2 } else { random.next() % 3 };
        choice.extend(operation.iter().map(|_| match fate {
            0 => false,
            1 => true,
            _ => random.next() & 1 == 1,
        }));
    }
    choice
}

struct Found<C> {
    list: Vec<Choice>,
    seen: HashSet<Choice>,
    limit: usize,
    close: C,
}

impl<C: Fn(&mut Choice)> Found<C> {
    fn add(&mut self, mut choice: Choice) {
        (self.close)(&mut choice);
        if self.list.len() < self.limit && self.seen.insert(choice.clone()) {
            self.list.push(choice);
        }
    }
}

/// SplitMix64: a seed gives the same choices on every machine and for ever.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (1..items.len()).rev() {
            items.swap(end, (self.next() % (end as u64 + 1)) as usize);
        }
    }
}
