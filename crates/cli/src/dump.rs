//! `heddle dump`: any structure of an NVM image.

use anyhow::Result;
use heddle_console::failure::usage;
use heddle_console::output::{self, Sink};
use heddle_console::{image, open_error};
use heddle_nvmfs::fsck::dump::{Value, What, dump};
use heddle_nvmfs::ids::BlockNo;
use heddle_nvmfs::{VolumeError, inspect};
use heddle_pmem::{OpenOptions, Region};
use heddle_vfs::Ino;
use std::path::PathBuf;

/// Print a structure of an unmounted NVM image, which may be damaged if a copy of its superblock is whole
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// As JSON
    #[arg(long)]
    json: bool,
    /// File or device
    image: PathBuf,
    /// The structure; see below
    #[arg(required = true, num_args = 1..=2, value_name = "WHAT")]
    what: Vec<String>,
}

const EXAMPLES: &str = "\
Structures:
  superblock        both copies
  tree              every path, with its inode
  inode N           the slot of an inode, and its state as its log tells it
  log N             the valid records of an inode's log
  page B            a log page: header and all slots
  record B:S        the record that starts in slot S of log page B
  /a/b              the inode that a path leads to

Examples:
  heddle dump /dev/shm/my.img superblock
  heddle dump /dev/shm/my.img log 1
  heddle dump /dev/shm/my.img record 17:3
  heddle dump --json /dev/shm/my.img /a/b";

fn what(words: &[String]) -> Result<What> {
    let wrong = |text: &str| usage(format!("'{text}' is no number. See: heddle dump --help"));
    let number = |text: &String| text.parse::<u64>().map_err(|_| wrong(text));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["superblock"] => Ok(What::Superblock),
        ["tree"] => Ok(What::Tree),
        ["inode", n] => Ok(What::Inode(Ino(number(&n.to_owned())?))),
        ["log", n] => Ok(What::Log(Ino(number(&n.to_owned())?))),
        ["page", b] => Ok(What::Page(BlockNo(number(&b.to_owned())?))),
        ["record", place] => {
            let (block, slot) = place.split_once(':').ok_or_else(|| {
                usage(format!("'{place}' is not the place of a record: write block:slot, as in 17:3"))
            })?;
            let slot = slot.parse::<u32>().map_err(|_| wrong(slot))?;
            Ok(What::Record(BlockNo(number(&block.to_owned())?), slot))
        }
        ["path", path] => Ok(What::Path(path.as_bytes().to_vec())),
        [path] if path.starts_with('/') => Ok(What::Path(path.as_bytes().to_vec())),
        _ => {
            let said = words.join(" ");
            let known = "superblock, tree, inode N, log N, page B, record B:S or a path /a/b";
            Err(usage(format!("cannot print '{said}': the structures are {known}")))
        }
    }
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let what = what(&args.what)?;
    image::refuse_flash(&args.image, "Use heddle info, or dump.f2fs")?;
    let how = OpenOptions { read_only: true, prefault: false, ..OpenOptions::default() };
    let region = Region::open(&args.image, &how).map_err(|error| open_error::explain(&args.image, error))?;
    if what == What::Superblock {
        // The copies of damaged superblocks are shown. Bytes without a trace of one are no image.
        let found = inspect(&args.image, region.len_bytes(), &|at, into| region.read(at, into));
        if let Err(foreign @ VolumeError::NotAnImage { .. }) = found {
            return Err(foreign.into());
        }
    }
    let shown = dump(&args.image.display().to_string(), &region, &what)?;
    if args.json {
        let mut all = serde_json::Map::new();
        all.insert("output_version".into(), 1.into());
        all.insert("dump".into(), json(&shown));
        return output::json(&Sink::Stdout, &all);
    }
    let mut out = String::new();
    text(&shown, 0, &mut out);
    output::data(&out)
}

fn json(value: &Value) -> serde_json::Value {
    match value {
        Value::Text(text) => text.clone().into(),
        Value::Number(n) => (*n).into(),
        Value::Signed(n) => (*n).into(),
        Value::Flag(flag) => (*flag).into(),
        Value::List(list) => list.iter().map(json).collect(),
        Value::Fields(fields) => fields
            .iter()
            .map(|(name, value)| ((*name).to_owned(), json(value)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
    }
}

fn plain(value: &Value) -> Option<String> {
    match value {
        // A name may have any bytes: none of them may control the terminal.
        Value::Text(text) => Some(text.chars().flat_map(visible).collect()),
        Value::Number(n) => Some(n.to_string()),
        Value::Signed(n) => Some(n.to_string()),
        Value::Flag(flag) => Some(if *flag { "yes" } else { "no" }.to_owned()),
        Value::List(list) => {
            let parts: Option<Vec<String>> = list.iter().map(plain).collect();
            parts.map(|parts| parts.join(" "))
        }
        Value::Fields(_) => None,
    }
}

fn visible(c: char) -> Vec<char> {
    if heddle_fuse::is_plain(c) { vec![c] } else { c.escape_default().collect() }
}

/// One line per field of nested values, one line per element of flat ones.
fn text(value: &Value, depth: usize, out: &mut String) {
    let indent = "  ".repeat(depth);
    if let Some(line) = plain(value) {
        *out += &format!("{indent}{line}\n");
        return;
    }
    match value {
        Value::List(list) => {
            for element in list {
                match one_line(element) {
                    Some(line) => *out += &format!("{indent}{line}\n"),
                    None => {
                        text(element, depth, out);
                        out.push('\n');
                    }
                }
            }
        }
        Value::Fields(fields) => {
            for (name, value) in fields {
                match plain(value).or_else(|| one_line(value)) {
                    Some(line) => *out += &format!("{indent}{name:<26}{line}\n"),
                    None => {
                        *out += &format!("{indent}{name}\n");
                        text(value, depth + 1, out);
                    }
                }
            }
        }
        _ => {}
    }
}

/// The fields of a list's element on one line.
fn one_line(value: &Value) -> Option<String> {
    let Value::Fields(fields) = value else { return plain(value) };
    if fields.len() > 16 {
        return None;
    }
    let parts: Option<Vec<String>> = fields
        .iter()
        .map(|(name, value)| plain(value).or_else(|| one_line(value)).map(|text| format!("{name} {text}")))
        .collect();
    parts.map(|parts| parts.join(", "))
}
