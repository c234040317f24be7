//! SQLite in WAL mode: two processes write one database, a transaction a row; a crash of one of them in the middle.

use std::fmt::Write;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::test_dir::{TestDir, run_all_for_output, run_for_output, same};
use super::{App, Figure, Length, figure};

pub const APP: App = App {
    name: "sqlite",
    packages: &[("sqlite3", "sqlite3")],
    about: "WAL, 2 processes write one database, a transaction a row; integrity check, every row there, by the mount too",
    group: None,
    run,
};

const LIMIT: Duration = Duration::from_secs(300);
const WRITERS: u64 = 2;

fn run(test_dir: &TestDir, length: Length) -> Result<Vec<Figure>> {
    let rows = length.pick(300, 5_000);
    let make = "PRAGMA journal_mode=WAL; CREATE TABLE t(writer INTEGER, n INTEGER, payload TEXT, PRIMARY KEY(writer, n));";
    same("journal mode", sqlite(test_dir.command_as_placed("sqlite3"), make)?.as_str(), "wal\n")?;
    let began = Instant::now();
    run_all_for_output(
        (0..WRITERS).map(|writer| writer_of(test_dir, writer, rows)).collect::<Result<Vec<Command>>>()?,
        LIMIT,
    )?;
    let took = began.elapsed();
    // With and without the bypass; the second look also takes the log into the database.
    for mut command in [test_dir.command_as_placed("sqlite3"), test_dir.command_without_bypass("sqlite3")] {
        command.arg("-readonly");
        check(command, rows)?;
    }
    same(
        "checkpoint",
        sqlite(test_dir.command_without_bypass("sqlite3"), "PRAGMA wal_checkpoint(TRUNCATE);")?.as_str(),
        "0|0|0\n",
    )?;
    check(test_dir.command_without_bypass("sqlite3"), rows)?;
    let rate = (WRITERS * rows) as f64 / took.as_secs_f64();
    Ok(vec![figure("2 writers, WAL", "transactions/s", rate)])
}

/// A process that reads its statements from a file beside the place.
fn writer_of(test_dir: &TestDir, writer: u64, rows: u64) -> Result<Command> {
    let mut script = String::from(".timeout 60000\nPRAGMA synchronous=NORMAL;\n");
    for n in 0..rows {
        // 200 to 4200 characters that say whose they are.
        writeln!(
            script,
            "INSERT INTO t VALUES({writer}, {n}, printf('%.*c', {}, '{}') || {n});",
            200 + n * 7 % 4000,
            ["a", "b"][writer as usize % 2]
        )?;
    }
    let file = test_dir.path_outside(&format!("writer{writer}.sql"));
    fs::write(&file, script)?;
    let mut command = test_dir.command_as_placed("sqlite3");
    command.args(["-bail", "db"]).arg(format!(".read {}", file.display()));
    Ok(command)
}

fn check(mut command: Command, rows: u64) -> Result<()> {
    let found = run_for_output(
        command.args(["-bail", "db", "PRAGMA integrity_check; SELECT writer, count(*), sum(n), sum(length(payload)), \
            sum(payload = printf('%.*c', 200 + n * 7 % 4000, char(97 + writer)) || n) FROM t GROUP BY writer ORDER BY writer;"]),
        LIMIT,
    )
    .context("looking at the database")?;
    let digits = |n: u64| n.to_string().len() as u64;
    let bytes: u64 = (0..rows).map(|n| 200 + n * 7 % 4000 + digits(n)).sum();
    let expected: String = (0..WRITERS)
        .map(|writer| format!("{writer}|{rows}|{}|{bytes}|{rows}\n", rows * (rows - 1) / 2))
        .collect();
    same("the database", found, format!("ok\n{expected}"))
}

fn sqlite(mut command: Command, statements: &str) -> Result<String> {
    run_for_output(command.args(["-bail", "db", statements]), LIMIT)
}
