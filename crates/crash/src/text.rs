//! The workload language: one operation per line (docs/crash.md).

use crate::op::{File, KINDS, ListKind, Logs, MODES, Op, Step, Workload, read_list};
use heddle_vfs::RangeOp;

/// Most operations after `repeat` is expanded: more is a typing error.
const STEPS_MAX: usize = 100_000;
/// Most bytes that one operation may write: more than any image of the rig holds.
const LENGTH_MAX: u64 = 1 << 30;
/// Largest image a workload may ask for.
const IMAGE_BYTES_MAX: u64 = 1 << 30;
/// Most bytes of an expanded word: more than the longest attribute.
const WORD_BYTES_MAX: usize = 1 << 17;
/// Most bytes that one `repeat` may expand to.
const REPEAT_BYTES_MAX: usize = 1 << 26;
/// Most threads of a workload.
const THREADS_MAX: u32 = 64;

/// A line that cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseError {
    /// Line, from 1.
    pub line: usize,
    /// What is wrong with it, and the correct form.
    pub text: String,
}

impl std::fmt::Display for ParseError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}: {}", self.line, self.text)
    }
}

impl std::error::Error for ParseError {}

/// The name of each operation, and its arguments.
const GRAMMAR: [(&str, &str); 30] = [
    ("create", "create PATH"),
    ("mkdir", "mkdir PATH"),
    ("mknod", "mknod PATH fifo|socket|char|block"),
    ("tmpfile", "tmpfile DIRECTORY DESCRIPTOR"),
    ("name", "name DESCRIPTOR PATH"),
    ("symlink", "symlink TARGET PATH"),
    ("link", "link PATH NEWPATH"),
    ("unlink", "unlink PATH"),
    ("rmdir", "rmdir PATH"),
    ("rename", "rename PATH NEWPATH"),
    ("exchange", "exchange PATH PATH"),
    ("write", "write FILE OFFSET LENGTH"),
    ("append", "append FILE LENGTH"),
    ("truncate", "truncate FILE SIZE"),
    ("fallocate", "fallocate FILE MODE OFFSET LENGTH"),
    ("setxattr", "setxattr PATH NAME VALUE"),
    ("removexattr", "removexattr PATH NAME"),
    ("list", "list PATH access|default owner:6,user:7:4,owning:4,group:8:0,mask:4,others:0"),
    ("mode", "mode PATH OCTAL"),
    ("owner", "owner PATH UID GID"),
    ("times", "times PATH SECONDS"),
    ("fsync", "fsync FILE"),
    ("sync", "sync"),
    ("open", "open PATH DESCRIPTOR"),
    ("close", "close DESCRIPTOR"),
    ("remount", "remount"),
    ("watch", "watch"),
    ("image", "image SIZE"),
    ("logs", "logs short"),
    ("repeat", "repeat COUNT OPERATION…"),
];

/// Parses a workload.
///
/// # Errors
/// The first wrong line, with the fault and the correct form.
pub fn parse(name: &str, text: &str) -> Result<Workload, ParseError> {
    let mut workload = Workload { name: name.to_string(), ..Workload::default() };
    let mut watched_from = None;
    for (number, line) in text.lines().enumerate() {
        let at = |text: String| ParseError { line: number + 1, text };
        let code = line.split('#').next().unwrap_or_default();
        let words: Vec<&str> = code.split_whitespace().collect();
        match words.as_slice() {
            [] => {}
            ["watch"] if watched_from.is_some() => {
                return Err(at("a second `watch`: operations are watched from the first one on".into()));
            }
            ["watch"] => watched_from = Some(workload.watched.len()),
            ["image", size] => {
                let bytes = number_of(size).map_err(at)?;
                if bytes > IMAGE_BYTES_MAX {
                    return Err(at(format!("an image of {bytes} bytes: at most 1G")));
                }
                workload.image_bytes = bytes;
            }
            ["logs", "short"] => workload.logs = Logs::Short,
            words => steps(words, number + 1, &mut workload.watched).map_err(at)?,
        }
        if workload.watched.len() > STEPS_MAX {
            return Err(at(format!("more than {STEPS_MAX} operations")));
        }
    }
    if let Some(from) = watched_from {
        let watched = workload.watched.split_off(from);
        workload.setup = std::mem::replace(&mut workload.watched, watched);
    }
    if workload.watched.is_empty() {
        let lines = text.lines().count().max(1);
        return Err(ParseError {
            line: lines,
            text: "no operation is watched: write one, for instance: create /a".into(),
        });
    }
    Ok(workload)
}

