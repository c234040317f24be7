//! `heddle info`: shows an image's superblock, even of mounted images; and its content, if no process is
//! changing it.

mod content;
mod f2fs;
mod pieces;

use anyhow::Result;
use heddle_console::clock::clock;
use heddle_console::output::{self, Sink};
use heddle_console::size::Size;
use heddle_console::{image, open_error};
use heddle_nvmfs::fsck::survey;
use heddle_nvmfs::{ImageInfo, inspect};
use heddle_pmem::{Error, OpenOptions, Region};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Show the format and content of an image: space, inodes, logs (NVM images), fragmentation (F2FS images: with --files). Of an NVM image
/// mounted for writing it shows only the superblock; an F2FS image mounted for writing is refused
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// As JSON
    #[arg(long)]
    json: bool,
    /// One line per inode with a name: number of names, size, extents, chains and records of its log (F2FS: no log)
    #[arg(long)]
    files: bool,
    /// File or device
    image: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  heddle info /dev/shm/my.img
  heddle info --files /dev/shm/my.img
  heddle info --files /dev/sdb1            (F2FS)
  heddle info --json /dev/shm/my.img";

#[derive(Serialize)]
struct Info {
    output_version: u32,
    image: String,
    variant: &'static str,
    size_bytes: u64,
    format_version: u32,
    uuid: String,
    made_ns: i64,
    mounts: u64,
    mounted_last_ns: Option<i64>,
    clean: bool,
    /// A repair was stopped half-way: `heddle fsck` tells the way out.
    half_repaired: bool,
    in_use: bool,
    in_use_by_pid: Option<u32>,
    /// Absent for an image in use, or if only its superblock can be read.
    content: Option<content::Content>,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let path = args.image.as_path();
    if heddle_f2fs::is_f2fs(path) {
        return f2fs::run(path, args.json, args.files);
    }
    let options = OpenOptions { read_only: true, prefault: false, ..OpenOptions::default() };
    let mut inside = None;
    let (found, holder) = match Region::open(path, &options) {
        Ok(region) => {
            let found = inspect(path, region.len_bytes(), &|at, into| region.read(at, into))?;
            inside = survey(&path.display().to_string(), &region)?;
            (found, None)
        }
        Err(error @ (Error::InUse { .. } | Error::InUseThrough { .. })) => {
            let pid = if let Error::InUse { pid, .. } = error { pid } else { None };
            (image::of_file(path, image::len_bytes(path)?)?, Some(pid))
        }
        Err(error) => return Err(open_error::explain(path, error)),
    };
    let info = Info {
        output_version: 1,
        image: path.display().to_string(),
        variant: found.variant.name(),
        size_bytes: found.bytes,
        format_version: found.version,
        uuid: image::hex(found.uuid),
        made_ns: found.made.0,
        mounts: found.epoch,
        mounted_last_ns: found.mounted.map(|at| at.0),
        clean: found.clean,
        half_repaired: found.is_half_repaired,
        in_use: holder.is_some(),
        in_use_by_pid: holder.flatten(),
        content: inside.map(|survey| content::Content::of(&survey, args.files)),
    };
    if args.json {
        return output::json(&Sink::Stdout, &info);
    }
    let inside = info.content.as_ref().map_or(String::new(), |content| format!("\n{}", content.text()));
    output::data(&format!("{}{inside}", text(&info, &found, path)))
}

fn text(info: &Info, found: &ImageInfo, path: &Path) -> String {
    let state = match (info.in_use, info.in_use_by_pid, info.clean) {
        (true, Some(pid), _) => format!("in use by process {pid}"),
        (true, None, _) => "in use".to_owned(),
        _ if info.half_repaired => format!(
            "half repaired: a repair of it was stopped; the way out: heddle fsck {}",
            heddle_undo::shell_word(path)
        ),
        (false, _, true) => "clean".to_owned(),
        (false, _, false) => "not unmounted: the next mount recovers it".to_owned(),
    };
    let mounted = found.mounted.map_or(String::new(), |at| format!(", last {}", clock(at)));
    let rows = [
        ("image", info.image.clone()),
        ("variant", info.variant.to_owned()),
        ("size", format!("{} ({} bytes)", Size(info.size_bytes), info.size_bytes)),
        ("format", format!("version {}", info.format_version)),
        ("uuid", info.uuid.clone()),
        ("made", clock(found.made)),
        ("mounted", format!("or repaired {} times{mounted}", info.mounts)),
        ("state", state),
    ];
    rows.map(|(name, value)| format!("{name:<9}{value}")).join("\n")
}
