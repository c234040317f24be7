//! What tests did not try, out of what they printed.
//!
//! A test that lacks something here prints `SKIPPED…: why` and passes. The harness shows what a passed test printed only if asked to
//! (`--show-output`), in a section of its own; of that section only these lines are kept.

/// What a test binary printed, without what passed tests printed, and a line for each test that was not tried.
pub fn split(suite: &str, printed: &str) -> (String, Vec<String>) {
    let (mut kept, mut skips) = (Vec::new(), Vec::new());
    let (mut passed, mut test) = (false, "");
    for line in printed.lines() {
        match line {
            "successes:" => passed = true,
            "failures:" => passed = false,
            _ if line.starts_with("test result: ") => passed = false,
            _ => {}
        }
        if let Some(name) = line.strip_prefix("---- ").and_then(|line| line.strip_suffix(" stdout ----")) {
            test = name;
        }
        if let Some(why) = reason(line) {
            skips.push(format!("{suite} {}: {why}", if passed { test } else { "(a test)" }));
        }
        if !passed {
            kept.push(line);
        }
    }
    (kept.join("\n"), skips)
}

/// The tests that ran, by their paths: `test a::b ... ok`.
pub fn ran(printed: &str) -> Vec<String> {
    let name = |line: &str| {
        // A child of another test may have printed before it on the line.
        let (before, verdict) = line.split_once(" ... ")?;
        let (_, name) = before.rsplit_once("test ")?;
        (!verdict.starts_with("ignored")).then(|| name.trim_end_matches(" - should panic").to_owned())
    };
    printed.lines().filter_map(name).collect()
}

/// Behind `SKIPPED: ` or `SKIPPED, NOT TESTED: `.
fn reason(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("SKIPPED")?;
    rest.strip_prefix(", NOT TESTED").unwrap_or(rest).strip_prefix(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "\nrunning 2 tests\ntest a::mounts ... ok\ntest b ... ok\n\nsuccesses:\n\n---- a::mounts stdout ----\nnoise\n\
        SKIPPED, NOT TESTED: no /dev/fuse\n\n\nsuccesses:\n    a::mounts\n    b\n\ntest result: ok. 2 passed; 0 failed";

    #[test]
    fn a_test_that_tried_nothing_is_named_with_its_reason() {
        let (kept, skips) = split("cli/mount", PRINTED);
        assert_eq!(skips, ["cli/mount a::mounts: no /dev/fuse"]);
        assert!(kept.contains("test b ... ok") && kept.contains("test result: ok."), "{kept}");
        assert!(!kept.contains("noise") && !kept.contains("successes"), "{kept}");
    }

    #[test]
    fn tests_that_ran_are_known_and_ignored_ones_are_not() {
        assert_eq!(ran(PRINTED), ["a::mounts", "b"]);
        assert_eq!(ran("test a ... ignored, takes minutes\ntest result: ok"), [""; 0]);
        assert_eq!(ran("a child's wordstest a::b - should panic ... ok"), ["a::b"]);
    }

    #[test]
    fn what_failed_tests_printed_stays() {
        let failed =
            PRINTED.replace("test result", "failures:\n\n---- c stdout ----\nhere is why\n\ntest result");
        assert!(split("cli/mount", &failed).0.contains("here is why"));
    }

    #[test]
    fn a_program_whose_help_says_skipped_skips_nothing() {
        assert_eq!(reason("data calls that are SKIPPED by the kernel"), None);
        assert_eq!(reason("test x ... SKIPPED: no mkfs.xfs"), Some("no mkfs.xfs"));
    }
}
