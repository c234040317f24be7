//! Every chore of the project behind one word: `cargo xtask help`.
//!
//! A chore is a row of [`CHORES`]; the steps of the test command are rows of a table in `test.rs`, the floors rows of
//! one in `floors/table.rs`, the style rules functions in `tidy/`.

mod apps;
mod bench;
mod breaches;
mod bypass_diff;
mod coherence;
mod crash;
mod cross;
mod docs;
mod durability;
mod f2fs_damage;
mod floors;
mod fsck_lies;
mod full;
mod fuzz;
mod hostile;
mod kill_loop;
mod linux_f2fs;
mod loom;
mod mapped;
mod mutants;
mod pjdfstest;
mod process;
mod processes;
mod sandbox;
mod setup;
mod shuttle;
mod soak;
mod sqlite;
mod step;
mod test;
mod test_binaries;
mod tidy;
mod torn;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

/// One word after `cargo xtask`. `run` gets the workspace's root and the arguments; true is success.
struct Chore {
    name: &'static str,
    usage: &'static str,
    about: &'static str,
    run: fn(&Path, &[String]) -> Result<bool>,
}

const CHORES: &[Chore] = &[
    Chore {
        name: "test",
        usage: "[STEP…] | --target aarch64 [-- FILTER]",
        about: "set up, then check everything (under 15 minutes), or these steps; --target: on another processor, emulated",
        run: test::chore,
    },
    Chore { name: "tidy", usage: "", about: "the style rules, as a test", run: tidy::chore },
    Chore {
        name: "setup",
        usage: "",
        about: "install what the tests need (Debian, as root)",
        run: setup::chore,
    },
    Chore {
        name: "loom",
        usage: "[-- FILTER]",
        about: "the lock and cell models under loom",
        run: loom::chore,
    },
    Chore {
        name: "shuttle",
        usage: "[--seeds N]",
        about: "several threads over the whole engine; what the calls return has an order",
        run: shuttle::chore,
    },
    Chore {
        name: "soak",
        usage: "[--minutes N] [--threads N] [--variant V|all] [--durability process|power]",
        about: "mixed work on a nearly full image, remounted and checked every minute (20 minutes, 8 threads)",
        run: soak::chore,
    },
    Chore {
        name: "fsck-lies",
        usage: "[--values N]",
        about: "planted damage in every field of every structure: fsck finds it, or it harms nobody else",
        run: fsck_lies::chore,
    },
    Chore {
        name: "torn",
        usage: "[--processes] [--reads N] [--durability process|power]",
        about: "are overlapping reads torn? 1e6 reads a shape and variant, 1e5 of the largest; --processes: mount and bypass",
        run: torn::chore,
    },
    Chore {
        name: "mapped",
        usage: "[--rounds N]",
        about: "stores of mappings and calls of two processes on the same pages lose nothing: 500 files a mixture (root)",
        run: mapped::chore,
    },
    Chore {
        name: "sqlite",
        usage: "[--batches N]",
        about: "150 short SQLite writers at once under the bypass lose nothing: 40 databases (root)",
        run: sqlite::chore,
    },
    Chore {
        name: "bypass-diff",
        usage: "[--minutes N] [--seed S] [--durability process|power] | --planted",
        about: "random programs find the same with the bypass as on tmpfs (30 minutes, root); --planted: do they see?",
        run: bypass_diff::chore,
    },
    Chore {
        name: "scribble",
        usage: "[--seconds N] [--seed N]",
        about: "memory that clients share is overwritten, in turns and at random: nobody crashes or hangs (an hour, root)",
        run: hostile::scribble,
    },
    Chore {
        name: "cli-fuzz",
        usage: "[--say]",
        about: "every command with wrong operands of many kinds ends with words and leaves nothing behind (root)",
        run: hostile::cli_fuzz,
    },
    Chore {
        name: "apps",
        usage: "[NAME…] [--short] …",
        about: "real programs on mount and bypass, beside tmpfs and ext4, their content checked (root)",
        run: apps::chore,
    },
    Chore {
        name: "pjdfstest",
        usage: "[PATTERN…]",
        about: "the POSIX tests of pjdfstest on tmpfs, mount and bypass (root)",
        run: pjdfstest::chore,
    },
    Chore {
        name: "survive",
        usage: "[--kills N] [--seed N] [--durability process|power]",
        about: "a process is killed between two instructions of a call, 2,000 times at random, and often its settler too",
        run: kill_loop::survive,
    },
    Chore {
        name: "kill-loop",
        usage: "[--rounds N] [--who client|daemon|stop] [--durability process|power]",
        about: "attached processes, or the daemon, killed at random, or stopped: 500 times each",
        run: kill_loop::chore,
    },
    Chore {
        name: "processes",
        usage: "[--minutes N] [--seed S]",
        about: "trees of processes in namespaces and containers, killed, stopped and frozen at random: an hour (root)",
        run: processes::chore,
    },
    Chore {
        name: "crash",
        usage: "[--length N] [--mixed] [--threads] [--faults] [--planted] …",
        about: "power cuts at every fence of all short sequences, every variant; --planted: does the rig see?",
        run: crash::chore,
    },
    Chore {
        name: "breaches",
        usage: "[NAME…]",
        about: "does the test that a row of SEMANTICS.md names see that row's promise broken? (some minutes)",
        run: breaches::chore,
    },
    Chore {
        name: "fuzz",
        usage: "[TARGET…] [--seconds N] [--seed N] [--inputs N] [--replay FILE…]",
        about: "hostile images, texts and requests, guided by what they reach (a minute of processor time a target)",
        run: fuzz::chore,
    },
    Chore {
        name: "linux-f2fs",
        usage: "[--pack]",
        about: "Linux writes F2FS images in a virtual machine, the flash engine reads them (needs qemu-system-x86, a network)",
        run: linux_f2fs::chore,
    },
    Chore {
        name: "full",
        usage: "[--seconds N] [--seed N] [--variant V|f2fs]",
        about: "random calls, kills and power cuts (F2FS: remounts) on images 90 to 100 % full, beside the model (an hour)",
        run: full::chore,
    },
    Chore {
        name: "f2fs-damage",
        usage: "[--seconds N] [--seed N]",
        about: "fields of F2FS images set to what they never are: clear errors, and no other file loses a byte (an hour)",
        run: f2fs_damage::chore,
    },
    Chore {
        name: "mutants",
        usage: "[CRATE…] [--sample N] [--seed S] [--changed SINCE] [--json FILE]",
        about: "single operators and returns changed by machine: which change does no test notice? (needs cargo-mutants)",
        run: mutants::chore,
    },
    Chore {
        name: "floors",
        usage: "[WORKLOAD…] [--repeats N] [--secs S] [--json FILE] [--markdown FILE]",
        about: "the figures to reach, beside the kernel's file systems (root, idle machine; --help says how long)",
        run: floors::chore,
    },
    Chore {
        name: "coherence",
        usage: "[WORKLOAD…] [--target T,…] [--workers N,…] [--json FILE|-] [--svg FILE]",
        about: "cache-line transfers an operation, with 2 to 64 workers, under QEMU (needs qemu-user)",
        run: coherence::chore,
    },
    Chore { name: "bench", usage: "[-- FILTER]", about: "the micro-benchmarks", run: bench::chore },
    Chore {
        name: "docs",
        usage: "[--short]",
        about: "API documentation and pages: their files, tests, options and figures are there, commands of most blocks run (root)",
        run: docs::chore,
    },
    Chore { name: "help", usage: "", about: "this list", run: help },
];

