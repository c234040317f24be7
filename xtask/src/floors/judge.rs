//! From samples to verdicts.
//!
//! The measured figure is a ratio of medians. The spread is the smallest and the largest ratio within one repeat:
//! targets are interleaved, so what disturbs the machine in a repeat disturbs both sides of the line.

use std::fmt;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::table::{COPIED, COPY, Durability, Floor, Limit};

/// One cell in one repeat.
#[derive(Clone, Debug)]
pub struct Sample {
    pub durability: Durability,
    /// Name of the form in which it was run.
    pub form: &'static str,
    pub workload: String,
    pub target: String,
    pub cores: u32,
    pub repeat: u64,
    /// Operations a second, or why there are none.
    pub ops_per_sec: Result<f64, String>,
    /// What a cache line took between the processors meanwhile.
    pub crossing_ns: Option<f64>,
}

pub struct Judgement {
    pub floor: &'static Floor,
    pub measured: Option<f64>,
    pub spread: Option<(f64, f64)>,
    pub verdict: Verdict,
    pub limit: Option<Measured>,
}

/// A limit of the machine, by medians.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Measured {
    /// Copies a second, or copies and fences.
    Copies(f64),
    CrossingNs(f64),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    Reached,
    Missed,
    /// A cell is missing, failed, or has too few repeats: no figure, hence no floor reached.
    NotMeasured(String),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Reached => write!(f, "reached"),
            Verdict::Missed => write!(f, "MISSED"),
            Verdict::NotMeasured(cause) => write!(f, "NOT MEASURED: {cause}"),
        }
    }
}

/// Reads what `heddle fxmark --json` wrote.
///
/// # Errors
/// Another version of the report, one of another durability, or a run without its keys.
pub fn read_report(text: &str, durability: Durability, form: &'static str) -> Result<Vec<Sample>> {
    let report: Value = serde_json::from_str(text).context("the report is no JSON")?;
    if report["output_version"] != 1 {
        bail!("the report's output_version is {}, not 1", report["output_version"]);
    }
    if report["options"]["durability"] != durability.name() {
        bail!("the report is of durability {}, not {}", report["options"]["durability"], durability.name());
    }
    let runs = report["runs"].as_array().context("the report has no runs")?;
    runs.iter()
        .map(|run| {
            read_run(run, durability, form).with_context(|| format!("in this run of the report: {run}"))
        })
        .collect()
}

fn read_run(run: &Value, durability: Durability, form: &'static str) -> Result<Sample> {
    let ops_per_sec = match run["error"].as_str() {
        Some(error) => Err(error.to_string()),
        None => Ok(run["ops_per_sec"].as_f64().context("no ops_per_sec")?),
    };
    Ok(Sample {
        durability,
        form,
        workload: run["workload"].as_str().context("no workload")?.into(),
        target: run["target"].as_str().context("no target")?.into(),
        cores: run["cores"].as_u64().context("no cores")?.try_into()?,
        repeat: run["repeat"].as_u64().context("no repeat")?,
        ops_per_sec,
        crossing_ns: run["line_crossing_ns"].as_f64(),
    })
}

pub fn judge(floor: &'static Floor, samples: &[Sample], repeats_min: usize) -> Judgement {
    let limit = limit(floor, samples, repeats_min);
    match compare(floor, samples, repeats_min) {
        Ok((measured, spread)) => {
            let verdict = if floor.bound.holds(measured) { Verdict::Reached } else { Verdict::Missed };
            Judgement { floor, measured: Some(measured), spread: Some(spread), verdict, limit }
        }
        Err(cause) => {
            Judgement { floor, measured: None, spread: None, verdict: Verdict::NotMeasured(cause), limit }
        }
    }
}

fn limit(floor: &Floor, samples: &[Sample], repeats_min: usize) -> Option<Measured> {
    match floor.limit()? {
        Limit::Copy => {
            let copies = of(samples, COPIED, floor.durability, "");
            cell(&copies, COPIED, COPY, floor.of.1, repeats_min).ok().map(|it| Measured::Copies(median(&it)))
        }
        Limit::Line => {
            let beside = of(samples, floor.workload, floor.durability, floor.form.name);
            let seen = beside.iter().filter(|sample| (sample.target.as_str(), sample.cores) == floor.of);
            let seen: Vec<f64> = seen.filter_map(|sample| sample.crossing_ns).collect();
            (!seen.is_empty()).then(|| Measured::CrossingNs(median_of(seen)))
        }
    }
}

fn of<'s>(samples: &'s [Sample], workload: &str, durability: Durability, form: &str) -> Vec<&'s Sample> {
    let is_of = |sample: &&Sample| {
        (sample.workload.as_str(), sample.durability, sample.form) == (workload, durability, form)
    };
    samples.iter().filter(is_of).collect()
}

fn compare(floor: &Floor, samples: &[Sample], repeats_min: usize) -> Result<(f64, (f64, f64)), String> {
    let samples = of(samples, floor.workload, floor.durability, floor.form.name);
    let cell = |target, cores| cell(&samples, floor.workload, target, cores, repeats_min);
    let of = cell(floor.of.0, floor.of.1)?;
    let mut best = cell(floor.to.0[0], floor.to.1)?;
    for target in &floor.to.0[1..] {
        let other = cell(target, floor.to.1)?;
        if median(&other) > median(&best) {
            best = other;
        }
    }
    let ratios = of.iter().filter_map(|(repeat, ops)| {
        let (_, to) = best.iter().find(|(other, _)| other == repeat)?;
        Some(ops / to)
    });
    let spread = ratios.fold((f64::INFINITY, 0.0), |(low, high), ratio| (ratio.min(low), ratio.max(high)));
    Ok((median(&of) / median(&best), spread))
}

/// The repeats of a cell with their figures; whole, or not at all.
fn cell(
    samples: &[&Sample],
    workload: &str,
    target: &str,
    cores: u32,
    repeats_min: usize,
) -> Result<Vec<(u64, f64)>, String> {
    let name = format!("{workload} {target}@{cores}");
    let mut figures = Vec::new();
    for sample in samples {
        if sample.target == target && sample.cores == cores {
            let ops = sample.ops_per_sec.as_ref().map_err(|error| format!("{name} failed: {error}"))?;
            if !(ops.is_finite() && *ops > 0.0) {
                return Err(format!("{name}: {ops} operations a second"));
            }
            figures.push((sample.repeat, *ops));
        }
    }
    if figures.len() < repeats_min {
        return Err(format!("{name}: {} repeats, not {repeats_min}", figures.len()));
    }
    Ok(figures)
}

fn median(figures: &[(u64, f64)]) -> f64 {
    median_of(figures.iter().map(|(_, ops)| *ops).collect())
}

/// Of one figure at least.
pub fn median_of(mut sorted: Vec<f64>) -> f64 {
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}
