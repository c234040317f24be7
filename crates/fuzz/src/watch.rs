//! Runs the loop in a process of its own, sees how it ends, and keeps what ended it.
//!
//! A panic, an abort, a signal, too much memory: the process dies, and the input is in the shared page. A hang: the process stays with one
//! input for too long. After a finding the next process goes on with another seed.

use crate::engine::{Bounds, hash};
use crate::shared_page::SharedPage;
use std::fs::File;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// How often the watcher looks.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Looks that one input may take. Not a time: a process that is stopped, with its watcher, is no hang.
const LOOKS_MAX: u32 = 400;
/// Processes that may end before their time: after that many there is no sense in more.
const ENDINGS_MAX: u32 = 40;
/// Bytes of its last words.
const WORDS_MAX: usize = 4000;

/// What is tried, and where things are kept.
pub struct Watch {
    /// Name of the target.
    pub target: String,
    /// The first process' seed.
    pub seed: u64,
    /// How long.
    pub bounds: Bounds,
    /// Folder for corpus and findings.
    pub dir: PathBuf,
}

/// What came of it.
#[derive(Default)]
pub struct Report {
    /// Inputs that were tried.
    pub inputs: u64,
    /// Processor time.
    pub time: Duration,
    /// Inputs kept.
    pub kept: u64,
    /// Edges reached; 0: they were not counted.
    pub edges: u64,
    /// Processes that ended before their time.
    pub endings: u32,
    /// Files with inputs that broke a promise, and what was said: one of each kind.
    pub findings: Vec<(PathBuf, String)>,
}

impl Watch {
    /// Runs to the bounds.
    ///
    /// # Errors
    /// Those of the system.
    pub fn run(&self) -> io::Result<Report> {
        let (corpus, findings) = (self.dir.join("corpus"), self.dir.join("findings"));
        std::fs::create_dir_all(&corpus)?;
        std::fs::create_dir_all(&findings)?;
        let shared_page_path = self.dir.join("shared-page");
        let _ = std::fs::remove_file(&shared_page_path);
        let shared_page = SharedPage::open(&shared_page_path)?;
        let mut report = Report::default();
        for round in 0.. {
            let left = Bounds {
                inputs: self.bounds.inputs.saturating_sub(shared_page.inputs()),
                time: self.bounds.time.saturating_sub(report.time),
            };
            let errors = self.dir.join("words");
            shared_page.note(0, report.kept, report.edges);
            let mut child = Command::new(std::env::current_exe()?)
                .arg("--child")
                .arg(&self.target)
                .args([&shared_page_path, &corpus])
                .args([self.seed + round, left.inputs, left.time.as_millis() as u64].map(|n| n.to_string()))
                .stderr(File::create(&errors)?)
                .stdin(Stdio::null())
                .env("RUST_BACKTRACE", "0")
                .spawn()?;
            let ended = end_of(&mut child, &shared_page)?;
            let [millis, kept, edges] = shared_page.noted();
            report.time += Duration::from_millis(millis);
            (report.kept, report.edges) = (kept, edges);
            report.inputs = shared_page.inputs();
            if ended.is_some_and(|status| status.success()) {
                break;
            }
            report.endings += 1;
            let (input, said) = (shared_page.input(), last_message(ended, &errors));
            if !report.findings.iter().any(|(_, earlier)| alike(earlier) == alike(&said)) {
                let path = findings.join(format!("{:016x}", hash(&input)));
                std::fs::write(&path, &input)?;
                report.findings.push((path, said));
            }
            if report.endings == ENDINGS_MAX {
                break;
            }
        }
        Ok(report)
    }
}

/// Waits for its end; `None`: it was stuck, and has been killed.
fn end_of(child: &mut Child, shared_page: &SharedPage) -> io::Result<Option<ExitStatus>> {
    let (mut inputs, mut looks) = (u64::MAX, 0);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        std::thread::sleep(LOOK_EVERY);
        let now = shared_page.inputs();
        looks = if now == inputs { looks + 1 } else { 0 };
        inputs = now;
        if looks > LOOKS_MAX {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
    }
}

/// What two findings of one kind have in common: the words, up to the first particulars.
fn alike(said: &str) -> String {
    let words = said.split("; the changes").next().unwrap_or_default();
    words.chars().filter(|c| c.is_ascii_alphabetic() || c.is_whitespace()).take(300).collect()
}

fn last_message(ended: Option<ExitStatus>, errors: &Path) -> String {
    let said = std::fs::read(errors).unwrap_or_default();
    let said = String::from_utf8_lossy(&said[said.len().saturating_sub(WORDS_MAX)..]).into_owned();
    match ended {
        None => format!(
            "a hang: no end in {} s\n{said}",
            LOOK_EVERY.as_millis() as u64 * u64::from(LOOKS_MAX) / 1000
        ),
        Some(status) => match status.signal() {
            Some(signal) => format!("ended by signal {signal}\n{said}"),
            None => format!("ended with {status}\n{said}"),
        },
    }
}
