//! The report as text: a table for each workload, a row for each target, a column for each number of cores.

use super::summary::{Cell, UNSTABLE_PCT};
use super::{FAR, Report, is_far};
use crate::{Access, Stride, WorkersAs};

/// Three digits and a unit: 5.10M, 312k, 97.0.
pub(super) fn short(rate: f64) -> String {
    let (value, unit) = match rate {
        r if r >= 999.5e6 => (r / 1e9, "G"),
        r if r >= 999.5e3 => (r / 1e6, "M"),
        r if r >= 999.5 => (r / 1e3, "k"),
        r => (r, ""),
    };
    let digits = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.digits$}{unit}")
}

pub(super) fn render(report: &Report) -> String {
    let (machine, options) = (&report.machine, &report.options);
    let mut out = format!(
        "{}, {} CPUs, Linux {}; {} s a run, median of {}; what returned survives {}{}{}{}{}\n",
        machine.cpu_model,
        machine.cores,
        machine.kernel,
        options.secs,
        options.repeat,
        if options.durability == "power" { "power cuts" } else { "processes" },
        if options.access == Access::Random { ", random pages" } else { "" },
        if options.stride == Stride::Page { ", neighbouring blocks" } else { "" },
        if options.direct { ", O_DIRECT" } else { "" },
        if options.faithful { ", the original program's loops" } else { "" },
    );
    for workload in ordered(report.summary.iter().map(|cell| cell.workload)) {
        let cells: Vec<&Cell> = report.summary.iter().filter(|cell| cell.workload == workload).collect();
        let original = workload.faithful().filter(|_| options.faithful);
        out += &format!("\n{workload}  {}\n", workload.operation());
        out += &original.map_or(String::new(), |text| format!("       here: {text}\n"));
        out += &table(&cells);
    }
    out + &troubles(report)
}

/// Each item once, in order of appearance.
pub(super) fn ordered<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut once = Vec::new();
    for item in items {
        if !once.contains(&item) {
            once.push(item);
        }
    }
    once
}

fn table(cells: &[&Cell]) -> String {
    let targets = ordered(cells.iter().map(|cell| cell.target.as_str()));
    let width = targets.iter().map(|t| t.chars().count()).max().unwrap_or(0).max("target".len());
    let cores = ordered(cells.iter().map(|cell| cell.cores));
    let heads = cores
        .iter()
        .map(|n| format!("  {:>26}", if *n == 1 { "1 core".into() } else { format!("{n} cores") }));
    let mut out = format!("{:<width$}{}\n", "target", heads.collect::<String>());
    for target in targets {
        let row =
            cells.iter().filter(|cell| cell.target == target).map(|cell| format!("  {:>26}", entry(cell)));
        out += &format!("{target:<width$}{}\n", row.collect::<String>());
    }
    out
}

/// Median, spread, ratio to the best kernel file system, median latency.
fn entry(cell: &Cell) -> String {
    if cell.error.is_some() {
        return "failed".to_owned();
    }
    let ratio = cell.ratio_to_best_kernel.map_or(String::new(), |r| format!(" {r:>5.2}x"));
    // One run has no spread.
    let spread = if cell.runs < 2 { String::new() } else { format!(" ±{:>2.0}%", cell.spread_pct / 2.0) };
    format!("{}{spread}{ratio} {:>7}", short(cell.median_ops_per_sec), latency(cell.p50_ns))
}

fn latency(ns: Option<u64>) -> String {
    match ns {
        None => String::new(),
        Some(ns) if ns < 10_000 => format!("{ns}ns"),
        Some(ns) if ns < 10_000_000 => format!("{}us", ns / 1000),
        Some(ns) => format!("{}ms", ns / 1_000_000),
    }
}

fn troubles(report: &Report) -> String {
    let ratio = report.summary.iter().any(|cell| cell.ratio_to_best_kernel.is_some());
    let mut out = String::from("\nOperations a second (median), half the spread");
    out += if ratio { ", times the best kernel file system here" } else { "" };
    out += ", median latency of one.\n";
    out += &format!("{}\n", workers(report));
    for cell in report.summary.iter().filter(|cell| cell.error.is_some()) {
        let error = cell.error.as_deref().unwrap_or_default();
        out += &format!("failed: {} {} on {} cores: {error}\n", cell.workload, cell.target, cell.cores);
    }
    let unstable: Vec<&Cell> = report.summary.iter().filter(|cell| cell.is_unstable()).collect();
    if let Some(worst) = unstable.iter().max_by(|a, b| a.spread_pct.total_cmp(&b.spread_pct)) {
        out += &format!(
            "unstable: {} of {} cells spread by more than {UNSTABLE_PCT:.0} % ({} {} on {} cores: {:.0} %). \
             Stop other programs, raise --secs and --repeat, or trust only differences larger than that.\n",
            unstable.len(),
            report.summary.len(),
            worst.workload,
            worst.target,
            worst.cores,
            worst.spread_pct,
        );
    }
    out + &slow_lines(report)
}

/// The workers' kind, by target if it differs.
pub(super) fn workers(report: &Report) -> String {
    let of =
        |kind| ordered(report.summary.iter().filter(|c| c.workers_as == kind).map(|c| c.target.as_str()));
    let (threads, processes) = (of(WorkersAs::Threads), of(WorkersAs::Processes));
    match (threads.as_slice(), processes.as_slice()) {
        (threads, []) if !threads.is_empty() => "Workers are threads of one process.".to_owned(),
        ([], _) => "Workers are processes.".to_owned(),
        _ => format!("Workers are threads in {}; processes in {}.", threads.join(", "), processes.join(", ")),
    }
}

/// Slow cache lines in runs of several workers.
fn slow_lines(report: &Report) -> String {
    let seen: Vec<f64> = report.runs.iter().filter_map(|run| run.line_crossing_ns).collect();
    let least = seen.iter().copied().fold(f64::INFINITY, f64::min);
    let far: Vec<f64> = seen.iter().copied().filter(|ns| is_far(*ns, least)).collect();
    let again: u32 = report.runs.iter().map(|run| run.retaken).sum();
    let worst = far.iter().copied().fold(0.0, f64::max);
    match (again, far.len()) {
        (0, 0) => String::new(),
        (_, 0) => format!(
            "slow lines: {again} runs were taken again, in which a line took more than {FAR} times {least:.0} ns from one CPU to another.\n"
        ),
        (_, left) => format!(
            "slow lines: in {left} of {} runs a line took up to {worst:.0} ns from one CPU to another, {least:.0} ns at best, also when \
             taken again: the host has moved the CPUs apart. What workers share costs more in these runs.\n",
            seen.len()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::short;

    #[test]
    fn rates_are_three_digits_and_a_unit() {
        let cases = [
            (0.0, "0.00"),
            (97.0, "97.0"),
            (999.6, "1.00k"),
            (5_104_000.0, "5.10M"),
            (312_345.0, "312k"),
            (2.5e9, "2.50G"),
        ];
        for (rate, text) in cases {
            assert_eq!(short(rate), text);
        }
    }
}
