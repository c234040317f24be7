//! `heddle fxmark`: the FxMark workloads on engines, on the kernel's file systems, on any directory.
//!
//! Workers are processes, as in the original, if possible. In a table with one of the papers' systems, which
//! work in one process only, `heddle` has threads too. The table compares engines, and a process has costs
//! that a thread does not have (its own page tables and first touches). Kernel file systems always have
//! processes, as their real callers are.

mod copy;
mod mounted;

use crate::engines::{self, Setup};
use anyhow::Result;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use heddle_console::failure::{judged, usage};
use heddle_console::output::{self, Sink};
use heddle_console::progress::Bar;
use heddle_console::scratch;
use heddle_console::size::Size;
use heddle_console::variant::System;
use heddle_fxmark::{
    Access, Config, ConfigError, Progress, Run, Stride, Target, WorkersAs, Workload, list, run as measure,
};
use heddle_nvmfs::{LockMode, Variant};
use heddle_pmem::Durability;
use mounted::{Mounts, Way};
use std::ffi::OsString;
use std::path::PathBuf;

/// Run the FxMark workloads on engines and on the kernel's file systems, side by side
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Workloads, see --list [default: those of FxMark that read and write data: DRBL DRBM DRBH DWOL DWOM DWAL DWTL DWSL]
    #[arg(value_name = "WORKLOAD")]
    workloads: Vec<String>,
    /// The systems to measure: nova, nova-interval, nova-array, nova-tree, heddle (engines, on a fresh image in memory), f2fs, f2fs-rl,
    /// f2fs-nl, f2fs-integrated (on a fresh F2FS image in memory, with the node log in memory too); NAME+mount (any of them through
    /// FUSE); heddle+bypass (unmodified calls, the bypass preloaded); copy (a page, under power with a fence: DWOL);
    /// tmpfs, and on RAM disks ext4, ext4-nj (no journal), xfs, btrfs, f2fs-kernel (all as root); LABEL=PATH (any directory)
    #[arg(long = "target", value_delimiter = ',', value_name = "T,…", default_value = "heddle")]
    targets: Vec<String>,
    /// Workers of the engine heddle: processes, each of which joins the image, or threads of one process. The engines of nova and f2fs (and
    /// their variants) have threads, for they work in one process. So has copy. All other targets have processes [default: processes;
    /// threads if one of these engines is in the same table]
    #[arg(long, value_name = "KIND", value_parser = workers_as_parser())]
    workers_as: Option<WorkersAs>,
    /// Numbers of workers, each on a CPU of its own
    #[arg(long, value_delimiter = ',', value_name = "N,…", default_value = "1")]
    cores: Vec<usize>,
    /// Timed seconds of one run
    #[arg(long, default_value_t = 2.0)]
    secs: f64,
    /// Runs of each cell, interleaved; the median counts
    #[arg(long, default_value_t = 3)]
    repeat: u32,
    /// Repeat a run of several workers, at most so often, if a cache line took long from one of their CPUs to another (the JSON and
    /// the CSV have that time in ns as `line_crossing_ns`)
    #[arg(long, value_name = "N", default_value_t = 4)]
    retakes: u32,
    /// All results as JSON, to a file or to stdout (-)
    #[arg(long, value_name = "FILE|-")]
    json: Option<Sink>,
    /// Every run as CSV, to a file or to stdout (-)
    #[arg(long, value_name = "FILE|-")]
    csv: Option<Sink>,
    /// A page with bars, to a file or to stdout (-)
    #[arg(long, value_name = "FILE|-")]
    html: Option<Sink>,
    /// Run the loops of the original program, with what distorts its figures (see --list)
    #[arg(long)]
    faithful: bool,
    /// Explain each workload, and what --faithful changes
    #[arg(long)]
    list: bool,
    /// Open files with O_DIRECT (DRBL DRBM DWOL DWOM); the NVM engines and copy ignore it
    #[arg(long)]
    direct: bool,
    /// How the workers' blocks lie in the shared file: neighbours (4K), or in parts of their own (8M)
    #[arg(long, default_value = "8M", value_parser = stride)]
    stride: Stride,
    /// The block that a worker takes: always the same, or a random one of its set
    #[arg(long, default_value = "fixed", value_parser = access)]
    access: Access,
    /// Bytes per call of DRBL and DWOL, a power of two
    #[arg(long, value_name = "SIZE", default_value = "4K")]
    call: Size,
    /// Size of the shared file, or of all private files together [default: 8M per worker]
    #[arg(long)]
    file_size: Option<Size>,
    /// Segment of the papers' range locks; with several sizes, each such engine is measured with each (NAME@64K), and +mount with the first
    #[arg(long, value_delimiter = ',', value_name = "SIZE,…", default_value = "4K")]
    segment: Vec<Size>,
    /// How waiters for the papers' locks wait: fair (they sleep; readers hold back for a writer that readers have kept out for 1 ms) or
    /// paper (as published: they spin, readers go first). For nova-interval both are the same; other systems than nova* ignore it
    #[arg(long, default_value = "fair", value_parser = heddle_console::variant::lock_mode)]
    lock_mode: LockMode,
    /// What a write of an engine on NVM survives after it returned: process (the death of any process, as on tmpfs), or power (a power cut
    /// too, if the memory were persistent, as in the papers)
    #[arg(long, value_name = "process|power", default_value_t = Durability::Process)]
    durability: Durability,
    /// Empty files per worker of the metadata workloads
    #[arg(long, default_value_t = 8192)]
    files: u32,
}

