//! RocksDB's own benchmark: values written, overwritten and compacted, with checksums verified; read back by another process.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::test_dir::{TestDir, run_for_output};
use super::{App, Figure, Length, figure};

pub const APP: App = App {
    name: "rocksdb",
    packages: &[("rocksdb-tools", "db_bench")],
    about: "db_bench: fill in random order, overwrite, read, compact; every block's checksum, every key by another process",
    group: None,
    run,
};

const LIMIT: Duration = Duration::from_secs(300);

fn run(test_dir: &TestDir, length: Length) -> Result<Vec<Figure>> {
    let keys: u64 = length.pick(20_000, 300_000);
    let bench = |mut command: Command, what: &str, fresh: bool| {
        command.args([
            "--db=db",
            "--threads=1",
            "--value_size=400",
            "--seed=7",
            "--compression_type=none",
            "--verify_checksum=1",
        ]);
        command.args([
            &format!("--num={keys}"),
            &format!("--benchmarks={what}"),
            &format!("--use_existing_db={}", u8::from(!fresh)),
        ]);
        command.args(["--write_buffer_size=4194304", "--sync=0", "--paranoid_checks=1"]);
        run_for_output(&mut command, LIMIT)
    };
    let out = bench(test_dir.command_as_placed("db_bench"), "fillrandom,overwrite,readrandom", true)?;
    let rates = [
        ("fillrandom", "fill in random order"),
        ("overwrite", "overwrite"),
        ("readrandom", "read at random"),
    ];
    let figures = rates
        .iter()
        .map(|(name, what)| Ok(figure(what, "k calls/s", rate(&out, name)? / 1e3)))
        .collect::<Result<Vec<_>>>()?;
    // Every key was put in by fillseq: all of them are found, by a process without the bypass too.
    bench(test_dir.command_as_placed("db_bench"), "fillseq", true)?;
    bench(test_dir.command_as_placed("db_bench"), "overwrite,compact", false)?;
    for command in [test_dir.command_as_placed("db_bench"), test_dir.command_without_bypass("db_bench")] {
        let out = bench(command, "readrandom,readseq,verifychecksum", false)?;
        let all = format!("({keys} of {keys} found)");
        ensure!(out.contains(&all), "not every key was found again: {out}");
    }
    Ok(figures)
}

/// `NAME : … micros/op RATE ops/sec …`
fn rate(out: &str, name: &str) -> Result<f64> {
    let line = out
        .lines()
        .find(|line| line.starts_with(name))
        .with_context(|| format!("db_bench did no {name}: {out}"))?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "ops/sec;" || *word == "ops/sec").context("a rate")?;
    words[at - 1].parse().with_context(|| format!("a rate in: {line}"))
}
