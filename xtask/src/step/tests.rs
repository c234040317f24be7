//! What fails a run, and what its last line says.

use super::*;

fn step(name: &'static str, call: fn(&Path) -> Result<Outcome>, skip: fn(&Path) -> Option<String>) -> Step {
    Step { name, proves: "a rule", action: Action::Call(call), skip, limit: Duration::from_secs(1) }
}

#[test]
fn one_failure_fails_the_run_and_the_rest_is_still_done() {
    let steps = [
        step("broken", |_| anyhow::bail!("it is broken"), always),
        step("sound", |_| Ok(Outcome::Passed), always),
    ];
    assert!(!run_all(Path::new("."), steps.iter()));
    assert!(run_all(Path::new("."), steps[1..].iter()));
}

#[test]
fn a_skipped_step_is_not_done_and_does_not_fail_the_run() {
    let steps = [step("absent", |_| anyhow::bail!("it was done"), |_| Some("not here".into()))];
    assert!(run_all(Path::new("."), steps.iter()));
}

#[test]
fn the_summary_closes_with_the_counts_alone_on_a_line() {
    let took = Took { wall: Duration::from_millis(1500), busy: ticks(250) };
    let results = [
        ("a", Outcome::Passed, took),
        ("b", Outcome::Failed("two\nlines".into()), took),
        ("c", Outcome::Skipped("no root".into()), took),
        ("d", Outcome::Partly("1 skipped\ncli/mount: no FUSE".into()), took),
    ];
    let text = summary(&results);
    assert_eq!(text.lines().last(), Some("2 passed, 1 failed, 1 skipped"));
    assert!(text.contains("Not tried here:\n  c: no root\n  d: cli/mount: no FUSE\n"), "{text}");
    assert!(text.contains("b              FAILED      1.5 s     2.5 s busy  two\n"), "{text}");
}
