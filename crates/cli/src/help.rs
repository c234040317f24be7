//! The texts below the options of `--help`, laid out for the width of the terminal.
//!
//! Source  A text consists of paragraphs and tables. A line without indentation belongs to a paragraph. A line indented by two spaces is a
//!         row of a table: a key (an option, or a command line), two or more spaces, and what it means. Lines indented further continue
//!         the row. An empty line ends a paragraph, and stays.
//! Result  All rows of a table have their meanings in one column. Where that leaves too little room, each meaning stands below its key.

use clap::error::ErrorKind;
use clap::{Command, Parser};
use rustix::termios::tcgetwinsize;
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd};

/// Width of a text that does not go to a terminal, in columns.
const PIPED_COLUMNS: usize = 100;
/// Longer lines are hard to read.
const COLUMNS_MAX: usize = 140;
/// Clap needs some room beside its options.
const COLUMNS_MIN: usize = 60;
/// Width of a manual page on a terminal of 80 columns, less the indentation of its sections.
pub const MAN_COLUMNS: usize = 71;
/// Least room for the meanings of a table beside its keys.
const MEANING_COLUMNS_MIN: usize = 30;
/// Indentation of a key.
const KEY_INDENT: usize = 2;
/// Indentation of what continues below a key.
const BELOW_INDENT: usize = 6;
/// Spaces between a key and its meaning.
const GAP: usize = 2;

/// Parses a command line; help is laid out for the terminal, when it is shown.
pub fn parse<C: Parser>(args: Vec<OsString>) -> Result<C, clap::Error> {
    match C::try_parse_from(&args) {
        Err(error) if shows_help(error.kind()) => {
            let mut command = fitted(C::command(), terminal_columns());
            let matches = command.try_get_matches_from_mut(args)?;
            C::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
        }
        parsed => parsed,
    }
}

fn shows_help(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::DisplayHelp | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand)
}

/// The command and its subcommands, with help for lines of this width.
pub fn fitted(command: Command, columns: usize) -> Command {
    let below = command.get_after_help().map(|text| laid_out(&text.to_string(), columns));
    let command = command.term_width(columns).mut_subcommands(|one| fitted(one, columns));
    match below {
        Some(text) => command.after_help(text),
        None => command,
    }
}

fn terminal_columns() -> usize {
    let said = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let of_terminal = |fd: BorrowedFd<'_>| tcgetwinsize(fd).ok().map(|size| size.ws_col.into());
    let seen = of_terminal(std::io::stdout().as_fd()).or_else(|| of_terminal(std::io::stderr().as_fd()));
    said.or(seen).filter(|columns| *columns != 0).unwrap_or(PIPED_COLUMNS).clamp(COLUMNS_MIN, COLUMNS_MAX)
}

/// A part of a text.
enum Part {
    Blank,
    Paragraph(String),
    Table(Vec<Row>),
}

struct Row {
    key: String,
    meaning: String,
}

/// The text with lines of at most this width, as far as words allow.
pub fn laid_out(text: &str, columns: usize) -> String {
    let mut lines = Vec::new();
    for part in parts(text) {
        match part {
            Part::Blank => lines.push(String::new()),
            Part::Paragraph(words) => lines.extend(wrapped(&words, columns)),
            Part::Table(rows) => table(&rows, columns, &mut lines),
        }
    }
    lines.join("\n")
}

fn parts(text: &str) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for line in text.lines() {
        let rest = line.trim_start();
        match (line.len() - rest.len(), parts.last_mut()) {
            _ if rest.is_empty() => parts.push(Part::Blank),
            (0, Some(Part::Paragraph(words))) => append(words, rest),
            (0, _) => parts.push(Part::Paragraph(rest.to_owned())),
            (KEY_INDENT, Some(Part::Table(rows))) => rows.push(row(rest)),
            (KEY_INDENT, _) => parts.push(Part::Table(vec![row(rest)])),
            (_, Some(Part::Table(rows))) => {
                rows.iter_mut().next_back().into_iter().for_each(|row| append(&mut row.meaning, rest));
            }
            _ => parts.push(Part::Table(vec![row(rest)])),
        }
    }
    parts
}

fn append(words: &mut String, more: &str) {
    if !words.is_empty() {
        words.push(' ');
    }
    words.push_str(more);
}

fn row(line: &str) -> Row {
    let (key, meaning) = line.split_once("  ").unwrap_or((line, ""));
    Row { key: key.to_owned(), meaning: meaning.trim_start().to_owned() }
}

