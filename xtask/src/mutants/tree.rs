//! A copy of the tree, built with mutants in it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::list::Mutant;
use super::switched::{Blame, MODULE, SAFE_MODULE, Switched};
use crate::process;
use crate::test_binaries::{self, Suite};

/// Beside the tree: the keys of mutants that do not compile.
const UNVIABLE: &str = "unviable";

/// Test binaries by their names.
pub type Suites = HashMap<String, Suite>;

/// The copy. It is the same between two runs, so that cargo builds only what has changed.
pub struct Tree {
    root: PathBuf,
    /// Files of the source as they are, by their names from the root.
    whole: BTreeMap<String, String>,
    /// The suites that are built.
    wanted: BTreeSet<String>,
}

/// What a build of many mutants gave.
pub struct Built {
    pub suites: Suites,
    /// Those that can be switched on.
    pub switched: BTreeSet<u32>,
    pub unviable: BTreeSet<u32>,
}

/// Of a build: test binaries, or where the errors are.
enum Ended {
    Built(Suites),
    Errors(Vec<(String, usize)>),
}

impl Tree {
    /// Copies what git knows or would add. `wanted`: the suites that watch.
    pub fn new(root: &Path, wanted: BTreeSet<String>) -> Result<Tree> {
        let to = process::target_dir(root).join("mutants/tree");
        let files = Command::new("git")
            .current_dir(root)
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .output()?;
        ensure!(files.status.success(), "git ls-files: {}", String::from_utf8_lossy(&files.stderr));
        let files = String::from_utf8(files.stdout).context("a file's name is not UTF-8")?;
        for file in files.split('\0').filter(|file| !file.is_empty() && root.join(file).is_file()) {
            copy_if_other(&root.join(file), &to.join(file))?;
        }
        Ok(Tree { root: to, whole: BTreeMap::new(), wanted })
    }

    /// Builds all of them at once; without those that do not compile, and those that must be built alone.
    ///
    /// # Errors
    /// The tree cannot be written, or does not build for another reason.
    pub fn build(&mut self, mutants: &BTreeMap<u32, &Mutant>) -> Result<Built> {
        let keys = mutants.iter().map(|(number, mutant)| Ok((*number, self.key(mutant)?)));
        let keys: BTreeMap<u32, String> = keys.collect::<Result<_>>()?;
        let mut unviable = self.known_unviable(&keys);
        let mut left_out = BTreeSet::new();
        loop {
            let tried = |number: &u32| !unviable.contains(number) && !left_out.contains(number);
            let files = self.switch(mutants.iter().filter(|(number, _)| tried(number)))?;
            let errors = match self.cargo()? {
                Ended::Built(suites) => {
                    let switched = files.values().flat_map(Switched::numbers).collect();
                    return Ok(Built { suites, switched, unviable });
                }
                Ended::Errors(errors) => errors,
            };
            let before = unviable.len() + left_out.len();
            for (file, line) in &errors {
                match files.get(file).and_then(|file| file.blame(*line)) {
                    Some(Blame::One(number)) => drop(unviable.insert(number)),
                    Some(Blame::All(numbers)) => left_out.extend(numbers),
                    None => {}
                }
            }
            println!("{} do not compile, {} are left for later", unviable.len(), left_out.len());
            self.remember_unviable(unviable.iter().map(|number| &keys[number]))?;
            ensure!(unviable.len() + left_out.len() > before, "the tree does not build: {errors:?}");
        }
    }

    /// Builds one; none if it does not compile.
    pub fn build_alone(&mut self, mutant: &Mutant) -> Result<Option<Suites>> {
        let whole = self.whole(&mutant.file)?;
        let changed = mutant.applied(&whole).with_context(|| format!("{}: not in the file", mutant.name))?;
        self.write_all(BTreeMap::from([(mutant.file.clone(), changed)]))?;
        Ok(match self.cargo()? {
            Ended::Built(suites) => Some(suites),
            Ended::Errors(_) => None,
        })
    }

    /// Of a mutant in its file: it compiles again or not as long as the file stays as it is.
    fn key(&mut self, mutant: &Mutant) -> Result<String> {
        let mut hasher = DefaultHasher::new();
        (&mutant.name, self.whole(&mutant.file)?).hash(&mut hasher);
        Ok(format!("{:016x}", hasher.finish()))
    }

