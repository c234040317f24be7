//! From samples to verdicts.
//!
//! The measured figure is a ratio of medians. The spread is the smallest and the largest ratio within one repeat:
//! targets are interleaved, so what disturbs the machine in a repeat disturbs both sides of the line.

use std::fmt;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::table::{Durability, Floor};

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
}

pub struct Judgement {
    pub floor: &'static Floor,
    pub measured: Option<f64>,
    pub spread: Option<(f64, f64)>,
    pub verdict: Verdict,
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
    })
}

pub fn judge(floor: &'static Floor, samples: &[Sample], repeats_min: usize) -> Judgement {
    match compare(floor, samples, repeats_min) {
        Ok((measured, spread)) => {
            let verdict = if floor.bound.holds(measured) { Verdict::Reached } else { Verdict::Missed };
            Judgement { floor, measured: Some(measured), spread: Some(spread), verdict }
        }
        Err(cause) => Judgement { floor, measured: None, spread: None, verdict: Verdict::NotMeasured(cause) },
    }
}

fn compare(floor: &Floor, samples: &[Sample], repeats_min: usize) -> Result<(f64, (f64, f64)), String> {
    let samples: Vec<&Sample> = samples
        .iter()
        .filter(|sample| {
            (sample.workload.as_str(), sample.durability, sample.form)
                == (floor.workload, floor.durability, floor.form.name)
        })
        .collect();
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
