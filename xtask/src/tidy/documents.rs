//! Documents that a text cites are in the tree: pages of `docs/`, and labels of hazards in docs/protocol.md.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};

use super::Finding;
use super::source::words;

/// Texts of before the project, which readers of the tree do not have. Written in halves, so that this file passes its own rule.
const LOST: [&str; 2] = [concat!("protocol", " review"), concat!("fuse-and", "-bypass")];
/// Lost too, where a number of a section follows.
const LOST_WITH_SECTIONS: &str = "design";
const HAZARDS: &str = "docs/protocol.md";

/// What can be cited.
pub struct Documents {
    pages: BTreeSet<String>,
    protocol: String,
}

impl Documents {
    pub fn read(root: &Path) -> Result<Documents> {
        let entries = std::fs::read_dir(root.join("docs")).context("cannot list docs")?;
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let pages = names.map(|name| format!("docs/{name}")).collect();
        let protocol = std::fs::read_to_string(root.join(HAZARDS)).context("cannot read docs/protocol.md")?;
        Ok(Documents { pages, protocol })
    }

    /// In comments of sources. (The pages' own links are checked by `cargo xtask docs`.)
    pub fn check(&self, path: &str, content: &str) -> Vec<Finding> {
        let lines = content.lines().enumerate().filter(|_| path.ends_with(".rs"));
        lines
            .filter_map(|(i, line)| {
                let line = &line[line.find("//")?..];
                let page = pages_of(line).find(|page| !self.pages.contains(*page));
                let hazard = hazards_of(line).find(|label| !self.protocol.contains(&format!("[{label}]")));
                let what =
                    page.map(str::to_owned).or(hazard.map(|label| format!("[{label}] in {HAZARDS}")))?;
                Some(Finding::error(
                    path,
                    i + 1,
                    "document",
                    format!("there is no {what}: cite what is there"),
                ))
            })
            .collect()
    }
}

/// What a file cites that no tree has.
pub fn check_lost(path: &str, content: &str) -> Vec<Finding> {
    let lost = content.lines().enumerate().filter(|(_, line)| cites_lost(line));
    let mend =
        "the document is not in the tree: cite docs/protocol.md with the hazard's label, or give the reason";
    lost.map(|(i, _)| Finding::error(path, i + 1, "document", mend)).collect()
}

fn cites_lost(line: &str) -> bool {
    let line = line.to_lowercase();
    let section = |at: usize| {
        let rest = line[at + LOST_WITH_SECTIONS.len()..].trim_start_matches([',', ' ']);
        rest.strip_prefix("section").unwrap_or(rest).trim_start().starts_with(|c: char| c.is_ascii_digit())
    };
    LOST.iter().any(|name| line.contains(name)) || words(&line, LOST_WITH_SECTIONS).any(section)
}

/// `docs/NAME.md`, as far as the line has such.
fn pages_of(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("docs/").filter_map(|(at, _)| {
        let inside = line[..at].chars().next_back().is_some_and(|c| c.is_alphanumeric() || "/-_".contains(c));
        let end = line[at..].find(".md")? + at + ".md".len();
        let page = &line[at..end];
        let plain = page.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "/-.".contains(c));
        (plain && !inside).then_some(page)
    })
}

/// The labels behind the page's name: `docs/protocol.md D5a, P7`.
fn hazards_of(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices(HAZARDS).flat_map(|(at, _)| {
        let behind = line[at + HAZARDS.len()..].split([' ', ',', ';', ')']).filter(|word| !word.is_empty());
        behind.map(|word| word.trim_end_matches('.')).take_while(|word| is_hazard(word))
    })
}

fn is_hazard(word: &str) -> bool {
    let number =
        word.trim_start_matches(['C', 'D', 'L', 'P']).trim_end_matches(|c: char| c.is_ascii_lowercase());
    number.len() < word.len() && !number.is_empty() && number.chars().all(|c| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(findings: &[Finding]) -> Vec<usize> {
        findings.iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn a_citation_of_a_document_outside_the_tree_is_found() {
        let section = |how: &str| format!("//! Source  ours; {}{how}.\n", concat!("des", "ign"));
        for how in [" 4.5", ", section 10", " section 2"] {
            assert_eq!(lines(&check_lost("a.rs", &section(how))), [1], "{how}");
        }
        for name in LOST {
            assert_eq!(lines(&check_lost("a.rs", &format!("\n// {name} D13\n"))), [2]);
        }
        let right = "The design has 4 parts; docs/protocol.md D13; redesign 4; F2FS paper section 3.2\n";
        assert_eq!(lines(&check_lost("a.rs", right)), [0; 0]);
    }

    #[test]
    fn pages_and_hazards_that_are_not_there_are_found() {
        let protocol = "| [D4] x | [D4b] y | | [P7], [P8] |".to_owned();
        let there = Documents { pages: [HAZARDS.to_owned(), "docs/f2fs.md".to_owned()].into(), protocol };
        let right = "// docs/protocol.md D4b, P7.\n// docs/f2fs.md P9; other/docs/x.md; (docs/protocol.md \"Names\")\n";
        assert_eq!(lines(&there.check("a.rs", right)), [0; 0]);
        for wrong in ["docs/protocol.md D4, D4c.", "see docs/none.md", "docs/protocol.md P9"] {
            assert_eq!(
                lines(&there.check("a.rs", &format!("\nf(); {}{wrong}\n", "/".repeat(2)))),
                [2],
                "{wrong}"
            );
        }
        assert_eq!(lines(&there.check("a.rs", "\"docs/f2sf.md\"\n")), [0; 0]);
    }
}
