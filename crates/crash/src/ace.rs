//! All short sequences of operations.
//!
//! Each sequence starts from the same small tree. In a sequence of two, the power is cut only in the second
//! operation: sequences of one have tested the first. Sequences of three are drawn at random and cut in the
//! third.
//!
//! Source      ACE (CrashMonkey, OSDI'18) and the sequences shipped with Chipmunk, which have 56 operations; the set here is our own.

use crate::cut::Random;
use crate::op::{Step, Workload};
use crate::text;

/// The tree before the first operation.
const TREE: &str = "\
mkdir /A
mkdir /B
mkdir /C
create /foo
write /foo 0 21180
create /bar
create /A/foo
write /A/foo 0 8192
create /A/bar
append /A/bar 100
create /B/foo
open /foo one
open /foo two
";

/// The operations.
const OPERATIONS: &str = "\
create /new
create /A/new
mkdir /D
mkdir /A/D
write /foo 0 4096
write /foo 4096 8192
write /foo 100 50
write /foo 1000 8192
write /foo 21000 5000
write /foo 40960 4096
write /foo 0 1
write /bar 3 17
write /A/foo 0 4096
write /A/bar 4000 200
append /foo 100
append /bar 4096
append /A/foo 5000
truncate /foo 0
truncate /foo 5000
truncate /foo 8192
truncate /foo 30000
truncate /A/foo 100
fallocate /foo allocate 20480 8192
fallocate /foo keep 20480 8192
fallocate /bar keep 0 16384
fallocate /foo punch 4096 8192
fallocate /foo punch 100 5000
fallocate /foo punch 20480 4096
fallocate /foo zero 4096 4096
fallocate /foo zero 20000 8192
fallocate /foo zero-keep 20000 8192
link /foo /hard
link /foo /A/hard
link /A/foo /B/hard
unlink /foo
unlink /bar
unlink /A/foo
unlink /A/bar
rename /foo /new
rename /foo /bar
rename /bar /foo
rename /foo /A/new
rename /foo /A/foo
rename /A/foo /B/foo
rename /A/foo /new
rename /A /D
rename /A /B/A
rename /C /A/C
rename /B /C
exchange /foo /bar
exchange /foo /A/foo
exchange /A /foo
symlink /foo /sym
symlink {../B/foo/*90} /A/sym
rmdir /C
rmdir /B
mode /foo 0600
mode /A 0700
owner /foo 7 8
times /foo 5
setxattr /foo user.a value
setxattr /A user.long {v*300}
write one 8000 300
append two 4000
truncate two 4097
fallocate two keep 8192 40960
fsync /foo
sync
remount
";

/// The tree before the first operation.
pub fn tree() -> Vec<Step> {
    part(TREE)
}

/// All operations, in order.
pub fn operations() -> Vec<Step> {
    part(OPERATIONS)
}

fn part(text: &str) -> Vec<Step> {
    // The texts are constants, and a test parses them.
    text::parse("ace", text).map(|workload| workload.watched).unwrap_or_default()
}

/// All sequences of `length` operations, of which the last is watched. With `sample`, so many of them, drawn
/// with a seed.
pub fn sequences(length: usize, sample: Option<(usize, u64)>) -> Vec<Workload> {
    let (tree, operations) = (part(TREE), operations());
    let all = operations.len().pow(length as u32);
    let mut random = sample.map(|(_, seed)| Random::new(seed));
    let count = sample.map_or(all, |(count, _)| count.min(all));
    (0..count)
        .map(|i| {
            let mut number = random.as_mut().map_or(i, |random| random.below(all as u64) as usize);
            let mut steps: Vec<Step> = Vec::new();
            for _ in 0..length {
                steps.push(operations[number % operations.len()].clone());
                number /= operations.len();
            }
            steps.reverse();
            let texts: Vec<String> = steps.iter().map(ToString::to_string).collect();
            let last = steps.split_off(length - 1);
            let setup = tree.iter().cloned().chain(steps).collect();
            Workload { name: texts.join("; "), setup, watched: last, ..Workload::default() }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_are_all_there_and_samples_are_the_same_for_a_seed() {
        let count = OPERATIONS.lines().count();
        assert_eq!((operations().len(), part(TREE).len()), (count, TREE.lines().count()));
        assert_eq!(sequences(1, None).len(), count);
        let two = sequences(2, None);
        assert_eq!(two.len(), count * count);
        let names: std::collections::HashSet<_> = two.iter().map(|w| w.name.clone()).collect();
        assert_eq!(names.len(), two.len());
        let sample = |seed| sequences(3, Some((20, seed))).into_iter().map(|w| w.name).collect::<Vec<_>>();
        assert_eq!(sample(1), sample(1));
        assert_ne!(sample(1), sample(2));
    }
}
