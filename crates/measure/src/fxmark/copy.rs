//! Target `copy`: the least that a page write costs on this machine, without a file system: one copy and, if
//! it survives a power cut, one fence. Only for DWOL, whose workers share nothing.

use anyhow::{Result, ensure};
use heddle_fxmark::{Run, Target, WorkersAs, Workload};
use heddle_pmem::bandwidth::{COPIES_REGION_BYTES, copies};
use heddle_pmem::{Durability, Region};
use std::sync::Arc;
use std::time::Duration;

/// The target; each run takes `secs` seconds.
pub fn target(secs: f64, durability: Durability) -> Target {
    let run = move |workload, workers| {
        run(workload, workers, secs, durability).map_err(|error| format!("{error:#}"))
    };
    Target::Elsewhere { name: "copy".into(), run: Arc::new(run) }
}

fn run(workload: Workload, workers: usize, secs: f64, durability: Durability) -> Result<Run> {
    ensure!(workload == Workload::DWOL, "target copy is no file system: it is measured with DWOL alone");
    let region = Region::anonymous_as(COPIES_REGION_BYTES * workers as u64, durability)?;
    let done = copies(&region, workers, Duration::from_secs_f64(secs))?;
    let ops = done.iter().map(|one| one.done).sum();
    let secs = done.iter().map(|one| one.time.as_secs_f64()).sum::<f64>() / workers as f64;
    Ok(Run {
        workload,
        target: String::new(),
        cores: workers,
        repeat: 0,
        secs,
        ops,
        read_ops: 0,
        write_ops: ops,
        ops_per_sec: ops as f64 / secs,
        p50_ns: None,
        p99_ns: None,
        p999_ns: None,
        max_ns: None,
        cpu_user_pct: 100.0,
        cpu_sys_pct: 0.0,
        cpu_idle_pct: 0.0,
        line_crossing_ns: None,
        retaken: 0,
        error: None,
        workers_as: WorkersAs::Threads,
    })
}