fn steps(words: &[&str], line: usize, out: &mut Vec<Step>) -> Result<(), String> {
    let (times, words) = match words {
        ["repeat", count, rest @ ..] if !rest.is_empty() => {
            let count = number_of(count)?;
            if count > STEPS_MAX as u64 {
                return Err(format!("repeat {count}: at most {STEPS_MAX}"));
            }
            (Some(count), rest)
        }
        ["repeat", ..] => return Err("write: repeat COUNT OPERATION…".into()),
        words => (None, words),
    };
    let mut bytes = 0;
    for i in 0..times.unwrap_or(1) {
        let words = words.iter().map(|word| expand(word, times.map(|_| i))).collect::<Result<Vec<_>, _>>()?;
        bytes += words.iter().map(String::len).sum::<usize>();
        if bytes > REPEAT_BYTES_MAX {
            return Err(format!(
                "a repeat of more than {REPEAT_BYTES_MAX} bytes: take shorter words or fewer rounds"
            ));
        }
        out.push(step(&words, line)?);
    }
    Ok(())
}

/// Expands a word: `{i}` is the round of a `repeat`, `{i*N}` that times N, `{TEXT*COUNT}` the text so many
/// times, `\xNN` a character.
fn expand(word: &str, round: Option<u64>) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = word;
    while let Some(at) = rest.find(['{', '\\']) {
        out += &rest[..at];
        refuse_long(&out)?;
        if rest[at..].starts_with('\\') {
            let code = rest.get(at + 2..at + 4).filter(|_| rest[at..].starts_with("\\x"));
            let code = code.and_then(|hex| u8::from_str_radix(hex, 16).ok());
            out.push(char::from(code.ok_or_else(|| format!("{word}: an escape is \\x and two hex digits"))?));
            rest = &rest[at + 4..];
            continue;
        }
        let end = rest[at..].find('}').ok_or_else(|| format!("{word}: the {{ has no }}"))? + at;
        let inner = &rest[at + 1..end];
        match (inner.split_once('*'), inner, round) {
            (Some(("i", by)), _, Some(round)) => {
                let product = number_of(by)?.checked_mul(round);
                out += &product.ok_or_else(|| format!("{word}: the number is too large"))?.to_string();
            }
            (Some((text, count)), ..) => {
                let count = number_of(count)?;
                if count > 8192 {
                    return Err(format!("{word}: at most 8192 times"));
                }
                out += &text.repeat(count as usize);
            }
            (None, "i", Some(round)) => out += &round.to_string(),
            (None, "i", None) => return Err(format!("{word}: {{i}} has a meaning in a `repeat` only")),
            _ => return Err(format!("{word}: in braces stand i, i*N or TEXT*COUNT")),
        }
        rest = &rest[end + 1..];
    }
    out += rest;
    refuse_long(&out)?;
    Ok(out)
}

fn refuse_long(word: &str) -> Result<(), String> {
    if word.len() <= WORD_BYTES_MAX {
        Ok(())
    } else {
        Err(format!("a word of more than {WORD_BYTES_MAX} bytes"))
    }
}

fn step(words: &[String], line: usize) -> Result<Step, String> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.split_first() {
        Some((first, rest)) if first.starts_with('@') => {
            let thread = first[1..].parse().ok().filter(|n| (1..=THREADS_MAX).contains(n));
            let thread = thread.ok_or_else(|| {
                format!("{first}: a thread is @1 to @{THREADS_MAX}; without one the first runs it")
            })?;
            Ok(Step { op: op(rest)?, thread, line })
        }
        _ => Ok(Step { op: op(&words)?, thread: 0, line }),
    }
}

