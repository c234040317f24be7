//! Progress: bars on a terminal; of what may take long, lines where there is none.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A bar on stderr, or nothing where that is no terminal.
pub struct Bar(ProgressBar);

impl Bar {
    /// A bar for bytes.
    pub fn of_bytes(what: &'static str) -> Bar {
        Bar::new(what, "{msg} {wide_bar} {bytes}/{total_bytes}")
    }

    /// A bar for things that are counted.
    pub fn of_things(what: &'static str) -> Bar {
        Bar::new(what, "{msg} {wide_bar} {pos}/{len}")
    }

    fn new(what: &'static str, template: &str) -> Bar {
        if !std::io::stderr().is_terminal() {
            return Bar(ProgressBar::hidden());
        }
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        Bar(ProgressBar::new(0).with_style(style).with_message(what))
    }

    /// So much is done of so much.
    pub fn at(&self, done: u64, total: u64) {
        self.0.set_length(total);
        self.0.set_position(done);
    }

    /// What is being done now.
    pub fn say(&self, what: String) {
        self.0.set_message(what);
    }

    /// A line above the bar; where there is none, a plain line.
    pub fn line(&self, text: &str) {
        if self.0.is_hidden() {
            crate::output::talk(text);
        } else {
            self.0.println(text);
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// What is over within this time needs no words.
const SOON: Duration = Duration::from_secs(1);
/// So often a line says how far it is, where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Progress of what mostly is over at once: nothing is shown in its first second.
pub struct Patient {
    what: &'static str,
    began: Instant,
    bar: OnceLock<Bar>,
    lines: AtomicU64,
}

impl Patient {
    /// It begins now.
    pub fn new(what: &'static str) -> Patient {
        Patient { what, began: Instant::now(), bar: OnceLock::new(), lines: AtomicU64::new(0) }
    }

    /// Of `total` things so many are done.
    pub fn at(&self, things: &str, done: u64, total: u64) {
        let Some(late) = self.began.elapsed().checked_sub(SOON) else { return };
        let bar = self.bar.get_or_init(|| Bar::of_things(self.what));
        if !bar.0.is_hidden() {
            bar.say(format!("{} {things}", self.what));
            return bar.at(done, total);
        }
        let line = late.as_secs() / LINE_EVERY.as_secs() + 1;
        // ORDERING: Relaxed, of several threads one gets to say it.
        if self.lines.fetch_max(line, Relaxed) < line {
            crate::output::talk(&format!("{} {things}: {done} of {total}", self.what));
        }
    }
}
