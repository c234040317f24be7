//! The mutants of some crates, as cargo-mutants lists them, and a sample of them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::compiled::Compiled;
use crate::process;

/// Compiled for models and rigs alone: their own planted faults watch them.
const ONLY_FOR_MODELS: [&str; 7] =
    ["loom", "shuttle", "/model/", "planted", "/broken.rs", "simulate", "/testkit/"];
/// What a debugger or a reader of messages sees.
const ONLY_WORDS: [&str; 2] = ["fmt::Result", "Display"];

/// Line and column of the first character, and of the first one behind; both count from 1, in characters.
pub type Span = [(usize, usize); 2];

/// One change of the source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mutant {
    /// Place and change, as cargo-mutants says it.
    pub name: String,
    /// `heddle-nvmfs`
    pub package: String,
    /// From the workspace's root.
    pub file: String,
    /// Of what goes.
    pub span: Span,
    /// Of the function around it, its attributes included.
    pub function: Option<Span>,
    /// What takes their place.
    pub replacement: String,
    /// The line that it begins in, as it is.
    pub line: String,
}

impl Mutant {
    /// The change without its place: lines move.
    pub fn change(&self) -> &str {
        self.name.splitn(4, ':').last().unwrap_or_default().trim()
    }

    /// The folder of its crate.
    pub fn crate_name(&self) -> &str {
        self.package.trim_start_matches("heddle-")
    }

    /// The file with the change made.
    pub fn applied(&self, source: &str) -> Option<String> {
        let span = bytes_of(source, self.span)?;
        Some(format!("{}{}{}", source.get(..span.start)?, self.replacement, source.get(span.end..)?))
    }
}

/// Where a span lies in the text.
pub fn bytes_of(source: &str, span: Span) -> Option<Range<usize>> {
    let at = |(line, column): (usize, usize)| {
        let line = Some(line).filter(|line| *line <= source.lines().count())?;
        let starts = source.split_inclusive('\n').take(line.checked_sub(1)?).map(str::len).sum::<usize>();
        let rest = source.get(starts..)?;
        let within = rest.char_indices().nth(column.checked_sub(1)?).map_or(rest.len(), |(at, _)| at);
        Some(starts + within)
    };
    Some(at(span[0])?..at(span[1])?)
}

/// All mutants of these crates, or those in lines that changed since a commit.
pub fn list(root: &Path, crates: &[String], since: Option<&str>) -> Result<Vec<Mutant>> {
    let mut command = process::cargo(root, &["mutants", "--list", "--json"]);
    command.args(process::packages(crates));
    let diff = process::target_dir(root).join("mutants.diff");
    if let Some(since) = since {
        let git = Command::new("git").current_dir(root).args(["diff", since, "--", "crates"]).output()?;
        ensure!(git.status.success(), "git diff {since}: {}", String::from_utf8_lossy(&git.stderr));
        std::fs::write(&diff, git.stdout).with_context(|| format!("cannot write {}", diff.display()))?;
        command.arg("--in-diff").arg(&diff);
    }
    let said = command.stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    ensure!(
        said.status.success(),
        "cargo mutants does not list. Is it installed? cargo install cargo-mutants --locked"
    );
    let rows: Vec<Value> = serde_json::from_slice(&said.stdout).context("what cargo mutants printed")?;
    let mutants: Vec<Mutant> =
        rows.iter().map(|row| mutant(root, row)).collect::<Option<_>>().context("a row lacks a field")?;
    let mut compiled = Compiled::default();
    Ok(mutants.into_iter().filter(|mutant| is_of_use(mutant) && compiled.has(root, mutant)).collect())
}

fn mutant(root: &Path, row: &Value) -> Option<Mutant> {
    let text = |key: &str| row[key].as_str().map(str::to_owned);
    let (file, span) = (text("file")?, span(&row["span"])?);
    let source = std::fs::read_to_string(root.join(&file)).ok()?;
    let line = source.lines().nth(span[0].0 - 1)?.trim().to_owned();
    Some(Mutant {
        name: text("name")?,
        package: text("package")?,
        file,
        span,
        function: self::span(&row["function"]["span"]),
        replacement: text("replacement")?,
        line,
    })
}

