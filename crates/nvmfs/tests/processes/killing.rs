//! Writers that are killed, or stopped, at random moments while others go on.

use super::children::{ROLE_PATIENCE, Role, SharedMount, start};
use crate::kill::history::History;
use crate::kill::operation::THREADS;
use crate::kill::verify::{verify, verify_data};
use heddle_vfs::FileSystem;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

pub fn random_numbers() -> impl FnMut() -> u64 {
    let mut seed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64;
    println!("seed {seed}");
    move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        seed >> 33
    }
}

/// Four writers of one kind.
pub struct WriterPool<'h> {
    pub shared: &'h SharedMount,
    role: &'static str,
    writers: Vec<Role>,
    journal: Journal,
}

/// How far the journal was read, and the largest number in it.
#[derive(Default)]
pub struct Journal {
    read_bytes: u64,
    last: u64,
}

impl Journal {
    /// A number that no call has had, for the first thread.
    fn next_number(&mut self, place: &Path) -> u64 {
        let mut bytes = Vec::new();
        if let Ok(mut file) = File::open(place.join("journal")) {
            file.seek(SeekFrom::Start(self.read_bytes)).unwrap();
            file.read_to_end(&mut bytes).unwrap();
        }
        for line in bytes.chunks_exact(16) {
            self.read_bytes += 16;
            self.last = self.last.max(u64::from_le_bytes(*line.first_chunk().unwrap()));
        }
        (self.last / THREADS + 1) * THREADS
    }
}

