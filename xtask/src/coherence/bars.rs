//! What must come out (docs/coherence.md), judged on whatever was run.

use std::fmt;

use super::Run;

/// Which transfers of a run.
#[derive(Clone, Copy)]
enum Of {
    All,
    /// Those of lines whose name begins so.
    Named(&'static str),
}

#[derive(Clone, Copy)]
enum Bound {
    Below(f64),
    AtMost(f64),
    AtLeast(f64),
    /// No more than the same with 16 workers, see [`at_64_from_16`].
    NoMoreThanAt16,
}

struct Bar {
    workloads: &'static [&'static str],
    targets: &'static [&'static str],
    of: Of,
    bound: Bound,
    /// Judged with this many workers or more.
    workers_min: usize,
}

const QUIET: &[&str] = &[
    "DRBL", "DRBM", "DRBH", "DWOL", "DWOM", "DWAL", "DWTL", "DWSL", "MRPL", "MRPM", "MRPH", "MRDL", "MRDM",
    "MWCL", "MWUL", "MWRL",
];
/// Those whose workers share one directory.
pub const SHARED_DIRECTORY: &[&str] = &["MWCM", "MWUM", "MWRM"];
const PAPERS: &[&str] = &["nova-interval", "nova-array", "nova-tree"];

const BARS: &[Bar] = &[
    Bar { workloads: QUIET, targets: &["heddle"], of: Of::All, bound: Bound::Below(0.05), workers_min: 2 },
    Bar {
        workloads: SHARED_DIRECTORY,
        targets: &["heddle"],
        of: Of::All,
        bound: Bound::AtMost(1.2),
        workers_min: 2,
    },
    Bar {
        workloads: SHARED_DIRECTORY,
        targets: &["heddle"],
        of: Of::All,
        bound: Bound::NoMoreThanAt16,
        workers_min: 64,
    },
    Bar {
        workloads: &["DRBM"],
        targets: &["nova"],
        of: Of::Named("range lock: reader count"),
        bound: Bound::AtLeast(1.0),
        workers_min: 2,
    },
    Bar {
        workloads: &["DRBM"],
        targets: &["nova-array", "nova-tree"],
        of: Of::Named("range lock"),
        bound: Bound::Below(0.05),
        workers_min: 2,
    },
    Bar {
        workloads: &["DWOM"],
        targets: &["nova-interval"],
        of: Of::Named("range lock: mutex"),
        bound: Bound::AtLeast(1.0),
        workers_min: 2,
    },
    Bar {
        workloads: &["DWOM"],
        targets: PAPERS,
        of: Of::Named("log lock"),
        bound: Bound::AtLeast(1.0),
        workers_min: 2,
    },
];

/// A bar, judged on a run.
pub struct Verdict {
    what: String,
    measured: f64,
    bound: String,
    pub holds: bool,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.holds { "reached" } else { "MISSED" };
        write!(f, "{:<44} {:>8.3}  {:<22} {verdict}", self.what, self.measured, self.bound)
    }
}

/// All bars that these runs can be judged by.
pub fn judge(runs: &[Run]) -> Vec<Verdict> {
    runs.iter().flat_map(|run| BARS.iter().filter_map(|bar| judge_one(bar, run, runs))).collect()
}

fn judge_one(bar: &Bar, run: &Run, runs: &[Run]) -> Option<Verdict> {
    let applies = bar.workloads.contains(&run.workload.as_str())
        && bar.targets.contains(&run.target.as_str())
        && run.workers >= bar.workers_min;
    if !applies {
        return None;
    }
    let (measured, of) = measure(bar.of, run);
    let (holds, bound) = match bar.bound {
        Bound::Below(bound) => (measured < bound, format!("below {bound}")),
        Bound::AtMost(bound) => (measured <= bound, format!("at most {bound}")),
        Bound::AtLeast(bound) => (measured >= bound, format!("at least {bound}")),
        Bound::NoMoreThanAt16 => {
            let same = |other: &&Run| {
                other.workers == 16 && other.workload == run.workload && other.target == run.target
            };
            let bound = at_64_from_16(measure(bar.of, runs.iter().find(same)?).0);
            (measured <= bound, format!("at most {bound:.3} as at 16"))
        }
    };
    let what = format!("{} {} {} workers{of}", run.workload, run.target, run.workers);
    Some(Verdict { what, measured, bound, holds })
}

/// What is constant in the number of workers is not quite so in counts: a line that anybody wrote last was, one time in 16, written by
/// the worker itself, and with 64 workers one time in 64. Two in a hundred are for chance: names are hashed.
fn at_64_from_16(per_op: f64) -> f64 {
    per_op / (1.0 - 1.0 / 16.0) * (1.0 - 1.0 / 64.0) * 1.02
}

fn measure(of: Of, run: &Run) -> (f64, String) {
    match of {
        Of::All => (run.per_op(run.transfers()), String::new()),
        Of::Named(start) => {
            let lines = run.lines.iter().filter(|line| line.name.starts_with(start));
            (run.per_op(lines.map(|line| line.transfers).sum()), format!(", {start}"))
        }
    }
}

/// The verdicts as a table.
pub fn text(verdicts: &[Verdict]) -> String {
    if verdicts.is_empty() {
        return String::new();
    }
    let reached = verdicts.iter().filter(|verdict| verdict.holds).count();
    let rows: String = verdicts.iter().map(|verdict| format!("{verdict}\n")).collect();
    format!("\n{rows}{reached} of {} bars reached\n", verdicts.len())
}