fn width(text: &str) -> usize {
    text.chars().count()
}

fn table(rows: &[Row], columns: usize, lines: &mut Vec<String>) {
    let explained = rows.iter().filter(|row| !row.meaning.is_empty());
    let widest = explained.map(|row| width(&row.key)).max().unwrap_or(0);
    let column = KEY_INDENT + widest + GAP;
    let is_beside = column + MEANING_COLUMNS_MIN <= columns;
    for Row { key, meaning } in rows {
        if !is_beside || meaning.is_empty() {
            command_line(key, columns, lines);
            let below = wrapped(meaning, columns - BELOW_INDENT);
            lines.extend(below.iter().map(|line| format!("{:BELOW_INDENT$}{line}", "")));
            continue;
        }
        let mut key = key.as_str();
        for line in wrapped(meaning, columns - column) {
            lines.push(format!("{:KEY_INDENT$}{key:widest$}{:GAP$}{line}", "", ""));
            key = "";
        }
    }
}

/// A command line, in several lines of the shell if it is long.
fn command_line(key: &str, columns: usize, lines: &mut Vec<String>) {
    // Of each line but the last, two columns are for the backslash.
    let parts = match KEY_INDENT + width(key) <= columns {
        true => vec![key.to_owned()],
        false => wrapped(key, columns - BELOW_INDENT - 2),
    };
    for (n, part) in parts.iter().enumerate() {
        let indent = if n == 0 { KEY_INDENT } else { BELOW_INDENT };
        let end = if n + 1 == parts.len() { "" } else { " \\" };
        lines.push(format!("{:indent$}{part}{end}", ""));
    }
}

/// Lines of at most this width; a longer word has a line of its own.
fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if width(line) + 1 + width(word) <= columns => append(line, word),
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    const TEXT: &str = "\
Examples:
  heddle fsck -n my.img    check
  heddle fsck -y my.img    repair; save the old bytes,
                           and say where
  heddle fxmark DWOM --access random --file-size 120M --segment 4K,16K,64K

Files that a repair removes
are saved before it.";

    #[test]
    fn a_wide_terminal_shows_meanings_beside_their_keys() {
        let wanted = "\
Examples:
  heddle fsck -n my.img  check
  heddle fsck -y my.img  repair; save the old bytes, and say where
  heddle fxmark DWOM --access random --file-size 120M --segment 4K,16K,64K

Files that a repair removes are saved before it.";
        assert_eq!(laid_out(TEXT, 80), wanted);
    }

    #[test]
    fn a_narrow_terminal_shows_meanings_below_their_keys() {
        let wanted = "\
Examples:
  heddle fsck -n my.img
      check
  heddle fsck -y my.img
      repair; save the old bytes, and
      say where
  heddle fxmark DWOM --access \\
      random --file-size 120M \\
      --segment 4K,16K,64K

Files that a repair removes are saved
before it.";
        assert_eq!(laid_out(TEXT, 40), wanted);
    }

    #[test]
    fn every_help_fits_terminals_of_80_and_of_140_columns() {
        for columns in [80, 140] {
            let mut cli = fitted(crate::Cli::command(), columns);
            cli.build();
            let commands = cli.get_subcommands().cloned().chain([cli.clone()]);
            for mut command in commands.filter(|command| command.get_name() != "help") {
                let help = command.render_long_help().to_string();
                let long = help.lines().find(|line| width(line) > columns && line.trim().contains(' '));
                assert_eq!(long, None, "{} at {columns} columns", command.get_name());
            }
        }
    }

    /// Where the meaning of a row begins.
    fn meaning_column(line: &str) -> Option<usize> {
        let after_key = line.find(|c| c != ' ')? + line.trim_start().find("  ")?;
        line[after_key..].find(|c| c != ' ').map(|spaces| after_key + spaces)
    }

    #[test]
    fn no_row_of_a_help_text_is_read_as_part_of_another() {
        let cli = crate::Cli::command();
        for command in cli.get_subcommands().chain([&cli]) {
            let (mut column, text) = (None, command.get_after_help().map(ToString::to_string));
            for line in text.as_deref().unwrap_or_default().lines() {
                match line.len() - line.trim_start().len() {
                    0 => column = None,
                    KEY_INDENT => column = meaning_column(line),
                    deeper => assert_eq!(Some(deeper), column, "{}: {line}", command.get_name()),
                }
            }
        }
    }
}
