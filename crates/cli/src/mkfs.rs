//! `heddle mkfs`: makes an image.

mod f2fs;

use anyhow::{Result, bail};
use heddle_console::failure::usage;
use heddle_console::image;
use heddle_console::output::{self, Sink};
use heddle_console::overwrite::{self, Force, Target};
use heddle_console::progress::Bar;
use heddle_console::size::Size;
use heddle_console::variant::System;
use heddle_nvmfs::format::layout::REGION_BYTES_MIN;
use heddle_nvmfs::{VolumeError, format_region};
use heddle_pmem::{Durability, OpenOptions, Region};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Make an image with an empty file system, in a file or on a device
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The variant. An image of heddle or nova mounts only as that variant; one of nova-interval, nova-array or nova-tree mounts as any
    /// of the three. f2fs*: an F2FS image, for disks and flash, which mounts as any f2fs variant, and in Linux
    #[arg(long, default_value = "heddle", value_parser = heddle_console::variant::system())]
    variant: System,
    /// Size of the image [default: 1G; on a device all of it, which an F2FS image always takes]
    #[arg(long)]
    size: Option<Size>,
    /// Name of an F2FS image
    #[arg(long)]
    label: Option<String>,
    /// Overwrite what the file or device holds; the command first says what it has found there
    #[arg(long)]
    force: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// File or device
    image: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  heddle mkfs --size 1G /dev/shm/my.img
  heddle mkfs --variant nova-tree --size 512MiB --force /dev/shm/tree.img
  heddle mkfs /dev/dax0.0
  heddle mkfs --variant f2fs --size 20G --label data /var/tmp/flash.img

On tmpfs an image lies in memory. It survives the death of any process, but not a restart of the machine. On a disk a write to an NVM
image waits for msync: it is durable but slow. The f2fs variants are made for disks.";

const SIZE_DEFAULT: Size = Size(1 << 30);

#[derive(Serialize)]
struct Made {
    output_version: u32,
    image: String,
    variant: &'static str,
    size_bytes: u64,
    durable_by: &'static str,
    durability: &'static str,
}

const REMEDY: &str = "Choose another name, or overwrite it with --force";

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let image = args.image.as_path();
    let force = if args.force { Force::Yes } else { Force::No };
    let System::Nvm(variant) = args.variant else {
        f2fs::check(args)?;
        let size_bytes = f2fs::make(args, overwrite::take(image, force, REMEDY)?)?;
        return tell(args, size_bytes, f2fs::DURABLE_BY, Durability::Power);
    };
    if args.label.is_some() {
        return Err(usage(format!(
            "--label is for F2FS images: an image of {} has no label",
            variant.name()
        )));
    }
    if let Some(size) = args.size {
        check_size(image, size.0)?;
    }
    let region = map(args, overwrite::take(image, force, REMEDY)?)?;
    format_region(&region, variant)?;
    if let Some(error) = region.failed() {
        bail!(error);
    }
    tell(args, region.len_bytes(), durable_by(&region), region.durability())
}

fn check_size(image: &Path, have: u64) -> Result<()> {
    match have < REGION_BYTES_MIN {
        true => Err(usage(VolumeError::TooSmall { path: image.into(), have, min: REGION_BYTES_MIN })),
        false => Ok(()),
    }
}

fn tell(args: &Args, size_bytes: u64, durable_by: &'static str, durability: Durability) -> Result<()> {
    let (image, variant) = (args.image.display().to_string(), args.variant.name());
    let made =
        Made { output_version: 1, image, variant, size_bytes, durable_by, durability: durability.name() };
    if args.json {
        return output::json(&Sink::Stdout, &made);
    }
    // An F2FS image does not record the system that it is to be mounted as.
    let how = match args.variant {
        System::F2fs(variant) if variant.has_node_log() => {
            format!("--variant {} --nvm FILE ", variant.name())
        }
        System::F2fs(variant) if variant != heddle_f2fs::Variant::default() => {
            format!("--variant {} ", variant.name())
        }
        _ => String::new(),
    };
    let (image, size) = (&made.image, Size(size_bytes));
    output::data(&format!(
        "{image}: {size}, variant {variant}, durable by {durable_by}\nmount it with: heddle mount {how}{image} DIR"
    ))
}

/// Maps the file or device, after making and pre-faulting it.
fn map(args: &Args, target: Target) -> Result<Region> {
    let bar = Bar::of_bytes("making");
    let progress = |done, total| bar.set_position(done, total);
    let options = OpenOptions { overwrite: true, progress: Some(&progress), ..OpenOptions::default() };
    let size_bytes = match args.size {
        None if !target.locked_file.is_file() => target.locked_file.len_bytes()?,
        size => size.unwrap_or(SIZE_DEFAULT).0,
    };
    check_size(&args.image, size_bytes)?;
    image::create(&args.image, target, size_bytes, &options)
}

/// How a store there becomes durable.
pub fn durable_by(region: &Region) -> &'static str {
    match (region.backend(), region.durability()) {
        (heddle_pmem::Backend::Dax | heddle_pmem::Backend::DaxCached, _) => {
            "a store fence (persistent memory)"
        }
        (heddle_pmem::Backend::File, _) => {
            "msync (a file or disk under the page cache: each write waits for it; f2fs variants are made for disks)"
        }
        (_, Durability::Process) => {
            "the order of stores (memory: survives processes, gone when the machine restarts)"
        }
        (_, Durability::Power) => {
            "a store fence (memory in place of persistent memory: gone when the machine restarts)"
        }
    }
}
