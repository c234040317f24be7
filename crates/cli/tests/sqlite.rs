//! Short writers of one SQLite database in WAL mode, many at once, each a process of its own that skips the kernel: none ends by a
//! signal, and every row that one of them has committed is there. The `-shm` file grows and is mapped while others ask for its size.
//!
//! `HEDDLE_SQLITE_BATCHES`: so many databases, with 150 writers each. `cargo xtask sqlite`.

mod common;

use common::{Mounted, Place, build_preload, command, own_namespace};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

const WRITERS: usize = 150;
/// In the test command.
const WRITERS_FEW: usize = 40;
/// Others may hold the database for as long.
const PATIENCE: &str = ".timeout 120000";

fn sqlite(database: &Path, statements: &str) -> Output {
    Command::new("sqlite3").args(["-cmd", PATIENCE]).arg(database).arg(statements).output().unwrap()
}

fn asked(database: &Path, question: &str) -> String {
    let said = sqlite(database, question);
    assert!(said.status.success(), "{question}: {}", String::from_utf8_lossy(&said.stderr));
    String::from_utf8(said.stdout).unwrap().trim().to_owned()
}

fn writer(database: &Path, number: usize) -> Child {
    let mut run = command(&["run", "--", "sqlite3", "-cmd", PATIENCE]);
    run.arg(database).arg(format!("INSERT INTO rows VALUES ({number}, hex(zeroblob(300)));"));
    run.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

fn batch(mounted: &Mounted<'_>, number: u64, writers: usize) {
    let database = mounted.path(&format!("database{number}"));
    assert_eq!(
        asked(&database, "PRAGMA journal_mode=WAL; CREATE TABLE rows (number INTEGER, text TEXT);"),
        "wal"
    );
    let children: Vec<Child> = (0..writers).map(|number| writer(&database, number)).collect();
    for (number, child) in children.into_iter().enumerate() {
        let said = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&said.stderr);
        assert_eq!(said.status.signal(), None, "writer {number} ended by a signal: {text}");
        assert!(said.status.success(), "writer {number}: {}: {text}", said.status);
    }
    assert_eq!(asked(&database, "SELECT count(DISTINCT number) FROM rows;"), writers.to_string());
    assert_eq!(asked(&database, "PRAGMA integrity_check;"), "ok");
    for end in ["", "-wal", "-shm"] {
        let _gone_with_its_last_user = std::fs::remove_file(mounted.path(&format!("database{number}{end}")));
    }
}

#[test]
fn short_sqlite_writers_at_once_all_succeed_and_lose_nothing() {
    if Command::new("sqlite3").arg("--version").output().is_err() {
        eprintln!("SKIPPED, NOT TESTED: there is no sqlite3");
        return;
    }
    if !own_namespace() {
        return;
    }
    build_preload();
    let batches: Option<u64> = std::env::var("HEDDLE_SQLITE_BATCHES").ok().map(|n| n.parse().unwrap());
    let writers = if batches.is_some() { WRITERS } else { WRITERS_FEW };
    let place = Place::with_image_of("heddle", "128M");
    let mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
    (0..batches.unwrap_or(1)).for_each(|number| batch(&mounted, number, writers));
    println!("{} databases with {writers} writers each", batches.unwrap_or(1));
}
