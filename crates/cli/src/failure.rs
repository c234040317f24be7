//! How a command ends when it does not end well.

use std::fmt;
use std::process::ExitCode;

/// The command was wrong: exit code 2.
#[derive(Debug)]
pub struct Usage(pub String);

/// It failed, and everything there is to say has been said: exit code 1.
#[derive(Debug)]
pub struct Said;

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("failed")
    }
}

impl std::error::Error for Usage {}
impl std::error::Error for Said {}

/// The error of a wrong command.
pub fn usage(text: impl fmt::Display) -> anyhow::Error {
    anyhow::Error::new(Usage(text.to_string()))
}

/// Says what went wrong, unless the reader of stdout just has enough.
pub fn report(error: &anyhow::Error) -> ExitCode {
    if is_broken_pipe(error) {
        return ExitCode::SUCCESS;
    }
    if !error.is::<Said>() {
        crate::output::talk(&format!("heddle: {}", text(error)));
    }
    ExitCode::from(if error.is::<Usage>() { 2 } else { 1 })
}

/// The error and its causes, each once: many texts of ours hold their cause already.
pub fn text(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !text.contains(&cause) {
            text += if text.is_empty() { "" } else { ": " };
            text += &cause;
        }
    }
    text
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.is::<crate::output::ReaderGone>()
}
