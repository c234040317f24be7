//! The commands with their options and operands, as `--help` shows them: what is new is among them without being listed anywhere.

use super::heddle;

/// How each command is called when all is well, in little time. IMAGE, F2FS, NVM, MNT, NEW and WORK are made by who runs it.
const CALLS: &[(&str, &str)] = &[
    ("demo", "--unlike"),
    ("mkfs", "--size 8M NEW"),
    ("mount", "IMAGE MNT"),
    ("umount", "MNT"),
    ("fold", "--nvm NVM F2FS"),
    ("run", "true"),
    ("stat", "MNT"),
    ("top", "--count 1 MNT"),
    ("info", "IMAGE"),
    ("fsck", "IMAGE"),
    ("explain", "NV-0042"),
    ("tune", "--uuid random IMAGE"),
    ("dump", "IMAGE superblock"),
    ("fxmark", "--target nova --secs 0.03 --repeat 1 DRBL"),
    ("locks", "--secs 0.01 --threads 1 --file-bits 24 --depth 2"),
    ("bandwidth", "--secs 0.01 --repeat 1 --threads 1 --buffer 1M"),
    ("mount-times", "--files 1 --file-size 4K --repeat 1"),
    ("crash", "--random 1 --workload WORK"),
    ("completions", "bash"),
    ("man", "MNT"),
    ("help", "mkfs"),
];

pub struct Command {
    /// The whole call.
    pub call: String,
    /// It, with `@` for one word after the other.
    pub with_operand: Vec<String>,
}

pub fn commands() -> Vec<Command> {
    let help = heddle(&["--help"]).ok().out;
    let names: Vec<&str> = section(&help, "Commands:").filter_map(|line| first_word(line, 2)).collect();
    assert!(names.len() > 10, "{help}");
    names.into_iter().map(command).collect()
}

fn command(name: &str) -> Command {
    let known = CALLS.iter().find(|(of, _)| *of == name);
    let (_, tail) = known.unwrap_or_else(|| panic!("say in {} how heddle {name} is called", file!()));
    let help = heddle(&["help", name]).ok().out;
    let options: Vec<String> = section(&help, "Options:").filter_map(option).collect();
    let words: Vec<&str> = tail.split(' ').collect();
    let call = |words: &[&str]| format!("{name} {}", words.join(" "));
    let mut with_operand: Vec<String> = (0..words.len())
        .filter(|nth| !words[*nth].starts_with("--"))
        .map(|nth| call(&[&words[..nth], &["@"], &words[nth + 1..]].concat()))
        .collect();
    with_operand.push(call(&[&words[..], &["@"]].concat()));
    let new = options.iter().filter(|option| !words.contains(&option.as_str()));
    with_operand.extend(new.map(|option| call(&[&[option.as_str(), "@"], &words[..]].concat())));
    let of_mount = section(&help, "Options for -o:").flat_map(mount_options);
    with_operand.extend(of_mount.map(|option| format!("{name} -o {option}=@ {tail}")));
    Command { call: call(&words), with_operand }
}

/// The lines below this title, up to an empty one.
fn section<'a>(help: &'a str, title: &str) -> impl Iterator<Item = &'a str> {
    let title = title.to_owned();
    help.lines().skip_while(move |line| *line != title).skip(1).take_while(|line| !line.is_empty())
}

/// The word with which a line begins, behind so many spaces.
fn first_word(line: &str, indent: usize) -> Option<&str> {
    let (spaces, text) = line.split_at_checked(indent)?;
    (spaces.trim().is_empty() && !text.starts_with(' ')).then(|| text.split(' ').next()).flatten()
}

/// `  -n, --count <COUNT>  What it means`: the option, if it takes a value.
fn option(line: &str) -> Option<String> {
    let text = line.trim_start();
    let (names, _) =
        text.split_once(" <").filter(|(names, _)| names.starts_with('-') && !names.contains("  "))?;
    names.split(", ").last().map(str::to_owned)
}

/// `  uid=USER, gid=GROUP    what they mean`: the options, if they take values.
fn mount_options(line: &str) -> impl Iterator<Item = &str> {
    let text = line.strip_prefix("  ").unwrap_or_default();
    let names = text.split("  ").next().unwrap_or_default().split(", ");
    names
        .filter_map(|word| Some(word.split_once('=')?.0))
        .filter(|name| !name.is_empty() && !name.contains(' '))
}
