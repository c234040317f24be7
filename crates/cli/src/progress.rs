//! Progress bars, on a terminal alone.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;

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
