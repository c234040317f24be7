//! `heddle info`: what an image says of itself, of mounted images too; and, where nobody is changing it, what is in it.

mod content;
mod flash;
mod pieces;

use crate::image;
use crate::output::{self, Sink};
use crate::size::Size;
use anyhow::Result;
use heddle_nvmfs::fsck::survey;
use heddle_nvmfs::{ImageInfo, VolumeError, inspect};
use heddle_pmem::{Error, OpenOptions, Region};
use heddle_vfs::Time;
use serde::Serialize;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Tell what an image is, and what is in it: space, inodes, logs, fragmentation; of a mounted one the superblock alone
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// As JSON
    #[arg(long)]
    json: bool,
    /// A line for each inode: names, size, extents, chains and records of its log (F2FS: names, size, extents)
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
    in_use: bool,
    in_use_by_pid: Option<u32>,
    /// Nothing of an image in use, or whose superblock is all that is left.
    content: Option<content::Content>,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let path = args.image.as_path();
    if heddle_f2fs::is_f2fs(path) {
        return flash::run(path, args.json, args.files);
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
            (of_file(path, image::len_bytes(path)?)?, Some(pid))
        }
        Err(error) => return Err(image::explain(path, error)),
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
        in_use: holder.is_some(),
        in_use_by_pid: holder.flatten(),
        content: inside.map(|survey| content::Content::of(&survey, args.files)),
    };
    if args.json {
        return output::json(&Sink::Stdout, &info);
    }
    let inside = info.content.as_ref().map_or(String::new(), |content| format!("\n{}", content.text()));
    output::data(&format!("{}{inside}", text(&info, &found)))
}

/// Reads the superblock of a file past its lock.
pub fn of_file(image: &Path, len_bytes: u64) -> Result<ImageInfo, VolumeError> {
    let file = File::open(image).ok();
    inspect(image, len_bytes, &|at, into| {
        // What cannot be read is not a superblock: the buffer stays zero.
        let _ = file.as_ref().map(|file| file.read_exact_at(into, at.0));
    })
}

fn text(info: &Info, found: &ImageInfo) -> String {
    let state = match (info.in_use, info.in_use_by_pid, info.clean) {
        (true, Some(pid), _) => format!("in use by process {pid}"),
        (true, None, _) => "in use".to_owned(),
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
        ("mounted", format!("{} times{mounted}", info.mounts)),
        ("state", state),
    ];
    rows.map(|(name, value)| format!("{name:<9}{value}")).join("\n")
}

/// Date and time of day, UTC.
pub fn clock(at: Time) -> String {
    let Some([year, month, day, hour, minute, second]) = parts(at.secs()) else {
        return format!("{} s", at.secs());
    };
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// Now, as part of a file's name.
pub fn stamp() -> String {
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64);
    let [year, month, day, hour, minute, second] = parts(now).unwrap_or_default();
    format!("{year}{month:02}{day:02}T{hour:02}{minute:02}{second:02}")
}

/// Year, month, day, hour, minute, second, UTC.
fn parts(secs: i64) -> Option<[i32; 6]> {
    // SAFETY: `tm` is plain integers and a pointer, for which zero is valid.
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both point to live locals.
    if unsafe { libc::gmtime_r(&secs, &mut tm) }.is_null() {
        return None;
    }
    Some([tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec])
}
