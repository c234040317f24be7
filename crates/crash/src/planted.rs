//! Does the rig see? Each bug of `heddle_nvmfs::planted` is planted, and must be caught.
//!
//! A bug is for the whole process: bugs are tried one after the other.

use crate::cut::Bounds;
use crate::op::Workload;
use crate::rig::{Config, Failure, Nobody, run};
use crate::{ace, shelf};
use heddle_nvmfs::Variant;
use heddle_nvmfs::planted::{Bug, plant};
use heddle_pmem::Model;
use std::process::ExitCode;
use std::time::Instant;

/// Where a bug was caught.
pub struct Caught {
    /// What was wrong with the first image that failed.
    pub failure: Failure,
    /// Images mounted until then.
    pub images: u64,
}

fn config(variant: Variant, seed: u64) -> Config {
    Config { variant, model: Model::Ordered, bounds: Bounds { ordered: 64, random: 8, seed }, only: None }
}

/// Runs one workload with a bug planted.
pub fn attempt(bug: Bug, variant: Variant, workload: &Workload, seed: u64) -> Option<Caught> {
    plant(Some(bug));
    let report = run(workload, &config(variant, seed), &mut Nobody);
    plant(None);
    let report = report.ok()?;
    report.failures.into_iter().next().map(|failure| Caught { failure, images: report.images })
}

/// Tries all that the rig has, the variants that suit first, until something catches the bug.
fn search(bug: Bug, seed: u64) -> Option<Caught> {
    let workloads: Vec<Workload> = shelf::workloads().into_iter().chain(ace::sequences(1, None)).collect();
    let variants = [Variant::Heddle, Variant::NovaTree, Variant::Nova];
    workloads
        .iter()
        .find_map(|workload| variants.iter().find_map(|variant| attempt(bug, *variant, workload, seed)))
}

/// Prints the table; success if every bug was caught.
pub fn table(seed: u64, _fast: bool) -> ExitCode {
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    for bug in Bug::ALL {
        let start = Instant::now();
        match search(*bug, seed) {
            Some(Caught { failure, images }) => {
                let first = failure.to_string().lines().take(3).collect::<Vec<_>>().join(" ");
                println!(
                    "{:<28} caught, {images} images, {:.1} s: {first}",
                    bug.name(),
                    start.elapsed().as_secs_f64()
                );
            }
            None => {
                println!("{:<28} MISSED, {:.1} s", bug.name(), start.elapsed().as_secs_f64());
                missed.push(bug.name());
            }
        }
    }
    println!("{} bugs planted, {} caught", Bug::ALL.len(), Bug::ALL.len() - missed.len());
    if missed.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) }
}
