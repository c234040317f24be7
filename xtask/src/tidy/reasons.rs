//! Dangerous lines have a reason beside them: `SAFETY:` on unsafe code, `ORDERING:` on atomics that are not SeqCst,
//! `PERSIST:` on fences.

use super::Finding;
use super::source::{Line, Source, words};

/// A reason may stand this many lines above: one comment may speak for a group of adjacent lines.
const REACH: usize = 6;

pub fn check(source: &Source<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let imports_orderings = imports_orderings(&source.lines);
    let mut in_use = false;
    let mut last_statement = None;
    for (i, line) in source.lines.iter().enumerate() {
        in_use = in_use || starts_use(&line.code);
        if is_unsafe_block(source, i) && !source.has_reason(i, "SAFETY:", 0) {
            let mend = "say right above why it is sound, naming the invariant: // SAFETY: …";
            findings.push(Finding::error(source.path, i + 1, "safety", mend));
        }
        if line.comment.contains("ORDERING:") && line.comment.contains("as above") {
            let mend = "say the reason, or let the one above hold `throughout` the function";
            findings.push(Finding::error(source.path, i + 1, "ordering-above", mend));
        }
        if !line.in_test && !in_use {
            let statement = source.statement_start(i);
            let weak = uses_weak_ordering(&line.code, imports_orderings);
            if weak && last_statement != Some(statement) && !source.has_reason(i, "ORDERING:", REACH) {
                last_statement = Some(statement);
                let mend = "say in the 6 lines above what it pairs with: // ORDERING: Acquire, pairs with …";
                findings.push(Finding::error(source.path, i + 1, "ordering", mend));
            }
            if is_fence(source.path, &line.code) && !source.has_reason(i, "PERSIST:", REACH) {
                let mend = "say in the 6 lines above what must be durable before what: // PERSIST: …";
                findings.push(Finding::error(source.path, i + 1, "persist", mend));
            }
        }
        in_use = in_use && !line.code.contains(';');
    }
    findings
}

/// A block or an impl; functions and traits carry their contract in `# Safety`, which clippy checks.
fn is_unsafe_block(source: &Source<'_>, i: usize) -> bool {
    let code = &source.lines[i].code;
    words(code, "unsafe").any(|at| {
        let rest = code[at + "unsafe".len()..].trim_start();
        let next_line =
            || source.lines[i + 1..].iter().map(|line| line.code.trim()).find(|code| !code.is_empty());
        let follows = if rest.is_empty() { next_line().unwrap_or_default() } else { rest };
        follows.starts_with('{') || words(follows, "impl").next() == Some(0)
    })
}

const WEAK: [&str; 4] = ["Relaxed", "Acquire", "Release", "AcqRel"];

/// `Ordering::Relaxed` anywhere; a bare `Relaxed` only where the file imports it, and only as an argument.
fn uses_weak_ordering(code: &str, imported: bool) -> bool {
    WEAK.iter().any(|name| {
        words(code, name).any(|at| {
            let before = code[..at].trim_end();
            let after = code[at + name.len()..].trim_start();
            let argument = !before.ends_with("::") && (after.starts_with([')', ',']) || after.is_empty());
            before.ends_with("Ordering::") || (imported && argument)
        })
    })
}

fn imports_orderings(lines: &[Line]) -> bool {
    let mut in_use = false;
    for line in lines {
        in_use = in_use || starts_use(&line.code);
        let named = WEAK.iter().any(|name| words(&line.code, name).next().is_some());
        if in_use && (named || line.code.contains("Ordering::*")) {
            return true;
        }
        in_use = in_use && !line.code.contains(';');
    }
    false
}

fn starts_use(code: &str) -> bool {
    let code = code.trim_start();
    code.starts_with("use ")
        || (code.starts_with("pub") && words(code, "use").next().is_some_and(|at| at < 16))
}

/// A fence of a persistent region. Pmem itself, which defines it, is exempt.
fn is_fence(path: &str, code: &str) -> bool {
    let calls = [".fence()", ".fence_and_wait()", "fence_unless(", "wait_unless("];
    let defines = words(code, "fn").next().is_some();
    !path.starts_with("crates/pmem/") && !defines && calls.iter().any(|call| code.contains(call))
}
