//! Every command with every kind of wrong operand ends soon, with an exit code of its own and a line of help, and leaves nothing behind.
//!
//! Which commands, options and operands there are says the help. The test command runs some, others each time (`HEDDLE_OPERANDS=SEED`: the
//! same again); `HEDDLE_OPERANDS=all` runs all, `HEDDLE_OPERANDS=say` prints what they answer as well. `cargo xtask cli-fuzz`.

mod common;

use common::tree::commands;
use common::{Place, heddle, own_namespace};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Of the test command.
const SECONDS: u64 = 5;
/// A command that takes so long hangs: these end in a moment, but where the machine is busy.
const HANGS_AFTER: Duration = Duration::from_secs(60);
/// What has been told to go on for longer is interrupted after this time.
const LONG: Duration = Duration::from_secs(2);
/// Beside what the help shows: what hands an operand on to others, and what needs two options.
const MORE: &[&str] = &[
    "@",
    "mount -f @ MNT",
    "mount -o ro,log=@ IMAGE MNT",
    "mount -o @ IMAGE MNT",
    "mount --variant f2fs-nl --nvm @ F2FS MNT",
    "mount --variant f2fs-nl -o nvm-size=@,nvm=NEW F2FS MNT",
    "mkfs --variant f2fs --size 64M --label @ NEW",
    "mkfs --variant f2fs --size 64M @",
    "mkfs --force --size 8M @",
    "run --image @ -- true",
    "run -- @",
    "stat --json @",
    "info --files --json @",
    "info F2FS @",
    "fsck -n @",
    "fsck -y @",
    "fsck -y --undo @ IMAGE",
    "dump IMAGE inode @",
    "dump IMAGE page @",
    "dump IMAGE record @",
    "fxmark --list @",
];
const WORDS: &[&[u8]] = &[
    b"0",
    b"-1",
    b"18446744073709551616",
    b"9223372036854775807",
    b"4294967295",
    b"",
    b" ",
    b"nan",
    b"1e309",
    b"\xff\xfe",
    b"--",
    b"a,b",
    b"\x1b[31m",
];
/// Of them: numbers that may keep a command busy for years, as it was told to.
const ENDLESS: [&[u8]; 4] = [b"18446744073709551616", b"9223372036854775807", b"4294967295", b"1e309"];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Missing,
    MissingInMissing,
    Empty,
    Zeros,
    Fifo,
    Directory,
    Loop,
    Dangling,
    Unreadable,
    NotUtf8,
    TooLong,
    Socket,
    Null,
    Full,
    Zero,
    OfFile,
}

const KINDS: [Kind; 16] = [
    Kind::Missing,
    Kind::MissingInMissing,
    Kind::Empty,
    Kind::Zeros,
    Kind::Fifo,
    Kind::Directory,
    Kind::Loop,
    Kind::Dangling,
    Kind::Unreadable,
    Kind::NotUtf8,
    Kind::TooLong,
    Kind::Socket,
    Kind::Null,
    Kind::Full,
    Kind::Zero,
    Kind::OfFile,
];

impl Kind {
    fn made_in(self, dir: &Path) -> OsString {
        let at = dir.join("operand");
        match self {
            Kind::Missing => {}
            Kind::MissingInMissing => return dir.join("no/such/operand").into(),
            Kind::Empty => fs::write(&at, "").unwrap(),
            Kind::Zeros | Kind::Unreadable => fs::write(&at, [0; 9000]).unwrap(),
            Kind::Fifo => rustix::fs::mkfifoat(rustix::fs::CWD, &at, 0o600.into()).unwrap(),
            Kind::Directory => fs::create_dir(&at).unwrap(),
            Kind::Loop => std::os::unix::fs::symlink(&at, &at).unwrap(),
            Kind::Dangling => std::os::unix::fs::symlink(dir.join("nowhere"), &at).unwrap(),
            Kind::NotUtf8 => return dir.join(OsStr::from_bytes(b"o\xffp\x1b[1m,x")).into(),
            Kind::TooLong => return dir.join("x".repeat(5000)).into(),
            Kind::Socket => drop(std::os::unix::net::UnixListener::bind(&at).unwrap()),
            Kind::Null => return "/dev/null".into(),
            Kind::Full => return "/dev/full".into(),
            Kind::Zero => return "/dev/zero".into(),
            Kind::OfFile => return dir.join("image/below").into(),
        }
        at.into()
    }
}

