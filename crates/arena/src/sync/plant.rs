//! One planted fault, to test whether a model or a rig detects it.
//!
//! `HEDDLE_PLANT=FILE:LINE:FAULT` makes the access on that line of that file wrong. The wrappers in `sync` apply it, so the accesses need
//! no switch. (`planted.rs` of several crates has the bugs that need one.) Each fault is tried in a process of its own, which runs the test
//! binary again, because a failure may abort.

use std::panic::Location;
use std::process::Command;
use std::sync::OnceLock;
#[cfg(loom)]
use std::sync::atomic::Ordering;

/// The kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `relaxed`: under loom, the access orders nothing.
    Relaxed,
    /// `skip`: the fence, store, swap or `fetch_*` does not happen. A load and a compare-and-exchange are not affected.
    Skip,
    /// `keep=MASK`: the loaded or stored value is ANDed with MASK, a decimal number. Loads and stores alone are affected.
    Keep(u64),
}

/// The environment variable that names the fault.
pub const VARIABLE: &str = "HEDDLE_PLANT";
/// Printed when the fault was reached.
const REACHED: &str = "the planted fault was reached";

/// The fault that the environment names.
struct ActiveFault {
    file: String,
    line: u32,
    fault: Fault,
}

fn active_fault() -> &'static Option<ActiveFault> {
    static ACTIVE: OnceLock<Option<ActiveFault>> = OnceLock::new();
    ACTIVE.get_or_init(|| {
        let text = std::env::var(VARIABLE).ok()?;
        let parts: Vec<&str> = text.split(':').collect();
        let [file, line, fault] = parts[..] else { panic!("{VARIABLE}={text}: not FILE:LINE:FAULT") };
        let fault = match (fault, fault.strip_prefix("keep=")) {
            ("relaxed", _) => Fault::Relaxed,
            ("skip", _) => Fault::Skip,
            (_, Some(bits)) => Fault::Keep(bits.parse().expect("a mask of bits to keep")),
            _ => panic!("{VARIABLE}={text}: the fault must be relaxed, skip or keep=MASK"),
        };
        Some(ActiveFault { file: file.into(), line: line.parse().expect("a line"), fault })
    })
}

/// The fault planted on the caller's line.
#[track_caller]
pub fn here() -> Option<Fault> {
    let active = active_fault().as_ref()?;
    let at = Location::caller();
    let hit = at.line() == active.line && at.file().ends_with(&active.file);
    if hit {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| eprintln!("{REACHED}"));
    }
    hit.then_some(active.fault)
}

/// Returns true if the access happens.
pub(super) fn happens(fault: &Option<Fault>) -> bool {
    *fault != Some(Fault::Skip)
}

/// The ordering of the access with the fault.
#[cfg(loom)]
pub(super) fn order(fault: &Option<Fault>, order: Ordering) -> Ordering {
    match fault {
        // ORDERING: Relaxed is the fault.
        Some(Fault::Relaxed) => Ordering::Relaxed,
        _ => order,
    }
}

/// The loaded or stored value with the fault.
pub(super) fn masked(fault: &Option<Fault>, value: u64) -> u64 {
    match fault {
        Some(Fault::Keep(bits)) => value & bits,
        _ => value,
    }
}

/// A fault and the test that detects it.
pub struct FaultCase {
    /// The test's name, in full.
    pub test: &'static str,
    /// End of the file's path.
    pub file: &'static str,
    /// Content of the file.
    pub source: &'static str,
    /// Text before the access. The search for `access` begins at its first byte.
    pub after: &'static str,
    /// Text of the access.
    pub access: &'static str,
    /// The fault's name, see [`Fault`].
    pub fault: &'static str,
}

impl FaultCase {
    /// The line of the access.
    ///
    /// # Panics
    /// If the source does not contain it any more.
    pub fn line(&self) -> usize {
        let FaultCase { file, source, after, access, .. } = self;
        let from = source.find(after).unwrap_or_else(|| panic!("{file}: no {after}"));
        let at = source[from..].find(access).unwrap_or_else(|| panic!("{file}: no {access} after {after}"));
        source[..from + at].lines().count()
    }

    /// Runs the test with the fault, and with more environment variables. Returns true if the test failed.
    ///
    /// # Panics
    /// If the test never reaches the fault.
    pub fn is_seen(&self, variables: &[(&str, &str)]) -> bool {
        let place = format!("{}:{}:{}", self.file, self.line(), self.fault);
        let program = std::env::current_exe().expect("a test knows its own program");
        let mut run = Command::new(program);
        run.args([self.test, "--exact", "--nocapture"]).env(VARIABLE, &place).envs(variables.iter().copied());
        let output = run.output().expect("this program can be started again");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains(REACHED), "{place}: test {} never reaches the fault:\n{text}", self.test);
        !output.status.success()
    }
}

/// Runs the test of every case.
///
/// # Panics
/// If the test of a case does not fail with its fault; all such cases are listed.
pub fn all_are_seen<'p>(cases: impl IntoIterator<Item = &'p FaultCase>, variables: &[(&str, &str)]) {
    // A process that was given a fault was started by this function.
    if std::env::var_os(VARIABLE).is_some() {
        return;
    }
    let mut unseen = Vec::new();
    for case in cases {
        let what = format!("{}:{} {} by {}", case.file, case.line(), case.fault, case.test);
        if case.is_seen(variables) {
            println!("seen: {what}");
        } else {
            println!("NOT SEEN: {what}");
            unseen.push(what);
        }
    }
    assert!(unseen.is_empty(), "not seen: {unseen:#?}");
}
