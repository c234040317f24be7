//! The style rules as a test: each finding names its place, its rule and how to mend it.
//!
//! Rules look at text, not at types: a light lexer (`source.rs`) tells code from comments and strings, which is enough.
//! `reasons.rs` wants a reason beside dangerous lines, `shape.rs` bounds sizes and forbids words, `text.rs` looks after
//! every text file, `documents.rs` after what it cites, `house.rs` after the crates and their arrows, `modules.rs` after the modules
//! inside a crate, `papers.rs` after where the NVM engine's variant is asked.

mod documents;
mod house;
mod modules;
mod papers;
mod reasons;
mod shape;
pub mod source;
mod text;

#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use source::Source;

/// What a rule found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    path: String,
    line: usize,
    rule: &'static str,
    mend: String,
    severity: Severity,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Severity {
    Warning,
    Error,
}

impl Finding {
    fn error(path: &str, line: usize, rule: &'static str, mend: impl Into<String>) -> Finding {
        Finding { path: path.into(), line, rule, mend: mend.into(), severity: Severity::Error }
    }

    fn warning(path: &str, line: usize, rule: &'static str, mend: impl Into<String>) -> Finding {
        Finding { severity: Severity::Warning, ..Finding::error(path, line, rule, mend) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        write!(f, "{}:{}: {severity} [{}] {}", self.path, self.line, self.rule, self.mend)
    }
}

/// `cargo xtask tidy`
pub fn chore(root: &Path, args: &[String]) -> Result<bool> {
    if let Some(arg) = args.first() {
        bail!("{arg}: tidy takes no argument");
    }
    check_and_print(root)
}

/// Prints all findings; true if none is an error.
pub fn check_and_print(root: &Path) -> Result<bool> {
    let findings = check(root)?;
    for finding in &findings {
        println!("{finding}");
    }
    let errors = findings.iter().filter(|finding| finding.severity == Severity::Error).count();
    println!("tidy: {errors} errors, {} warnings", findings.len() - errors);
    Ok(errors == 0)
}

fn check(root: &Path) -> Result<Vec<Finding>> {
    let mut findings = house::check(root)?;
    findings.extend(modules::check(root)?);
    let documents = documents::Documents::read(root)?;
    for file in text_files(root)? {
        let path = file.strip_prefix(root)?.to_string_lossy().into_owned();
        let content = std::fs::read_to_string(&file).with_context(|| format!("cannot read {path}"))?;
        findings.extend(check_file(&path, &content));
        findings.extend(documents.check(&path, &content));
    }
    findings.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    Ok(findings)
}

/// Everything that can be said about one file alone. `path` is relative to the workspace's root.
fn check_file(path: &str, content: &str) -> Vec<Finding> {
    let mut findings = text::check(path, content);
    findings.extend(documents::check_lost(path, content));
    if path.ends_with(".rs") {
        let source = Source::new(path, content);
        findings.extend(reasons::check(&source));
        findings.extend(shape::check(&source));
        findings.extend(papers::check(&source));
    }
    findings
}

const TEXT_EXTENSIONS: &[&str] =
    &["rs", "toml", "md", "sh", "c", "h", "html", "css", "js", "yml", "yaml", "txt"];

/// The project's text files. Build folders and the repository's own data are not; neither is what generators write.
fn text_files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let entries =
            std::fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let kind = entry.file_type()?;
            if kind.is_dir() && !matches!(name.as_str(), ".git" | "target") {
                folders.push(entry.path());
            } else if kind.is_file() && is_text(&entry.path()) {
                files.push(entry.path());
            }
        }
    }
    files.sort();
    Ok(files)
}

fn is_text(file: &Path) -> bool {
    match file.extension() {
        Some(extension) => TEXT_EXTENSIONS.iter().any(|known| extension == *known),
        // .ci/run is a script without an extension; licences are other people's words.
        None => file.file_name().is_some_and(|name| name == "run"),
    }
}
