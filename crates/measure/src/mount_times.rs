//! `heddle mount-times`: how long a mount takes and how much memory it needs, on images of many files and of one large one.
//!
//! Each image is made, unmounted and mounted again `--repeat` times, alternately after an unmount and after a
//! simulated power cut. Mapping and reading the image are timed separately. Memory: the volatile state for
//! the lifetime of the mount, and the peak growth of this process's heap while the image was read.

use heddle_console::failure::usage;
use heddle_console::output::{self, Sink, talk};
use heddle_console::scratch::Scratch;
use heddle_console::size::Size;
use heddle_console::table::table;

use anyhow::{Context, Result};
use heddle_fxmark::Machine;
use heddle_nvmfs::{MountOptions, NvmFs, Variant, Volume, format_region, mount};
use heddle_pmem::OpenOptions;
use heddle_vfs::{Cred, FileKind, FileSystem, Ino, Name, NewNode, OpenFlags};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Measure how long mounting an NVM image takes, and how much memory it needs
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Files of one page each, in the image with many files
    #[arg(long, default_value_t = 100_000)]
    files: u64,
    /// Size of the file in the images with one large file; such an image needs an eighth more memory, and 64 MiB
    #[arg(long, default_value = "8G")]
    file_size: Size,
    /// Systems of the images
    #[arg(long, value_parser = heddle_console::variant::parser(), value_delimiter = ',', default_value = "heddle")]
    variant: Vec<Variant>,
    /// Mounts of each kind; the median counts
    #[arg(long, default_value_t = 5)]
    repeat: usize,
    /// Directory for the images, one at a time; it must lie on tmpfs
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// As JSON, to a file or to stdout (-)
    #[arg(long, value_name = "FILE|-")]
    json: Option<Sink>,
}

const EXAMPLES: &str = "\
Examples:
  heddle mount-times
  heddle mount-times --files 1000000 --file-size 1G --json -";

const PAGE_BYTES: u64 = 4096;
/// Bytes per write of the image with large extents.
const EXTENT_BYTES: usize = 1 << 20;
/// Files per directory of the image with many files.
const FILES_A_DIRECTORY: u64 = 1000;
/// Space for inodes, logs and directories: an eighth of the data, and this.
const BESIDE_BYTES: u64 = 64 << 20;

#[derive(Serialize)]
struct Report {
    output_version: u32,
    machine: Machine,
    repeat: usize,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    variant: &'static str,
    image: String,
    image_bytes: u64,
    inodes: u64,
    /// Time to map the file.
    map_ms: f64,
    /// Time to read it after an unmount.
    clean_ms: f64,
    /// Time to read it after a power cut.
    cut_ms: f64,
    /// Time of each step of the first mount.
    steps_ms: Vec<(&'static str, f64)>,
    state_bytes: u64,
    heap_bytes: u64,
}

/// Puts files into an image.
type Fill = Box<dyn Fn(&NvmFs) -> Result<()>>;

/// A kind of image.
struct Case {
    name: String,
    bytes: u64,
    fill: Fill,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    if args.files == 0 || args.repeat == 0 || args.file_size.0 < EXTENT_BYTES as u64 {
        return Err(usage("--files and --repeat are at least 1, --file-size is at least 1M"));
    }
    args.json.as_ref().map_or(Ok(()), Sink::check)?;
    let scratch = Scratch::within(&args.dir)?;
    if !scratch.is_on_tmpfs() {
        let dir = args.dir.display();
        return Err(usage(format!(
            "--dir {dir}: it does not lie in memory; take one on tmpfs, such as /dev/shm"
        )));
    }
    let image = scratch.dir().join("image");
    let mut rows = Vec::new();
    for variant in &args.variant {
        for case in cases(args.files, args.file_size.0) {
            talk(&format!("{}: {}", variant.name(), case.name));
            rows.push(measure(&image, *variant, &case, args.repeat)?);
            std::fs::remove_file(&image).with_context(|| format!("cannot remove {}", image.display()))?;
        }
    }
    let report = Report { output_version: 1, machine: Machine::here(), repeat: args.repeat, rows };
    match &args.json {
        Some(sink) => output::json(sink, &report),
        None => output::data(&text(&report)),
    }
}

fn cases(files: u64, file_bytes: u64) -> Vec<Case> {
    let bytes = |data: u64| (data + data / 8 + BESIDE_BYTES).next_multiple_of(PAGE_BYTES);
    let size = Size(file_bytes);
    vec![
        Case {
            name: format!("{files} files of one page"),
            // A page of data, one of log and a slot per file.
            bytes: bytes(files * 3 * PAGE_BYTES),
            fill: Box::new(move |fs| many_files(fs, files)),
        },
        Case {
            name: format!("one file of {size}, written in pieces of 1M"),
            bytes: bytes(file_bytes),
            fill: Box::new(move |fs| large_file(fs, file_bytes, EXTENT_BYTES as u64)),
        },
        Case {
            name: format!("one file of {size}, written page by page in scattered order"),
            bytes: bytes(file_bytes),
            fill: Box::new(move |fs| large_file(fs, file_bytes, PAGE_BYTES)),
        },
    ]
}

fn name(text: &str) -> Result<Name<'_>> {
    Name::new(text.as_bytes()).map_err(|error| anyhow::anyhow!("{text}: {error}"))
}

