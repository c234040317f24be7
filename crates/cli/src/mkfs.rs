//! `heddle mkfs`: makes an image.

mod flash;

use crate::failure::usage;
use crate::image;
use crate::output::{self, Sink};
use crate::progress::Bar;
use crate::size::Size;
use crate::variant::System;
use anyhow::{Context, Result, bail};
use heddle_nvmfs::format::layout::REGION_BYTES_MIN;
use heddle_nvmfs::{VolumeError, format_region};
use heddle_pmem::{OpenOptions, Pos, Region};
use serde::Serialize;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Make an image: a file (best on tmpfs) or a persistent-memory device with an empty file system
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Which system; its log fixes as which others the image can be mounted. f2fs*: an F2FS image, for disks and flash, which
    /// Linux can mount too
    #[arg(long, default_value = "heddle", value_parser = crate::variant::system())]
    variant: System,
    /// Size of the image [default: 1G; a device: all of it]
    #[arg(long)]
    size: Option<Size>,
    /// Name of an F2FS image
    #[arg(long)]
    label: Option<String>,
    /// Overwrite what is there
    #[arg(long)]
    force: bool,
    /// Tell what was made as JSON
    #[arg(long)]
    json: bool,
    /// File or device
    image: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  heddle mkfs --size 1G /dev/shm/my.img
  heddle mkfs --variant nova-tree --size 512MiB --force /dev/shm/my.img
  heddle mkfs /dev/dax0.0
  heddle mkfs --variant f2fs --size 20G --label data /var/tmp/flash.img

On tmpfs, memory stands in for persistent memory: fast, and gone when the machine restarts. On any other file system a
fence is an msync: slow, and durable.";

const SIZE_DEFAULT: Size = Size(1 << 30);

#[derive(Serialize)]
struct Made {
    output_version: u32,
    image: String,
    variant: &'static str,
    size_bytes: u64,
    durable_by: &'static str,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let image = args.image.as_path();
    let device = is_device(image);
    let System::Nvm(variant) = args.variant else {
        if !args.force {
            refuse_to_overwrite(image)?;
        }
        return tell(args, flash::make(args)?, flash::DURABLE_BY);
    };
    if args.label.is_some() {
        return Err(usage(format!("--label is for F2FS images: one of {} has no name", variant.name())));
    }
    if let Some(Size(have)) = args.size.filter(|size| size.0 < REGION_BYTES_MIN) {
        return Err(usage(VolumeError::TooSmall { path: image.into(), have, min: REGION_BYTES_MIN }));
    }
    if !args.force {
        refuse_to_overwrite(image)?;
    }
    let region = take(args, device)?;
    format_region(&region, variant)?;
    if let Some(error) = region.failed() {
        bail!(error);
    }
    tell(args, region.len_bytes(), durable_by(&region))
}

fn tell(args: &Args, size_bytes: u64, durable_by: &'static str) -> Result<()> {
    let (image, variant) = (args.image.display().to_string(), args.variant.name());
    let made = Made { output_version: 1, image, variant, size_bytes, durable_by };
    if args.json {
        return output::json(&Sink::Stdout, &made);
    }
    // An F2FS image does not know as which system it is to be mounted.
    let how = match args.variant {
        System::Flash(variant) if variant.has_node_log() => {
            format!("--variant {} --nvm FILE ", variant.name())
        }
        System::Flash(variant) if variant != heddle_f2fs::Variant::default() => {
            format!("--variant {} ", variant.name())
        }
        _ => String::new(),
    };
    let (image, size) = (&made.image, Size(size_bytes));
    output::data(&format!(
        "{image}: {size}, variant {variant}, durable by {durable_by}\nmount it with: heddle mount {how}{image} DIR"
    ))
}

/// Maps the file or device, made and pre-faulted.
fn take(args: &Args, device: bool) -> Result<Region> {
    let bar = Bar::of_bytes("making");
    let progress = |done, total| bar.at(done, total);
    let options = OpenOptions { overwrite: true, progress: Some(&progress), ..OpenOptions::default() };
    let region = match args.size {
        None if device => image::open(&args.image, &options)?,
        size => image::create(&args.image, size.unwrap_or(SIZE_DEFAULT).0, &options)?,
    };
    Ok(region)
}

/// What a store there has to do to be durable.
pub fn durable_by(region: &Region) -> &'static str {
    match region.backend() {
        heddle_pmem::Backend::Dax => "a store fence (persistent memory)",
        heddle_pmem::Backend::File => "msync (a file on a disk)",
        _ => "a store fence (memory in place of persistent memory: gone when the machine restarts)",
    }
}

fn is_device(image: &Path) -> bool {
    image.metadata().is_ok_and(|meta| meta.file_type().is_block_device() || meta.file_type().is_char_device())
}

/// A file that holds anything, or a device whose beginning is not all zeros, stays as it is.
fn refuse_to_overwrite(image: &Path) -> Result<()> {
    let Ok(meta) = image.metadata() else { return Ok(()) };
    let remedy = "Choose another name, or overwrite it with --force";
    if meta.is_file() && meta.len() > 0 {
        match heddle_in(image, meta.len()) {
            Some(variant) => {
                bail!("{} holds a heddle file system ({variant}) already. {remedy}", image.display())
            }
            None => bail!("{} is a file of {} already. {remedy}", image.display(), Size(meta.len())),
        }
    }
    if is_device(image) && !begins_with_zeros(image)? {
        bail!("{} holds something already. {remedy}", image.display());
    }
    Ok(())
}

fn heddle_in(image: &Path, len_bytes: u64) -> Option<&'static str> {
    crate::info::of_file(image, len_bytes).ok().map(|info| info.variant.name())
}

/// File systems and partition tables say what they are within the first 128 KiB.
fn begins_with_zeros(device: &Path) -> Result<bool> {
    let mut head = vec![0; 128 << 10];
    let read = File::open(device).and_then(|mut file| file.read_exact(&mut head));
    if read.is_err() {
        // Device-DAX can be mapped only.
        let options = OpenOptions { read_only: true, prefault: false, ..OpenOptions::default() };
        let region = Region::open(device, &options)
            .with_context(|| format!("cannot look into {}", device.display()))?;
        let len = head.len().min(region.len_bytes() as usize);
        region.read(Pos(0), &mut head[..len]);
    }
    Ok(head.iter().all(|byte| *byte == 0))
}
