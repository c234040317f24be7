//! Every command with every kind of wrong operand ends soon, with an exit code of its own and a line of help, and leaves nothing behind.
//!
//! The test command runs some, others each time; `HEDDLE_OPERANDS=all` runs all, `HEDDLE_OPERANDS=say` prints what they answer as well.
//! `cargo xtask cli-fuzz`.

mod common;

use common::{Place, heddle, own_namespace};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Of the test command.
const SECONDS: u64 = 6;
/// A command that takes so long hangs: these end in a moment, but where the machine is busy.
const HANGS_AFTER: Duration = Duration::from_secs(20);
/// Commands that take a path (`@`), beside an image (`IMAGE`), a directory (`MNT`).
const WITH_PATH: &[&str] = &[
    "mkfs --size 8M @",
    "mount @ MNT",
    "mount -f @ MNT",
    "mount IMAGE @",
    "mount -o log=@ IMAGE MNT",
    "mount -o metrics=@ IMAGE MNT",
    "mount -o ro,log=@ @ MNT",
    "mount --nvm @ IMAGE MNT",
    "umount @",
    "fold --nvm @ IMAGE",
    "fold --nvm IMAGE @",
    "run @",
    "run --image @ -- true",
    "stat @",
    "stat --json @",
    "top -n 1 @",
    "info @",
    "info --files --json @",
    "fsck -n @",
    "fsck -y @",
    "fsck -y --undo @ IMAGE",
    "tune --uuid random @",
    "dump @ superblock",
    "dump IMAGE @",
    "crash --workload @",
    "explain @",
    "mount-times --files 1 --file-size 4K --repeat 1 --dir @",
    "bandwidth --secs 0.01 --repeat 1 --threads 1 --buffer 1M --on @",
    "fxmark DRBL --secs 0.01 --repeat 1 --json @ --target nope",
];
/// Commands that take a number or a word.
const WITH_WORD: &[&str] = &[
    "mkfs --size @ NEW",
    "mkfs --variant @ NEW",
    "mkfs --variant f2fs --size 64M --label @ NEW",
    "mount -o patience=@ nowhere MNT",
    "mount -o wait=@ nowhere MNT",
    "mount -o attach-group=@ nowhere MNT",
    "mount -o uid=@ nowhere MNT",
    "mount -o metrics=@ nowhere MNT",
    "mount -o @ nowhere MNT",
    "mount --variant @ IMAGE MNT",
    "umount --wait @ MNT",
    "top -i @ -n 1 MNT",
    "top -n @ nowhere",
    "explain @",
    "tune --uuid @ IMAGE",
    "dump IMAGE inode @",
    "dump IMAGE @",
    "fxmark --list @",
    "fxmark --target @",
    "fxmark DRBL --cores @ --secs 0.01",
    "fxmark DRBL --secs @ --cores 9999",
    "fxmark DRBL --file-size @ --cores 9999",
    "locks --threads @ --secs 0.01",
    "locks -d @ --secs 0.01 --threads 1",
    "locks -M @ --secs 0.01 --threads 1",
    "bandwidth --threads @ --secs 0.01 --repeat 1 --buffer 1M",
    "crash --seed @ --workload nowhere",
    "@",
];
const WORDS: &[&[u8]] = &[
    b"0",
    b"-1",
    b"18446744073709551616",
    b"9223372036854775807",
    b"",
    b" ",
    b"nan",
    b"1e309",
    b"\xff\xfe",
    b"--",
    b"a,b",
    b"\x1b[31m",
];
/// What is written as words that mean something: they have an answer for stdout.
const ANSWERS: &[&str] = &[
    "--help",
    "mkfs --help",
    "info IMAGE",
    "info --json IMAGE",
    "fsck -n IMAGE",
    "explain",
    "dump IMAGE superblock",
    "--version",
    "fxmark --list",
];

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

