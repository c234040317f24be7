//! The house: crates describe themselves, their dependencies point down only, the change log says something.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::Finding;
use crate::process;

/// A room of the house and the rooms it may build on.
struct Room {
    name: &'static str,
    uses: &'static [&'static str],
    /// May also be built on by its tests: a front end is tested with an engine it does not know.
    tests_use: &'static [&'static str],
}

const ROOMS: &[Room] = &[
    Room { name: "heddle-signatures", uses: &[], tests_use: &[] },
    Room { name: "heddle-undo", uses: &[], tests_use: &[] },
    Room { name: "heddle-pmem", uses: &["heddle-signatures"], tests_use: &[] },
    Room { name: "heddle-arena", uses: &[], tests_use: &[] },
    Room { name: "heddle-range-lock", uses: &["heddle-arena"], tests_use: &[] },
    Room { name: "heddle-vfs", uses: &[], tests_use: &[] },
    Room { name: "heddle-nvmfs", uses: ENGINE, tests_use: &[] },
    Room { name: "heddle-f2fs", uses: ENGINE, tests_use: &[] },
    Room { name: "heddle-fuse", uses: &["heddle-vfs"], tests_use: BELOW_FRONT },
    Room { name: "heddle-fxmark", uses: &["heddle-vfs"], tests_use: BELOW_FRONT },
    Room { name: "heddle-bypass", uses: &["heddle-vfs", "heddle-nvmfs"], tests_use: BELOW_FRONT },
    Room { name: "heddle-crash", uses: RIG, tests_use: &[] },
    Room { name: "heddle-fuzz", uses: FUZZ, tests_use: &[] },
    Room { name: "heddle-preload", uses: &["heddle-bypass"], tests_use: &[] },
    Room { name: "heddle-c", uses: &["heddle-bypass"], tests_use: &[] },
    Room { name: "heddle-coherence", uses: &[], tests_use: &[] },
    Room { name: "heddle-console", uses: CONSOLE, tests_use: &[] },
    Room { name: "heddle-measure", uses: MEASURE, tests_use: &[] },
    Room { name: "heddle-cli", uses: EVERYTHING, tests_use: &[] },
    Room { name: "xtask", uses: &[], tests_use: &[] },
];

const ENGINE: &[&str] =
    &["heddle-vfs", "heddle-range-lock", "heddle-pmem", "heddle-arena", "heddle-signatures", "heddle-undo"];
const RIG: &[&str] = &["heddle-vfs", "heddle-nvmfs", "heddle-pmem"];
const FUZZ: &[&str] = &["heddle-vfs", "heddle-nvmfs", "heddle-f2fs", "heddle-pmem", "heddle-crash"];
const BELOW_FRONT: &[&str] = &["heddle-nvmfs", "heddle-f2fs", "heddle-pmem", "heddle-arena"];
const CONSOLE: &[&str] =
    &["heddle-vfs", "heddle-pmem", "heddle-signatures", "heddle-nvmfs", "heddle-f2fs", "heddle-fuse"];
const MEASURE: &[&str] = &[
    "heddle-console",
    "heddle-vfs",
    "heddle-range-lock",
    "heddle-pmem",
    "heddle-arena",
    "heddle-nvmfs",
    "heddle-f2fs",
    "heddle-fuse",
    "heddle-fxmark",
    "heddle-crash",
    "heddle-coherence",
];
const EVERYTHING: &[&str] = &[
    "heddle-vfs",
    "heddle-range-lock",
    "heddle-pmem",
    "heddle-signatures",
    "heddle-undo",
    "heddle-arena",
    "heddle-nvmfs",
    "heddle-f2fs",
    "heddle-fuse",
    "heddle-fxmark",
    "heddle-crash",
    "heddle-coherence",
    "heddle-console",
    "heddle-measure",
];

pub fn check(root: &Path) -> Result<Vec<Finding>> {
    let metadata = metadata(root)?;
    let mut findings = check_packages(&metadata);
    for package in packages(&metadata) {
        let folder = Path::new(text(package, "manifest_path")).parent().unwrap_or(root);
        for file in ["src/lib.rs", "src/main.rs"] {
            let file = folder.join(file);
            if let Ok(content) = std::fs::read_to_string(&file) {
                let path = file.strip_prefix(root).unwrap_or(&file).to_string_lossy();
                findings.extend(check_crate_root(&path, &content));
            }
        }
    }
    let log = std::fs::read_to_string(root.join("CHANGELOG.md")).unwrap_or_default();
    findings.extend(check_change_log(&log));
    Ok(findings)
}

fn metadata(root: &Path) -> Result<Value> {
    let output = process::cargo(root, &["metadata", "--no-deps", "--format-version", "1"]).output()?;
    if !output.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    }
    serde_json::from_slice(&output.stdout).context("cargo metadata wrote no JSON")
}

/// Descriptions and arrows, from what `cargo metadata` says.
pub fn check_packages(metadata: &Value) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in packages(metadata) {
        let name = text(package, "name");
        let place = format!("{name}/Cargo.toml");
        if text(package, "description").is_empty() {
            let mend = "say in its `description` what the crate is";
            findings.push(Finding::error(&place, 1, "description", mend));
        }
        let Some(room) = ROOMS.iter().find(|room| room.name == name) else {
            let mend = "give it a row in ROOMS (xtask/src/tidy/house.rs) and a line in ARCHITECTURE.md";
            findings.push(Finding::error(&place, 1, "arrows", mend));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let on = text(dependency, "name");
            let ours = on.starts_with("heddle-") || on == "xtask";
            let for_tests = dependency["kind"] == "dev";
            let allowed =
                room.uses.contains(&on) || (for_tests && (room.tests_use.contains(&on) || on == name));
            if ours && !allowed {
                let mend = format!("arrows point down: {name} may not know {on}; it may use {:?}", room.uses);
                findings.push(Finding::error(&place, 1, "arrows", mend));
            }
        }
    }
    findings
}

/// A crate's first words say what it is.
pub fn check_crate_root(path: &str, content: &str) -> Option<Finding> {
    let mend = "start the crate with //! and what it is";
    // A README may stand in for the words.
    let told = ["//! ", "#![doc = include_str!("].iter().any(|start| content.starts_with(start));
    (!told).then(|| Finding::error(path, 1, "crate-header", mend))
}

/// A heading and an entry at least.
pub fn check_change_log(content: &str) -> Option<Finding> {
    let heading = content.lines().any(|line| line.starts_with("## "));
    let entry = content.lines().any(|line| line.starts_with("- ") && line.len() > 10);
    let mend = "say what changed for a user: a heading (## version) and an entry (- …)";
    (!heading || !entry).then(|| Finding::error("CHANGELOG.md", 1, "change-log", mend))
}

fn packages(metadata: &Value) -> impl Iterator<Item = &Value> {
    metadata["packages"].as_array().into_iter().flatten()
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or_default()
}