fn many_files(fs: &NvmFs, files: u64) -> Result<()> {
    let cred = Cred::root();
    let mut dir = Ino::ROOT;
    for n in 0..files {
        if n % FILES_A_DIRECTORY == 0 {
            let node = NewNode { kind: FileKind::Directory, perm: 0o755, rdev: 0, target: &[] };
            dir = fs.make(&cred, Ino::ROOT, name(&format!("d{}", n / FILES_A_DIRECTORY))?, node)?.ino;
        }
        let file = fs.create(&cred, dir, name(&format!("f{n}"))?, 0o644, OpenFlags::READ_WRITE)?.1;
        let written = fs.write(&file, 0, &[n as u8; PAGE_BYTES as usize]);
        fs.release(file);
        written?;
    }
    Ok(())
}

/// Writes a file in pieces, in an order without adjacent pages.
fn large_file(fs: &NvmFs, bytes: u64, piece_bytes: u64) -> Result<()> {
    let file = fs.create(&Cred::root(), Ino::ROOT, name("large")?, 0o644, OpenFlags::READ_WRITE)?.1;
    let (data, pieces) = (vec![7; piece_bytes as usize], bytes / piece_bytes);
    // Each number once: the step is odd, the count rounded up to a power of two.
    let round = pieces.next_power_of_two();
    let step = if piece_bytes == PAGE_BYTES { 0x9E37_79B1 } else { 1 };
    let order = (0..round).map(|n| n.wrapping_mul(step) % round).filter(|n| *n < pieces);
    let written = order.map(|n| fs.write(&file, n * piece_bytes, &data)).find_map(|done| done.err());
    fs.release(file);
    written.map_or(Ok(()), |error| Err(error.into()))
}

/// The results of one mount, and the volume.
struct Mounted {
    volume: Volume,
    map_ms: f64,
    read_ms: f64,
    steps_ms: Vec<(&'static str, f64)>,
    heap_bytes: u64,
}

fn mount_once(image: &Path) -> Result<Mounted> {
    let began = Instant::now();
    let region = heddle_console::image::open(image, &OpenOptions::default())?;
    let map_ms = ms(began);
    let (before, most) = (heap_bytes(), AtomicU64::new(0));
    let steps = std::sync::Mutex::new((Instant::now(), Vec::new()));
    let progress = |what: &'static str, done: u64, total: u64| {
        if done == total {
            // ORDERING: Relaxed: it is read when the mount is done.
            most.fetch_max(heap_bytes().saturating_sub(before), Ordering::Relaxed);
            if let Ok(mut steps) = steps.lock() {
                let took = ms(steps.0);
                steps.0 = Instant::now();
                match steps.1.iter_mut().find(|(name, _)| *name == what) {
                    Some((_, sum)) => *sum += took,
                    None => steps.1.push((what, took)),
                }
            }
        }
    };
    let began = Instant::now();
    let volume = mount(region, &MountOptions { progress: Some(&progress), ..MountOptions::default() })?;
    let read_ms = ms(began);
    let steps_ms = steps.into_inner().map(|s| s.1).unwrap_or_default();
    Ok(Mounted { volume, map_ms, read_ms, steps_ms, heap_bytes: most.into_inner() })
}

fn measure(image: &Path, variant: Variant, case: &Case, repeat: usize) -> Result<Row> {
    let region = heddle_pmem::Region::create(image, case.bytes, &OpenOptions::default())?;
    format_region(&region, variant)?;
    let volume = mount(region, &MountOptions::default())?;
    (case.fill)(&volume.fs()).with_context(|| case.name.clone())?;
    volume.close()?;
    let (mut map, mut clean, mut cut) = (Vec::new(), Vec::new(), Vec::new());
    let (mut state_bytes, mut heap_bytes, mut inodes, mut steps_ms) = (0, 0, 0, Vec::new());
    for _ in 0..repeat {
        let first = mount_once(image)?;
        clean.push(first.read_ms);
        map.push(first.map_ms);
        (state_bytes, inodes) = (first.volume.memory_bytes(), first.volume.report.inodes);
        (heap_bytes, steps_ms) = (heap_bytes.max(first.heap_bytes), first.steps_ms);
        first.volume.abandon();
        let second = mount_once(image)?;
        cut.push(second.read_ms);
        second.volume.close()?;
    }
    Ok(Row {
        variant: variant.name(),
        image: case.name.clone(),
        image_bytes: case.bytes,
        inodes,
        map_ms: median(map),
        clean_ms: median(clean),
        cut_ms: median(cut),
        steps_ms,
        state_bytes,
        heap_bytes,
    })
}

fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1000.0
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Memory of this process that is neither file-backed nor shared: its heap.
fn heap_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

fn text(report: &Report) -> String {
    let rows = report.rows.iter().map(|row| {
        let steps: Vec<String> = row.steps_ms.iter().map(|(what, ms)| format!("{what} {ms:.0}")).collect();
        [
            row.image.clone(),
            row.variant.to_owned(),
            format!("{:.0}", row.map_ms),
            format!("{:.0}", row.clean_ms),
            format!("{:.0}", row.cut_ms),
            steps.join(", "),
            Size(row.state_bytes).to_string(),
            Size(row.heap_bytes).to_string(),
        ]
    });
    let header = [
        "image",
        "variant",
        "map ms",
        "read ms",
        "after a cut ms",
        "last read, step by step",
        "state",
        "heap",
    ];
    format!(
        "{}, {} CPUs; median of {} mounts\n{}",
        report.machine.cpu_model,
        report.machine.cores,
        report.repeat,
        table(header, rows)
    )
}
