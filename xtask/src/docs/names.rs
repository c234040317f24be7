//! Files, headings and tests that pages name are there; a test stands in the file that SEMANTICS.md names before it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result};

use super::pages::{Page, links, spans};

/// What is short for a folder in SEMANTICS.md.
const SHORT: [(&str, &str); 3] =
    [("n/", "crates/nvmfs/tests/"), ("f/", "crates/f2fs/tests/"), ("c/", "crates/cli/tests/")];
/// Tests that a macro makes, in each crate that calls it.
const BY_MACRO: &str = "crates/vfs/src/testkit/posix";

/// The files of the project and the tests in them.
pub struct Tree {
    files: BTreeSet<String>,
    /// Name of a test to the files that have one, and what runs it there.
    tests: BTreeMap<String, Vec<(String, By)>>,
}

/// What runs a test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum By {
    /// The test binaries.
    Suites,
    /// A step of the test command that builds it in another way: loom's and shuttle's models.
    Models,
    /// A chore alone: the test command leaves it out.
    Chore,
}

impl Tree {
    pub fn read(root: &Path) -> Result<Tree> {
        let mut files = BTreeSet::new();
        for folder in ["crates", "xtask", "docs", ".ci", ".cargo"] {
            list(root, Path::new(folder), &mut files)?;
        }
        for entry in std::fs::read_dir(root).context("cannot list the root")?.flatten() {
            if entry.path().is_file() {
                files.extend(entry.file_name().into_string());
            }
        }
        let mut tests: BTreeMap<String, Vec<(String, By)>> = BTreeMap::new();
        for file in files.iter().filter(|file| file.ends_with(".rs")) {
            let text =
                std::fs::read_to_string(root.join(file)).with_context(|| format!("cannot read {file}"))?;
            for (name, by) in tests_of(&text, file) {
                tests.entry(name).or_default().push((file.clone(), by));
            }
        }
        Ok(Tree { files, tests })
    }

    pub fn files(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(String::as_str)
    }

    pub fn tests(&self) -> impl Iterator<Item = &str> {
        self.tests.keys().map(String::as_str)
    }

    /// A file or folder: in full, by its end (`tests/processes.rs`), or by its crate (`arena/process_slots.rs`).
    fn has(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        let in_crate = path.split_once('/').map(|(name, rest)| format!("crates/{name}/src/{rest}"));
        in_crate.is_some_and(|path| self.files.contains(&path))
            || self.files.iter().any(|file| {
                let end =
                    file.strip_suffix(path).is_some_and(|before| before.is_empty() || before.ends_with('/'));
                end || file.starts_with(&format!("{path}/")) || file.contains(&format!("/{path}/"))
            })
    }

    /// The cited tests that exist. What the test command leaves out counts only if the line says what runs it.
    pub fn cited<'a>(&'a self, page: &'a Page) -> impl Iterator<Item = (usize, &'a str)> {
        page.prose()
            .flat_map(|(line, text)| spans(text).filter(|span| is_test(span)).map(move |span| (line, span)))
    }
}

/// A name with four underscores or more is a test's: metrics have three.
fn is_test(span: &str) -> bool {
    span.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        && span.matches('_').count() >= 4
}

fn list(root: &Path, folder: &Path, into: &mut BTreeSet<String>) -> Result<()> {
    let Ok(entries) = std::fs::read_dir(root.join(folder)) else { return Ok(()) };
    for entry in entries.flatten() {
        let path = folder.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true if entry.file_name() == "target" => {}
            true => list(root, &path, into)?,
            false => {
                into.insert(path.to_string_lossy().into_owned());
            }
        }
    }
    Ok(())
}

