//! Verdicts and rates as tables for docs/results.md.

use std::fmt::Write;

use super::judge::{Judgement, Measured, Sample, median_of};
use super::options::Options;
use super::table::{CAMPAIGNS, Campaign};

pub fn page(judgements: &[Judgement], samples: &[Sample], options: &Options) -> String {
    let mut text = format!(
        "Medians of {} interleaved repeats of {} s; the spread is the smallest and the largest ratio within one repeat. Rows of \
         engines (`heddle`, `nova`…, `f2fs`…) are function calls of threads; rows of `heddle+bypass`, `heddle+mount`, tmpfs, ext4, \
         xfs and btrfs are system calls, or what stands in for them. `copy` is no file \
         system: a page is copied, under `power` past the cache and with a fence. Machine's limit: as many workers that only copy, or a \
         cache line's way between two processors where operations share one.\n",
        options.repeats, options.secs
    );
    if !options.is_whole() {
        text += "Too short: no measurement for docs/results.md.\n";
    }
    text += "\n| workload | of | to the best of | floor | measured | spread | machine's limit | verdict |\n\
             |---|---|---|---|---|---|---|---|\n";
    for judgement in judgements {
        let floor = judgement.floor;
        let power = if floor.durability.name() == "power" { " (power)" } else { "" };
        let comma = if floor.form.name.is_empty() { "" } else { ", " };
        let measured = judgement.measured.map_or("-".into(), |ratio| format!("{ratio:.2}"));
        let spread = judgement.spread.map_or("-".into(), |(low, high)| format!("{low:.2} to {high:.2}"));
        let limit = match judgement.limit {
            Some(Measured::Copies(rate)) if power.is_empty() => format!("copy: {}", shown(rate)),
            Some(Measured::Copies(rate)) => format!("copy and fence: {}", shown(rate)),
            Some(Measured::CrossingNs(ns)) => format!("line: {ns:.0} ns"),
            None => "-".into(),
        };
        let _ = writeln!(
            text,
            "| {}{comma}{}{power} | {}@{} | {}@{} | {} | {measured} | {spread} | {limit} | {} |",
            floor.workload,
            floor.form.name,
            floor.of.0,
            floor.of.1,
            floor.to.0.join(", "),
            floor.to.1,
            floor.bound,
            judgement.verdict
        );
    }
    for campaign in CAMPAIGNS {
        for cores in campaign.cores {
            text += &rates(campaign, *cores, samples);
        }
    }
    text
}

/// All targets of a campaign with so many workers; nothing if nothing of it was measured.
fn rates(campaign: &Campaign, cores: u32, samples: &[Sample]) -> String {
    let rate = |workload: &str, target: &str| {
        let of = samples.iter().filter(|sample| {
            (sample.durability, sample.form, sample.cores, sample.workload.as_str(), sample.target.as_str())
                == (campaign.durability, campaign.form.name, cores, workload, target)
        });
        let rates: Vec<f64> = of.filter_map(|sample| sample.ops_per_sec.clone().ok()).collect();
        (!rates.is_empty()).then(|| median_of(rates))
    };
    let measured = |workload: &&&str| campaign.targets.iter().any(|target| rate(workload, target).is_some());
    let workloads: Vec<_> = campaign.workloads.iter().filter(measured).collect();
    if workloads.is_empty() {
        return String::new();
    }
    let form = campaign.form.name;
    let comma = if form.is_empty() { "" } else { ", " };
    let mut text = format!(
        "\n@{cores}, durability `{}`{comma}{form}:\n\n| | {} |\n|---|{}\n",
        campaign.durability.name(),
        campaign.targets.join(" | "),
        "---|".repeat(campaign.targets.len())
    );
    for workload in workloads {
        let cells: Vec<String> =
            campaign.targets.iter().map(|target| rate(workload, target).map_or("-".into(), shown)).collect();
        let _ = writeln!(text, "| {workload} | {} |", cells.join(" | "));
    }
    text
}

fn shown(rate: f64) -> String {
    match rate {
        rate if rate >= 1e6 => format!("{:.2}M op/s", rate / 1e6),
        rate if rate >= 1e3 => format!("{:.1}K op/s", rate / 1e3),
        rate => format!("{rate:.0} op/s"),
    }
}
