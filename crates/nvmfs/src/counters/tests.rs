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

/// A mount can have 1000 lanes, and each may be another process's.
#[test]
fn a_reading_has_as_many_clients_as_there_are_lanes() {
    let mut full = reading();
    let client = full.clients[0];
    full.clients = (1..=u32::from(LANES)).map(|pid| Client { pid, ..client }).collect();
    assert_eq!(Counters::from_words(&full.to_words()), Some(full.clone()));
    full.clients.push(client);
    assert_eq!(Counters::from_words(&full.to_words()), None);
}

#[cfg(not(any(loom, shuttle)))]
#[test]
fn a_reading_counts_the_calls_of_all_threads_of_a_process() {
    use crate::variant::Variant;
    use crate::volume::{MountOptions, format, mount};
    use heddle_vfs::Ino;
    use heddle_vfs::short::Short;

    let region = heddle_pmem::Region::anonymous(8 << 20).unwrap();
    format(&region, Variant::Heddle).unwrap();
    let options = MountOptions { arena_bytes: 64 << 20, ..MountOptions::default() };
    let volume = mount(region, &options).unwrap();
    let fs = volume.fs();
    let write = |text: &str| {
        let file = fs.new_file(Ino::ROOT, text);
        fs.write(&file, 0, b"five.").unwrap();
        fs.release(file);
    };
    let start = std::sync::Barrier::new(3);
    let counters = std::thread::scope(|scope| {
        for text in ["one", "other"] {
            let (write, start) = (&write, &start);
            scope.spawn(move || {
                write(text);
                start.wait();
                // Their lanes stay theirs until the reading is taken.
                start.wait();
            });
        }
        start.wait();
        let counters = fs.counters();
        start.wait();
        counters
    });
    let [client] = counters.clients[..] else { panic!("{:?}", counters.clients) };
    // The thread that mounted has a lane too, from the mount itself on, or none yet.
    assert!(client.pid == std::process::id() && (2..=3).contains(&client.threads), "{client:?}");
    for totals in [client.totals, counters.totals] {
        let writes = totals.of(Kind::Write);
        assert_eq!((writes.calls, writes.bytes, totals.of(Kind::Create).calls), (2, 10, 2));
    }
    let space = fs.statfs().unwrap();
    let gauges = counters.gauges;
    assert_eq!((gauges.blocks_total, gauges.inodes_total), (space.blocks_total, space.inodes_total));
    assert_eq!((gauges.daemon_pid, gauges.damaged), (std::process::id().into(), 0));
    fs.core.damage("a test".to_owned());
    assert_eq!(fs.counters().gauges.damaged, 1);
    volume.abandon();
}
