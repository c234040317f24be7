//! Random programs of calls, on tmpfs without and on a mount with the bypass: every result, errno, offset and byte is the same, and
//! nothing of them stays when their files are gone.
//!
//! The programs are one program with a seed (`c/random_calls.c`). `HEDDLE_DIFF_SECONDS`: so long, half of it under each durability or all
//! under `HEDDLE_DURABILITY`; `HEDDLE_DIFF_SEED`: from this one on. `cargo xtask bypass-diff`.

mod common;

use common::{Mounted, Place, build_preload, command, durabilities, heddle, own_namespace};
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/random_calls.c");
const CALLS: &str = "150";
/// In the test command.
const SECONDS: u64 = 10;
/// A program takes a second or two, where it waits for the dead to be settled.
const PATIENCE: &str = "60";
/// Most blocks that a mount without files keeps for itself: for logs and lanes. Of an image of 32,768.
const KEPT_BLOCKS_MAX: u64 = 1024;
/// The mount looks for the dead more often.
const SETTLED: Duration = Duration::from_millis(1500);

fn number(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text}: not a number")))
}

fn compiled(place: &Place) -> bool {
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-w", "-pthread", "-o"]).arg(place.path("random_calls")).arg(SOURCE);
    let Ok(said) = cc.output() else {
        eprintln!("SKIPPED, NOT TESTED: there is no C compiler");
        return false;
    };
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    true
}

/// What the program of this seed says in that directory, with the bypass or without.
fn says(place: &Place, seed: u64, dir: &Path, bypass: bool) -> Output {
    fs::create_dir(dir).unwrap();
    let program = place.text("random_calls");
    let mut run = if bypass {
        let mut run = command(&["run", "--", "timeout", PATIENCE]);
        run.env("HEDDLE_REPORT", place.path("report"));
        run
    } else {
        let mut run = Command::new("timeout");
        run.arg(PATIENCE);
        run
    };
    run.args([&program, &seed.to_string(), CALLS]).arg(dir).stdin(Stdio::null()).output().unwrap()
}

/// All files of a directory and what is in them.
fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
    let mut all: Vec<_> = entries
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .collect();
    all.sort();
    all
}

/// What a line on tmpfs says of two threads that write and look at the time: on tmpfs it goes back now and then, here it must not.
fn without_times_back(line: &str) -> String {
    match line.split_once("race: ").and_then(|(call, rest)| Some((call, rest.split_once(" times back")?.1))) {
        Some((call, rest)) => format!("{call}race: 0 times back{rest}"),
        None => line.to_owned(),
    }
}

/// The first line in which the two differ; `None`: in none.
fn difference(kernels: &Output, ours: &Output) -> Option<String> {
    let [expected, found] = [kernels, ours].map(|out| String::from_utf8_lossy(&out.stdout).into_owned());
    let mut lines = expected.lines().map(without_times_back).zip(found.lines());
    if let Some((expected, found)) = lines.find(|(expected, found)| expected != found) {
        return Some(format!("without: {expected}\n   with: {found}"));
    }
    let counts = [&expected, &found].map(|text| text.lines().count());
    let ends = [kernels, ours].map(|out| out.status);
    (counts[0] != counts[1] || ends[0] != ends[1]).then(|| {
        let said = String::from_utf8_lossy(&ours.stderr);
        format!("{} and {} lines, {} and {}: {said}", counts[0], counts[1], ends[0], ends[1])
    })
}

/// Is this a run that is to find a planted fault? The first finding ends it.
fn is_planted() -> bool {
    std::env::var_os("HEDDLE_PLANTED").is_some()
}

#[test]
fn a_random_program_finds_the_same_with_the_bypass_as_without() {
    if !own_namespace() {
        return;
    }
    build_preload();
    let mut durabilities = durabilities();
    // A planted fault is one of either.
    durabilities.truncate(if is_planted() { 1 } else { 2 });
    let seconds = number("HEDDLE_DIFF_SECONDS").unwrap_or(SECONDS);
    let lasts = Duration::from_secs(seconds) / durabilities.len() as u32;
    let findings = durabilities.iter().flat_map(|durability| differing(durability, lasts));
    let findings: Vec<String> = findings.collect();
    assert!(findings.is_empty(), "programs differ: {findings:?}");
}

