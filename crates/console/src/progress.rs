//! Progress: bars on a terminal. Elsewhere [`DelayedBar`] prints lines, after the first second.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A bar on stderr, or nothing if stderr is not a terminal.
pub struct Bar(ProgressBar);

impl Bar {
    /// A bar that counts bytes.
    pub fn of_bytes(what: &'static str) -> Bar {
        Bar::new(what, "{msg} {wide_bar} {bytes}/{total_bytes}")
    }

    /// A bar that counts items, such as runs or files.
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

    /// Shows that `done` of `total` bytes or items are done.
    pub fn set_position(&self, done: u64, total: u64) {
        self.0.set_length(total);
        self.0.set_position(done);
    }

    /// Replaces the text before the bar.
    pub fn set_message(&self, what: String) {
        self.0.set_message(what);
    }

    /// Prints a line above the bar or, without a bar, a plain line.
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

/// In this time a [`DelayedBar`] shows nothing.
const SOON: Duration = Duration::from_secs(1);
/// Without a terminal, the time between two lines of progress.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Progress of a step that is usually short: a bar, or lines where stderr is not a terminal, after the first
/// second.
pub struct DelayedBar {
    what: &'static str,
    began: Instant,
    bar: OnceLock<Bar>,
    lines: AtomicU64,
}

impl DelayedBar {
    /// Starts the clock.
    pub fn new(what: &'static str) -> DelayedBar {
        DelayedBar { what, began: Instant::now(), bar: OnceLock::new(), lines: AtomicU64::new(0) }
    }

    /// Shows that `done` of `total` items are done. `things` names the items, in the plural.
    pub fn at(&self, things: &str, done: u64, total: u64) {
        let Some(late) = self.began.elapsed().checked_sub(SOON) else { return };
        let bar = self.bar.get_or_init(|| Bar::of_things(self.what));
        if !bar.0.is_hidden() {
            bar.set_message(format!("{} {things}", self.what));
            return bar.set_position(done, total);
        }
        let line = late.as_secs() / LINE_EVERY.as_secs() + 1;
        // ORDERING: Relaxed: of several threads one prints the line; no other data depends on it.
        if self.lines.fetch_max(line, Relaxed) < line {
            crate::output::talk(&format!("{} {things}: {done} of {total}", self.what));
        }
    }
}
