//! The pages of the project, as lines with their code spans, their blocks of code and their links.

use std::path::Path;

use anyhow::{Context, Result};

/// What the checks read: the pages at the root and those of `docs/`.
pub const AT_ROOT: [&str; 7] = [
    "README.md",
    "ARCHITECTURE.md",
    "SEMANTICS.md",
    "SHORTCOMINGS.md",
    "SECURITY.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
];

pub struct Page {
    /// From the root.
    pub path: String,
    pub text: String,
}

/// A block between fences.
pub struct Block<'a> {
    /// Of the first line inside, from 1.
    pub line: usize,
    /// `sh`, `text`, …
    pub kind: &'a str,
    /// What a comment on the line above the fence says: `not run: …`, `output`.
    pub mark: Option<&'a str>,
    pub lines: Vec<&'a str>,
}

pub fn read_all(root: &Path) -> Result<Vec<Page>> {
    let mut paths: Vec<String> = AT_ROOT.iter().map(|name| (*name).to_owned()).collect();
    let mut docs: Vec<String> = std::fs::read_dir(root.join("docs"))
        .context("cannot list docs")?
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.ends_with(".md"))
        .map(|name| format!("docs/{name}"))
        .collect();
    docs.sort();
    paths.append(&mut docs);
    let read = |path: String| {
        let text =
            std::fs::read_to_string(root.join(&path)).with_context(|| format!("cannot read {path}"))?;
        Ok(Page { path, text })
    };
    paths.into_iter().map(read).collect()
}

impl Page {
    /// What stands outside of blocks, with line numbers from 1. Of the changes only those since the last release count: older ones
    /// tell what was.
    pub fn prose(&self) -> impl Iterator<Item = (usize, &str)> {
        let mut inside = false;
        let counts = if self.path == "CHANGELOG.md" { "\n## " } else { "" };
        let end = match self.text.find("## Unreleased") {
            Some(at) if !counts.is_empty() => {
                self.text[at + 1..].find(counts).map_or(self.text.len(), |next| at + 1 + next)
            }
            _ => self.text.len(),
        };
        self.text[..end].lines().enumerate().filter_map(move |(i, line)| {
            let fence = line.trim_start().starts_with("```");
            inside ^= fence;
            (!inside && !fence).then_some((i + 1, line))
        })
    }

    pub fn blocks(&self) -> Vec<Block<'_>> {
        let mut blocks = Vec::new();
        let mut open: Option<Block<'_>> = None;
        let mut above = "";
        for (i, line) in self.text.lines().enumerate() {
            match line.strip_prefix("```") {
                Some(kind) if open.is_none() => {
                    let mark = above.strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->"));
                    open = Some(Block { line: i + 2, kind, mark, lines: Vec::new() });
                }
                Some(_) => blocks.extend(open.take()),
                None => {
                    if let Some(block) = &mut open {
                        block.lines.push(line);
                    }
                }
            }
            above = line;
        }
        blocks
    }
}

/// The code spans of a line of prose.
pub fn spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Links of a line of prose: text, target, title (empty without one).
pub fn links(line: &str) -> Vec<(&str, &str, &str)> {
    let mut found = Vec::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("](") {
        let Some((inside, next)) = after.split_once(')') else { break };
        let text = before.rsplit_once('[').map_or("", |(_, text)| text);
        let (target, title) = inside.split_once(" \"").unwrap_or((inside, ""));
        found.push((text, target, title.trim_end_matches('"')));
        rest = next;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_their_marks_and_prose_has_no_blocks() {
        let text = "a `b c` d\n<!-- not run: takes an hour -->\n```sh\ncargo x\n```\nlast\n".to_owned();
        let page = Page { path: "README.md".into(), text };
        let blocks = page.blocks();
        assert_eq!((blocks.len(), blocks[0].line, blocks[0].kind), (1, 4, "sh"));
        assert_eq!(
            (blocks[0].mark, &blocks[0].lines[..]),
            (Some("not run: takes an hour"), &["cargo x"][..])
        );
        assert_eq!(page.prose().map(|(line, _)| line).collect::<Vec<_>>(), [1, 2, 6]);
        assert_eq!(spans("a `b c` d `e`").collect::<Vec<_>>(), ["b c", "e"]);
        let line = "see [it](docs/a.md#b), [1.5](docs/results.md \"DWOM x\").";
        assert_eq!(links(line), [("it", "docs/a.md#b", ""), ("1.5", "docs/results.md", "DWOM x")]);
    }
}