fn op(words: &[&str]) -> Result<Op, String> {
    let text = |s: &&str| (*s).to_string();
    Ok(match words {
        ["create", p] => Op::Create { path: path(p)? },
        ["mkdir", p] => Op::Mkdir { path: path(p)? },
        ["mknod", p, kind] => Op::Mknod {
            path: path(p)?,
            kind: KINDS
                .iter()
                .find(|(_, name)| name == kind)
                .map(|(kind, _)| *kind)
                .ok_or_else(|| format!("{kind}: mknod makes a fifo, socket, char or block"))?,
        },
        ["tmpfile", p, name] => Op::Tmpfile { dir: path(p)?, name: descriptor(name)? },
        ["name", name, p] => Op::Name { descriptor: descriptor(name)?, path: path(p)? },
        ["symlink", target, p] => Op::Symlink { target: text(target), path: path(p)? },
        ["link", from, to] => Op::Link { from: path(from)?, to: path(to)? },
        ["unlink", p] => Op::Unlink { path: path(p)? },
        ["rmdir", p] => Op::Rmdir { path: path(p)? },
        ["rename", from, to] => Op::Rename { from: path(from)?, to: path(to)? },
        ["exchange", from, to] => Op::Exchange { from: path(from)?, to: path(to)? },
        ["write", f, offset, len] => {
            Op::Write { file: file(f)?, offset: number_of(offset)?, len: length(len)? }
        }
        ["append", f, len] => Op::Append { file: file(f)?, len: length(len)? },
        ["truncate", f, size] => Op::Truncate { file: file(f)?, size: number_of(size)? },
        ["fallocate", f, how, offset, len] => Op::Fallocate {
            file: file(f)?,
            mode: mode(how)?,
            offset: number_of(offset)?,
            len: number_of(len)?,
        },
        ["setxattr", p, name, value] => Op::SetXattr { path: path(p)?, name: text(name), value: text(value) },
        ["removexattr", p, name] => Op::RemoveXattr { path: path(p)?, name: text(name) },
        ["list", p, kind @ ("access" | "default"), list] => Op::List {
            path: path(p)?,
            kind: if *kind == "access" { ListKind::Access } else { ListKind::Default },
            list: read_list(list)
                .ok_or_else(|| format!("{list}: a list is owner:6,user:7:4,owning:4,mask:4,others:0"))?,
        },
        ["mode", p, perm] => Op::Mode {
            path: path(p)?,
            perm: u16::from_str_radix(perm, 8)
                .ok()
                .filter(|perm| *perm <= 0o7777)
                .ok_or_else(|| format!("{perm}: a mode is octal, 0 to 7777"))?,
        },
        ["owner", p, uid, gid] => Op::Owner { path: path(p)?, uid: id(uid)?, gid: id(gid)? },
        ["times", p, secs] => Op::Times {
            path: path(p)?,
            secs: secs
                .parse()
                .ok()
                .filter(|s| *s < 86_400)
                .ok_or_else(|| format!("{secs}: seconds of 1970-01-01, 0 to 86399"))?,
        },
        ["fsync", f] => Op::Fsync { file: file(f)? },
        ["sync"] => Op::Sync,
        ["open", p, name] => Op::Open { path: path(p)?, name: descriptor(name)? },
        ["close", name] => Op::Close { name: descriptor(name)? },
        ["remount"] => Op::Remount,
        [] => return Err("a thread without an operation".into()),
        [first, ..] => {
            return Err(match GRAMMAR.iter().find(|(name, _)| name == first) {
                Some((_, form)) => format!("write: {form}"),
                None => {
                    let names: Vec<&str> = GRAMMAR.iter().map(|(name, _)| *name).collect();
                    format!("{first}: no operation is called so; there are {}", names.join(", "))
                }
            });
        }
    })
}

fn path(word: &str) -> Result<String, String> {
    if word.starts_with('/') { Ok(word.into()) } else { Err(format!("{word}: a path begins with /")) }
}

fn descriptor(word: &str) -> Result<String, String> {
    let right = word.starts_with(|c: char| c.is_ascii_alphabetic())
        && word.chars().all(|c| c.is_ascii_alphanumeric());
    if right {
        Ok(word.into())
    } else {
        Err(format!("{word}: a descriptor is a letter, then letters and digits"))
    }
}

fn file(word: &str) -> Result<File, String> {
    if word.starts_with('/') {
        return Ok(File::Path(word.into()));
    }
    let hint = |_| format!("{word}: a file is a path (begins with /) or a descriptor that `open` gave");
    descriptor(word).map(File::Descriptor).map_err(hint)
}

fn mode(word: &str) -> Result<RangeOp, String> {
    let plain = word.to_lowercase().replace('_', "-");
    let known = MODES.iter().find(|(_, names)| names.contains(&plain.as_str())).map(|(op, _)| *op);
    known.ok_or_else(|| {
        let names: Vec<&str> = MODES.iter().map(|(_, names)| names[0]).collect();
        format!("{word}: a mode of fallocate is one of {}", names.join(", "))
    })
}

fn id(word: &str) -> Result<u32, String> {
    word.parse().map_err(|_| format!("{word}: a user or group is a number"))
}

fn length(word: &str) -> Result<u64, String> {
    number_of(word).and_then(|n| {
        if n <= LENGTH_MAX { Ok(n) } else { Err(format!("{word}: at most 1G is written at once")) }
    })
}