/// Chores whose `--help` says more than their row.
const EXPLAIN_THEMSELVES: [&str; 3] = ["crash", "floors", "mutants"];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &[String]) -> Result<bool> {
    let (name, rest) = match args.split_first() {
        Some((name, rest)) => (name.as_str(), rest),
        None => ("help", args),
    };
    let Some(chore) = CHORES.iter().find(|chore| chore.name == name) else {
        bail!("no chore is called {name}; the list: cargo xtask help");
    };
    let asked = rest.iter().take_while(|arg| *arg != "--").any(|arg| arg == "--help" || arg == "-h");
    if asked && !EXPLAIN_THEMSELVES.contains(&chore.name) {
        println!("usage: cargo xtask {} {}\n{}", chore.name, chore.usage, chore.about);
        return Ok(true);
    }
    (chore.run)(&workspace_root()?, rest)
}

/// Names and usages.
fn chores() -> Vec<(&'static str, &'static str)> {
    CHORES.iter().map(|chore| (chore.name, chore.usage)).collect()
}

fn help(_root: &Path, _args: &[String]) -> Result<bool> {
    println!("cargo xtask CHORE");
    for chore in CHORES {
        println!("  {:<22} {}", format!("{} {}", chore.name, chore.usage), chore.about);
    }
    Ok(true)
}

/// Cargo tells a running package where its manifest is; the root is the folder above.
fn workspace_root() -> Result<PathBuf> {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").context("run it as: cargo xtask CHORE")?;
    let root = Path::new(&manifest).parent().context("xtask has no parent folder")?;
    Ok(root.to_path_buf())
}

/// The arguments of a chore that takes no option of its own, only what follows `--`.
fn after_dashes(args: &[String]) -> Result<&[String]> {
    match args.split_first() {
        None => Ok(args),
        Some((dashes, rest)) if dashes == "--" => Ok(rest),
        Some((other, _)) => bail!("{other}: unknown argument; a filter goes after --"),
    }
}

#[cfg(test)]
mod tests {
    use super::run;

    #[test]
    fn help_of_a_chore_is_no_error() {
        for chore in ["tidy", "sqlite", "docs", "breaches"] {
            let asked = [chore.to_string(), "--help".to_string()];
            assert!(run(&asked).unwrap(), "{chore}");
        }
        let filter = ["tidy".to_string(), "--".to_string(), "--help".to_string()];
        assert!(run(&filter).is_err(), "what follows -- is no option of the chore");
    }
}
