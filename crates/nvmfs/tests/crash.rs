//! Power cuts at every fence of every operation.
//!
//! Each workload of `workloads` runs on a simulated region and, beside it, on the model. At every fence of its watched calls, and
//! after each of them, images are formed that a power cut could leave. Each is mounted; what it holds must be what the model
//! held before or after the running call (after, once it has returned). Then it is used, emptied, and mounted again.
//! `HEDDLE_CRASH_IMAGES` images a fence; `HEDDLE_CRASH_SEED` picks others.

mod common;
mod crash {
    pub mod check;
    pub mod run;
    pub mod workloads;
}

use crash::run::{Effort, run};
use heddle_nvmfs::Variant;
use heddle_pmem::Model;

fn effort(images: u64) -> Effort {
    Effort {
        images: common::env("HEDDLE_CRASH_IMAGES", images) as usize,
        seed: common::env("HEDDLE_CRASH_SEED", 1),
        model: Model::Ordered,
    }
}

fn power_cuts(variant: Variant) {
    run(variant, effort(5));
}

#[test]
fn nova_survives_a_power_cut_at_every_fence() {
    power_cuts(Variant::Nova);
}

#[test]
fn nova_interval_survives_a_power_cut_at_every_fence() {
    power_cuts(Variant::NovaInterval);
}

#[test]
fn nova_array_survives_a_power_cut_at_every_fence() {
    power_cuts(Variant::NovaArray);
}

#[test]
fn nova_tree_survives_a_power_cut_at_every_fence() {
    power_cuts(Variant::NovaTree);
}

#[test]
fn heddle_survives_a_power_cut_at_every_fence() {
    power_cuts(Variant::Heddle);
}

#[test]
#[ignore = "takes an hour"]
fn every_variant_survives_power_cuts_under_every_model_of_memory() {
    for variant in Variant::ALL {
        for model in [Model::Ordered, Model::Pessimistic, Model::Eadr] {
            run(variant, Effort { model, ..effort(48) });
        }
    }
}
