//! Limits and failures of children; which users count as root.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;

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

/// A signal that ended `cargo xtask floors` left its `heddle fxmark` running. The kernel counts threads.
#[test]
fn a_child_ends_with_the_thread_that_waits_for_it() {
    assert_eq!(ends_with_its_thread("sleep", &["97532"]), Some(15));
}

/// unshare(1) ignored the signal, and a whole chore went on in its namespaces.
#[test]
fn a_sandboxed_chore_ends_with_the_thread_that_waits_for_it() {
    assert_eq!(ends_with_its_thread("unshare", &["--fork", "--kill-child", "sleep", "97533"]), Some(9));
}

/// The signal that ends a child when the thread that started it ends.
fn ends_with_its_thread(program: &'static str, args: &'static [&str]) -> Option<i32> {
    let started = std::thread::spawn(move || {
        let child = spawn(Command::new(program).args(args)).unwrap();
        // unshare(1) ignores signals from its fork on.
        while program == "unshare" && descendants(child.id()).is_empty() {
            std::thread::sleep(Duration::from_millis(5));
        }
        child
    });
    let mut child = started.join().unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    let ended = loop {
        match child.try_wait().unwrap() {
            Some(status) => break Some(status),
            None if Instant::now() >= deadline => break None,
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let _ = child.kill();
    ended.and_then(|status| status.signal())
}

/// The daemon's own process waits for the daemon: before the connection was aborted, the wait for it had no end.
#[test]
fn a_child_that_waits_for_its_own_mount_ends_too() {
    if let Some(why) = crate::sandbox::lacking() {
        return println!("SKIPPED: {why}");
    }
    if !Path::new("/dev/fuse").exists() || find_program("python3").is_none() {
        return println!("SKIPPED: needs /dev/fuse and python3");
    }
    let point = std::env::temp_dir().join(format!("heddle-mute-{}", std::process::id()));
    std::fs::create_dir_all(&point).unwrap();
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "private", "python3", "-c", include_str!("mute.py")])
        .arg(&point);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "waiting\n");
    let error = wait(&mut child, Duration::ZERO).unwrap_err();
    assert!(error.to_string().contains("still running"), "{error}");
    assert!(child.try_wait().unwrap().is_some(), "the child has ended");
    std::fs::remove_dir(&point).unwrap();
}

#[test]
fn minutes_in_which_the_machine_stands_still_take_nothing_of_a_limit() {
    let begun = Instant::now();
    let mut used = clock::Used::new();
    assert!(used.up_to(begun + Duration::from_millis(500)) <= Duration::from_millis(500));
    let after_a_pause = used.up_to(begun + Duration::from_secs(400));
    assert!(after_a_pause < Duration::from_secs(5), "{after_a_pause:?}");
    for seconds in 401..=420 {
        used.up_to(begun + Duration::from_secs(seconds));
    }
    let at_work = used.up_to(begun + Duration::from_secs(421));
    assert!(at_work >= Duration::from_secs(21), "{at_work:?}");
}

#[test]
fn only_fuse_mounts_have_a_connection_to_abort() {
    let fuse = "90 31 0:57 / /mnt rw,relatime shared:4 - fuse.heddle img rw,user_id=0,group_id=0";
    assert_eq!(kill::connection(fuse), Some(57));
    assert_eq!(kill::connection("36 31 0:33 / /c rw - fusectl fusectl rw"), None);
    assert_eq!(kill::connection("25 30 0:23 / /sys rw,nosuid - sysfs sysfs rw"), None);
    assert_eq!(kill::connection("noise"), None);
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
