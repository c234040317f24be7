//! Each cell over its repeats: median, least, greatest, and its ratio to the best file system of the kernel.

use super::Run;
use crate::config::Config;
use crate::{Target, WorkersAs, Workload};
use serde::Serialize;

/// Runs of one workload, target and number of cores.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// The workload.
    pub workload: Workload,
    /// The target.
    pub target: String,
    /// Workers.
    pub cores: usize,
    /// Runs.
    pub runs: u32,
    /// Median of operations a second; 0 if a run failed.
    pub median_ops_per_sec: f64,
    /// Least.
    pub min_ops_per_sec: f64,
    /// Greatest.
    pub max_ops_per_sec: f64,
    /// (greatest - least) / median, in percent.
    pub spread_pct: f64,
    /// Median of the runs' median latencies in ns.
    pub p50_ns: Option<u64>,
    /// Median of the runs' 99 % latencies in ns.
    pub p99_ns: Option<u64>,
    /// Median over that of the fastest kernel file system measured beside it on as many cores.
    pub ratio_to_best_kernel: Option<f64>,
    /// The first error of a run.
    pub error: Option<String>,
    /// Threads or processes.
    pub workers_as: WorkersAs,
}

impl Cell {
    /// Returns true if the runs differ so much that their median says little.
    pub fn is_unstable(&self) -> bool {
        self.spread_pct > UNSTABLE_PCT
    }
}

/// Spread from which a cell is called unstable, in percent.
pub(super) const UNSTABLE_PCT: f64 = 30.0;

pub(super) fn cells(config: &Config, runs: &[Run]) -> Vec<Cell> {
    let mut cells = Vec::new();
    for &workload in &config.workloads {
        for &cores in &config.cores {
            let row = config.targets.iter().map(|target| {
                let of_cell = |run: &&Run| {
                    run.workload == workload && run.cores == cores && run.target == target.name()
                };
                cell(workload, target, cores, &runs.iter().filter(of_cell).collect::<Vec<_>>())
            });
            let mut row: Vec<Cell> = row.collect();
            let peers = row.iter().zip(&config.targets).filter(|(_, target)| target.is_peer(config.direct));
            let best = peers.map(|(cell, _)| cell.median_ops_per_sec).fold(0.0, f64::max);
            for cell in &mut row {
                let comparable = best > 0.0 && cell.error.is_none();
                cell.ratio_to_best_kernel = comparable.then(|| cell.median_ops_per_sec / best);
            }
            cells.extend(row);
        }
    }
    cells
}

fn cell(workload: Workload, target: &Target, cores: usize, runs: &[&Run]) -> Cell {
    let error = runs.iter().find_map(|run| run.error.clone());
    let mut rates: Vec<f64> =
        runs.iter().map(|run| if error.is_some() { 0.0 } else { run.ops_per_sec }).collect();
    rates.sort_by(f64::total_cmp);
    let median = median(&rates);
    let (min, max) = (rates.first().copied().unwrap_or(0.0), rates.last().copied().unwrap_or(0.0));
    let latency = |get: fn(&Run) -> Option<u64>| {
        let mut all: Vec<u64> = runs.iter().filter_map(|run| get(run)).collect();
        all.sort_unstable();
        all.get(all.len() / 2).copied().filter(|_| error.is_none())
    };
    Cell {
        workload,
        target: target.name().to_owned(),
        cores,
        runs: runs.len() as u32,
        median_ops_per_sec: median,
        min_ops_per_sec: min,
        max_ops_per_sec: max,
        spread_pct: if median > 0.0 { (max - min) / median * 100.0 } else { 0.0 },
        p50_ns: latency(|run| run.p50_ns),
        p99_ns: latency(|run| run.p99_ns),
        ratio_to_best_kernel: None,
        error,
        workers_as: target.workers_as(),
    }
}

/// Of sorted numbers; the mean of the middle two where there are two.
fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}
