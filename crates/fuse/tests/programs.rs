//! Ordinary programs on a mount.

mod common;

use std::fs;
use std::sync::Arc;

use common::{model, mount, sh, sh_as_user, try_sh, uncached};
use heddle_vfs::model::ModelFs;

#[test]
fn a_tree_copied_in_and_out_is_the_same() {
    let Some(mount) = model() else { return };
    let outside = tempfile::tempdir().unwrap();
    let make = "mkdir -p t/a/b/c 't/with space' && seq 100000 > t/a/numbers && head -c 3000001 /dev/urandom > t/a/b/random
        : > t/empty && ln t/a/numbers t/hard && ln -s a/b t/link && ln -s nowhere t/dangling && mkfifo t/pipe
        chmod 640 t/a/numbers && chmod 711 t/a/b && touch -d '2001-02-03 04:05:06.789 UTC' t/a/b/random";
    sh(outside.path(), make);
    let from = outside.path().join("t");
    sh(
        mount.mounted.dir(),
        &format!("cp -a '{}' in && cp -a in again && cp -a again '{0}.back'", from.display()),
    );
    for copy in [mount.path("in"), mount.path("again"), outside.path().join("t.back")] {
        sh(outside.path(), &format!("diff -r --no-dereference -x pipe t '{}'", copy.display()));
        let list = |dir: &std::path::Path| {
            sh(
                dir,
                "find . -mindepth 1 \\( -type d -printf '%p %m\\n' -o -printf '%p %y %m %s %n %T@ %l\\n' \\) | sort",
            )
        };
        assert_eq!(list(&copy), list(&from));
    }
    sh(mount.mounted.dir(), "rm -r in again && test -z \"$(ls -A)\"");
}

#[test]
fn processes_write_disjoint_ranges_of_one_file() {
    let Some(mount) = model() else { return };
    let script = "seq -w 400000 | head -c 2097152 > even; seq -w 500000 900000 | head -c 2097152 > odd
        put() { for i in 0 1 2 3 4 5 6 7; do
            dd if=$1 of=both bs=256K skip=$i seek=$((2 * i + $2)) count=1 conv=notrunc status=none; done; }
        put even 0 & put odd 1 & wait
        for i in 0 1 2 3 4 5 6 7; do
            dd if=both bs=256K skip=$((2 * i)) count=1 status=none >> even.back
            dd if=both bs=256K skip=$((2 * i + 1)) count=1 status=none >> odd.back
        done
        cmp even even.back && cmp odd odd.back && stat -c %s both";
    assert_eq!(sh(mount.mounted.dir(), script).trim(), "4194304");
}

#[test]
fn lines_appended_by_processes_are_all_there() {
    let Some(mount) = model() else { return };
    let script = "add() { for i in $(seq 400); do echo \"$1 $i\"; done >> log; }
        add a & add b & wait; wc -l < log; sort -u log | wc -l";
    assert_eq!(sh(mount.mounted.dir(), script), "800\n800\n");
}

#[test]
fn programs_on_the_mount_can_be_executed() {
    let Some(mount) = model() else { return };
    let dir = mount.mounted.dir();
    sh(dir, "cp /bin/true /bin/sh . && ./true && ./sh -c 'exit 0'");
    // Execute permission alone is enough.
    sh(dir, "chmod 0111 true");
    assert!(sh_as_user(dir, "./true").status.success());
    assert!(!sh_as_user(dir, "cat true").status.success());
    sh(dir, "printf '#!/bin/sh\\necho script\\n' > s; chmod +x s; test \"$(./s)\" = script");
    let busy = try_sh(
        dir,
        "cp /bin/sleep . && (./sleep 5 > /dev/null 2>&1 & echo $! > pid; sleep 0.2; echo x > sleep)",
    );
    assert!(
        String::from_utf8_lossy(&busy.stderr).contains("busy"),
        "a running program is not written to: {busy:?}"
    );
    sh(dir, "kill $(cat pid)");
}