const EXAMPLES: &str = "\
Examples:
  heddle fxmark --list
  heddle fxmark DWOM DRBM --target nova,nova-interval,nova-array,nova-tree,heddle,tmpfs --cores 1,2
  heddle fxmark DWOM --access random --file-size 120M --segment 4K,16K,64K,256K --target nova-array,nova-tree
  heddle fxmark --target heddle,disk=/var/tmp --secs 5 --json results.json --html results.html
  heddle fxmark DWOM --target heddle,heddle+mount,heddle+bypass,tmpfs --cores 1,2
  heddle fxmark DWOM DRBM --target heddle --cores 2 --workers-as threads
  heddle fxmark DWOL --target heddle,copy --durability power            beside the least that a durable write can take
  heddle fxmark DWOL --access random --call 64K --file-size 64M --target heddle+bypass,tmpfs
  heddle fxmark HACC OLTP VARMAIL --target heddle,nova,tmpfs,ext4   applications: checkpoint, database, mail";

const WORKERS: &str = "
Workers (--workers-as): forked processes, as in the original; in heddle each joins the image, and has it mapped
before the clock runs. nova, nova-interval, nova-array and nova-tree have threads of one process: their locks have no
owners that could be told dead. So have the f2fs engines, whose memory is one process's. In a table with one of them heddle
has threads too, so that engines are compared.
";

fn workers_as_parser() -> impl TypedValueParser<Value = WorkersAs> {
    // The first parser admits no other word.
    PossibleValuesParser::new(["threads", "processes"])
        .map(|word| if word == "threads" { WorkersAs::Threads } else { WorkersAs::Processes })
}

fn stride(text: &str) -> Result<Stride, String> {
    match text.parse::<Size>() {
        Ok(Size(4096)) => Ok(Stride::Page),
        Ok(Size(8388608)) => Ok(Stride::Segment),
        _ => Err("it is 4K (neighbours) or 8M (parts of their own)".to_owned()),
    }
}

fn access(text: &str) -> Result<Access, String> {
    match text {
        "fixed" => Ok(Access::Fixed),
        "random" => Ok(Access::Random),
        _ => Err("it is fixed or random".to_owned()),
    }
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    if args.list {
        return output::data(&(list() + WORKERS));
    }
    let mut config = config(args)?;
    config.check().map_err(usage)?;
    let sinks = [&args.json, &args.csv, &args.html];
    if sinks.iter().filter(|sink| matches!(sink, Some(Sink::Stdout))).count() > 1 {
        return Err(usage("only one of --json, --csv and --html can go to stdout (-)"));
    }
    sinks.into_iter().flatten().try_for_each(Sink::check)?;
    // Those of killed commands hold memory that this one measures.
    scratch::remove_left();
    let _mounts = mount(args, &mut config)?;
    let report = measure(&config, &mut Watch::new()).map_err(usage)?;
    let forms = [report.to_json(), report.to_csv(), report.to_html()];
    let write = || {
        for (sink, form) in sinks.iter().zip(&forms) {
            sink.as_ref().map_or(Ok(()), |sink| sink.put(form))?;
        }
        match sinks.iter().any(|sink| matches!(sink, Some(Sink::Stdout))) {
            true => Ok(()),
            false => output::data(&report.to_text()),
        }
    };
    judged(write(), report.has_failures())
}

fn config(args: &Args) -> Result<Config> {
    use Workload::{DRBH, DRBL, DRBM, DWAL, DWOL, DWOM, DWSL, DWTL};
    let named: Result<Vec<Workload>, ConfigError> =
        args.workloads.iter().map(|name| Workload::parse(name)).collect();
    let mut workloads = named.map_err(usage)?;
    if workloads.is_empty() {
        workloads = vec![DRBL, DRBM, DRBH, DWOL, DWOM, DWAL, DWTL, DWSL];
    }
    Ok(Config {
        workloads,
        cores: args.cores.clone(),
        secs: args.secs,
        repeat: args.repeat,
        retakes: args.retakes,
        access: args.access,
        call_bytes: args.call.0,
        file_size_bytes: args.file_size.map(|size| size.0),
        stride: args.stride,
        direct: args.direct,
        faithful: args.faithful,
        files: args.files,
        durability: args.durability.name(),
        targets: targets(args)?,
        ..Config::default()
    })
}

