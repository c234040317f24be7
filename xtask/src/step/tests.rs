//! What fails a run, and what its last line says.

use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

fn step(name: &'static str, call: fn(&Path) -> Result<Outcome>, skip: fn(&Path) -> Option<String>) -> Step {
    let (action, turn) = (Action::Call(call), Turn::InOrder);
    Step { name, proves: "a rule", action, skip, limit: Duration::from_secs(1), turn, decides: Try::First }
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
fn a_step_may_pass_at_its_second_try_and_is_named_then() {
    static TRIES: AtomicU32 = AtomicU32::new(0);
    let flaky = |_: &Path| match TRIES.fetch_add(1, Ordering::SeqCst) {
        0 => Ok(Outcome::Failed("too slow".into())),
        _ => Ok(Outcome::Passed),
    };
    let once = step("flaky", flaky, always);
    let twice = Step { decides: Try::Second, ..step("flaky", flaky, always) };
    assert!(!run_all(Path::new("."), [once].iter()), "its first try decides");
    TRIES.store(0, Ordering::SeqCst);
    assert!(run_all(Path::new("."), [twice].iter()));
    assert_eq!(TRIES.load(Ordering::SeqCst), 2);
    let Outcome::Partly(text) = at_second_try("flaky", Outcome::Partly("1 skipped\nx: y".into())) else {
        panic!("not all was tried")
    };
    assert_eq!(
        text.lines().collect::<Vec<_>>(),
        [
            "passed at the second try, 1 skipped",
            "UNSTABLE flaky: it failed, and passed when it was tried alone",
            "x: y"
        ]
    );
    assert_eq!(at_second_try("a", Outcome::Failed("b".into())), Outcome::Failed("b".into()));
}

#[test]
fn a_skipped_step_is_not_done_and_does_not_fail_the_run() {
    let steps = [step("absent", |_| anyhow::bail!("it was done"), |_| Some("not here".into()))];
    assert!(run_all(Path::new("."), steps.iter()));
}

#[test]
fn the_summary_closes_with_the_counts_alone_on_a_line() {
    let took = Took { wall: Duration::from_millis(1500), busy: Some(ticks(250)) };
    let results = [
        ("a", Outcome::Passed, took),
        ("b", Outcome::Failed("two\nlines".into()), took),
        ("c", Outcome::Skipped("no root".into()), took),
        ("d", Outcome::Partly("1 skipped\ncli/mount: no FUSE".into()), took),
    ];
    let text = summary(&results, Duration::from_secs(2));
    assert_eq!(text.lines().last(), Some("2 passed, 1 failed, 1 skipped"));
    assert!(text.contains("Not tried here:\n  c: no root\n  d: cli/mount: no FUSE\n"), "{text}");
    assert!(text.contains("b              FAILED      1.5 s     2.5 s busy  two\n"), "{text}");
}

#[test]
fn a_step_beside_others_counts_and_only_commands_may_be_one() {
    fn beside(name: &'static str, action: Action) -> Step {
        let (limit, turn) = (Duration::from_secs(5), Turn::BesideTheNext);
        Step { name, proves: "a rule", action, skip: always, limit, turn, decides: Try::First }
    }
    let dir = std::env::temp_dir().join(format!("heddle-steps-{}", std::process::id()));
    let good = || beside("beside-good", Action::Command(|_| Ok(Command::new("true"))));
    let bad = || beside("beside-bad", Action::Command(|_| Ok(Command::new("false"))));
    let call = || beside("beside-call", Action::Call(|_| Ok(Outcome::Passed)));
    let next = || step("next", |_| Ok(Outcome::Passed), always);
    assert!(run_all(&dir, [good(), next()].iter()));
    assert!(!run_all(&dir, [bad(), next()].iter()));
    assert!(!run_all(&dir, [call()].iter()));
    // Elsewhere if cargo is told so.
    let _absent = std::fs::remove_dir_all(dir);
}