fn span(value: &Value) -> Option<Span> {
    let at = |end: &str| {
        let number = |key: &str| usize::try_from(value[end][key].as_u64()?).ok();
        Some((number("line")?, number("column")?))
    };
    Some([at("start")?, at("end")?])
}

fn is_of_use(mutant: &Mutant) -> bool {
    !ONLY_FOR_MODELS.iter().any(|part| mutant.file.contains(part))
        && !ONLY_WORDS.iter().any(|part| mutant.name.contains(part))
        && !joins_flags(mutant)
}

/// Flags have no bit in common, so `^` joins them as `|` does.
fn joins_flags(mutant: &Mutant) -> bool {
    let is_flag = |path: &str| {
        let name = path.rsplit("::").next().unwrap_or_default();
        !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
    };
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let flags = |(before, behind): (&str, &str)| {
        let (before, behind) = (before.trim_end(), behind.trim_start());
        let last = before.rsplit(|c| !is_path(c)).next().unwrap_or_default();
        let first = behind.split(|c| !is_path(c)).next().unwrap_or_default();
        is_flag(last) && is_flag(first)
    };
    let sides = mutant.line.match_indices('|').map(|(at, _)| (&mutant.line[..at], &mutant.line[at + 1..]));
    mutant.change().starts_with("replace | with ^") && sides.into_iter().all(flags)
}

/// As many, evenly, the same for a seed; 0: all.
pub fn sample(mut mutants: Vec<Mutant>, count: usize, seed: u64) -> Vec<Mutant> {
    mutants.sort_by_key(|mutant| {
        let mut hasher = DefaultHasher::new();
        (seed, &mutant.name).hash(&mut hasher);
        hasher.finish()
    });
    if count != 0 {
        mutants.truncate(count);
    }
    mutants
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn mutant(span: Span, replacement: &str) -> Mutant {
        Mutant {
            name: "crates/a/src/b.rs:2:5: replace < with <= in c".into(),
            package: "heddle-a".into(),
            file: "crates/a/src/b.rs".into(),
            span,
            function: None,
            replacement: replacement.into(),
            line: "a < b".into(),
        }
    }

    #[test]
    fn a_change_takes_the_place_of_exactly_its_characters() {
        let source = "fn c() {\n é < 1\n}\n";
        let changed = |span, by: &str| mutant(span, by).applied(source);
        assert_eq!(changed([(2, 4), (2, 5)], "<=").as_deref(), Some("fn c() {\n é <= 1\n}\n"));
        assert_eq!(changed([(1, 1), (3, 2)], "").as_deref(), Some("\n"));
        assert_eq!(changed([(9, 1), (9, 2)], "x"), None, "a line that is not there");
    }

    #[test]
    fn flags_that_are_joined_otherwise_are_the_same() {
        let of = |change: &str, line: &str| {
            let name = format!("crates/a/src/b.rs:2:5: {change} in c");
            Mutant { name, line: line.into(), ..mutant([(1, 1), (1, 1)], "") }
        };
        let to_other = "replace | with ^";
        assert!(joins_flags(&of(to_other, "let flags = OFlags::PATH | OFlags::NOFOLLOW | CLOEXEC;")));
        assert!(!joins_flags(&of("replace | with &", "let flags = OFlags::PATH | OFlags::NOFOLLOW;")));
        assert!(!joins_flags(&of(to_other, "let word = word | HELD;")));
    }

    #[test]
    fn a_change_is_known_without_its_line() {
        assert_eq!(mutant([(1, 1), (1, 1)], "").change(), "replace < with <= in c");
    }

    #[test]
    fn a_sample_is_the_same_for_a_seed_and_another_for_another() {
        let all: Vec<Mutant> =
            (0..50).map(|n| Mutant { name: n.to_string(), ..mutant([(1, 1), (1, 1)], "") }).collect();
        let names = |seed| sample(all.clone(), 10, seed).into_iter().map(|m| m.name).collect::<Vec<_>>();
        assert_eq!(names(1), names(1));
        assert_ne!(names(1), names(2));
        assert_eq!((names(1).len(), sample(all.clone(), 0, 1).len()), (10, 50));
    }
}
