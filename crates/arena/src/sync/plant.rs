//! One planted fault: does a model, or a rig, see it?
//!
//! `HEDDLE_PLANT=FILE:LINE:FAULT` makes the access on that line of that file wrong; the source carries no switch for it. Each fault is
//! tried in a process of its own, the test binary again, because what fails may abort.

use std::panic::Location;
use std::process::Command;
use std::sync::OnceLock;
#[cfg(loom)]
use std::sync::atomic::Ordering;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `relaxed`: the access orders nothing.
    Relaxed,
    /// `skip`: the store or fence does not happen.
    Skip,
    /// `keep=N`: of the value that is stored or loaded only the bits of N arrive.
    Keep(u64),
}

/// The variable of the environment that names the fault.
pub const VARIABLE: &str = "HEDDLE_PLANT";
/// Printed once the fault was reached.
const REACHED: &str = "the planted fault was reached";

struct Planted {
    file: String,
    line: u32,
    fault: Fault,
}

fn planted() -> &'static Option<Planted> {
    static PLANTED: OnceLock<Option<Planted>> = OnceLock::new();
    PLANTED.get_or_init(|| {
        let text = std::env::var(VARIABLE).ok()?;
        let parts: Vec<&str> = text.split(':').collect();
        let [file, line, fault] = parts[..] else { panic!("{VARIABLE}={text}: not FILE:LINE:FAULT") };
        let fault = match (fault, fault.strip_prefix("keep=")) {
            ("relaxed", _) => Fault::Relaxed,
            ("skip", _) => Fault::Skip,
            (_, Some(bits)) => Fault::Keep(bits.parse().expect("a number of bits to keep")),
            _ => panic!("{VARIABLE}={text}: relaxed, skip or keep=N"),
        };
        Some(Planted { file: file.into(), line: line.parse().expect("a line"), fault })
    })
}

/// The fault planted on the caller's line.
#[track_caller]
pub fn here() -> Option<Fault> {
    let planted = planted().as_ref()?;
    let at = Location::caller();
    let hit = at.line() == planted.line && at.file().ends_with(&planted.file);
    if hit {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| eprintln!("{REACHED}"));
    }
    hit.then_some(planted.fault)
}

/// Does the access happen?
pub(super) fn happens(fault: &Option<Fault>) -> bool {
    *fault != Some(Fault::Skip)
}

/// The order it has.
#[cfg(loom)]
pub(super) fn order(fault: &Option<Fault>, order: Ordering) -> Ordering {
    match fault {
        // ORDERING: that is the fault.
        Some(Fault::Relaxed) => Ordering::Relaxed,
        _ => order,
    }
}

/// The value that arrives.
pub(super) fn value(fault: &Option<Fault>, value: u64) -> u64 {
    match fault {
        Some(Fault::Keep(bits)) => value & bits,
        _ => value,
    }
}

/// A fault and the test that sees it.
pub struct Plant {
    /// The test's name, in full.
    pub test: &'static str,
    /// End of the file's path.
    pub file: &'static str,
    /// Its text.
    pub source: &'static str,
    /// The access is the first `access` behind `behind`.
    pub behind: &'static str,
    /// As above.
    pub access: &'static str,
    /// See [`Fault`].
    pub fault: &'static str,
}

impl Plant {
    /// The line of the access.
    ///
    /// # Panics
    /// If the source no longer has it.
    pub fn line(&self) -> usize {
        let Plant { file, source, behind, access, .. } = self;
        let from = source.find(behind).unwrap_or_else(|| panic!("{file}: no {behind}"));
        let at = source[from..].find(access).unwrap_or_else(|| panic!("{file}: no {access} behind {behind}"));
        source[..from + at].lines().count()
    }

    /// Runs the test with the fault, and more variables of the environment; true: it failed.
    ///
    /// # Panics
    /// If the test never comes to the faulty place.
    pub fn is_seen(&self, variables: &[(&str, &str)]) -> bool {
        let place = format!("{}:{}:{}", self.file, self.line(), self.fault);
        let program = std::env::current_exe().expect("a test knows its own program");
        let mut run = Command::new(program);
        run.args([self.test, "--exact", "--nocapture"]).env(VARIABLE, &place).envs(variables.iter().copied());
        let output = run.output().expect("this program can be started again");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains(REACHED), "{place}: {} never comes there:\n{text}", self.test);
        !output.status.success()
    }
}

/// Tries all of them.
///
/// # Panics
/// With those that no test saw.
pub fn all_are_seen<'p>(plants: impl IntoIterator<Item = &'p Plant>, variables: &[(&str, &str)]) {
    // A process that was given a fault is one of ours.
    if std::env::var_os(VARIABLE).is_some() {
        return;
    }
    let mut unseen = Vec::new();
    for plant in plants {
        let what = format!("{}:{} {} by {}", plant.file, plant.line(), plant.fault, plant.test);
        if plant.is_seen(variables) {
            println!("seen: {what}");
        } else {
            println!("NOT SEEN: {what}");
            unseen.push(what);
        }
    }
    assert!(unseen.is_empty(), "not seen: {unseen:#?}");
}
