//! `cargo xtask test --target aarch64`: the tests on another processor, emulated.
//!
//! What emulation shows: that the code for the other processor builds, and does what its tests say, one instruction after the other. What
//! it cannot show: the order in which stores of one processor are seen by another, which is the emulating processor's. That is what loom's
//! models are for (docs/protocol.md).

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::process;
use crate::setup::install_packages;

struct Target {
    /// As it is asked for.
    name: &'static str,
    /// As Rust calls it.
    triple: &'static str,
    linker: &'static str,
    /// Debian's packages with the linker and the emulator.
    packages: [&'static str; 2],
    /// Debian's package with the standard library, for Debian's own compiler.
    std_package: &'static str,
    emulator: &'static str,
    /// Where the other processor's C library lies, and the processor that is emulated: one that announces nothing that the emulator does
    /// not have in user mode (`max` announces `dc cvap`, and dies of it).
    emulator_args: &'static str,
}

const TARGETS: [Target; 1] = [Target {
    name: "aarch64",
    triple: "aarch64-unknown-linux-gnu",
    linker: "aarch64-linux-gnu-gcc",
    packages: ["gcc-aarch64-linux-gnu", "qemu-user"],
    std_package: "libstd-rust-dev:arm64",
    emulator: "qemu-aarch64",
    emulator_args: "-L /usr/aarch64-linux-gnu -cpu cortex-a72",
}];

/// What knows of processors: the others are built on these.
const CRATES: [&str; 6] =
    ["heddle-pmem", "heddle-arena", "heddle-range-lock", "heddle-vfs", "heddle-signatures", "heddle-nvmfs"];

/// Emulated code takes some twenty times as long.
const LIMIT: Duration = Duration::from_secs(3 * 3600);

/// `cargo xtask test --target NAME [-- FILTER]`
pub fn chore(root: &Path, args: &[String]) -> Result<bool> {
    let known = || TARGETS.map(|target| target.name).join(", ");
    let Some((name, rest)) = args.split_first() else { bail!("--target: which one? There is {}", known()) };
    let Some(target) = TARGETS.iter().find(|target| target.name == name) else {
        bail!("--target {name}: there is {}", known());
    };
    let lacks = target.lacks(root);
    if !lacks.is_empty() {
        println!("not run: {}", lacks.join("; "));
        return Ok(false);
    }
    let mut command =
        process::cargo(root, &["test", "--quiet", "--no-fail-fast", "--lib", "--target", target.triple]);
    command
        .args(CRATES.iter().flat_map(|name| ["--package", name]))
        .arg("--")
        .args(crate::after_dashes(rest)?);
    let of_cargo =
        |what: &str| format!("CARGO_TARGET_{}_{what}", target.triple.to_uppercase().replace('-', "_"));
    command.env(of_cargo("LINKER"), target.linker);
    command.env(of_cargo("RUNNER"), format!("{} {}", target.emulator, target.emulator_args));
    process::run(&mut command, LIMIT).context(
        "some failures are the emulator's: CONTRIBUTING.md names what QEMU lacks as it runs a single program",
    )?;
    println!(
        "{name}: the tests pass under emulation; the order in which processors see each other's stores is not shown by that"
    );
    Ok(true)
}

impl Target {
    /// What is missing here, with the way to it; packages are installed first, where they can be.
    fn lacks(&self, root: &Path) -> Vec<String> {
        let absent = || [self.linker, self.emulator].map(|program| process::find_program(program).is_none());
        if absent() != [false, false] {
            install_packages(&self.packages);
        }
        let mut lacks = Vec::new();
        for ((program, package), is_absent) in
            [self.linker, self.emulator].into_iter().zip(self.packages).zip(absent())
        {
            if is_absent {
                lacks.push(format!("no {program} (install {package})"));
            }
        }
        if !has_std(root, self.triple) {
            lacks.push(format!(
                "no standard library for {0}, of the very release that cargo uses (rustup target add {0}; or Debian's cargo, rustc and \
                 {1}, first in PATH: CONTRIBUTING.md)",
                self.triple, self.std_package
            ));
        }
        lacks
    }
}

fn has_std(root: &Path, triple: &str) -> bool {
    let mut rustc = Command::new("rustc");
    rustc.current_dir(root).args(["--print", "target-libdir", "--target", triple]);
    let Ok(output) = rustc.output() else { return false };
    let folder = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let is_std = |entry: std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with("libstd-");
    std::fs::read_dir(folder).is_ok_and(|entries| entries.flatten().any(is_std))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standard_library_that_is_not_there_is_said() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert!(has_std(root, &format!("{}-unknown-linux-gnu", std::env::consts::ARCH)));
        assert!(!has_std(root, "riscv64gc-unknown-none-elf"));
        assert!(chore(root, &["sparc".to_owned()]).is_err() && chore(root, &[]).is_err());
    }
}
