//! What holds for every text file: no place of one machine, no host but a standard's, nothing left to do, clean lines.

use super::Finding;
use super::source::words;

const WIDTH: usize = 140;

/// Written in halves, so that this file passes its own rule.
const MACHINE_FOLDERS: [&str; 4] =
    [concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/Us", "ers/"), concat!("/wo", "rk/")];
const SCHEMES: [&str; 2] = [concat!("http:", "//"), concat!("https:", "//")];
const LEFT_TO_DO: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

/// Names of file formats, which look like addresses and are none: nobody looks them up.
const FORMAT_NAMES: [&str; 1] = ["www.w3.org/2000/svg"];

/// Documents may point at standards and papers; nothing else in the tree names a host.
const STANDARD_HOSTS: [&str; 4] = ["pubs.opengroup.org", "man7.org", "doi.org", "www.rfc-editor.org"];

/// In cargo's configuration: where packages come from is the business of the machine that builds.
const REGISTRY_TABLES: [&str; 3] = ["[source", "[registries", "[registry"];

pub fn check(path: &str, content: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let is_code = [".rs", ".c", ".h", ".sh"].iter().any(|extension| path.ends_with(extension));
    for (i, line) in content.lines().enumerate() {
        let mut error = |rule, mend: &str| findings.push(Finding::error(path, i + 1, rule, mend));
        if MACHINE_FOLDERS.iter().any(|folder| names_folder(line, folder)) {
            error("machine-path", "write a path that exists on every machine, or a relative one");
        }
        if SCHEMES.iter().any(|scheme| names_foreign_host(path, line, scheme)) {
            error(
                "host",
                "name no host: only documents in docs/ may link to a standard or a paper (doi.org)",
            );
        }
        if path.ends_with(".toml") && REGISTRY_TABLES.iter().any(|table| line.trim_start().starts_with(table))
        {
            error("host", "a registry is set up on the machine that builds, not in the tree");
        }
        if LEFT_TO_DO.iter().any(|word| words(line, word).next().is_some()) {
            error("left-to-do", "do it, or write it into SHORTCOMINGS.md");
        }
        if line.ends_with([' ', '\t']) {
            error("trailing-space", "remove the blanks at the end");
        }
        if is_code && !unbreakable(line) && line.chars().count() > WIDTH {
            error("width", "break the line: 140 characters at most");
        }
    }
    if !content.is_empty() && !content.ends_with('\n') {
        findings.push(Finding::error(
            path,
            content.lines().count(),
            "last-line",
            "end the file with a newline",
        ));
    }
    findings
}

/// `folder` as the start of an absolute path: `src/home/` names a folder of ours.
fn names_folder(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '}'))
    })
}

fn names_foreign_host(path: &str, line: &str, scheme: &str) -> bool {
    line.match_indices(scheme).any(|(at, _)| {
        let rest = &line[at + scheme.len()..];
        let host =
            rest.split(|c: char| !c.is_alphanumeric() && c != '.' && c != '-').next().unwrap_or_default();
        let standard = path.starts_with("docs/") && STANDARD_HOSTS.contains(&host);
        !standard
            && !FORMAT_NAMES
                .iter()
                .any(|name| rest.strip_prefix(name).is_some_and(|end| end.starts_with(['"', '\\'])))
    })
}

/// A row of a table in a comment, and the text of an error, are one line each.
fn unbreakable(line: &str) -> bool {
    let line = line.trim_start();
    ["//! |", "/// |", "#[error("].iter().any(|start| line.starts_with(start))
}