/// Replaces targets that need a mount by mounted images.
fn mount(args: &Args, config: &mut Config) -> Result<Option<Mounts>> {
    let need = config.need_max();
    let setup = setup(args, args.segment[0]);
    let mut mounts = None;
    for target in &mut config.targets {
        if let Some(way) = mounted::way_of(target.name()) {
            let on = match mounts.take() {
                Some(on) => on,
                None => Mounts::new()?,
            };
            let on = mounts.insert(on);
            *target = match way {
                Way::Mount(system) => on.add(system, setup, &need)?,
                Way::Bypass => on.add_bypass(options_of_a_run(args), setup, &need)?,
            };
        }
    }
    Ok(mounts)
}

fn setup(args: &Args, segment: Size) -> Setup {
    Setup { durability: args.durability, mode: args.lock_mode, segment_bytes: segment.0 }
}

/// The options for a run that another process makes.
fn options_of_a_run(args: &Args) -> Vec<OsString> {
    let mut options: Vec<OsString> = vec!["--secs".into(), args.secs.to_string().into()];
    let stride = if args.stride == Stride::Page { "4K" } else { "8M" };
    let access = if args.access == Access::Fixed { "fixed" } else { "random" };
    for (option, value) in [
        ("--stride", stride.to_owned()),
        ("--access", access.to_owned()),
        ("--call", args.call.0.to_string()),
        ("--files", args.files.to_string()),
    ] {
        options.extend([option.into(), value.into()]);
    }
    if let Some(size) = args.file_size {
        options.extend(["--file-size".into(), size.0.to_string().into()]);
    }
    for (option, given) in [("--faithful", args.faithful), ("--direct", args.direct)] {
        options.extend(given.then(|| option.into()));
    }
    options
}

/// A target for each name; for each segment size, if several are requested and the variant has segments.
fn targets(args: &Args) -> Result<Vec<Target>> {
    if let Some(wrong) = args.segment.iter().find(|size| !size.0.is_power_of_two() || size.0 < 4096) {
        return Err(usage(format!("--segment {wrong}: a segment is a power of two from 4K up")));
    }
    let of_heddle = workers_of_heddle(args)?;
    let engine = |name: String, variant, segment: Size| {
        let setup = setup(args, segment);
        let workers_as = if engines::takes_processes(variant) { of_heddle } else { WorkersAs::Threads };
        engines::target(name, variant, setup, workers_as)
    };
    let mut plain: Vec<Target> = Variant::ALL.map(|v| engine(v.name().to_owned(), v, args.segment[0])).into();
    plain.push(copy::target(args.secs, args.durability));
    plain.extend(heddle_f2fs::Variant::ALL.map(|v| engines::f2fs_target(v, args.durability)));
    let mut targets = Vec::new();
    for name in &args.targets {
        if mounted::way_of(name).is_some() {
            // Mounted later, after all other checks.
            targets.push(Target::Directory { label: name.clone(), path: PathBuf::new() });
            continue;
        }
        match Variant::from_name(name).filter(|v| args.segment.len() > 1 && engines::has_segments(*v)) {
            None => targets.push(Target::find(name, &plain).map_err(usage)?),
            Some(variant) => {
                let named =
                    |size: &Size| format!("{name}@{}", size.to_string().replace(" ", "").replace("iB", ""));
                targets.extend(args.segment.iter().map(|size| engine(named(size), variant, *size)));
            }
        }
    }
    Ok(targets)
}

/// The kind of workers, by the options and the other targets.
fn workers_of_heddle(args: &Args) -> Result<WorkersAs> {
    let stays = |name: &&String| match System::from_name(name) {
        Some(System::Nvm(variant)) => !engines::takes_processes(variant),
        Some(System::F2fs(_)) => true,
        None => false,
    };
    match (args.workers_as, args.targets.iter().find(stays)) {
        (Some(WorkersAs::Processes), Some(name)) => Err(usage(format!(
            "--workers-as processes: {name} works in one process only. \
             Leave it out, or compare with --workers-as threads"
        ))),
        (Some(asked), _) => Ok(asked),
        (None, Some(_)) => Ok(WorkersAs::Threads),
        (None, None) => Ok(WorkersAs::Processes),
    }
}

/// A bar on a terminal, a line per run elsewhere.
struct Watch {
    bar: Bar,
    runs: u64,
    done: u64,
}

impl Watch {
    fn new() -> Watch {
        Watch { bar: Bar::of_things("fxmark"), runs: 0, done: 0 }
    }
}

impl Progress for Watch {
    fn start(&mut self, runs: usize) {
        self.runs = runs as u64;
    }

    fn run_begins(&mut self, workload: Workload, target: &str, cores: usize, repeat: u32) {
        self.bar.set_message(format!("{workload} {target} {cores} cores #{repeat}"));
    }

    fn run_ends(&mut self, run: &Run) {
        self.done += 1;
        self.bar.set_position(self.done, self.runs);
        self.bar.line(&run.to_string());
    }
}
