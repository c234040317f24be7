//! Which test binaries watch a crate, and in which order.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::Result;

/// Suites that take tens of seconds: last. The soak is left out: it takes minutes whatever it finds.
const SLOW: [&str; 8] = ["images", "full", "power_cuts", "kill", "fsck", "torn", "processes", "damage"];
const LEFT_OUT: [&str; 2] = ["soak", "shuttle"];

/// What besides a crate's own suites watches it.
const WATCHERS: &[(&str, &[(&str, &str)])] = &[
    ("nvmfs", &[("crash", "power_cuts")]),
    ("arena", &[("nvmfs", "lib"), ("nvmfs", "threads"), ("nvmfs", "processes"), ("cli", "together")]),
    ("range-lock", &[("nvmfs", "threads"), ("nvmfs", "torn")]),
    ("pmem", &[("nvmfs", "lib"), ("crash", "power_cuts")]),
    ("vfs", &[("nvmfs", "model"), ("nvmfs", "posix")]),
    ("signatures", &[("cli", "bad_input")]),
    (
        "bypass",
        &[
            ("cli", "bypass"),
            ("cli", "bypass_names"),
            ("cli", "bypass_numbers"),
            ("cli", "bypass_programs"),
            ("cli", "bypass_signals"),
            ("cli", "mapped"),
            ("cli", "identity"),
            ("cli", "together"),
        ],
    ),
    ("fuse", &[("cli", "mount_ways"), ("cli", "bypass"), ("cli", "look")]),
];

/// A test binary: a crate's folder, and `lib` or a file of its `tests/`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Suite {
    pub of: String,
    pub file: String,
}

impl Suite {
    /// Cargo's arguments that build or run it.
    pub fn args(&self) -> Vec<String> {
        let package = format!("heddle-{}", self.of);
        let mut args = vec!["test".to_owned(), "-p".into(), package];
        match self.file.as_str() {
            "lib" => args.push("--lib".into()),
            file => args.extend(["--test".to_owned(), file.into()]),
        }
        args
    }
}

impl std::fmt::Display for Suite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.of, self.file)
    }
}

/// The suites that watch a crate, cheap ones first.
pub fn watching(root: &Path, of: &str) -> Result<Vec<Suite>> {
    let folder = root.join("crates").join(of);
    let mut files: Vec<String> = match std::fs::read_dir(folder.join("tests")) {
        Ok(entries) => entries.flatten().filter_map(|entry| test_file(&entry.path())).collect(),
        Err(_) => Vec::new(),
    };
    files.retain(|file| !LEFT_OUT.contains(&file.as_str()));
    files
        .sort_by_key(|file| (SLOW.iter().position(|slow| slow == file).map_or(0, |at| at + 1), file.clone()));
    if folder.join("src/lib.rs").exists() {
        files.insert(0, "lib".into());
    }
    let own = files.into_iter().map(|file| Suite { of: of.into(), file });
    let others = WATCHERS.iter().filter(|(watched, _)| *watched == of).flat_map(|(_, suites)| *suites);
    let others = others.map(|(of, file)| Suite { of: (*of).into(), file: (*file).into() });
    Ok(own.chain(others).collect())
}

fn test_file(path: &Path) -> Option<String> {
    let is_source = path.extension().is_some_and(|extension| extension == "rs");
    Some(path.file_stem().filter(|_| is_source)?.to_str()?.to_owned())
}

/// What is known of suites on the unchanged tree. A failure counts only for a suite that passes there.
#[derive(Default)]
pub struct Baselines {
    took: Mutex<HashMap<Suite, Duration>>,
    red: Mutex<HashSet<Suite>>,
}

impl Baselines {
    /// It passed unchanged, in this time.
    pub fn passed(&self, suite: &Suite, took: Duration) {
        let mut known = self.took.lock().expect("no holder panics");
        let longest = known.entry(suite.clone()).or_default();
        *longest = took.max(*longest);
    }

    /// It fails unchanged: it says nothing about a mutant.
    pub fn is_red(&self, suite: &Suite) {
        println!("LEFT OUT {suite}: it fails without a change, so it sees nothing");
        self.red.lock().expect("no holder panics").insert(suite.clone());
    }

    pub fn may_run(&self, suite: &Suite) -> bool {
        !self.red.lock().expect("no holder panics").contains(suite)
    }

    pub fn has_passed(&self, suite: &Suite) -> bool {
        self.took.lock().expect("no holder panics").contains_key(suite)
    }

    /// How long it may run on a mutant: one that hangs is seen.
    pub fn limit(&self, suite: &Suite) -> Duration {
        let took = self.took.lock().expect("no holder panics").get(suite).copied();
        took.map_or(Duration::from_secs(480), |took| Duration::from_secs(30) + 6 * took)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cheap_suites_come_first_and_those_of_other_crates_last() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let names: Vec<String> = watching(root, "nvmfs").unwrap().iter().map(Suite::to_string).collect();
        assert_eq!(names.first().map(String::as_str), Some("nvmfs/lib"));
        assert_eq!(names.last().map(String::as_str), Some("crash/power_cuts"));
        let at = |name: &str| names.iter().position(|other| other == name).unwrap();
        assert!(at("nvmfs/posix") < at("nvmfs/fsck"), "{names:?}");
        assert!(!names.contains(&"nvmfs/soak".to_owned()));
    }

    #[test]
    fn every_watcher_is_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for (of, suites) in WATCHERS {
            assert!(root.join("crates").join(of).exists(), "{of}");
            for (other, file) in *suites {
                let folder = root.join("crates").join(other);
                let at = if *file == "lib" { "src/lib.rs".into() } else { format!("tests/{file}.rs") };
                assert!(folder.join(&at).exists(), "{other}/{file}");
            }
        }
    }
}
