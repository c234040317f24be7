//! A short run of the fuzzer, the same every time: without counters, so it finds little that is new, but all it ever found stays found.

use std::process::Command;

#[test]
fn hostile_input_makes_nothing_panic_or_hang() {
    let output = Command::new(env!("CARGO_BIN_EXE_heddle-fuzz")).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}");
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(text.lines().filter(|line| line.ends_with(" 0 findings")).count(), 7, "{text}");
}