/// What a command that has gone wrong is blamed for.
fn run(place: &Place, command: &str, operand: Operand, say: bool) -> Result<(), String> {
    let dir = place.path("here");
    fs::create_dir(&dir).unwrap();
    fs::create_dir(dir.join("mnt")).unwrap();
    fs::copy(place.image(), dir.join("image")).unwrap();
    let value = match operand {
        Operand::Path(kind) => kind.made_in(&dir),
        Operand::Word(word) => OsString::from_vec(word.to_vec()),
        Operand::Stdout(_) => OsString::new(),
    };
    let before = left_behind(place);
    let args = command.split(' ').map(|word| {
        let mut arg = OsString::new();
        let parts = word.split_once('@');
        arg.push(parts.map_or(word, |(head, _)| head));
        if parts.is_some() {
            arg.push(&value);
        }
        match word {
            "IMAGE" => dir.join("image").into(),
            "MNT" => dir.join("mnt").into(),
            "NEW" => dir.join("new").into(),
            _ => arg,
        }
    });
    let mut heddle = Command::new(env!("CARGO_BIN_EXE_heddle"));
    heddle.args(args).stdin(Stdio::null()).current_dir(&dir).env("RUST_BACKTRACE", "0");
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
    let mut child = heddle.spawn().unwrap();
    let began = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            None if began.elapsed() < HANGS_AFTER => std::thread::sleep(Duration::from_millis(2)),
            ended => break ended,
        }
    };
    let mut wrong = Vec::new();
    let said = String::from_utf8_lossy(&fs::read(&err).unwrap()).into_owned();
    match status {
        None => {
            child.kill().unwrap();
            child.wait().unwrap();
            wrong.push("hangs".to_owned());
        }
        Some(status) if status.signal().is_some() => wrong.push(format!("{status}")),
        Some(status) => {
            let code = status.code().unwrap_or(0);
            if said.contains("panicked") || code == 101 {
                wrong.push("panics".into());
            }
            let complains = said.lines().any(|line| {
                line.starts_with("heddle:") || line.starts_with("error:") || line.starts_with("Usage:")
            });
            if code != 0 && !complains && !command.starts_with("fsck -n") && !command.starts_with("run") {
                wrong.push(format!("exit code {code}, and no line says why"));
            }
            if code == 0 && matches!(operand, Operand::Stdout(_)) {
                wrong.push("exit code 0, though nobody got the answer".into());
            }
            if said.contains('\x1b') {
                wrong.push("prints what it was given raw".into());
            }
            if say {
                println!("{code}: {}", said.trim_end());
            }
            if code == 0 && command.starts_with("mount ") {
                let at = if command.ends_with('@') { value.clone() } else { dir.join("mnt").into() };
                let mut umount = Command::new(env!("CARGO_BIN_EXE_heddle"));
                assert!(umount.arg("umount").arg(at).status().unwrap().success(), "{command} {operand:?}");
            }
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
    left
}

#[test]
fn any_wrong_operand_is_refused_in_words_and_leaves_nothing_behind() {
    if !own_namespace() {
        return;
    }
    let how = std::env::var("HEDDLE_OPERANDS").unwrap_or_default();
    let place = Place::with_image("heddle");
    heddle(&["info", &place.image()]).ok();
    let paths = WITH_PATH.iter().flat_map(|command| KINDS.map(|kind| (*command, Operand::Path(kind))));
    let words = WITH_WORD.iter().flat_map(|command| WORDS.iter().map(|word| (*command, Operand::Word(word))));
    let lost = [Some("/dev/full"), None];
    let answers = ANSWERS.iter().flat_map(|command| lost.map(|to| (*command, Operand::Stdout(to))));
    let mut all: Vec<_> = answers.chain(paths).chain(words).collect();
    let total = all.len();
    let began = Instant::now();
    let mut step = 1;
    if how.is_empty() {
        // Others each time, and no two neighbours.
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        all.rotate_left(now.as_secs() as usize % total);
        step = 97;
    }
    let (mut done, mut findings) = (0, Vec::new());
    for nth in 0..total {
        if how.is_empty() && began.elapsed() > Duration::from_secs(SECONDS) {
            break;
        }
        let (command, operand) = all[nth * step % total];
        if how == "say" {
            println!("\n$ heddle {command}   @ = {operand:?}");
        }
        done += 1;
        if let Err(finding) = run(&place, command, operand, how == "say") {
            println!("{finding}\n");
            findings.push(finding);
        }
    }
    println!("{done} of {total} commands");
    assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), findings.join("\n"));
}
