//! The figures to reach, measured and judged: `heddle` beside the kernel's file systems in the same run, and the
//! papers' variants beside each other. Not in the test command: it wants an idle machine, root and most of an hour.
//!
//! `table.rs` says what is measured and what must come out, `judge.rs` how samples become verdicts, `page.rs` how they become tables.

mod judge;
mod options;
mod page;
mod table;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::{process, setup};
use judge::{Judgement, Measured, Sample, Verdict};
use options::{Options, usage};
use table::{CAMPAIGNS, Campaign, FLOORS};

/// `cargo xtask floors`, see [`options`]; true if every floor (of those workloads, if any are named) is reached.
pub fn chore(root: &Path, args: &[String]) -> Result<bool> {
    let Some(options) = Options::read(args)? else {
        println!("{}", usage());
        return Ok(true);
    };
    let wanted = |workload: &str| options.wants(workload);
    // A row whose file system cannot be made would be seen to be missing at the end only.
    setup::need(&["mkfs.ext4", "mkfs.xfs", "mkfs.btrfs"])?;
    eprintln!("floors: this takes about {} minutes", options.minutes());
    // The whole of it: the library of the bypass is looked for beside the program.
    process::run(&mut process::cargo(root, process::RELEASE_BUILD), Duration::from_secs(3600))?;
    let mut samples = Vec::new();
    for (i, campaign) in CAMPAIGNS.iter().enumerate() {
        let workloads: Vec<&str> = campaign.workloads.iter().copied().filter(|name| wanted(name)).collect();
        if workloads.is_empty() {
            continue;
        }
        let file = std::env::temp_dir().join(format!("heddle-floors-{}-{i}.json", std::process::id()));
        let measured = measure(root, campaign, &workloads, &options, &file);
        if file.exists() {
            std::fs::remove_file(&file)?;
        }
        match measured {
            Ok(measured) => samples.extend(measured),
            // Its floors are not measured then, and the others' still are.
            Err(error) => {
                eprintln!("floors: {} on {}: {error:#}", workloads.join(" "), campaign.targets.join(","))
            }
        }
    }
    let judgements: Vec<Judgement> = FLOORS
        .iter()
        .filter(|floor| wanted(floor.workload))
        .map(|floor| judge::judge(floor, &samples, options.repeats))
        .collect();
    print!("{}", table_text(&judgements));
    if let Some(file) = &options.json {
        let text = serde_json::to_string_pretty(&table_json(&judgements, &options))? + "\n";
        std::fs::write(file, text).with_context(|| format!("cannot write {file}"))?;
    }
    if let Some(file) = &options.markdown {
        let text = page::page(&judgements, &samples, &options);
        std::fs::write(file, text).with_context(|| format!("cannot write {file}"))?;
    }
    Ok(judgements.iter().all(|judgement| judgement.verdict == Verdict::Reached))
}

/// A cell that failed makes `heddle fxmark` fail, and still the report names it and holds all others.
fn measure(
    root: &Path,
    campaign: &Campaign,
    workloads: &[&str],
    options: &Options,
    file: &PathBuf,
) -> Result<Vec<Sample>> {
    let mut command = Command::new(process::target_dir(root).join("release/heddle"));
    command.arg("fxmark").current_dir(root);
    command.args(workloads).args(["--target", &campaign.targets.join(",")]);
    let cores: Vec<String> = campaign.cores.iter().map(u32::to_string).collect();
    // The floors, and docs/results.md, are about threads in the engines: the papers' variants have nothing else.
    command.args(["--workers-as", "threads"]);
    command.args(["--durability", campaign.durability.name()]);
    command.args([
        "--cores",
        &cores.join(","),
        "--secs",
        &options.secs,
        "--repeat",
        &options.repeats.to_string(),
    ]);
    command.args(campaign.form.args);
    command.arg("--json").arg(file);
    let ran = process::run(&mut command, Duration::from_secs(3600));
    match std::fs::read_to_string(file) {
        Ok(text) => judge::read_report(&text, campaign.durability, campaign.form.name),
        Err(error) => Err(ran.err().unwrap_or_else(|| error.into())).context("heddle fxmark wrote no report"),
    }
}

fn table_text(judgements: &[Judgement]) -> String {
    let line = |row: &str, floor: &str, measured: &str, spread: &str, verdict: &str| {
        format!("{row:<66} {floor:>8} {measured:>9} {spread:>17}  {verdict}\n")
    };
    let mut text = line("row", "floor", "measured", "spread", "verdict");
    for judgement in judgements {
        let floor = judgement.floor;
        let measured = judgement.measured.map_or("-".into(), |ratio| format!("{ratio:.2}"));
        let spread = judgement.spread.map_or("-".into(), |(low, high)| format!("{low:.2}..{high:.2}"));
        text +=
            &line(&floor.row(), &floor.bound.to_string(), &measured, &spread, &judgement.verdict.to_string());
    }
    let reached = judgements.iter().filter(|judgement| judgement.verdict == Verdict::Reached).count();
    text + &format!("{reached} of {} floors reached\n", judgements.len())
}

fn table_json(judgements: &[Judgement], options: &Options) -> Value {
    let rows: Vec<Value> = judgements
        .iter()
        .map(|judgement| {
            json!({
                "row": judgement.floor.row(),
                "floor": judgement.floor.bound.to_string(),
                "measured": judgement.measured,
                "spread": judgement.spread.map(|(low, high)| [low, high]),
                "limit": judgement.limit.map(|limit| match limit {
                    Measured::Copies(rate) => json!({"copies_per_sec": rate}),
                    Measured::CrossingNs(ns) => json!({"line_crossing_ns": ns}),
                }),
                "reached": judgement.verdict == Verdict::Reached,
                "verdict": judgement.verdict.to_string(),
            })
        })
        .collect();
    json!({"output_version": 1, "repeats": options.repeats, "secs": options.secs, "floors": rows})
}
