//! Which test binaries watch a crate, and in which order.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// Suites that take tens of seconds: last. The soak is left out: it takes minutes whatever it finds.
const SLOW: [&str; 9] =
    ["kill", "full", "processes", "space", "node_log", "corners", "images", "power_cuts", "fsck"];
const LEFT_OUT: [&str; 2] = ["soak", "shuttle"];

/// What besides a crate's own suites watches it.
const WATCHERS: &[(&str, &[(&str, &str)])] = &[
    ("f2fs", &[("cli", "flash")]),
    ("nvmfs", &[("fxmark", "processes"), ("crash", "power_cuts")]),
    ("arena", &[("nvmfs", "lib"), ("nvmfs", "threads"), ("nvmfs", "processes"), ("cli", "together")]),
    ("range-lock", &[("nvmfs", "threads"), ("nvmfs", "torn")]),
    ("pmem", &[("nvmfs", "lib"), ("crash", "power_cuts")]),
    ("vfs", &[("nvmfs", "model"), ("nvmfs", "posix")]),
    ("signatures", &[("cli", "bad_input")]),
    (
        "bypass",
        &[
            ("cli", "bypass"),
            ("cli", "bypass_children"),
            ("cli", "bypass_names"),
            ("cli", "bypass_numbers"),
            ("cli", "bypass_programs"),
            ("cli", "bypass_signals"),
            ("cli", "daemon"),
            ("cli", "mapped"),
            ("cli", "identity"),
            ("cli", "together"),
        ],
    ),
    ("fuse", &[("cli", "mount_ways"), ("cli", "bypass"), ("cli", "look")]),
];

/// The names of the suites that watch a crate, cheap ones first.
pub fn watching(root: &Path, of: &str) -> Vec<String> {
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
    let own = files.into_iter().map(|file| format!("{of}/{file}"));
    let others = WATCHERS.iter().filter(|(watched, _)| *watched == of).flat_map(|(_, suites)| *suites);
    own.chain(others.map(|(of, file)| format!("{of}/{file}"))).collect()
}

fn test_file(path: &Path) -> Option<String> {
    let is_source = path.extension().is_some_and(|extension| extension == "rs");
    Some(path.file_stem().filter(|_| is_source)?.to_str()?.to_owned())
}

/// What is known of suites without a mutant. One that fails there sees nothing.
#[derive(Default)]
pub struct Baselines {
    /// Of each, the longest silence; none if it failed.
    known: Mutex<HashMap<String, Arc<OnceLock<Option<Duration>>>>>,
}

impl Baselines {
    /// How long a suite may be silent with a mutant; none if it says nothing about mutants. `run` runs it without one.
    pub fn silence(&self, suite: &str, run: impl FnOnce() -> Option<Duration>) -> Option<Duration> {
        let known = self.known.lock().expect("no holder panics").entry(suite.to_owned()).or_default().clone();
        let longest = *known.get_or_init(|| {
            let longest = run();
            if longest.is_none() {
                println!("LEFT OUT {suite}: it fails without a change, so it sees nothing");
            }
            longest
        });
        longest.map(|longest| Duration::from_secs(30) + 6 * longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cheap_suites_come_first_and_those_of_other_crates_last() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let names: Vec<String> = watching(root, "nvmfs");
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
