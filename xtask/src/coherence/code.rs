//! From addresses to functions and variables, with binutils, which are there wherever Rust can link; without them addresses stay numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use super::report::{Report, What};

/// The code and the variables that a report speaks of.
#[derive(Default)]
pub struct Code {
    functions: BTreeMap<u64, String>,
    /// Start, length, name.
    variables: Vec<(u64, u64, String)>,
}

impl Code {
    /// Looks up all that the report names.
    pub fn read(program: &Path, report: &Report) -> Code {
        let addresses: BTreeSet<u64> =
            report.things.iter().flat_map(|thing| &thing.by).flat_map(|by| [by.1, by.2]).collect();
        let unnamed = report.things.iter().any(|thing| matches!(thing.what, What::Address(_)));
        Code {
            functions: functions(program, &addresses).unwrap_or_default(),
            variables: if unnamed { variables(program).unwrap_or_default() } else { Vec::new() },
        }
    }

    /// `function (file:line) < its caller`, both of this workspace.
    pub fn function(&self, address: u64) -> String {
        self.functions.get(&address).cloned().unwrap_or_else(|| format!("code at {address:#x}"))
    }

    /// The variable at this address.
    pub fn variable(&self, address: u64) -> Option<&str> {
        // A line begins before what lies on it.
        let lies = |(start, len, _): &&(u64, u64, String)| address < start + len && *start < address + 64;
        self.variables.iter().find(lies).map(|(_, _, name)| name.as_str())
    }

    /// Does an address lie behind all variables of the program?
    pub fn is_beyond(&self, address: u64) -> bool {
        self.variables.iter().all(|(start, len, _)| address >= start + len || address > u64::MAX / 2)
    }
}

fn functions(program: &Path, addresses: &BTreeSet<u64>) -> Option<BTreeMap<u64, String>> {
    let mut child = Command::new("addr2line")
        .args(["-a", "-f", "-i", "-C", "-e"])
        .arg(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut input = child.stdin.take()?;
    let asked: String = addresses.iter().map(|address| format!("{address:#x}\n")).collect();
    // On a thread of its own: both pipes are bounded.
    let writer = std::thread::spawn(move || input.write_all(asked.as_bytes()));
    let output = child.wait_with_output().ok()?;
    writer.join().ok()?.ok()?;
    Some(parse_functions(&String::from_utf8_lossy(&output.stdout)))
}

/// Frames of an address follow its own line, innermost first, two lines each.
pub fn parse_functions(text: &str) -> BTreeMap<u64, String> {
    let mut found = BTreeMap::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(address) = line.strip_prefix("0x").and_then(|hex| u64::from_str_radix(hex, 16).ok()) else {
            continue;
        };
        let mut ours = Vec::new();
        let mut first = None;
        while let Some(function) = lines.next_if(|line| !line.starts_with("0x")) {
            let Some(place) = lines.next() else { break };
            first.get_or_insert(function);
            if let Some((_, path)) = place.split_once("/crates/")
                && ours.len() < 2
            {
                ours.push(format!("{} ({})", shorten(function), path.split(' ').next().unwrap_or(path)));
            }
        }
        let name = if ours.is_empty() { shorten(first.unwrap_or("?")) } else { ours.join(" < ") };
        found.insert(address, name);
    }
    found
}

/// Without crates, modules and closures: `Index::find`.
fn shorten(function: &str) -> String {
    let plain = function.replace("::{{closure}}", "");
    let parts: Vec<&str> = plain.split("::").collect();
    parts[parts.len().saturating_sub(2)..].join("::").trim_matches(['<', '>']).to_owned()
}

fn variables(program: &Path) -> Option<Vec<(u64, u64, String)>> {
    let output = Command::new("nm").args(["-S", "-C", "--defined-only"]).arg(program).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let parse = |line: &str| {
        let mut fields = line.splitn(4, ' ');
        let start = u64::from_str_radix(fields.next()?, 16).ok()?;
        let len = u64::from_str_radix(fields.next()?, 16).ok()?;
        let class = fields.next()?;
        "bBdDrR".contains(class).then_some((start, len, fields.next()?.to_owned()))
    };
    Some(text.lines().filter_map(parse).collect())
}
