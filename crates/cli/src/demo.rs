//! `heddle demo`: shows NVM images at work, on temporary ones.
//!
//! Parts  `programs` (a mount, used by unmodified programs; `copies`: with the bypass too), `race` (shared-file writes and reads in
//!        process, all variants beside tmpfs), `kill` (a writer process is killed while it writes, and the image recovered).
//! Ends   with success only if every part that ran found no error; a part that cannot run here gives the reason.

mod copies;
mod kill;
mod programs;
mod race;
mod stamp;
mod writer;

use anyhow::Result;
use heddle_console::failure::{Said, text};
use heddle_console::output::{data, talk};
use heddle_console::scratch::Scratch;
use std::time::Instant;

pub use writer::{Args as WriterArgs, run as write_until_killed};

/// Name of the hidden command that the demo kills.
pub const WRITER: &str = "demo-writer";

/// Show NVM images at work, on temporary ones: mount one, use it, race threads, kill writers, recover
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {}

const EXAMPLES: &str = "\
Examples:
  heddle demo
  heddle demo && echo everything shown was right

It works in /dev/shm (or the temporary directory) and removes its images when it ends or is interrupted. It names the parts that cannot
run here, and why.";

/// The outcome of a part that did not fail.
pub enum Outcome {
    /// Its findings.
    Passed(String),
    /// The reason why it could not run here.
    Skipped(String),
}

type Part = fn(&Scratch) -> Result<Outcome>;

const PARTS: [(&str, Part); 3] = [
    ("Unmodified programs on a mounted image, and past the kernel", programs::run),
    ("One shared file, in process: who waits for whom", race::run),
    ("A writer killed in mid-run, its image recovered", kill::run),
];

/// Runs the command.
pub fn run(_args: &Args) -> Result<()> {
    let began = Instant::now();
    let scratch = Scratch::new()?;
    data(&format!("heddle demo: a temporary image in {}\n", scratch.dir().display()))?;
    let (mut failed, mut skipped) = (Vec::new(), Vec::new());
    for (number, (title, part)) in (1..).zip(PARTS) {
        data(&format!("{number}. {title}"))?;
        match part(&scratch) {
            Ok(Outcome::Passed(found)) => data(&found)?,
            Ok(Outcome::Skipped(why)) => {
                data(&format!("   SKIPPED: {why}"))?;
                skipped.push(number);
            }
            Err(error) => {
                data(&format!("   FAILED: {}", text(&error)))?;
                failed.push(number);
            }
        }
        data("")?;
    }
    let secs = began.elapsed().as_secs_f64();
    let parts = |list: &[u32]| list.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    if !skipped.is_empty() {
        data(&format!("Not shown: part {}; the reasons are above.", parts(&skipped)))?;
    }
    if failed.is_empty() {
        return data(&format!("Everything shown was right. {secs:.0} s."));
    }
    talk(&format!("heddle: part {} of the demo failed, see above", parts(&failed)));
    Err(Said.into())
}
