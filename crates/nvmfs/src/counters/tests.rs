//! Readings survive the way to another process, and rubbish is told from them.

use super::*;

fn reading() -> Counters {
    let mut totals = Totals::default();
    totals.0.iter_mut().enumerate().for_each(|(i, word)| *word = i as u64 + 1);
    let mut spans = Box::new([[0; SPANS]; KINDS]);
    spans[1][7] = 5;
    let client = |pid| Client { pid, threads: 2, totals };
    let gauges = Gauges {
        now_ns: 1,
        daemon_pid: 2,
        blocks_total: 3,
        blocks_free: 4,
        inodes_total: 5,
        inodes_free: 6,
        attached: 7,
        settled: 8,
        damaged: 9,
        durability: 1,
        huge_bytes: 10,
    };
    Counters { totals, spans, clients: vec![client(10), client(11)], gauges }
}

#[test]
fn a_reading_is_the_same_at_the_other_end() {
    let words = reading().to_words();
    assert_eq!(Counters::from_words(&words), Some(reading()));
}

#[test]
fn what_is_no_reading_is_refused() {
    let words = reading().to_words();
    for len in [0, 1, 5, words.len() - 1] {
        assert_eq!(Counters::from_words(&words[..len]), None, "{len} words");
    }
    for (at, value) in [(0, 1), (1, 3), (2, u64::MAX), (2, 1), (2, 3)] {
        let mut words = words.clone();
        words[at] = value;
        assert_eq!(Counters::from_words(&words), None, "word {at} is {value}");
    }
}
