//! Part three: a writer process is killed while it writes, again and again. Each time its image is recovered
//! and read.
//!
//! Checked  every acknowledged write is there, each page complete. The one write of each writer that was running when the process died is
//!          there completely or not at all.

use super::stamp::{self, PAGE_BYTES, SHARE_PAGES};
use super::writer::{ACK_BYTES, FILE};
use super::{Outcome, WRITER};
use anyhow::{Context, Result, bail, ensure};
use heddle_console::scratch::Scratch;
use heddle_nvmfs::{MountOptions, Variant, format_region, mount};
use heddle_pmem::{OpenOptions, Region};
use heddle_vfs::{Cred, FileSystem, Ino, Name, OpenFlags};
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

const IMAGE_BYTES: u64 = 64 << 20;
const WRITERS: u64 = 2;
const ROUNDS: u64 = 3;
/// A writer process that has acknowledged nothing within this time never will.
const PATIENCE: Duration = Duration::from_secs(20);

/// Results of all rounds.
#[derive(Default)]
struct Tally {
    kills: u64,
    acknowledged: u64,
    running_kept: u64,
    running_dropped: u64,
}

/// Runs the part.
pub fn run(scratch: &Scratch) -> Result<Outcome> {
    let mut tally = Tally::default();
    for variant in Variant::ALL {
        let image = scratch.dir().join(variant.name());
        let region = Region::create(&image, IMAGE_BYTES, &OpenOptions::default())?;
        format_region(&region, variant)?;
        let volume = mount(region, &MountOptions::default())?;
        let (_, file) =
            volume.fs().create(&Cred::root(), Ino::ROOT, Name::new(FILE)?, 0o600, OpenFlags::WRITE)?;
        volume.fs().release(file);
        volume.unmount();
        let mut known =
            Known { last: vec![0; (WRITERS * SHARE_PAGES) as usize], next: vec![1; WRITERS as usize] };
        for round in 0..ROUNDS {
            let said = format!("variant {}, kill {}", variant.name(), round + 1);
            known.round(&image, round, &mut tally).context(said)?;
        }
        fs::remove_file(&image)?;
    }
    Ok(Outcome::Passed(format!(
        "   {} times killed with SIGKILL in mid-write, {} times in each of the {} variants, two writers on one file\n   \
         {} acknowledged writes of 1 to 8 pages: all there after recovery, every byte checked\n   \
         {} writes were running when the process died: {} there whole, {} not at all, none in part",
        tally.kills,
        ROUNDS,
        Variant::ALL.len(),
        tally.acknowledged,
        tally.running_kept + tally.running_dropped,
        tally.running_kept,
        tally.running_dropped,
    )))
}

/// The expected content of the file.
struct Known {
    /// The last write of each page.
    last: Vec<u64>,
    /// The next write of each writer.
    next: Vec<u64>,
}

impl Known {
    fn round(&mut self, image: &Path, round: u64, tally: &mut Tally) -> Result<()> {
        let acknowledged = kill_a_writer(image, &self.next, Duration::from_millis(40 + 45 * round))?;
        tally.kills += 1;
        for (writer, last) in (0..).zip(acknowledged) {
            let next = self.next[writer as usize];
            for seq in next..=last {
                stamp::pages(writer, seq).for_each(|page| self.last[page as usize] = seq);
                tally.acknowledged += 1;
            }
            self.next[writer as usize] = next.max(last + 1);
        }
        let found = read_back(image)?;
        for writer in 0..WRITERS {
            self.check(writer, &found, tally)?;
        }
        Ok(())
    }

    /// Compares a writer's share with the expected content. Records whether the running write is there.
    fn check(&mut self, writer: u64, found: &[Option<u64>], tally: &mut Tally) -> Result<()> {
        let running = self.next[writer as usize];
        let mut covered = 0;
        for page in writer * SHARE_PAGES..(writer + 1) * SHARE_PAGES {
            let (want, got) = (self.last[page as usize], found[page as usize]);
            match got {
                Some(seq) if seq == want => {}
                Some(seq) if seq == running && stamp::pages(writer, running).contains(&page) => covered += 1,
                Some(seq) => bail!("page {page} holds write {seq} instead of the acknowledged write {want}"),
                None => bail!("page {page} is not whole; the last acknowledged write of it is {want}"),
            }
        }
        let pages = stamp::pages(writer, running);
        let of = pages.end - pages.start;
        match covered {
            0 => tally.running_dropped += 1,
            all if all == of => {
                pages.for_each(|page| self.last[page as usize] = running);
                self.next[writer as usize] += 1;
                tally.running_kept += 1;
            }
            part => bail!(
                "{part} of {of} pages of write {running}, which was running, are there: a write must be whole"
            ),
        }
        Ok(())
    }
}

/// Starts the writer process and kills it `after` its first acknowledgement. Returns the last acknowledged
/// write of each writer, or the write before its first.
fn kill_a_writer(image: &Path, next: &[u64], after: Duration) -> Result<Vec<u64>> {
    let mut command = Command::new("/proc/self/exe");
    command.arg(WRITER).arg(image).args(next.iter().map(u64::to_string));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("cannot start the writer process")?;
    let stdout = child.stdout.take().context("no pipe to the writer process")?;
    let (awake, first_ack) = mpsc::channel();
    let before: Vec<u64> = next.iter().map(|seq| seq - 1).collect();
    let listener = std::thread::spawn(move || listen(stdout, before, &awake));
    let began = first_ack.recv_timeout(PATIENCE).is_ok();
    if began {
        std::thread::sleep(after);
    }
    child.kill().context("cannot kill the writer process")?;
    let output = child.wait_with_output()?;
    let heard = listener.join().unwrap_or_else(|_| bail!("the listener panicked"))?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    ensure!(began && said.is_empty(), "the writer process ended by itself: {said}");
    Ok(heard)
}

fn listen(mut from: ChildStdout, mut last: Vec<u64>, awake: &mpsc::Sender<()>) -> Result<Vec<u64>> {
    let mut ack = [0; ACK_BYTES];
    // An acknowledgement arrives completely or not at all; the pipe ends with the process.
    while from.read_exact(&mut ack).is_ok() {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| ack[at + i]));
        let (writer, seq) = (word(0) as usize, word(8));
        let known = last.get_mut(writer).with_context(|| format!("writer {writer} does not exist"))?;
        ensure!(seq == *known + 1, "writer {writer} acknowledged write {seq} after write {known}");
        *known = seq;
        // Only the first acknowledgement is waited for.
        let _ = awake.send(());
    }
    Ok(last)
}

/// Recovers the image. Returns for each page the write that it holds completely.
fn read_back(image: &Path) -> Result<Vec<Option<u64>>> {
    let region = Region::open(image, &OpenOptions::default())?;
    let volume = mount(region, &MountOptions::default()).context("recovery failed")?;
    let fs = volume.fs();
    let ino = fs.lookup(&Cred::root(), Ino::ROOT, Name::new(FILE)?)?.ino;
    let file = fs.open(&Cred::root(), ino, OpenFlags::READ)?;
    // Pages beyond EOF were never written: they stay zero.
    let mut bytes = vec![0; (WRITERS * SHARE_PAGES) as usize * PAGE_BYTES];
    let read = fs.read(&file, 0, &mut bytes);
    fs.release(file);
    volume.unmount();
    read?;
    Ok((0..).zip(bytes.chunks_exact(PAGE_BYTES)).map(|(page, bytes)| stamp::read(page, bytes)).collect())
}