/// It was cut to nothing before the kernel found it busy, and the program died.
#[test]
fn a_running_program_is_not_cut_by_an_open_for_reading() {
    let Some(mount) = model() else { return };
    let file = mount.path("sleep");
    let cut = || {
        rustix::fs::open(
            &file,
            rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::TRUNC,
            rustix::fs::Mode::empty(),
        )
    };
    // By a process of its own: a child that another test starts would have the file open for writing.
    sh(mount.mounted.dir(), "cp /bin/sleep sleep");
    let whole = fs::metadata(&file).unwrap().len();
    let mut runs = std::process::Command::new(&file).arg("30").spawn().unwrap();
    let busy = cut().err();
    let left = fs::metadata(&file).unwrap().len();
    runs.kill().unwrap();
    runs.wait().unwrap();
    assert_eq!((busy, left), (Some(rustix::io::Errno::TXTBSY), whole));
    cut().unwrap();
    assert_eq!(fs::metadata(&file).unwrap().len(), 0);
}

#[test]
fn sqlite_keeps_a_database_with_shared_mappings() {
    let Some(mount) = model() else { return };
    if try_sh(mount.mounted.dir(), "command -v sqlite3").stdout.is_empty() {
        eprintln!("SKIPPED, NOT TESTED: no sqlite3");
        return;
    }
    let script =
        "sqlite3 db 'pragma journal_mode=wal; pragma mmap_size=1000000; create table t(n integer, s text);
        with recursive c(n) as (select 1 union all select n + 1 from c where n < 5000)
        insert into t select n, hex(n * n) from c;'
        sqlite3 db 'update t set n = n + 1 where n > 2500'
        sqlite3 db 'pragma integrity_check; select count(*), sum(n) from t'";
    let output = sh(mount.mounted.dir(), script);
    assert!(output.ends_with("ok\n5000|12505000\n"), "{output}");
}

#[test]
fn the_umask_is_obeyed_once() {
    let Some(mount) = model() else { return };
    let script = "umask 027; : > f; mkdir d; mkfifo p; stat -c %a f d p; umask 0; : > g; mkdir -m 3777 e; stat -c %a g e";
    assert_eq!(sh(mount.mounted.dir(), script), "640\n750\n640\n666\n3777\n");
}

#[test]
fn modes_owners_and_groups_are_enforced_for_users() {
    let Some(mount) = model() else { return };
    let dir = mount.mounted.dir();
    sh(
        dir,
        "echo secret > root; chmod 600 root; echo team > team; chgrp 4242 team; chmod 060 team
        mkdir box; chgrp 4242 box; chmod 2770 box; mkdir drop; chmod 1777 drop; : > drop/roots",
    );
    assert!(!sh_as_user(dir, "cat root").status.success());
    assert_eq!(sh_as_user(dir, "cat team").stdout, b"team\n", "a supplementary group counts");
    let made = sh_as_user(dir, "cd box; : > f; mkdir d; stat -c '%u %g %a' f d");
    assert_eq!(String::from_utf8_lossy(&made.stdout), "1000 4242 644\n1000 4242 2755\n", "{made:?}");
    assert!(
        sh_as_user(dir, "cd box; chgrp 4242 f; chmod 2755 f; test $(stat -c %a f) = 2755").status.success()
    );
    assert!(!sh_as_user(dir, "chown 0 box/f").status.success());
    assert!(!sh_as_user(dir, "rm -f drop/roots").status.success());
    assert!(sh_as_user(dir, ": > drop/mine; rm drop/mine").status.success());
}

#[test]
fn a_write_by_a_user_takes_the_set_id_bits() {
    let Some(mount) = mount(Arc::new(ModelFs::new()), &uncached()) else { return };
    let dir = mount.mounted.dir();
    sh(dir, "cp /bin/true p; cp p q; cp p r; chmod 6777 p q r");
    for (script, file) in [("echo x > p", "p"), ("echo x >> q", "q"), ("truncate -s 1 r", "r")] {
        assert!(sh_as_user(dir, script).status.success(), "{script}");
        assert_eq!(sh(dir, &format!("stat -c %a {file}")).trim(), "777", "{script}");
    }
    sh(dir, "chmod 6777 p; echo x > p; test $(stat -c %a p) = 6777");
}

#[test]
fn statfs_tells_space() {
    let Some(mount) = model() else { return };
    let output = sh(mount.mounted.dir(), "stat -f -c '%S %l %b' . && df --output=fstype,source . | tail -1");
    assert_eq!(output, "4096 255 1048576\nfuse.heddle heddle\n");
}