/// Functions behind `#[test]` (or in files of macros, all), and whether nothing says `#[ignore`.
fn tests_of(text: &str, file: &str) -> Vec<(String, By)> {
    let all = file.starts_with(BY_MACRO);
    let modelled = file.contains("/models/")
        || ["#![cfg(loom)]", "#![cfg(shuttle)]"].iter().any(|only| text.contains(only));
    let usual = if modelled { By::Models } else { By::Suites };
    let (mut found, mut test, mut by) = (Vec::new(), all, usual);
    // A macro of the file's own, or the one of traps, makes tests of its rows: `name = …;`.
    let own = text.contains("macro_rules!") && text.contains("fn $");
    let rows = own || text.lines().any(|line| line == "traps! {");
    for line in text.lines().map(str::trim_start) {
        match line {
            _ if rows && line.split_once(" = ").is_some_and(|(name, _)| is_test(name)) => {
                found.extend(line.split_once(" = ").map(|(name, _)| (name.to_owned(), usual)));
            }
            _ if line.starts_with("#[test]") => test = true,
            _ if line.starts_with("#[ignore") => by = By::Chore,
            _ => {
                let Some((_, rest)) = line.split_once("fn ").filter(|(before, _)| !before.contains("//"))
                else {
                    continue;
                };
                let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                if test {
                    found.push((name, by));
                }
                (test, by) = (all, usual);
            }
        }
    }
    found
}

/// What is wrong, a line each.
pub fn check(tree: &Tree, pages: &[Page]) -> Vec<String> {
    let mut wrong = Vec::new();
    for page in pages {
        let changes = page.path == "CHANGELOG.md";
        for (line, text) in page.prose() {
            let mut say = |what: String| wrong.push(format!("{}:{line}: {what}", page.path));
            for (_, target, _) in links(text) {
                if let Some(what) = broken(tree, pages, page, target) {
                    say(what);
                }
            }
            for path in spans(text).filter(|span| !changes && is_path(span)) {
                if !tree.has(&in_full(path)) {
                    say(format!("there is no {path}"));
                }
            }
        }
        for (line, name) in tree.cited(page) {
            let text = page.text.lines().nth(line - 1).unwrap_or_default();
            let what = match tree.tests.get(name) {
                None => "no test has this name",
                Some(places)
                    if places.iter().any(|(_, by)| *by != By::Chore) || text.contains("cargo xtask") =>
                {
                    continue;
                }
                Some(_) => "is left out of the test command, and the line does not say which chore runs it",
            };
            wrong.push(format!("{}:{line}: {name}: {what}", page.path));
        }
        if page.path == "SEMANTICS.md" {
            wrong.extend(misplaced(tree, page));
        }
    }
    wrong
}

/// Tests that are not in the file that stands before them in their row.
fn misplaced(tree: &Tree, page: &Page) -> Vec<String> {
    let mut wrong = Vec::new();
    for (line, text) in page.prose().filter(|(_, text)| text.starts_with('|')) {
        let mut file = None;
        for span in spans(text) {
            if is_path(span) {
                file = Some(in_full(span));
            } else if let (true, Some(file)) = (is_test(span), &file) {
                // `n/images.rs` has what `n/images/` has.
                let stem = file.trim_end_matches(".rs");
                let here = |place: &(String, By)| {
                    place.0.strip_prefix(stem).is_some_and(|rest| rest.starts_with(['/', '.']))
                        || place.0.starts_with(BY_MACRO)
                };
                if !tree.tests.get(span).is_some_and(|places| places.iter().any(here)) {
                    wrong.push(format!("{}:{line}: {span} is not in {file}", page.path));
                }
            }
        }
    }
    wrong
}

/// Cited tests that the test binaries have and that are not among those that ran.
pub fn not_run(tree: &Tree, pages: &[Page], ran: &[String]) -> Result<Vec<String>> {
    let ran: BTreeSet<&str> = ran.iter().map(|path| path.rsplit("::").next().unwrap_or(path)).collect();
    let runs = |name: &str| {
        tree.tests.get(name).is_some_and(|places| places.iter().any(|(_, by)| *by == By::Suites))
    };
    let cited = pages.iter().flat_map(|page| tree.cited(page));
    let missing: BTreeSet<&str> =
        cited.map(|(_, name)| name).filter(|name| runs(name) && !ran.contains(name)).collect();
    Ok(missing.into_iter().map(str::to_owned).collect())
}

