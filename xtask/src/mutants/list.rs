//! The mutants of some crates, as cargo-mutants lists them, and a sample of them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::compiled::Compiled;
use crate::process;

/// Compiled for models and rigs alone: their own planted faults watch them.
const ONLY_FOR_MODELS: [&str; 6] = ["loom", "shuttle", "/model/", "planted", "simulate", "/testkit/"];
/// What a debugger or a reader of messages sees.
const ONLY_WORDS: [&str; 2] = ["fmt::Result", "Display"];

/// One change of the source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mutant {
    /// Place and change, as cargo-mutants says it.
    pub name: String,
    /// `heddle-nvmfs`
    pub package: String,
    /// From the workspace's root.
    pub file: String,
    /// Line and column of the first character that goes, and of the first that stays; both count from 1, in characters.
    pub span: [(usize, usize); 2],
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

    /// The file with the change made.
    pub fn applied(&self, source: &str) -> Option<String> {
        let at = |(line, column): (usize, usize)| {
            let line = Some(line).filter(|line| *line <= source.lines().count())?;
            let starts = source.split_inclusive('\n').take(line.checked_sub(1)?).map(str::len).sum::<usize>();
            let rest = source.get(starts..)?;
            let within = rest.char_indices().nth(column.checked_sub(1)?).map_or(rest.len(), |(at, _)| at);
            Some(starts + within)
        };
        let (from, to) = (at(self.span[0])?, at(self.span[1])?);
        Some(format!("{}{}{}", source.get(..from)?, self.replacement, source.get(to..)?))
    }
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
    let at = |end: &str| {
        let number = |key: &str| usize::try_from(row["span"][end][key].as_u64()?).ok();
        Some((number("line")?, number("column")?))
    };
    let (file, span) = (text("file")?, [at("start")?, at("end")?]);
    let source = std::fs::read_to_string(root.join(&file)).ok()?;
    let line = source.lines().nth(span[0].0 - 1)?.trim().to_owned();
    Some(Mutant {
        name: text("name")?,
        package: text("package")?,
        file,
        span,
        replacement: text("replacement")?,
        line,
    })
}

fn is_of_use(mutant: &Mutant) -> bool {
    !ONLY_FOR_MODELS.iter().any(|part| mutant.file.contains(part))
        && !ONLY_WORDS.iter().any(|part| mutant.name.contains(part))
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

    pub fn mutant(span: [(usize, usize); 2], replacement: &str) -> Mutant {
        Mutant {
            name: "crates/a/src/b.rs:2:5: replace < with <= in c".into(),
            package: "heddle-a".into(),
            file: "crates/a/src/b.rs".into(),
            span,
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
