//! The process that the demo kills: threads write to one file, and acknowledge each write on stdout once it
//! has returned.

use super::stamp::{self, PAGE_BYTES};
use anyhow::{Context, Result};
use heddle_nvmfs::{MountOptions, mount};
use heddle_pmem::{OpenOptions, Region};
use heddle_vfs::{Cred, FileSystem, Ino, Name, OpenFlags};
use std::io::Write;
use std::path::PathBuf;

/// Name of the file.
pub const FILE: &[u8] = b"shared";
/// Bytes of an acknowledgement: writer and number of the write. A pipe takes so few bytes as a whole.
pub const ACK_BYTES: usize = 16;

/// Write until killed, acknowledging each write on stdout
#[derive(clap::Args)]
pub struct Args {
    image: PathBuf,
    /// Number of each writer's first write
    first: Vec<u64>,
}

/// `heddle demo-writer`
pub fn run(args: &Args) -> Result<()> {
    let region = Region::open(&args.image, &OpenOptions::default())?;
    let volume = mount(region, &MountOptions::default())?;
    let fs = volume.fs();
    let ino = fs.lookup(&Cred::root(), Ino::ROOT, Name::new(FILE)?)?.ino;
    std::thread::scope(|scope| {
        let start = |(writer, first): (usize, &u64)| {
            let (fs, first) = (&fs, *first);
            scope.spawn(move || write_on(fs, ino, writer as u64, first))
        };
        let writers: Vec<_> = args.first.iter().enumerate().map(start).collect();
        writers
            .into_iter()
            .try_for_each(|writer| writer.join().unwrap_or_else(|_| anyhow::bail!("a writer panicked")))
    })
}

fn write_on(fs: &impl FileSystem, ino: Ino, writer: u64, first: u64) -> Result<()> {
    let file = fs.open(&Cred::root(), ino, OpenFlags::WRITE)?;
    let mut data = Vec::new();
    for seq in first.. {
        let pages = stamp::pages(writer, seq);
        let offset = pages.start * PAGE_BYTES as u64;
        data.resize((pages.end - pages.start) as usize * PAGE_BYTES, 0);
        pages.zip(data.chunks_exact_mut(PAGE_BYTES)).for_each(|(page, bytes)| stamp::fill(page, seq, bytes));
        fs.write(&file, offset, &data)?;
        let mut ack = [0; ACK_BYTES];
        ack[..8].copy_from_slice(&writer.to_le_bytes());
        ack[8..].copy_from_slice(&seq.to_le_bytes());
        // Not through std's buffer: an acknowledgement reaches the reader even if this process is killed
        // next.
        say(&ack).context("nobody listens any more")?;
    }
    Ok(())
}

fn say(ack: &[u8]) -> std::io::Result<()> {
    std::fs::File::from(std::os::fd::AsFd::as_fd(&std::io::stdout()).try_clone_to_owned()?).write_all(ack)
}
