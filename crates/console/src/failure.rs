//! Errors that end a command, with their exit codes and remedies.

use heddle_f2fs::OpenError;
use std::fmt;
use std::process::ExitCode;

/// The command line was wrong: exit code 2.
#[derive(Debug)]
pub struct Usage(pub String);

/// A special exit code, as fsck(8) has them, and the error to report, if any.
#[derive(Debug)]
pub struct Exit {
    code: u8,
    because: Option<anyhow::Error>,
}

impl Exit {
    /// An exit code without a message.
    pub fn silent(code: u8) -> anyhow::Error {
        anyhow::Error::new(Exit { code, because: None })
    }

    /// An exit code with the message of `error`.
    pub fn because(code: u8, error: anyhow::Error) -> anyhow::Error {
        anyhow::Error::new(Exit { code, because: Some(error) })
    }
}

/// The command failed and has reported everything: exit code 1.
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
        match &self.because {
            Some(error) => f.write_str(&text(error)),
            None => write!(f, "exit code {}", self.code),
        }
    }
}

impl std::error::Error for Exit {}
impl std::error::Error for Usage {}
impl std::error::Error for Said {}

/// The error of a wrong command line.
pub fn usage(text: impl fmt::Display) -> anyhow::Error {
    anyhow::Error::new(Usage(text.to_string()))
}

/// The result of a command that has written its findings: a failure counts although nobody reads them.
///
/// # Errors
/// That of the writing; [`Said`] after a failure.
pub fn judged(written: anyhow::Result<()>, failed: bool) -> anyhow::Result<()> {
    match written {
        Err(error) if !(failed && is_broken_pipe(&error)) => Err(error),
        _ if failed => Err(Said.into()),
        _ => Ok(()),
    }
}

/// Reports an error, unless the reader of stdout has just closed it.
pub fn report(error: &anyhow::Error) -> ExitCode {
    if is_broken_pipe(error) {
        return ExitCode::SUCCESS;
    }
    if let Some(Exit { code, because }) = error.downcast_ref::<Exit>() {
        because.iter().for_each(say);
        return ExitCode::from(*code);
    }
    say(error);
    ExitCode::from(if error.is::<Usage>() { 2 } else { 1 })
}

fn say(error: &anyhow::Error) {
    if !error.is::<Said>() {
        crate::output::talk(&format!("heddle: {}", with_way_out(error)));
    }
}

/// The text of an error, with the remedy if one is known.
pub fn with_way_out(error: &anyhow::Error) -> String {
    let text = text(error);
    let known = unmount_first(error).or_else(|| way_out(&text).map(str::to_owned));
    known.map_or_else(|| text.clone(), |way_out| format!("{text}. {way_out}"))
}

/// The remedy for an F2FS image that is in use: the command, if the image is mounted where this process can see it.
fn unmount_first(error: &anyhow::Error) -> Option<String> {
    let OpenError::InUse { image, .. } = error.chain().find_map(|cause| cause.downcast_ref())? else {
        return None;
    };
    Some(match crate::mounted::mounted_at(image) {
        Some(dir) => format!("Unmount it with: heddle umount {}", dir.display()),
        None => "Unmount it there, or wait until nobody uses it".to_owned(),
    })
}

/// The system's text for a file on a mount whose process has died. It may stand anywhere in an error's text.
const DEAD_MOUNT: &str = "(os error 107)";
const _: () = assert!(libc::ENOTCONN == 107);

/// The remedy for an error whose text ends with a system error.
fn way_out(text: &str) -> Option<&'static str> {
    if text.contains(DEAD_MOUNT) {
        return Some("The process behind a mount there has died: heddle umount takes the mount away");
    }
    let number = text.strip_suffix(')')?.rsplit_once("(os error ")?.1;
    Some(match number.parse().ok()? {
        libc::ENOENT => "Check the path",
        libc::ENOTDIR | libc::ELOOP | libc::ENAMETOOLONG => "Check the path, and the links in it",
        libc::EISDIR => "Name a file",
        libc::EACCES | libc::EPERM => "Choose another place, or ask its owner",
        libc::ENXIO => {
            "Name a file: that is a socket, a FIFO that nobody reads, or a device without a driver"
        }
        libc::EROFS => "That place is read-only: choose another",
        libc::ENOSPC | libc::EDQUOT => "Make room, or choose another place",
        libc::EFBIG => "Choose a smaller size, or raise the limit (ulimit -f)",
        libc::EMFILE | libc::ENFILE => "Raise the limit of open files (ulimit -n)",
        libc::ENOMEM => "Free memory, or raise the limit (ulimit -v)",
        libc::EINVAL => "Name another kind of file",
        libc::ENOEXEC => "Name a program, or a script with its interpreter",
        _ => return None,
    })
}

/// The error and its causes, each once: many texts contain their cause already.
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