/// 4096, 4K, 4KiB, 1M, 1G.
fn number_of(word: &str) -> Result<u64, String> {
    let plain = word.strip_suffix("iB").unwrap_or(word);
    let (digits, shift) = match plain.char_indices().last() {
        Some((at, 'K' | 'k')) => (&plain[..at], 10),
        Some((at, 'M' | 'm')) => (&plain[..at], 20),
        Some((at, 'G' | 'g')) => (&plain[..at], 30),
        _ => (plain, 0),
    };
    let number: Option<u64> = digits.parse().ok();
    number
        .and_then(|n| n.checked_mul(1 << shift))
        .ok_or_else(|| format!("{word}: a number is written 4096, 4K or 4KiB"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &str = "\
create /a            # a comment
mkdir /d

write /a 0 4K
append /a 100
truncate /a 5000
fallocate /a PUNCH_HOLE 0 4096
rename /a /d/b
link /d/b /c
symlink some/target /s
setxattr /c user.x value
setxattr /c user.y {n*0}
removexattr /c user.x
unlink /c
rmdir /d
exchange /a /b
mode /a 0644
owner /a 7 8
times /a 5
mknod /p fifo
list /a access owner:6,user:7:4,owning:4,group:8:0,mask:4,others:0
list /d default owner:6,owning:4,others:0
tmpfile /d t
name t /d/t
open /a one
write one 4096 1
fsync one
close one
@2 fsync /a
repeat 3 create /n{i}
create /{n*255}
create /with\\x20blank
remount
sync
";

    #[test]
    fn every_operation_is_read_and_its_text_reads_as_the_same() {
        let first = parse("w", ALL).unwrap();
        assert_eq!(first.watched.len(), 35);
        assert!(first.watched.iter().any(|s| s.op == Op::Create { path: "/n2".into() }));
        assert!(first.watched.iter().any(|s| s.op == Op::Create { path: format!("/{}", "n".repeat(255)) }));
        assert!(first.watched.iter().any(|s| s.op == Op::Create { path: "/with blank".into() }));
        let second = parse("w", &first.to_string()).unwrap();
        let ops = |w: &Workload| w.watched.iter().map(|s| (s.op.clone(), s.thread)).collect::<Vec<_>>();
        assert_eq!(ops(&first), ops(&second));
    }

    #[test]
    fn what_stands_before_watch_is_set_up() {
        let workload = parse("w", "image 8M\nlogs short\ncreate /a\nwatch\nunlink /a\n").unwrap();
        assert_eq!((workload.setup.len(), workload.watched.len(), workload.image_bytes), (1, 1, 8 << 20));
        let again = parse("w", &workload.to_string()).unwrap();
        assert_eq!((again.setup.len(), again.image_bytes, again.logs), (1, 8 << 20, Logs::Short));
    }

    #[test]
    fn a_small_text_does_not_become_a_huge_workload() {
        let word = "{n*8192}".repeat(1000);
        for text in [format!("create /{word}"), format!("repeat 100000 create /{}", &word[..80])] {
            assert!(parse("w", &text).is_err_and(|error| error.text.contains("more than")), "{text}");
        }
    }

    #[test]
    fn a_wrong_line_is_named_with_the_way_out() {
        for (text, line, part) in [
            ("create a", 1, "a path begins with /"),
            ("create /a\nfly /a", 2, "no operation is called so"),
            ("write /a 0", 1, "write: write FILE OFFSET LENGTH"),
            ("write /a 0 x", 1, "a number is written"),
            ("write /a 0 99999999999999999999", 1, "a number is written"),
            ("write /a 0 2G", 1, "at most 1G"),
            ("fallocate /a fold 0 1", 1, "allocate, keep, punch"),
            ("mode /a 9", 1, "octal"),
            ("@0 sync", 1, "a thread is @1"),
            ("create /{i}", 1, "in a `repeat` only"),
            ("create /{a", 1, "has no }"),
            ("create /\\q", 1, "two hex digits"),
            ("repeat 3", 1, "repeat COUNT"),
            ("# nothing\n", 1, "no operation is watched"),
            ("logs long", 1, "logs short"),
            ("mknod /a pipe", 1, "a fifo"),
            ("list /a access owner:6", 1, "a list is"),
            ("watch\nwatch\nsync", 2, "a second `watch`"),
            ("open /a 1x", 1, "a descriptor is a letter"),
            ("", 1, "no operation is watched"),
        ] {
            let error = parse("w", text).unwrap_err();
            assert_eq!(error.line, line, "{text}: {error}");
            assert!(error.text.contains(part), "{text}: {error}");
        }
    }
}
