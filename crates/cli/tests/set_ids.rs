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
fn changes_take_set_ids_and_capabilities_away_as_on_tmpfs_in_every_engine() {
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
