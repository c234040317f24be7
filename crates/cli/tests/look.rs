//! Looking on: `heddle stat`, `top`, and what Prometheus is told.

mod common;

use common::{Mounted, Place, alone, command, heddle};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixStream;

/// 130 writes of a page and one read of two.
fn work(mounted: &Mounted<'_>) {
    let file =
        fs::File::options().read(true).write(true).create_new(true).open(mounted.path("file")).unwrap();
    for page in 0..130 {
        file.write_all_at(&[1; 4096], page * 4096).unwrap();
    }
    file.read_exact_at(&mut [0; 8192], 0).unwrap();
}

fn stat(path: &str) -> Value {
    serde_json::from_str(&heddle(&["stat", "--json", path]).ok().out).unwrap()
}

#[test]
fn stat_tells_what_was_done_since_the_mount_in_every_variant() {
    let Some(_alone) = alone() else { return };
    for variant in ["heddle", "nova", "nova-interval", "nova-array", "nova-tree"] {
        let place = Place::with_image(variant);
        let mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
        work(&mounted);
        let told = stat(&place.mnt());
        let (write, read) = (&told["calls"]["write"], &told["calls"]["read"]);
        assert_eq!((&write["count"], &write["bytes"]), (&130.into(), &(130 * 4096).into()), "{variant}");
        assert_eq!((&read["count"], &read["bytes"]), (&1.into(), &8192.into()), "{variant}");
        assert!(
            write["timed"].as_u64() >= Some(3) && write["p99_ns"].as_u64() > Some(0),
            "{variant}: {write}"
        );
        assert_eq!((&told["clients"][0]["is_mount"], &told["damaged"]), (&true.into(), &false.into()));
        assert_eq!(stat(&place.image())["calls"]["write"], *write, "{variant}: by the image's path too");
        let text = heddle(&["stat", &place.mnt()]).ok().out;
        assert!(text.contains("write") && text.contains("(the mount)") && text.contains("half in"), "{text}");
    }
}

#[test]
fn an_f2fs_mount_can_be_looked_at_and_answers_prometheus() {
    let Some(_alone) = alone() else { return };
    for variant in ["f2fs", "f2fs-rl", "f2fs-nl", "f2fs-integrated"] {
        let place = Place::with_image_of("f2fs", "64M");
        let (socket, nvm) = (place.text("metrics.sock"), place.text("nvm"));
        let logged = match variant {
            "f2fs-nl" | "f2fs-integrated" => format!(",nvm={nvm},nvm-size=2M"),
            _ => String::new(),
        };
        let options = format!("log=/dev/null,variant={variant},metrics={socket}{logged}");
        let mounted = Mounted::new(&place, &["-o", &options]);
        work(&mounted);
        for path in [place.mnt(), place.image()] {
            let told = stat(&path);
            let (write, read) = (&told["calls"]["write"], &told["calls"]["read"]);
            assert_eq!((&write["count"], &write["bytes"]), (&130.into(), &(130 * 4096).into()), "{path}");
            assert_eq!((&read["count"], &read["bytes"]), (&1.into(), &8192.into()), "{path}");
            assert!(write["timed"].as_u64() >= Some(2), "{write}");
            assert_eq!(told["damaged"], false, "{variant}");
        }
        heddle(&["top", "--json", "--interval", "0.1", "-n", "1", &place.mnt()]).ok();
        let mut asker = UnixStream::connect(&socket).unwrap();
        asker.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut said = String::new();
        asker.read_to_string(&mut said).unwrap();
        assert!(said.contains("heddle_calls_total{call=\"write\"} 130\n"), "{said}");
        assert!(said.contains("\nheddle_damaged 0\n"), "{said}");
        heddle(&["run", "--image", &place.image(), "--", "true"]).failed(1, &["F2FS", "no process attaches"]);
    }
}

