//! The system packages that tests and benchmarks use. None is needed to build; what is missing is said, loudly.
//!
//! Never asks a question, never fails for want of a network: a machine that cannot install skips what it lacks.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Result, bail};

use crate::process;
use crate::step::Outcome;

struct Tool {
    program: &'static str,
    package: &'static str,
    skipped_without: &'static str,
}

const QEMU: &str = if cfg!(target_arch = "aarch64") { "qemu-aarch64" } else { "qemu-x86_64" };

const TOOLS: &[Tool] = &[
    Tool { program: "fusermount3", package: "fuse3", skipped_without: "mounts by other users than root" },
    Tool { program: QEMU, package: "qemu-user", skipped_without: "cache-line transfers (coherence)" },
    Tool { program: "fio", package: "fio", skipped_without: "fio on mount and bypass" },
    Tool { program: "sqlite3", package: "sqlite3", skipped_without: "SQLite on mount and bypass" },
    Tool { program: "dbench", package: "dbench", skipped_without: "dbench on mount and bypass" },
    Tool { program: "bwrap", package: "bubblewrap", skipped_without: "processes in containers" },
    Tool { program: "mkfs.f2fs", package: "f2fs-tools", skipped_without: "reading F2FS images" },
    Tool { program: "mkfs.ext4", package: "e2fsprogs", skipped_without: "ext4 in benchmarks" },
    Tool { program: "mkfs.xfs", package: "xfsprogs", skipped_without: "xfs in benchmarks" },
    Tool { program: "mkfs.btrfs", package: "btrfs-progs", skipped_without: "btrfs in benchmarks" },
];

const LIMIT: Duration = Duration::from_secs(180);

/// `cargo xtask setup`
pub fn chore(root: &Path, args: &[String]) -> Result<bool> {
    if let Some(arg) = args.first() {
        bail!("{arg}: setup takes no argument");
    }
    if let Outcome::Skipped(reason) = install(root)? {
        println!("{reason}");
        return Ok(false);
    }
    println!("all there");
    Ok(true)
}

/// Installs what is missing where it can; what stays missing makes the outcome `Skipped`.
pub fn install(_root: &Path) -> Result<Outcome> {
    let missing = missing_tools();
    if !missing.is_empty() {
        install_packages(&missing.iter().map(|tool| tool.package).collect::<Vec<_>>());
    }
    let mut lacks: Vec<String> = missing_tools().iter().map(|tool| explain(tool)).collect();
    if !Path::new("/dev/fuse").exists() {
        lacks.push("no /dev/fuse (try: modprobe fuse): skipped without it: mounts".into());
    }
    if lacks.is_empty() { Ok(Outcome::Passed) } else { Ok(Outcome::Skipped(lacks.join("; "))) }
}

/// Installs those of the programs that are missing, where it can.
///
/// # Errors
/// Some are still missing; the text names each and its package.
pub fn need(programs: &[&str]) -> Result<()> {
    let missing = || lacking(programs, is_installed);
    let packages: Vec<_> = missing().iter().map(|tool| tool.package).collect();
    if !packages.is_empty() {
        install_packages(&packages);
    }
    let lacks: Vec<String> = missing().iter().map(|tool| explain(tool)).collect();
    if lacks.is_empty() { Ok(()) } else { bail!("{}", lacks.join("; ")) }
}

fn missing_tools() -> Vec<&'static Tool> {
    TOOLS.iter().filter(|tool| !is_installed(tool.program)).collect()
}

fn lacking(programs: &[&str], is_installed: impl Fn(&str) -> bool) -> Vec<&'static Tool> {
    TOOLS.iter().filter(|tool| programs.contains(&tool.program) && !is_installed(tool.program)).collect()
}

fn is_installed(program: &str) -> bool {
    process::find_program(program).is_some()
}

fn explain(tool: &Tool) -> String {
    let Tool { program, package, skipped_without } = tool;
    format!("no {program} (install {package}): skipped without it: {skipped_without}")
}

/// Installs packages where that is possible: root, apt-get, a network.
pub fn install_packages(packages: &[&str]) {
    if !can_install() {
        return;
    }
    println!("installing {}", packages.join(", "));
    let failed = |error: anyhow::Error| println!("{error:#}");
    // One at a time: a package that this Debian lacks must not keep the others out.
    apt_get(&["update"]).unwrap_or_else(failed);
    for package in packages {
        apt_get(&["install", "--no-install-recommends", package]).unwrap_or_else(failed);
    }
}

fn can_install() -> bool {
    process::is_root() && process::find_program("apt-get").is_some()
}

fn apt_get(args: &[&str]) -> Result<()> {
    let mut command = Command::new("apt-get");
    command.args([
        "-qq",
        "--yes",
        "-o",
        "Dpkg::Use-Pty=0",
        "-o",
        "DPkg::Lock::Timeout=60",
        "-o",
        "Acquire::Retries=1",
    ]);
    command.args(["-o", "Acquire::http::Timeout=20", "-o", "Acquire::https::Timeout=20"]);
    command.args(args).env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
    process::run(&mut command, LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        let lacks = lacking(&["mkfs.xfs", "mkfs.ext4"], |program| program == "mkfs.ext4");
        assert_eq!(lacks.len(), 1);
        assert_eq!(
            explain(lacks[0]),
            "no mkfs.xfs (install xfsprogs): skipped without it: xfs in benchmarks"
        );
        assert!(need(&[]).is_ok());
    }
}
