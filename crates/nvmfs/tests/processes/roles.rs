//! What the clients do.

use super::children::SOCKET;
use crate::common::Short;
use crate::kill::child::{Files, carry_out};
use crate::kill::history::Event;
use crate::kill::operation::{Operation, THREADS, mixed, operation};
use heddle_nvmfs::{NvmFs, client};
use heddle_vfs::{FileSystem, Ino};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// Attaches through the socket that the parent named.
pub fn attached() -> NvmFs {
    // A test that is killed itself takes its children along.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    client::attach(&socket()).unwrap_or_else(|e| panic!("{e}"))
}

fn socket() -> std::path::PathBuf {
    std::env::var_os(SOCKET).unwrap().into()
}

pub fn play(role: &str) {
    let mut words = role.split(' ');
    let name = words.next().unwrap();
    let mut number = || words.next().unwrap().parse::<u64>().unwrap();
    match name {
        "reads-7-writes-8" => reads_7_writes_8(),
        "works" => works(number(), number(), |_| true),
        "works-on-data" => {
            works(number(), number(), |op| matches!(op, Operation::Pages { .. } | Operation::Append { .. }))
        }
        other => panic!("no such role: {other}"),
    }
}

fn reads_7_writes_8() {
    let fs = attached();
    let file = fs.open_file(Ino::ROOT, "f");
    assert_eq!(fs.read_vec(&file, 0, 20_000), [7; 10_000]);
    fs.write(&file, 0, &[8; 12_000]).unwrap();
    let made = fs.new_file(Ino::ROOT, "made-by-the-client");
    fs.append(&made, b"hello").unwrap();
    fs.release(made);
    fs.release(file);
}

/// Works as thread `thread` of the kill test does, from call `first` on, for ever; notes the longest call it has made.
fn works(thread: u64, first: u64, wanted: impl Fn(Operation) -> bool) {
    let fs = attached();
    let place = socket().parent().unwrap().to_path_buf();
    let files = Files::of(&fs);
    let mut journal = File::options().append(true).create(true).open(place.join("journal")).unwrap();
    let mut longest = Duration::ZERO;
    for step in 0.. {
        let number = first + step * THREADS + thread;
        // Few appends, or the image is full before the loop is over; and no more calls than a journal can hold.
        let append = matches!(operation(number), Operation::Append { .. });
        if !wanted(operation(number)) || (append && !mixed(number).is_multiple_of(16)) {
            continue;
        }
        if step % 8 == 0 {
            std::thread::sleep(Duration::from_micros(20));
        }
        journal.write_all(&Event::Begun.line(number)).unwrap();
        let began = Instant::now();
        carry_out(&fs, &files, number);
        if began.elapsed() > longest {
            longest = began.elapsed();
            note_longest(&place, thread, longest);
        }
        journal.write_all(&Event::Done.line(number)).unwrap();
    }
}

fn note_longest(place: &Path, thread: u64, longest: Duration) {
    let file = place.join(format!("longest-{thread}-{}", std::process::id()));
    std::fs::write(file, (longest.as_micros() as u64).to_le_bytes()).unwrap();
}
