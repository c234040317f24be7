//! Data goes to stdout, messages to stderr; neither panics when its reader has closed it.

use crate::inherited;
use anyhow::{Context, Result};
use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// The destination of a command's data.
#[derive(Clone, Debug)]
pub enum Sink {
    /// `-`
    Stdout,
    /// Any other path.
    File(PathBuf),
}

impl From<&str> for Sink {
    fn from(text: &str) -> Sink {
        if text == "-" { Sink::Stdout } else { Sink::File(text.into()) }
    }
}

/// The reader of stdout has closed it: this is no failure.
#[derive(Debug)]
pub struct ReaderGone;

impl fmt::Display for ReaderGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nobody reads stdout any more")
    }
}

impl std::error::Error for ReaderGone {}

impl Sink {
    /// Writes the text, and a newline if it lacks one.
    pub fn put(&self, text: &str) -> Result<()> {
        let end = if text.ends_with('\n') { "" } else { "\n" };
        match self {
            Sink::Stdout => {
                if inherited::is_closed(1) {
                    return Err(anyhow::anyhow!("cannot write to stdout: it is closed"));
                }
                let mut stdout = io::stdout().lock();
                let written = write!(stdout, "{}{end}", escaped(text)).and_then(|()| stdout.flush());
                written.map_err(|error| match error.kind() {
                    ErrorKind::BrokenPipe => anyhow::Error::new(ReaderGone),
                    _ => anyhow::Error::new(error).context("cannot write to stdout"),
                })
            }
            Sink::File(path) => {
                let opened = opened_for_writing(path).and_then(|file| {
                    file.set_len(0).or_else(|error| if is_file(path) { Err(error) } else { Ok(()) })?;
                    Ok(file)
                });
                let written = opened.and_then(|mut file| file.write_all(format!("{text}{end}").as_bytes()));
                written.with_context(|| format!("cannot write {}", path.display()))
            }
        }
    }

    /// Checks the destination now, and not only after a long measurement.
    pub fn check(&self) -> Result<()> {
        let Sink::File(path) = self else { return Ok(()) };
        // The end of this check would be the end of the data for a FIFO's reader.
        if path.exists() && !is_file(path) && !path.is_dir() {
            return Ok(());
        }
        opened_for_writing(path).map(drop).with_context(|| format!("cannot write {}", path.display()))
    }
}

fn is_file(path: &Path) -> bool {
    path.metadata().is_ok_and(|of| of.is_file())
}

/// Opens a file for writing. Does not wait for a reader of a FIFO.
fn opened_for_writing(path: &Path) -> io::Result<File> {
    let mut how = File::options();
    let file = how.write(true).create(true).truncate(false).custom_flags(libc::O_NONBLOCK).open(path)?;
    // From here on writes may block: the reader may be slow.
    rustix::fs::fcntl_setfl(&file, rustix::fs::OFlags::empty())?;
    Ok(file)
}

/// The bytes of a file. Refuses all other kinds: a FIFO waits for a writer, and a device may never end.
pub fn file_bytes(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no file; name one"));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Writes data to stdout.
pub fn data(text: &str) -> Result<()> {
    Sink::Stdout.put(text)
}

/// Writes a control sequence to the terminal.
pub fn to_terminal(order: &str) -> Result<()> {
    io::stdout().write_all(order.as_bytes()).context("cannot write to stdout")
}

/// Writes a value as JSON.
pub fn json(sink: &Sink, value: &impl serde::Serialize) -> Result<()> {
    sink.put(&escaped_json(&serde_json::to_string_pretty(value).context("no JSON form")?))
}

/// JSON in which [`escaped`] finds nothing more: it would write Rust's escapes. All that is obeyed stands in strings.
fn escaped_json(text: &str) -> Cow<'_, str> {
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::new();
    for c in text.chars() {
        match is_obeyed(c) {
            true => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| shown += &format!("\\u{unit:04x}")),
            false => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

/// Makes stderr a log: from now on every message begins with the time and the process.
pub fn date_lines() {
    // ORDERING: Relaxed, a flag alone.
    DATED.store(true, Ordering::Relaxed);
}

static DATED: AtomicBool = AtomicBool::new(false);

/// Escapes a name of a file, process or image, which may come from a foreign user: a terminal would obey
/// control characters in it, or hide or reorder text.
pub fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let shown = text.chars().map(|c| if is_obeyed(c) { c.escape_debug().to_string() } else { c.to_string() });
    Cow::Owned(shown.collect())
}

fn is_obeyed(c: char) -> bool {
    !c.is_ascii_graphic() && !matches!(c, ' ' | '\n' | '\t') && !heddle_fuse::is_plain(c)
}

/// Writes a line to stderr. It is lost if it cannot be written.
pub fn talk(line: &str) {
    let line = escaped(line);
    // ORDERING: Relaxed, a flag alone.
    if DATED.load(Ordering::Relaxed) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let when = crate::clock::clock(heddle_vfs::Time::from_parts(now.as_secs() as i64, 0));
        // A single write: lines of several mounts in one log stay whole.
        let _ = io::stderr().write_all(format!("{when} heddle[{}] {line}\n", std::process::id()).as_bytes());
    } else {
        let _ = writeln!(io::stderr(), "{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::{escaped, escaped_json};

    #[test]
    fn what_a_terminal_obeys_is_shown_and_lines_stay_lines() {
        assert_eq!(escaped("a\tb\nc\u{e9}"), "a\tb\nc\u{e9}");
        assert_eq!(escaped("a\x1b[2J\r\u{9b}"), "a\\u{1b}[2J\\r\\u{9b}");
        // A character that turns the writing direction, one without width, and an accent, which is harmless.
        assert_eq!(escaped("\u{202e}\u{200b}e\u{301}"), "\\u{202e}\\u{200b}e\u{301}");
    }

    #[test]
    fn json_with_any_name_is_json_and_obeyed_by_no_terminal() {
        let name = "a\x7f\u{9b}\u{202e}\u{e0001}\u{e9}\"\\\n";
        let text = serde_json::to_string_pretty(&[name]).unwrap();
        let shown = escaped_json(&text);
        assert_eq!(serde_json::from_str::<[String; 1]>(&shown).unwrap(), [name]);
        assert_eq!(escaped(&shown), shown);
    }
}