#[test]
fn top_shows_what_came_between_two_looks() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    let mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
    work(&mounted);
    let mut top = command(&["top", "--json", "--interval", "0.3", "-n", "3", &place.mnt()]);
    let top = top.stdout(std::process::Stdio::piped()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(400));
    fs::write(mounted.path("later"), [3; 5000]).unwrap();
    let out = String::from_utf8(top.wait_with_output().unwrap().stdout).unwrap();
    let looks: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(looks.len(), 3, "{out}");
    let bytes: u64 = looks.iter().map(|look| look["calls"]["write"]["bytes"].as_u64().unwrap()).sum();
    assert_eq!(bytes, 5000, "what was written before the first look is not shown");
    assert!(looks.iter().all(|look| look["seconds"].as_f64() > Some(0.2)), "{out}");
}

#[test]
fn prometheus_is_served_at_a_socket_and_a_local_port() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    let socket = place.text("metrics.sock");
    let mounted = Mounted::new(&place, &["-o", &format!("log=/dev/null,metrics={socket}")]);
    work(&mounted);
    let ask = |question: &str| {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.write_all(question.as_bytes()).unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).unwrap();
        said
    };
    let said = ask("GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n");
    let (head, page) = said.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.0 200 OK") && head.contains("version=0.0.4"), "{head}");
    let value = |name: &str| {
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {page}")).parse::<f64>().unwrap()
    };
    assert_eq!((value("heddle_calls_total{call=\"write\"}"), value("heddle_damaged")), (130.0, 0.0));
    assert_eq!(value("heddle_bytes_total{call=\"write\"}"), 130.0 * 4096.0);
    assert_eq!(
        value("heddle_call_seconds_count{call=\"write\"}"),
        value("heddle_call_seconds_bucket{call=\"write\",le=\"+Inf\"}")
    );
    assert!(value("heddle_call_seconds_count{call=\"write\"}") >= 3.0 && value("heddle_free_bytes") > 0.0);
    // Each line is a comment or a name and a number; each family is announced.
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let (name, number) = line.rsplit_once(' ').unwrap();
        assert!(number.parse::<f64>().is_ok() && name.starts_with("heddle_"), "{line}");
    }
    assert!(ask("GET /other HTTP/1.1\r\n\r\n").contains(" 404 "));
    assert!(ask("rubbish\r\n\r\n").contains(" 400 "));
    drop(UnixStream::connect(&socket).unwrap());
    assert!(ask("GET / HTTP/1.0\r\n\r\n").contains(" 200 "), "who says nothing holds nobody up");
    drop(mounted);
    assert!(!std::path::Path::new(&socket).exists(), "the socket goes with the mount");
}

#[test]
fn askers_that_hang_hold_up_neither_others_nor_the_unmount() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    let socket = place.text("metrics.sock");
    let mounted = Mounted::new(&place, &["-o", &format!("log=/dev/null,metrics={socket}")]);
    let hanging: Vec<UnixStream> = (0..130)
        .map(|n| {
            let mut stream = UnixStream::connect(&socket).unwrap();
            stream.write_all(&b"GET /metrics HTTP/1.1\r\nHost"[..n % 28]).unwrap();
            stream
        })
        .collect();
    let began = std::time::Instant::now();
    let mut asker = UnixStream::connect(&socket).unwrap();
    asker.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut said = String::new();
    asker.read_to_string(&mut said).unwrap();
    // Each asker may take five seconds: nobody waits for one's end.
    assert!(
        said.contains("heddle_free_bytes") && began.elapsed().as_millis() < 4500,
        "{:?}",
        began.elapsed()
    );
    drop(mounted);
    drop(hanging);
}

#[test]
fn a_metrics_socket_is_relative_to_the_caller_and_removed_alone() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    let mount = |socket: &str| {
        let options = format!("log=/dev/null,metrics-group=54321,metrics={socket}");
        let mut mount = command(&["mount", "-o", &options, &place.image(), &place.mnt()]);
        let said = mount.current_dir(place.path("")).stderr(std::process::Stdio::null()).status().unwrap();
        assert!(said.success());
    };
    let socket = place.path("x");
    mount("./x");
    let made = fs::symlink_metadata(&socket).unwrap();
    assert_eq!((made.gid(), made.mode() & 0o7777), (54321, 0o660));
    heddle(&["umount", &place.mnt()]).ok();
    assert!(!socket.exists(), "it goes with the mount");
    mount("./x");
    fs::remove_file(&socket).unwrap();
    fs::write(&socket, "another's").unwrap();
    heddle(&["umount", &place.mnt()]).ok();
    assert_eq!(fs::read_to_string(&socket).unwrap(), "another's");
}

