//! Set-id bits and capabilities of a file that is changed: as tmpfs has it, call by call, caller by caller.

mod common;

use common::{Mounted, Place, alone, build_preload, command};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

const CALLS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/set_ids.py");

#[track_caller]
fn left_in(dir: &Path, before: Command, more: Option<&str>) -> Vec<String> {
    let mut program = before;
    let out = program.arg(CALLS).arg(dir).args(more).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn changes_clear_set_ids_and_capabilities_as_tmpfs_does() {
    let Some(_alone) = alone() else { return };
    build_preload();
    let tmpfs = Place::new();
    fs::set_permissions(tmpfs.path(""), Permissions::from_mode(0o755)).unwrap();
    let wanted = left_in(&tmpfs.path(""), Command::new("python3"), None);
    assert!(
        wanted.len() > 200 && wanted.iter().any(|line| line == "write stranger 2767 False: 0 767 False 5000")
    );
    let engines = [
        ("heddle", "16M", true),
        ("heddle", "16M", false),
        ("nova-interval", "16M", false),
        ("f2fs", "64M", false),
    ];
    for (variant, size, bypass) in engines {
        let place = Place::with_image_of(variant, size);
        let mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
        let program = if bypass { command(&["run", "--", "python3"]) } else { Command::new("python3") };
        let found = left_in(&mounted.path(""), program, Some("has zeroing"));
        let unlike: Vec<_> = wanted.iter().zip(&found).filter(|(wanted, found)| wanted != found).collect();
        assert!(unlike.is_empty() && wanted.len() == found.len(), "{variant}: wanted, found: {unlike:#?}");
    }
}

/// What a file gets while a program has it open and writes it: set-id bits by its owner, capabilities by root.
const GETS: &str = "import os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o755)
changes = [lambda: os.write(fd, b'x'), lambda: os.pwrite(fd, b'y', 7)]
changes += [lambda: os.ftruncate(fd, 5), lambda: os.posix_fallocate(fd, 0, 9)]
for change in changes:
    change()
    if os.geteuid() == 0:
        os.setxattr(sys.argv[1], 'security.capability', bytes.fromhex('0100000200040000000000000000000000000000'))
    else:
        os.chmod(sys.argv[1], 0o6755)
    os.read(fd, 1)
    assert change() != 0
    print('%o' % (os.fstat(fd).st_mode & 0o7777), os.listxattr(sys.argv[1]))
    change()
";

#[test]
fn set_ids_given_to_an_open_file_go_with_a_bypassed_write() {
    let Some(_alone) = alone() else { return };
    build_preload();
    let place = Place::with_image("heddle");
    fs::set_permissions(place.path(""), Permissions::from_mode(0o755)).unwrap();
    let mounted = Mounted::new(&place, &["-o", "log=/dev/null,attach-group=54321"]);
    fs::set_permissions(place.mnt(), Permissions::from_mode(0o777)).unwrap();
    for (user, wanted) in [("0", "755 []\n"), ("65534", "755 []\n")] {
        let (file, report) = (mounted.path(user), place.path(&format!("report{user}")));
        fs::File::create(&report).unwrap().set_permissions(Permissions::from_mode(0o666)).unwrap();
        let mut program = Command::new("setpriv");
        program.args(["--reuid", user, "--regid", "54321", "--clear-groups", env!("CARGO_BIN_EXE_heddle")]);
        program.args(["run", "--", "python3", "-c", GETS]).arg(&file).env("HEDDLE_REPORT", &report);
        let out = program.output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        assert_eq!(String::from_utf8_lossy(&out.stdout), wanted.repeat(4), "user {user}");
        let report = fs::read_to_string(&report).unwrap();
        assert!(report.contains("\"write\":4") && report.contains("\"unserved\":4"), "{report}");
    }
}