impl<'h> WriterPool<'h> {
    pub fn start(shared: &'h SharedMount, role: &'static str) -> WriterPool<'h> {
        let mut pool = WriterPool { shared, role, writers: Vec::new(), journal: Journal::default() };
        let first = pool.journal.next_number(shared.place());
        for thread in 0..THREADS {
            pool.writers.push(start(shared, &format!("{role} {thread} {first}")));
        }
        (0..THREADS).for_each(|thread| pool.until_it_works(thread));
        pool
    }

    pub fn history(&self) -> History {
        History::read(&self.shared.place().join("journal"))
    }

    fn lines(&self) -> u64 {
        std::fs::metadata(self.shared.place().join("journal")).map_or(0, |m| m.len())
    }

    /// Waits for the first call of this thread's present process.
    fn until_it_works(&mut self, thread: u64) {
        let pid = self.writers[thread as usize].pid();
        let sign = self.shared.place().join(format!("longest-{thread}-{pid}"));
        let began = Instant::now();
        while !sign.exists() {
            let writer = &mut self.writers[thread as usize];
            assert!(
                writer.0.try_wait().unwrap().is_none(),
                "a writer ended by itself: its own output says why"
            );
            assert!(began.elapsed() < ROLE_PATIENCE, "a writer does nothing");
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Kills one writer, sees the others go on, starts it anew.
    pub fn kill_one(&mut self, random: &mut impl FnMut() -> u64) {
        let thread = self.kill_quietly(random);
        self.others_go_on(thread);
        self.replace(thread);
    }

    /// Kills one writer: whose thread it was.
    pub fn kill_quietly(&mut self, random: &mut impl FnMut() -> u64) -> u64 {
        let thread = random() % THREADS;
        let writer = &mut self.writers[thread as usize];
        assert!(writer.0.try_wait().unwrap().is_none(), "a writer ended by itself: its own output says why");
        writer.0.kill().unwrap();
        writer.0.wait().unwrap();
        thread
    }

    /// Lets go of the writers, who go on.
    pub fn leave(self) -> (Vec<Role>, Journal) {
        (self.writers, self.journal)
    }

    /// Takes over writers.
    pub fn with(
        shared: &'h SharedMount,
        role: &'static str,
        (writers, journal): (Vec<Role>, Journal),
    ) -> WriterPool<'h> {
        WriterPool { shared, role, writers, journal }
    }

    /// Stops one writer while others need what it holds, as far as can be seen: they make no calls any more.
    fn catch_one(&mut self, random: &mut impl FnMut() -> u64) -> (u64, Pid, Instant) {
        loop {
            let thread = random() % THREADS;
            let pid = Pid::from_raw(self.writers[thread as usize].pid() as i32).unwrap();
            let stopped = Instant::now();
            kill_process(pid, Signal::STOP).unwrap();
            std::thread::sleep(Duration::from_millis(1));
            let before = self.lines();
            // Long enough that on a busy machine, too, others who can go on do.
            let stand_still = (0..25).all(|_| {
                std::thread::sleep(Duration::from_millis(2));
                self.lines() == before
            });
            if stand_still {
                return (thread, pid, stopped);
            }
            kill_process(pid, Signal::CONT).unwrap();
            std::thread::sleep(Duration::from_micros(random() % 200));
        }
    }

    /// Stops one writer in others' way, until it is killed or for a while; true: it was killed.
    pub fn stop_one(&mut self, random: &mut impl FnMut() -> u64, patience: Duration) -> bool {
        let (thread, pid, _) = self.catch_one(random);
        std::thread::sleep(patience + patience / 2);
        self.others_go_on(thread);
        // Whoever waited may have killed it only now: this machine is busy.
        let _gone = kill_process(pid, Signal::CONT);
        std::thread::sleep(Duration::from_millis(20));
        let gone = self.writers[thread as usize].0.try_wait().unwrap().is_some();
        if gone {
            self.replace(thread);
        }
        gone
    }

    /// Stops one writer in others' way, for less than the mount's patience: it goes on as if nothing had been. False: this machine was
    /// so busy that it was stopped for longer.
    pub fn stop_one_for_a_while(&mut self, random: &mut impl FnMut() -> u64, patience: Duration) -> bool {
        let (thread, pid, stopped) = self.catch_one(random);
        std::thread::sleep((patience / 2).saturating_sub(stopped.elapsed()));
        kill_process(pid, Signal::CONT).unwrap();
        let in_time = stopped.elapsed() < patience;
        self.others_go_on(if in_time { u64::MAX } else { thread });
        if !in_time && self.writers[thread as usize].0.try_wait().unwrap().is_some() {
            self.replace(thread);
        }
        in_time
    }

    /// Starts the writer of this thread anew.
    pub fn replace(&mut self, thread: u64) {
        let first = self.journal.next_number(self.shared.place());
        self.writers[thread as usize] = start(self.shared, &format!("{} {thread} {first}", self.role));
        self.until_it_works(thread);
    }

    pub fn others_go_on(&mut self, but: u64) {
        let (before, began) = (self.lines(), Instant::now());
        while self.lines() < before + 64 * 16 {
            for (_, writer) in self.writers.iter_mut().enumerate().filter(|(n, _)| *n as u64 != but) {
                let ended = writer.0.try_wait().unwrap();
                assert!(ended.is_none(), "a survivor ended ({ended:?}): its own output says why");
            }
            assert!(began.elapsed() < ROLE_PATIENCE, "the survivors stand still");
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// The longest call that any writer has made.
    pub fn longest_call(&self) -> Duration {
        let entries = std::fs::read_dir(self.shared.place()).unwrap().map(|e| e.unwrap());
        let longest = entries.filter(|e| e.file_name().to_string_lossy().starts_with("longest-"));
        let read = |path: std::path::PathBuf| {
            let bytes = std::fs::read(path).unwrap();
            Duration::from_micros(bytes.first_chunk().map_or(0, |word| u64::from_le_bytes(*word)))
        };
        longest.map(|entry| read(entry.path())).max().unwrap_or_default()
    }

    /// Ends all writers; what the daemon shows is what the journal says.
    pub fn end(mut self, names: bool) -> History {
        self.writers.clear();
        let history = self.history();
        self.shared.sweeps();
        let checked = if names {
            verify(&self.shared.fs(), &history)
        } else {
            verify_data(&self.shared.fs(), &history)
        };
        checked.unwrap_or_else(|finding| panic!("while mounted, after {} calls: {finding}", history.len()));
        self.shared.fs().sync().unwrap();
        history
    }
}
