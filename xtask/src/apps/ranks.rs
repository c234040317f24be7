//! A program of ours for MPI (`xtask/c/ranks.c`): N ranks write one file, as plain MPI-IO and as a data set of parallel HDF5; every
//! byte is read back by another rank than wrote it, and again without the bypass.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::test_dir::{TestDir, run_for_output};
use super::{App, Figure, Length, figure};

pub const MPI: App = App {
    name: "mpi",
    packages: &[("openmpi-bin", "mpirun"), ("libopenmpi-dev", "mpicc")],
    about: "4 ranks write stripes of one file; every byte is read by another rank, and again without the bypass",
    group: None,
    run: mpi,
};

pub const HDF5: App = App {
    name: "hdf5",
    packages: &[("openmpi-bin", "mpirun"), ("libhdf5-openmpi-dev", "h5pcc"), ("hdf5-tools", "h5dump")],
    about: "4 ranks write one data set of a parallel HDF5 file; every byte is read by another rank, the file's structure by h5dump",
    group: None,
    run: hdf5,
};

const LIMIT: Duration = Duration::from_secs(300);
const RANKS: &str = "4";

fn mpi(test_dir: &TestDir, length: Length) -> Result<Vec<Figure>> {
    // An odd length: neighbours share pages.
    run_ranks(test_dir, "mpicc", &[], "file", [length.pick("64", "2000"), "50001"], "MPI-IO, 4 ranks")
}

fn hdf5(test_dir: &TestDir, length: Length) -> Result<Vec<Figure>> {
    let stripes = length.pick("64", "2000");
    let figures =
        run_ranks(test_dir, "h5pcc", &["-DWITH_HDF5"], "file.h5", [stripes, "50001"], "HDF5, 4 ranks")?;
    let shape = run_for_output(test_dir.command_without_bypass("h5dump").args(["-H", "file.h5"]), LIMIT)?;
    anyhow::ensure!(shape.contains(&format!("( {stripes}, 50001 )")), "h5dump says: {shape}");
    Ok(figures)
}

fn run_ranks(
    test_dir: &TestDir,
    cc: &str,
    flags: &[&str],
    file: &str,
    shape: [&str; 2],
    what: &'static str,
) -> Result<Vec<Figure>> {
    let (program, source) = (test_dir.path_outside("ranks"), test_dir.path_outside("ranks.c"));
    std::fs::write(&source, include_str!("../../c/ranks.c"))?;
    run_for_output(
        test_dir
            .command_without_bypass(cc)
            .args(["-O2", "-Wall", "-o"])
            .arg(&program)
            .args(flags)
            .arg(&source),
        LIMIT,
    )?;
    let ranks = |mut command: Command, does: &str| {
        // There may be more ranks than cores, and root may run them. They communicate by shared memory alone.
        command.args([
            "--allow-run-as-root",
            "--oversubscribe",
            "-n",
            RANKS,
            "--mca",
            "btl",
            "self,vader",
            "--mca",
            "plm",
            "isolated",
        ]);
        run_for_output(command.arg(&program).arg(file).args(shape).arg(does), LIMIT)
    };
    let out = ranks(test_dir.command_as_placed("mpirun"), "write")?;
    ranks(test_dir.command_without_bypass("mpirun"), "check").context("again without the bypass")?;
    let word = |n: usize| out.split_whitespace().nth(n)?.parse::<f64>().ok();
    let (seconds, bytes) = word(1).zip(word(3)).with_context(|| format!("the ranks said: {out}"))?;
    Ok(vec![figure(what, "MB/s written", bytes / seconds / 1e6)])
}
