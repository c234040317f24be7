//! Part two: workers write and read their own blocks of one shared file, in every variant and on tmpfs.
//!
//! The printed conclusions are computed from the measured numbers.

use super::Outcome;
use anyhow::{Result, bail};
use heddle_console::progress::Bar;
use heddle_console::scratch::Scratch;
use heddle_console::table::table;
use heddle_fxmark::{Config, Kernel, Machine, Progress, Report, Run, Target, WorkersAs, Workload};
use heddle_measure::engines::{self, Setup};
use heddle_nvmfs::Variant;

const REPEAT: u32 = 2;
const SECS_MAX: f64 = 0.4;
/// Sum of all timed windows.
const BUDGET_SECS: f64 = 15.0;
const TMPFS: &str = "tmpfs";

/// Runs the part.
pub fn run(scratch: &Scratch) -> Result<Outcome> {
    let machine = Machine::here();
    let mut cores = vec![1, 2, machine.cores];
    cores.retain(|n| *n <= machine.cores);
    cores.dedup();
    // The papers' variants have threads only, so all variants are measured with threads.
    let engine = |v: Variant| engines::target(v.name().to_owned(), v, Setup::default(), WorkersAs::Threads);
    let mut targets: Vec<Target> = Variant::ALL.map(engine).into();
    targets.extend(tmpfs(scratch));
    let workloads = vec![Workload::DWOM, Workload::DRBM];
    let runs = workloads.len() * cores.len() * targets.len() * REPEAT as usize;
    let secs = (BUDGET_SECS / runs as f64).min(SECS_MAX);
    let config = Config {
        workloads,
        targets,
        cores: cores.clone(),
        secs,
        repeat: REPEAT,
        retakes: 0,
        ..Config::default()
    };
    let report = heddle_fxmark::run(
        &config,
        &mut BarOnly { bar: Bar::of_things("racing"), done: 0, runs: runs as u64 },
    )?;
    if let Some(run) = report.runs.iter().find(|run| run.error.is_some()) {
        bail!("{run}");
    }
    Ok(Outcome::Passed(render(&report, &cores, secs)))
}

/// The tmpfs of the demo, or a fresh one.
fn tmpfs(scratch: &Scratch) -> Option<Target> {
    if scratch.is_on_tmpfs() {
        return Some(Target::Directory { label: TMPFS.to_owned(), path: scratch.dir().to_owned() });
    }
    rustix::process::geteuid().is_root().then_some(Target::Kernel(Kernel::Tmpfs))
}

/// Of the runs, only a bar is shown.
struct BarOnly {
    bar: Bar,
    done: u64,
    runs: u64,
}

impl Progress for BarOnly {
    fn run_ends(&mut self, _run: &Run) {
        self.done += 1;
        self.bar.set_position(self.done, self.runs);
    }
}

fn render(report: &Report, cores: &[usize], secs: f64) -> String {
    let rates = Rates(report);
    let most = cores.last().copied().unwrap_or(1);
    let mut names: Vec<&str> = Variant::ALL.map(Variant::name).into();
    let tmpfs = report.summary.iter().any(|cell| cell.target == TMPFS);
    names.extend(tmpfs.then_some(TMPFS));
    let rows = names.iter().map(|name| {
        let cell = |workload| {
            let each = cores.iter().map(|n| format!("{:>6.2}", rates.of(workload, name, *n) / 1e6));
            each.collect::<Vec<_>>().join(" ")
        };
        let gain = |workload| format!("{:.2}x", rates.gain(workload, name, most));
        let (write, read) = (Workload::DWOM, Workload::DRBM);
        [(*name).to_owned(), cell(write), gain(write), cell(read), gain(read)]
    });
    let heads = cores.iter().map(|n| format!("{n:>6}")).collect::<Vec<_>>().join(" ");
    let table = table(
        ["million/s, workers:", &format!("write {heads}"), "gain", &format!("read {heads}"), "gain"],
        rows,
    );
    let skipped = if tmpfs {
        ""
    } else {
        "\n   tmpfs: SKIPPED, the demo runs on no tmpfs here, and making one needs root"
    };
    let single =
        if most > 1 { "" } else { "\n   more than one worker: SKIPPED, this process may use one CPU only" };
    let table: String = table.lines().map(|line| format!("   {}\n", line.trim_end())).collect();
    let meaning = meaning(&rates, most, tmpfs);
    format!(
        "   4 KiB each, every worker its own block, one file; the better of {REPEAT} runs of {secs:.2} s, on {}\n\
         {table}{meaning}{skipped}{single}",
        report.machine.cpu_model,
    )
}

