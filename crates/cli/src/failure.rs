//! How a command ends when it does not end well.

use std::fmt;
use std::process::ExitCode;

/// The command was wrong: exit code 2.
#[derive(Debug)]
pub struct Usage(pub String);

/// An exit code of its own, as fsck(8) asks for; said with the error it is the context of, if there is one.
#[derive(Debug)]
pub struct Exit(pub u8);

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

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "exit code {}", self.0)
    }
}

impl std::error::Error for Exit {}
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
    if let Some(Exit(code)) = error.downcast_ref::<Exit>() {
        if error.chain().nth(1).is_some() {
            crate::output::talk(&format!("heddle: {}", text(error)));
        }
        return ExitCode::from(*code);
    }
    if !error.is::<Said>() {
        crate::output::talk(&format!("heddle: {}", text(error)));
    }
    ExitCode::from(if error.is::<Usage>() { 2 } else { 1 })
}

/// The error and its causes, each once: many texts of ours hold their cause already.
pub fn text(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().filter(|cause| !cause.is::<Exit>()).map(ToString::to_string) {
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