#[derive(Clone, Copy, Debug)]
enum Operand {
    Path(Kind),
    Word(&'static [u8]),
    Stdout(Option<&'static str>),
}

/// Runs a command; what it is blamed for.
fn run(place: &Place, command: &str, operand: Operand, say: bool) -> Result<(), String> {
    let dir = place.path("here");
    fs::create_dir(&dir).unwrap();
    fs::create_dir(dir.join("mnt")).unwrap();
    for (word, name) in [("IMAGE", "image"), ("F2FS", "f2fs"), ("WORK", "work")] {
        if command.contains(word) || name == "image" {
            fs::copy(place.path(name), dir.join(name)).unwrap();
        }
    }
    let value = match operand {
        Operand::Path(kind) => kind.made_in(&dir),
        Operand::Word(word) => OsString::from_vec(word.to_vec()),
        Operand::Stdout(_) => OsString::new(),
    };
    let before = left_behind(place);
    let mut heddle = Command::new(env!("CARGO_BIN_EXE_heddle"));
    heddle.args(command.split(' ').map(|word| argument(&dir, word, &value)));
    heddle.stdin(Stdio::null()).current_dir(&dir).env("RUST_BACKTRACE", "0").env("TMPDIR", place.path("tmp"));
    let (out, err) = (place.path("stdout"), place.path("stderr"));
    heddle.stdout(File::create(&out).unwrap()).stderr(File::create(&err).unwrap());
    match operand {
        Operand::Stdout(Some(to)) => drop(heddle.stdout(File::options().write(true).open(to).unwrap())),
        // SAFETY: closing a descriptor is allowed between fork and exec.
        Operand::Stdout(None) => drop(unsafe {
            heddle.pre_exec(|| {
                libc::close(1);
                Ok(())
            })
        }),
        Operand::Path(Kind::Unreadable) => drop(heddle.uid(65534)),
        _ => {}
    }
    // A rig that a shell started in the background has Ctrl-C ignored, and so would its children.
    // SAFETY: signal is allowed between fork and exec.
    unsafe {
        heddle.pre_exec(|| {
            libc::signal(libc::SIGINT, libc::SIG_DFL);
            Ok(())
        })
    };
    let mut child = heddle.spawn().unwrap();
    let status = ends(&mut child, operand);
    let said = String::from_utf8_lossy(&fs::read(&err).unwrap()).into_owned();
    if say {
        println!("{:?}: {}", status.and_then(|status| status.code()), said.trim_end());
    }
    let mut wrong = judge(command, operand, status, &said);
    if status.is_some_and(|status| status.success()) && command.starts_with("mount ") {
        let at = if command == "mount IMAGE @" { value } else { dir.join("mnt").into() };
        let mut umount = Command::new(env!("CARGO_BIN_EXE_heddle"));
        if !umount.arg("umount").arg(at).status().unwrap().success() {
            wrong.push("mounts what cannot be unmounted".into());
        }
    }
    let after = left_behind(place);
    if after != before {
        wrong.push(format!("leaves {after:?}"));
    }
    fs::remove_dir_all(&dir).unwrap();
    if wrong.is_empty() {
        return Ok(());
    }
    Err(format!("heddle {command} ({operand:?}): {}\n{said}", wrong.join(", ")))
}

/// A word of a command as the program gets it.
fn argument(dir: &Path, word: &str, value: &OsStr) -> OsString {
    match word {
        "IMAGE" | "F2FS" | "NVM" | "MNT" | "NEW" | "WORK" => return dir.join(word.to_lowercase()).into(),
        _ => {}
    }
    let Some((head, tail)) = word.split_once('@') else { return word.into() };
    [OsStr::new(head), value, OsStr::new(tail)].into_iter().collect()
}

/// How it ends, of itself or by Ctrl-C if it was told to go on for years; `None`: it hangs.
fn ends(child: &mut Child, operand: Operand) -> Option<ExitStatus> {
    let endless = matches!(operand, Operand::Word(word) if ENDLESS.contains(&word));
    let pid = rustix::process::Pid::from_child(child);
    let (began, mut interrupted) = (Instant::now(), false);
    while began.elapsed() < HANGS_AFTER {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        if endless && !interrupted && began.elapsed() > LONG {
            rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
            interrupted = true;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    None
}

fn judge(command: &str, operand: Operand, status: Option<ExitStatus>, said: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let Some(status) = status else { return vec!["hangs".into()] };
    if let Some(signal) = status.signal().filter(|signal| *signal != libc::SIGINT) {
        wrong.push(format!("ends by signal {signal}"));
    }
    let code = status.code().unwrap_or(0);
    if said.contains("panicked") || code == 101 {
        wrong.push("panics".into());
    }
    let lines: Vec<&str> = said.lines().filter(|line| !line.is_empty()).collect();
    let words = ["heddle:", "error:", "Usage:"];
    // A table's row tells of its own cell.
    let complains =
        |line: &&&str| words.iter().any(|word| line.starts_with(word)) || line.contains(": failed: ");
    match lines.iter().rfind(complains) {
        None if code != 0 && !command.starts_with("fsck") && !command.starts_with("run") => {
            wrong.push(format!("exit code {code}, and no line says why"));
        }
        Some(line) if code != 0 && line.ends_with(')') && line.contains("(os error") => {
            wrong.push("says what the system said, and no way out".into());
        }
        _ => {}
    }
    if code == 0 && matches!(operand, Operand::Stdout(_)) {
        wrong.push("exit code 0, though nobody got the answer".into());
    }
    if said.contains('\x1b') {
        wrong.push("prints what it was given raw".into());
    }
    wrong
}

/// Processes and mounts of this place, and what lies where heddle puts memory files.
fn left_behind(place: &Place) -> Vec<String> {
    let here = place.text("here");
    let mounts = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    let mut left: Vec<String> =
        mounts.lines().filter(|line| line.contains(&here)).map(str::to_owned).collect();
    let pids = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    left.extend(pids.filter_map(|pid| {
        let line = String::from_utf8_lossy(&fs::read(pid.join("cmdline")).ok()?).replace('\0', " ");
        (line.contains("heddle") && line.contains(&here)).then_some(line)
    }));
    left.extend(
        fs::read_dir(place.path("tmp")).unwrap().map(|entry| entry.unwrap().path().display().to_string()),
    );
    left
}

/// What all is made of, once.
fn prepared() -> Place {
    let place = Place::with_image("heddle");
    heddle(&["mkfs", "--variant", "f2fs", "--size", "64M", &place.text("f2fs")]).ok();
    fs::write(place.path("work"), "create /a\n").unwrap();
    fs::create_dir(place.path("tmp")).unwrap();
    place
}

/// Every command that the help knows, with each of its operands and options wrong in every way.
fn all(place: &Place) -> Vec<(String, Operand)> {
    let tree = commands();
    let wrong = || KINDS.into_iter().map(Operand::Path).chain(WORDS.iter().copied().map(Operand::Word));
    let of_tree = tree.iter().flat_map(|command| command.with_operand.clone());
    let calls = of_tree.chain(MORE.iter().map(|command| (*command).to_owned()));
    let mut all: Vec<_> =
        calls.flat_map(|call| wrong().map(move |operand| (call.clone(), operand))).collect();
    for command in tree {
        for call in [format!("help {}", command.call.split(' ').next().unwrap()), command.call] {
            // Who says nothing loses nothing.
            let silent = ["demo", "mkfs", "mount ", "umount", "run", "tune", "man"]
                .iter()
                .any(|c| call.starts_with(c));
            let lost = [Some("/dev/full"), None];
            all.extend(lost.iter().filter(|_| !silent).map(|to| (call.clone(), Operand::Stdout(*to))));
        }
    }
    assert!(all.len() > 2000 && place.path("f2fs").exists());
    all
}

#[test]
fn any_wrong_operand_is_refused_in_words_and_leaves_nothing_behind() {
    if !own_namespace() {
        return;
    }
    let how = std::env::var("HEDDLE_OPERANDS").unwrap_or_default();
    let place = prepared();
    let all = all(&place);
    let (total, whole) = (all.len(), how == "all" || how == "say");
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let seed = how.parse().unwrap_or_else(|_| now()) as usize;
    let began = Instant::now();
    let (mut done, mut findings) = (0, Vec::new());
    for nth in 0..total {
        if !whole && began.elapsed() > Duration::from_secs(SECONDS) {
            break;
        }
        // Others each time, and no two neighbours: a step that is prime passes through all.
        let (command, operand) =
            &all[if whole { nth } else { seed.wrapping_add(nth).wrapping_mul(7919) % total }];
        if how == "say" {
            println!("\n$ heddle {command}   @ = {operand:?}");
        }
        done += 1;
        if let Err(finding) = run(&place, command, *operand, how == "say") {
            println!("{finding}\n");
            findings.push(finding);
        }
    }
    println!("{done} of {total} commands");
    assert!(
        findings.is_empty(),
        "{} findings, HEDDLE_OPERANDS={seed}:\n{}",
        findings.len(),
        findings.join("\n")
    );
}