/// The better run by workload, target and number of workers: a disturbance of a short run only makes it
/// slower.
struct Rates<'a>(&'a Report);

impl Rates<'_> {
    fn of(&self, workload: Workload, target: &str, cores: usize) -> f64 {
        let mut cells = self.0.summary.iter();
        let cell = cells.find(|c| c.workload == workload && c.target == target && c.cores == cores);
        cell.map_or(0.0, |cell| cell.max_ops_per_sec)
    }

    /// The rate as a multiple of the rate of one worker.
    fn gain(&self, workload: Workload, target: &str, cores: usize) -> f64 {
        self.of(workload, target, cores) / self.of(workload, target, 1).max(1.0)
    }
}

/// The conclusions, in three sentences.
fn meaning(rates: &Rates<'_>, most: usize, tmpfs: bool) -> String {
    let sentence = |workload, doing: &str| {
        let gain = |name: &str| rates.gain(workload, name, most);
        let locks = [Variant::NovaInterval, Variant::NovaArray, Variant::NovaTree].map(Variant::name);
        let best = locks.into_iter().max_by(|a, b| gain(a).total_cmp(&gain(b))).unwrap_or_default();
        format!(
            "   {doing}: in heddle {most} workers do {:.2} times what one does ({}); in nova, with one lock for the whole \
             file, {:.2} times ({}); the best of the papers' range locks is {best} with {:.2}.",
            gain("heddle"),
            verdict(gain("heddle"), most),
            gain("nova"),
            verdict(gain("nova"), most),
            gain(best),
        )
    };
    let mut lines = Vec::new();
    if most > 1 {
        lines.push(sentence(Workload::DWOM, "Writing"));
        lines.push(sentence(Workload::DRBM, "Reading"));
    }
    let against =
        |workload, other: &str| rates.of(workload, "heddle", most) / rates.of(workload, other, most).max(1.0);
    let (other, which) =
        if tmpfs { (TMPFS, ", whose writes are neither atomic nor durable") } else { ("nova", "") };
    lines.push(format!(
        "   With {most} worker{} heddle writes {:.1} times as fast as {other}{which}, and reads {:.1} times as fast.",
        if most > 1 { "s" } else { "" },
        against(Workload::DWOM, other),
        against(Workload::DRBM, other),
    ));
    lines.extend(disturbed(rates.0));
    lines.join("\n")
}

/// The effect of more workers, in words.
fn verdict(gain: f64, workers: usize) -> &'static str {
    let share = (gain - 1.0) / (workers as f64 - 1.0);
    match share {
        share if share < -0.05 => "more workers make it slower",
        share if share < 0.15 => "more workers add nothing",
        share if share < 0.6 => "more workers add something",
        _ => "they hardly slow each other",
    }
}

/// A reader of a page never sleeps: if it was off its CPU, another program was running there.
fn disturbed(report: &Report) -> Option<String> {
    let reads = report.runs.iter().filter(|run| run.workload == Workload::DRBM && run.target == "heddle");
    let worst = reads.map(|run| run.cpu_idle_pct).fold(0.0, f64::max);
    (worst > 10.0).then(|| {
        format!(
            "   Mistrust these figures: other programs had up to {worst:.0} % of the workers' CPUs meanwhile."
        )
    })
}
