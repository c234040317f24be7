//! The modules of a crate: they stand in layers, and no arrow between them climbs or leads round in a circle.
//!
//! A module is a file. An arrow leads from a file to each module that a path in its code names, whether the path is imported
//! or written where it is used. Tests are left out. Arrows are judged between units: the modules that a crate's order lists
//! (a listed folder stands for all files in it), or, in a crate without an order, the top-level modules.
//!
//! What this cannot see: a method that is called without its module being named.

mod graph;
mod table;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::Finding;
use graph::{Arrow, Graph};
use table::{CIRCLES, Circle, EXCEPTIONS, Exception, ORDERS};

const TABLE: &str = "xtask/src/tidy/modules/table.rs";

/// The rules that a crate is held against.
pub struct Rules<'t> {
    /// The crate's folder.
    pub name: &'t str,
    /// From the ground up, the units of each layer; `None`: units are the top-level modules, and only circles are looked for.
    pub layers: Option<&'t [&'t [&'t str]]>,
    /// Arrows that may climb.
    pub exceptions: Vec<&'t Exception>,
    /// Circles that may be.
    pub circles: Vec<&'t Circle>,
}

pub fn check(root: &Path) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for folder in crate_folders(root)? {
        let name = folder.strip_prefix(root)?.to_string_lossy().into_owned();
        let graph = Graph::of(&files(root, &folder.join("src"))?, &format!("{name}/src"));
        let rules = Rules {
            layers: ORDERS.iter().find(|order| order.folder == name).map(|order| order.layers),
            exceptions: EXCEPTIONS.iter().filter(|exception| exception.folder == name).collect(),
            circles: CIRCLES.iter().filter(|circle| circle.folder == name).collect(),
            name: &name,
        };
        findings.extend(check_graph(&graph, &rules));
    }
    Ok(findings)
}

/// Judges the modules of one crate.
pub fn check_graph(graph: &Graph, rules: &Rules<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut used = BTreeSet::new();
    let mut arrows: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    if let Some(layers) = rules.layers {
        findings.extend(check_layers(graph, rules.name, layers));
    }
    for arrow in &graph.arrows {
        let (Some(from), Some(to)) = (rules.unit(&arrow.from), rules.unit(&arrow.to)) else { continue };
        if from == to {
            continue;
        }
        if rules.climbs(from, to) {
            match rules.exceptions.iter().position(|e| (e.from, e.to) == (&*arrow.from, &*arrow.to)) {
                Some(at) => used.insert(at),
                None => {
                    findings.push(climbing(arrow, from, to));
                    continue;
                }
            };
        } else {
            arrows.entry(from).or_default().insert(to);
        }
    }
    for (_, exception) in rules.exceptions.iter().enumerate().filter(|(at, _)| !used.contains(at)) {
        let mend = format!("{} names {} no more: take the exception out", exception.from, exception.to);
        findings.push(Finding::error(TABLE, 1, "module-order", mend));
    }
    findings.extend(check_circles(rules, &circles(&arrows)));
    findings
}

impl<'t> Rules<'t> {
    /// The unit that a module belongs to: the longest name in the order that it begins with.
    fn unit<'m>(&self, module: &'m str) -> Option<&'m str>
    where
        't: 'm,
    {
        let Some(layers) = self.layers else { return Some(top(module)) };
        let units = layers.iter().copied().flatten().filter(|unit| is_in(module, unit));
        units.max_by_key(|unit| unit.len()).copied()
    }

    fn layer(&self, unit: &str) -> Option<usize> {
        self.layers?.iter().position(|layer| layer.contains(&unit))
    }

    fn climbs(&self, from: &str, to: &str) -> bool {
        self.layer(from) < self.layer(to)
    }
}

fn top(module: &str) -> &str {
    module.split("::").next().unwrap_or(module)
}

