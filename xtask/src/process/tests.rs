//! Limits and failures of children; which users count as root.

use super::*;

#[test]
fn a_hanging_child_is_killed_at_its_limit_with_its_children() {
    let mut shell = Command::new("sh");
    shell.args(["-c", "sleep 97531; true"]);
    let mut child = shell.spawn().unwrap();
    while descendants(child.id()).is_empty() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let sleeper = descendants(child.id())[0];
    let error = wait(&mut child, Duration::ZERO).unwrap_err();
    assert!(error.to_string().contains("still running"), "{error}");
    let deadline = Instant::now() + Duration::from_secs(10);
    while Path::new(&format!("/proc/{sleeper}/exe")).read_link().is_ok() {
        assert!(Instant::now() < deadline, "the sleeper {sleeper} outlived the limit");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_failing_program_is_an_error_that_names_it() {
    let error = run(&mut Command::new("false"), Duration::from_secs(10)).unwrap_err();
    assert!(error.to_string().contains("false"), "{error}");
}

#[test]
fn only_the_effective_user_counts() {
    assert!(is_roots("Name:\tx\nUid:\t1000\t0\t0\t0\n"));
    assert!(!is_roots("Name:\tx\nUid:\t0\t1000\t0\t0\n"));
    assert!(!is_roots(""));
}