fn is_path(span: &str) -> bool {
    let known = [".rs", ".md", ".txt", ".py", ".c", ".h"].iter().any(|end| span.ends_with(end));
    let ours = ["crates/", "xtask/", "docs/"].iter().any(|start| span.starts_with(start));
    let made_up = span.contains([' ', '*', '<', '=', '"']) || span.starts_with(['/', '~', '.']);
    !made_up && ((known && span.contains('/')) || ours || span.ends_with(".rs"))
}

fn in_full(path: &str) -> String {
    let long = SHORT.iter().find_map(|(short, long)| Some(format!("{long}{}", path.strip_prefix(short)?)));
    long.unwrap_or_else(|| path.to_owned())
}

fn broken(tree: &Tree, pages: &[Page], from: &Page, target: &str) -> Option<String> {
    if target.contains("://") {
        return None;
    }
    let (path, heading) = target.split_once('#').unwrap_or((target, ""));
    let folder = Path::new(&from.path).parent().unwrap_or(Path::new(""));
    let path = if path.is_empty() { PathBuf::from(&from.path) } else { plain(&folder.join(path)) };
    let path = path.to_string_lossy().into_owned();
    if !tree.has(&path) {
        return Some(format!("the link to {target} leads nowhere"));
    }
    let page = pages.iter().find(|page| page.path == path)?;
    let there =
        heading.is_empty() || page.prose().any(|(_, line)| line.starts_with('#') && anchor(line) == heading);
    (!there).then(|| format!("{path} has no heading #{heading}"))
}

/// Without `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        if part == Component::ParentDir {
            plain.pop();
        } else {
            plain.push(part);
        }
    }
    plain
}

/// `## Who it is for` is `#who-it-is-for`.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Tree {
        let source = "#[test]\nfn one_two_three_four_five() {}\n\
            #[test]\n#[ignore = \"long\"]\nfn a_b_c_d_e() {}\nfn no_test_at_all_here() {}";
        let file = "crates/nvmfs/tests/torn.rs".to_owned();
        let tests = tests_of(source, &file).into_iter().map(|(name, by)| (name, vec![(file.clone(), by)]));
        Tree {
            tests: tests.collect(),
            files: [file, "docs/a.md".into(), "crates/arena/src/process_slots.rs".into()].into(),
        }
    }

    #[test]
    fn names_of_files_and_tests_that_are_not_there_are_found() {
        let text = "| `n/torn.rs` `one_two_three_four_five` `arena/process_slots.rs` [a](docs/a.md) |\n\
            | `n/torn.rs` `no_test_at_all_here`, `n/tron.rs`, [a](docs/b.md) |\n`a_b_c_d_e`\ncargo xtask x: `a_b_c_d_e`\n";
        let page = Page { path: "SEMANTICS.md".into(), text: text.into() };
        let wrong = check(&tree(), &[page]);
        let lines: Vec<&str> = wrong.iter().map(|line| line.split(':').nth(1).unwrap()).collect();
        assert_eq!(lines, ["2", "2", "2", "3", "2"], "{wrong:#?}");
    }

    #[test]
    fn a_test_that_did_not_run_is_known() {
        let page = Page { path: "README.md".into(), text: "`one_two_three_four_five` `a_b_c_d_e`".into() };
        let pages = [page];
        assert_eq!(not_run(&tree(), &pages, &[]).unwrap(), ["one_two_three_four_five"]);
        assert_eq!(not_run(&tree(), &pages, &["m::one_two_three_four_five".into()]).unwrap(), [""; 0]);
    }

    #[test]
    fn tests_of_models_are_run_by_a_step_of_their_own() {
        let source = "#![cfg(shuttle)]\n#[test]\nfn one_two_three_four_five() {}";
        let name = "one_two_three_four_five".to_owned();
        assert_eq!(tests_of(source, "crates/nvmfs/tests/deaths.rs"), [(name.clone(), By::Models)]);
        assert_eq!(tests_of("#[test]\nfn one_two_three_four_five() {}", "a.rs"), [(name, By::Suites)]);
    }
}