/// Is `module` the module `unit`, or inside it?
fn is_in(module: &str, unit: &str) -> bool {
    module.strip_prefix(unit).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

fn climbing(arrow: &Arrow, from: &str, to: &str) -> Finding {
    let mend = format!(
        "{} names {}, but {to} stands above {from}: move what is needed down, return the work, or take a hook",
        arrow.from, arrow.to
    );
    Finding::error(&arrow.file, arrow.line, "module-order", mend)
}

/// Every module has a layer, and every unit of the order is there.
fn check_layers(graph: &Graph, name: &str, layers: &[&[&str]]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let units = || layers.iter().copied().flatten();
    for (module, file) in &graph.modules {
        if !units().any(|unit| is_in(module, unit)) {
            let mend = format!("{module} has no layer: give it one in the order of {name} ({TABLE})");
            findings.push(Finding::error(file, 1, "module-order", mend));
        }
    }
    for unit in units().filter(|unit| !graph.modules.contains_key(**unit)) {
        let mend = format!("{name} has no module {unit}: take it out of the order");
        findings.push(Finding::error(TABLE, 1, "module-order", mend));
    }
    findings
}

/// Sets of units, each of which is reached from each other one of its set.
fn circles<'m>(arrows: &BTreeMap<&'m str, BTreeSet<&'m str>>) -> Vec<BTreeSet<&'m str>> {
    let reached_from = |unit: &'m str| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![unit]);
        while let Some(at) = next.pop() {
            let to = arrows.get(at).into_iter().flatten();
            next.extend(to.filter(|to| seen.insert(**to)));
        }
        seen
    };
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        arrows.keys().map(|unit| (*unit, reached_from(unit))).collect();
    let mut circles: Vec<BTreeSet<&str>> = Vec::new();
    for (unit, there) in reached.iter().filter(|(unit, there)| there.contains(**unit)) {
        if !circles.iter().any(|circle| circle.contains(unit)) {
            let back = |other: &&&str| reached.get(**other).is_some_and(|there| there.contains(unit));
            circles.push(there.iter().filter(back).copied().collect());
        }
    }
    circles
}

fn check_circles(rules: &Rules<'_>, found: &[BTreeSet<&str>]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for circle in found {
        if !rules.circles.iter().any(|known| circle.iter().all(|unit| known.modules.contains(unit))) {
            let modules: Vec<&str> = circle.iter().copied().collect();
            let mend = format!(
                "modules name each other in a circle: {}; break it, or give its reason in {TABLE}",
                modules.join(", ")
            );
            findings.push(Finding::error(&format!("{}/src", rules.name), 1, "module-circle", mend));
        }
    }
    for module in rules.circles.iter().flat_map(|known| known.modules) {
        if !found.iter().any(|circle| circle.contains(module)) {
            let mend = format!("{module} of {} is in no circle any more: take it out", rules.name);
            findings.push(Finding::error(TABLE, 1, "module-circle", mend));
        }
    }
    findings
}

/// Folders that have `src/lib.rs` or `src/main.rs`.
fn crate_folders(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = vec![root.join("xtask")];
    let mut folders = vec![root.join("crates")];
    while let Some(folder) = folders.pop() {
        for entry in
            std::fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?
        {
            let path = entry?.path();
            if !path.is_dir() || path.file_name().is_some_and(|name| name == "src" || name == "target") {
                continue;
            }
            if ["src/lib.rs", "src/main.rs"].iter().any(|file| path.join(file).is_file()) {
                found.push(path.clone());
            }
            folders.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Rust files below a folder: path relative to the workspace, and text.
fn files(root: &Path, folder: &Path) -> Result<Vec<(String, String)>> {
    let mut files = Vec::new();
    for file in
        super::text_files(folder)?.into_iter().filter(|file| file.extension().is_some_and(|e| e == "rs"))
    {
        let path = file.strip_prefix(root)?.to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {path}"))?;
        files.push((path, text));
    }
    Ok(files)
}