    /// Those that a run before this has found. To try them again is a build that fails, and then all is built anew.
    fn known_unviable(&self, keys: &BTreeMap<u32, String>) -> BTreeSet<u32> {
        let known = std::fs::read_to_string(self.root.with_file_name(UNVIABLE)).unwrap_or_default();
        let known: BTreeSet<&str> = known.lines().collect();
        keys.iter().filter(|(_, key)| known.contains(key.as_str())).map(|(number, _)| *number).collect()
    }

    fn remember_unviable<'a>(&self, keys: impl Iterator<Item = &'a String>) -> Result<()> {
        let file = self.root.with_file_name(UNVIABLE);
        let known = std::fs::read_to_string(&file).unwrap_or_default();
        let all: BTreeSet<String> = known.lines().map(str::to_owned).chain(keys.cloned()).collect();
        let text = all.into_iter().collect::<Vec<_>>().join("\n");
        std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
    }

    fn switch<'a>(
        &mut self,
        mutants: impl Iterator<Item = (&'a u32, &'a &'a Mutant)>,
    ) -> Result<BTreeMap<String, Switched>> {
        let mut by_file: BTreeMap<String, Vec<(u32, &Mutant)>> = BTreeMap::new();
        for (number, mutant) in mutants {
            by_file.entry(mutant.file.clone()).or_default().push((*number, mutant));
        }
        let mut switched = BTreeMap::new();
        for (file, mutants) in by_file {
            let whole = self.whole(&file)?;
            switched.insert(file, Switched::new(&whole, &mutants));
        }
        let mut texts: BTreeMap<String, String> =
            switched.iter().map(|(file, switched)| (file.clone(), switched.text.clone())).collect();
        let crates: BTreeSet<String> = texts.keys().filter_map(|file| library(file)).collect();
        for library in crates {
            let whole = self.whole(&library)?;
            let module = if whole.contains("forbid(unsafe_code)") { SAFE_MODULE } else { MODULE };
            texts.entry(library).or_insert(whole).push_str(module);
        }
        self.write_all(texts)?;
        Ok(switched)
    }

    fn whole(&mut self, file: &str) -> Result<String> {
        if !self.whole.contains_key(file) {
            let path = self.root.join(file);
            let text =
                std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            self.whole.insert(file.to_owned(), text);
        }
        Ok(self.whole[file].clone())
    }

    /// These files with other texts, all others as they are.
    fn write_all(&self, texts: BTreeMap<String, String>) -> Result<()> {
        for (file, whole) in &self.whole {
            let (path, text) = (self.root.join(file), texts.get(file).unwrap_or(whole));
            if std::fs::read_to_string(&path).is_ok_and(|there| there == *text) {
                continue;
            }
            std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }

    /// Two commands, for the second leaves out programs and the libraries that they load, and the first unit tests. Both choose the same
    /// packages: another choice would have other features, and compile the engines anew.
    fn cargo(&self) -> Result<Ended> {
        let tests: BTreeSet<&str> =
            self.wanted.iter().filter_map(|name| name.split_once('/')).map(|n| n.1).collect();
        let tests = tests.into_iter().filter(|test| *test != "lib").flat_map(|test| ["--test", test]);
        let programs =
            ["build", "--keep-going", "--lib", "--bins"].into_iter().chain(tests).collect::<Vec<_>>();
        let mut suites = Suites::new();
        for args in [programs, vec!["test", "--no-run", "--lib"]] {
            match self.cargo_with(&args)? {
                Ended::Built(built) => suites.extend(built),
                errors => return Ok(errors),
            }
        }
        Ok(Ended::Built(suites))
    }

    fn cargo_with(&self, args: &[&str]) -> Result<Ended> {
        let mut command = process::cargo(&self.root, args);
        command.args(["--workspace", "--message-format=json"]);
        let is_wanted = |of: &String| self.wanted.iter().any(|name| name.split('/').next() == Some(of));
        let others = process::crates_with(&self.root, "Cargo.toml")?.into_iter().filter(|of| !is_wanted(of));
        // The bypass is two libraries, which its tests load.
        let loaded =
            ["preload", "c"].map(str::to_owned).into_iter().filter(|_| !is_wanted(&"cli".to_owned()));
        for other in others.chain(loaded) {
            command.args(["--exclude", &format!("heddle-{other}")]);
        }
        command.args(["--exclude", "xtask"]);
        command.env("CARGO_TARGET_DIR", self.root.join("target"));
        command.env_remove("CARGO_MANIFEST_DIR");
        let output = command.output().context("cannot start cargo")?;
        let messages = String::from_utf8_lossy(&output.stdout);
        if output.status.success() {
            let suites = test_binaries::named(&messages);
            return Ok(Ended::Built(suites.into_iter().map(|suite| (suite.name.clone(), suite)).collect()));
        }
        let errors: Vec<(String, usize)> = messages.lines().flat_map(places_of_errors).collect();
        if errors.is_empty() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("cargo does not build {}:\n{}", self.root.display(), said.trim());
        }
        Ok(Ended::Errors(errors))
    }
}