/// Programs that differ, on a mount of this durability.
fn differing(durability: &str, lasts: Duration) -> Vec<String> {
    let place = Place::with_image_of("heddle", "128M");
    if !compiled(&place) {
        return Vec::new();
    }
    let mounted = Mounted::new(&place, &["-o", "log=/dev/null", "-o", &format!("durability={durability}")]);
    let said = heddle(&["stat", mounted.path("").to_str().unwrap()]).out;
    assert!(said.contains(&format!("durability {durability}")), "{said}");
    let free_blocks = || rustix::fs::statvfs(mounted.path("")).unwrap().f_bfree;
    let free_before = free_blocks();
    let first = number("HEDDLE_DIFF_SEED").unwrap_or(1);
    let (began, mut findings, mut seed) = (Instant::now(), Vec::new(), first);
    while began.elapsed() < lasts && (findings.is_empty() || !is_planted()) {
        let (there, here) = (place.path(&format!("tmpfs-{seed}")), mounted.path(&format!("mount-{seed}")));
        let (kernels, ours) = (says(&place, seed, &there, false), says(&place, seed, &here, true));
        let differs = difference(&kernels, &ours)
            .or_else(|| (files(&there) != files(&here)).then(|| "the files' bytes".to_owned()));
        if let Some(differs) = differs {
            println!("seed {seed}, after {:.1?}:\n{differs}", began.elapsed());
            findings.push(format!("HEDDLE_DIFF_SEED={seed} HEDDLE_DURABILITY={durability}"));
        }
        fs::remove_dir_all(&there).unwrap();
        fs::remove_dir_all(&here).unwrap();
        seed += 1;
    }
    println!("{} programs of {CALLS} calls from seed {first} on, durability {durability}", seed - first);
    let served = fs::read_to_string(place.path("report")).unwrap();
    let refused = served.lines().find(|line| line.contains("\"refused\":[\""));
    assert!(refused.is_none(), "a mount was refused: {}", refused.unwrap_or_default());
    assert!(served.contains("\"write\":"), "nothing was served");
    // A moment later the dead are settled.
    std::thread::sleep(SETTLED);
    // An unmount would free them.
    let held = free_before.saturating_sub(free_blocks());
    assert!(held < KEPT_BLOCKS_MAX, "{held} blocks of files that nobody has are held");
    println!("{held} blocks fewer are free than before, without a file");
    drop(mounted);
    let checked = heddle(&["fsck", &place.image()]);
    assert_eq!(checked.code, 0, "files that nobody has are held: {}", checked.out);
    findings
}

/// The harness finds each of them within this time. It begins with the same programs each time.
#[cfg(feature = "planted")]
const FINDS_WITHIN: Duration = Duration::from_secs(90);

#[cfg(feature = "planted")]
#[test]
#[ignore = "cargo xtask bypass-diff --planted"]
fn each_planted_fault_is_found() {
    use heddle_vfs::planted::Bug;
    if !own_namespace() {
        return;
    }
    let mut unseen = Vec::new();
    for bug in Bug::ALL {
        let (name, began) = (bug.name(), Instant::now());
        let mut harness = Command::new(std::env::current_exe().unwrap());
        harness.args([
            "--exact",
            "a_random_program_finds_the_same_with_the_bypass_as_without",
            "--nocapture",
        ]);
        harness.env("HEDDLE_PLANTED", name);
        harness.env("HEDDLE_DIFF_SECONDS", FINDS_WITHIN.as_secs().to_string());
        let said = harness.output().unwrap();
        let text =
            [said.stdout, said.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).join("\n");
        let tells = [", after ", "is not clean", "are held"];
        let finding = text.lines().position(|line| tells.iter().any(|tells| line.contains(tells)));
        match finding {
            Some(at) if !said.status.success() => {
                println!("{name}: found in {:.1?}", began.elapsed());
                text.lines().skip(at).take(3).for_each(|line| println!("    {line}"));
            }
            _ => {
                println!("{name}: NOT FOUND\n{text}");
                unseen.push(name);
            }
        }
    }
    assert!(unseen.is_empty(), "not found: {unseen:?}");
}