#[test]
fn what_cannot_be_looked_at_is_said_in_words() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    heddle(&["stat", "/no/such/place"]).failed(1, &["/no/such/place"]);
    heddle(&["stat", &place.mnt()]).failed(1, &["no heddle file system is mounted there", "heddle mount"]);
    heddle(&["top", &place.image()]).failed(1, &["is not mounted", "heddle mount"]);
    heddle(&["top", "--interval", "0", &place.mnt()]).failed(2, &["seconds"]);
    let mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
    // The first three, and one of the two that asking takes.
    let script = "ulimit -n 4; exec \"$0\" stat \"$1\"";
    let mut few = std::process::Command::new("sh");
    let said = few.args(["-c", script, env!("CARGO_BIN_EXE_heddle"), &place.mnt()]).output().unwrap();
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("ulimit -n") && said.contains("Too many open files"), "{said}");
    drop(mounted);
    let options =
        |metrics: &str| heddle(&["mount", "-o", &format!("metrics={metrics}"), &place.image(), &place.mnt()]);
    options("0.0.0.0:9100").failed(2, &["0.0.0.0", "127.0.0.1:9100"]);
    fs::write(place.path("file"), "kept").unwrap();
    options(&place.text("file")).failed(1, &["is no socket"]);
    assert_eq!(fs::read(place.path("file")).unwrap(), b"kept");
}

#[test]
fn no_command_waits_for_the_other_end_of_a_pipe() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    let pipe = place.text("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, 0o600.into()).unwrap();
    let log = format!("log={pipe}");
    let commands: [(&[&str], i32); 5] = [
        (&["fold", "--nvm", &place.image(), &pipe], 2),
        (&["stat", &pipe], 1),
        (&["top", "-n", "1", &pipe], 1),
        (&["run", "--image", &pipe, "--", "true"], 1),
        (&["mount", "-o", &log, &place.image(), &place.mnt()], 1),
    ];
    for (words, code) in commands {
        let said = fs::File::create(place.path("said")).unwrap();
        let mut running = command(words).stderr(said).spawn().unwrap();
        let began = std::time::Instant::now();
        while running.try_wait().unwrap().is_none() && began.elapsed().as_secs() < 30 {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let ended = running.try_wait().unwrap();
        let _ = running.kill();
        let said = fs::read_to_string(place.path("said")).unwrap();
        assert_eq!(ended.and_then(|status| status.code()), Some(code), "{words:?}: {said}");
        let causes = ["neither a directory nor an image", "log: cannot write", "is not an F2FS image"];
        assert!(causes.iter().any(|cause| said.contains(cause)), "{said}");
    }
}

#[test]
fn read_only_mounts_of_one_image_are_told_apart() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    let mounted = Mounted::new(&place, &[]);
    fs::write(mounted.path("file"), [7; 5000]).unwrap();
    drop(mounted);
    let other = place.text("other");
    fs::create_dir(&other).unwrap();
    let mount = |dir: &str| {
        let mut mount = command(&["mount", "-o", "ro,log=/dev/null", &place.image(), dir]);
        assert!(mount.stderr(std::process::Stdio::null()).status().unwrap().success());
    };
    mount(&place.mnt());
    mount(&other);
    assert_eq!(fs::read(place.path("other/file")).unwrap(), [7; 5000]);
    let bytes = |path: &str| stat(path)["calls"]["read"]["bytes"].as_u64();
    assert_eq!((bytes(&place.mnt()), bytes(&other)), (Some(0), Some(5000)));
    // Of the image either of them tells, whichever goes first.
    for (goes, stays) in [(&other, place.mnt()), (&place.mnt(), other.clone())] {
        heddle(&["umount", goes]).ok();
        assert_eq!(bytes(&stays), bytes(&place.image()));
        mount(goes);
    }
    heddle(&["umount", &place.mnt()]).ok();
    heddle(&["umount", &other]).ok();
}