/// `crates/NAME/src/lib.rs`, of a file of it.
fn library(file: &str) -> Option<String> {
    file.split_once("/src/").map(|(folder, _)| format!("{folder}/src/lib.rs"))
}

/// File and line of an error that cargo tells of.
fn places_of_errors(line: &str) -> Vec<(String, usize)> {
    let Ok(told) = serde_json::from_str::<Value>(line) else { return Vec::new() };
    if told["message"]["level"] != "error" {
        return Vec::new();
    }
    let spans = told["message"]["spans"].as_array().cloned().unwrap_or_default();
    let place = |span: &Value| {
        let line = usize::try_from(span["line_start"].as_u64()?).ok()?;
        Some((span["file_name"].as_str()?.to_owned(), line))
    };
    spans.iter().filter(|span| span["is_primary"] == true).filter_map(place).collect()
}

/// What is the same stays as it is, so that cargo does not build it anew.
fn copy_if_other(from: &Path, to: &Path) -> Result<()> {
    let bytes = std::fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
    if std::fs::read(to).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    let folder = to.parent().context("a file without a folder")?;
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    std::fs::copy(from, to).with_context(|| format!("cannot write {}", to.display()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutants::list::tests::mutant;

    #[test]
    fn errors_are_found_where_the_compiler_points() {
        let told = r#"{"reason":"compiler-message","message":{"level":"error","spans":[
            {"file_name":"crates/a/src/b.rs","line_start":3,"is_primary":true},
            {"file_name":"crates/a/src/b.rs","line_start":9,"is_primary":false}]}}"#;
        assert_eq!(places_of_errors(&told.replace('\n', " ")), [("crates/a/src/b.rs".to_owned(), 3)]);
        assert_eq!(places_of_errors(&told.replace('\n', " ").replace("\"error\"", "\"warning\"")), []);
    }

    #[test]
    fn what_did_not_compile_is_known_until_its_file_changes() {
        let home = std::env::temp_dir().join(format!("heddle-mutants-{}", std::process::id()));
        std::fs::create_dir_all(&home).unwrap();
        let it = mutant([(1, 1), (1, 2)], "?");
        let with = |text: &str| Tree {
            root: home.join("tree"),
            whole: BTreeMap::from([(it.file.clone(), text.into())]),
            wanted: BTreeSet::new(),
        };
        let known = |text: &str| {
            let mut tree = with(text);
            let keys = BTreeMap::from([(7, tree.key(&it).unwrap())]);
            (tree.known_unviable(&keys).into_iter().collect::<Vec<_>>(), keys)
        };
        let (before, keys) = known("a < b");
        with("a < b").remember_unviable(keys.values()).unwrap();
        let (after, changed) = (known("a < b").0, known("a < c").0);
        std::fs::remove_dir_all(&home).unwrap();
        assert_eq!((before, after, changed), (vec![], vec![7], vec![]));
    }

    #[test]
    fn the_switch_is_in_the_library_of_a_file() {
        assert_eq!(library("crates/a/src/b/c.rs").as_deref(), Some("crates/a/src/lib.rs"));
    }
}
