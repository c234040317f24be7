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

fn with_image(variant: &str) -> Place {
    let is_flash = variant.starts_with("f2fs");
    Place::with_image_of(if is_flash { "f2fs" } else { variant }, if is_flash { "64M" } else { "16M" })
}

/// Mounted as this system.
fn mounted<'a>(place: &'a Place, variant: &str) -> Mounted<'a> {
    let has_log = matches!(variant, "f2fs-nl" | "f2fs-integrated");
    let log = if has_log { format!(",nvm={},nvm-size=2M", place.text("nvm")) } else { String::new() };
    Mounted::new(place, &["-o", &format!("log=/dev/null,variant={variant}{log}")])
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
    let engines = [("heddle", true), ("heddle", false), ("nova-interval", false), ("f2fs", false)];
    for (variant, bypass) in engines.into_iter().chain([("f2fs-integrated", false)]) {
        let place = with_image(variant);
        let mounted = mounted(&place, variant);
        let program = if bypass { command(&["run", "--", "python3"]) } else { Command::new("python3") };
        let found = left_in(&mounted.path(""), program, Some("has zeroing"));
        let unlike: Vec<_> = wanted.iter().zip(&found).filter(|(wanted, found)| wanted != found).collect();
        assert!(unlike.is_empty() && wanted.len() == found.len(), "{variant}: wanted, found: {unlike:#?}");
    }
}

/// In a place that root has made ready; said are modes, owners and groups of what is made.
const ROOTS: &str = "echo secret > root; chmod 600 root; echo team > team; chgrp 4242 team; chmod 060 team
mkdir box; chgrp 4242 box; chmod 2770 box; mkdir drop; chmod 1777 drop; : > drop/roots
cp /bin/true p; chmod 6777 p";
const USERS: &str = "cat root 2> /dev/null && exit 1; test $(cat team) = team || exit 2
cd box; umask 027; : > f; mkdir d; mkfifo o; umask 0; : > g; stat -c '%u %g %a' f d o g
chmod 2755 f && test $(stat -c %a f) = 2755 || exit 3
chown 0 f 2> /dev/null && exit 4; cd ..; rm -f drop/roots 2> /dev/null && exit 5
: > drop/mine && rm drop/mine || exit 6; echo x > p && stat -c %a p";
const MADE: &str = "1000 4242 640\n1000 4242 2750\n1000 4242 640\n1000 4242 666\n777\n";

#[test]
fn modes_groups_umask_and_set_id_bits_count_through_each_mount() {
    let Some(_alone) = alone() else { return };
    let nvm = ["heddle", "nova", "nova-interval", "nova-array", "nova-tree"];
    for variant in nvm.into_iter().chain(["f2fs", "f2fs-rl", "f2fs-nl", "f2fs-integrated"]) {
        let place = with_image(variant);
        fs::set_permissions(place.path(""), Permissions::from_mode(0o755)).unwrap();
        let mounted = mounted(&place, variant);
        let made = Command::new("sh").args(["-ec", ROOTS]).current_dir(mounted.path("")).status();
        assert!(made.unwrap().success(), "{variant}");
        let mut user = Command::new("setpriv");
        user.args(["--reuid", "1000", "--regid", "1000", "--groups", "4242", "sh", "-c", USERS]);
        let out = user.current_dir(mounted.path("")).output().unwrap();
        let said = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success() && said == MADE, "{variant}: {:?} {said}", out.status);
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
