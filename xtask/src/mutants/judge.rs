//! What the suites say about a mutant.

use std::collections::VecDeque;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::list::Mutant;
use super::run::{Ended, Run};
use super::suites::{Baselines, watching};
use super::tree::Suites;
use crate::test_binaries::Suite;

/// Without a mutant a suite may be silent for so long.
const FIRST: Duration = Duration::from_secs(480);
/// A test that failed is run so often again. A busy machine fails a test too, but not each time.
const TRIED_AGAIN: usize = 2;

/// What became of a mutant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// A suite failed, or did not end; and how.
    Caught(String, Ended),
    /// It does not compile.
    Unviable,
    /// No suite that watches its crate says a word.
    Survived,
}

impl Verdict {
    pub fn word(&self) -> &'static str {
        match self {
            Verdict::Caught(..) => "caught",
            Verdict::Unviable => "unviable",
            Verdict::Survived => "SURVIVED",
        }
    }

    /// The suite that saw it.
    pub fn by(&self) -> Option<&str> {
        match self {
            Verdict::Caught(suite, _) => Some(suite),
            _ => None,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())?;
        let Verdict::Caught(suite, ended) = self else { return Ok(()) };
        match ended {
            Ended::Failed(test) => write!(f, " by {suite}: {test}"),
            Ended::Silent => write!(f, " by {suite}, which hangs"),
            _ => write!(f, " by {suite}"),
        }
    }
}

/// A mutant and the suites that have not been asked about it.
pub struct Trial<'a> {
    pub mutant: &'a Mutant,
    /// Switches it on.
    number: u32,
    steps: VecDeque<Step>,
    pub took: Duration,
}

/// A suite, or those of its tests whose names begin so.
struct Step {
    suite: String,
    called: Option<String>,
}

impl<'a> Trial<'a> {
    /// Cheap steps come first: unit tests beside the code are few, and the likeliest to see it.
    pub fn new(root: &Path, mutant: &'a Mutant, number: u32) -> Trial<'a> {
        let of = mutant.crate_name();
        let beside =
            module(&mutant.file).map(|module| Step { suite: format!("{of}/lib"), called: Some(module) });
        let whole = watching(root, of).into_iter().map(|suite| Step { suite, called: None });
        Trial { mutant, number, steps: beside.into_iter().chain(whole).collect(), took: Duration::ZERO }
    }
}

/// The suites of one build.
pub struct Judge<'a> {
    pub suites: &'a Suites,
    pub baselines: &'a Baselines,
    /// Of this worker.
    pub log: PathBuf,
}

impl Judge<'_> {
    /// Takes the next step of a trial; none if more are to come.
    pub fn ask(&self, trial: &mut Trial) -> Result<Option<Verdict>> {
        let Some(step) = trial.steps.pop_front() else { return Ok(Some(Verdict::Survived)) };
        let Some(suite) = self.suites.get(&step.suite) else { return Ok(None) };
        let Some(silence) = self.baselines.silence(&step.suite, || self.without(suite)) else {
            return Ok(None);
        };
        let started = Instant::now();
        let run = Run { suite, log: self.log.clone(), number: trial.number, silence };
        let ended = catches(&run, step.called.as_deref())?;
        trial.took += started.elapsed();
        Ok(ended.map(|ended| Verdict::Caught(step.suite, ended)))
    }

    /// The longest silence of a suite without a mutant; none if it fails twice.
    fn without(&self, suite: &Suite) -> Option<Duration> {
        let run = Run { suite, log: self.log.clone(), number: 0, silence: FIRST };
        (0..2).find_map(|_| match run.with(&[]) {
            Ok(Ended::Passed(longest)) => Some(longest),
            _ => None,
        })
    }
}

/// `file::deferred` of `crates/nvmfs/src/file/deferred.rs`.
fn module(file: &str) -> Option<String> {
    let path = file.split_once("/src/")?.1.strip_suffix(".rs")?;
    let path = path.strip_suffix("/mod").unwrap_or(path);
    (path != "lib").then(|| format!("{}::", path.replace('/', "::")))
}

/// How the suite, or what is so called of it, sees the mutant, if it does. A silence counts only if the suite is not
/// silent for so long without the mutant: on a busy machine it is.
fn catches(run: &Run<'_>, called: Option<&str>) -> Result<Option<Ended>> {
    let mut unsteady: Vec<String> = Vec::new();
    let mut silence = run.silence;
    loop {
        let skipped = unsteady.iter().flat_map(|test| ["--skip", test]);
        let args: Vec<&str> = called.into_iter().chain(skipped).collect();
        let with = |number| Run { suite: run.suite, log: run.log.clone(), number, silence }.with(&args);
        let ended = with(run.number)?;
        let test = match &ended {
            Ended::Passed(_) => return Ok(None),
            Ended::Failed(test) => test.clone(),
            Ended::Silent if with(0)? == Ended::Silent => {
                println!("{}: silent also without the mutant; it gets more time", run.suite.name);
                silence *= 2;
                continue;
            }
            Ended::Broke | Ended::Silent => return Ok(Some(ended)),
        };
        for _ in 0..TRIED_AGAIN {
            if !matches!(run.with(&["--exact", &test])?, Ended::Passed(_)) {
                return Ok(Some(ended));
            }
        }
        println!("{}: {test} failed, and passed when it was tried alone: it does not count", run.suite.name);
        unsteady.push(test);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutants::list::tests::mutant;

    #[test]
    fn tests_beside_the_code_are_called_as_its_module() {
        assert_eq!(module("crates/nvmfs/src/file/deferred.rs").as_deref(), Some("file::deferred::"));
        assert_eq!(module("crates/nvmfs/src/state/wait/mod.rs").as_deref(), Some("state::wait::"));
        assert_eq!(module("crates/nvmfs/src/lib.rs"), None);
    }

    #[test]
    fn unit_tests_beside_the_code_are_asked_first() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let it = Mutant {
            package: "heddle-arena".into(),
            file: "crates/arena/src/class.rs".into(),
            ..mutant([(1, 1), (1, 1)], "")
        };
        let steps: Vec<_> = Trial::new(root, &it, 1).steps.into_iter().map(|s| (s.suite, s.called)).collect();
        assert_eq!(steps[0], ("arena/lib".into(), Some("class::".into())));
        assert_eq!(steps[1], ("arena/lib".into(), None));
        assert!(steps.contains(&("nvmfs/threads".into(), None)), "{steps:?}");
    }
}
