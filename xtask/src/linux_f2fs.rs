//! Linux itself writes F2FS images, in a virtual machine, and the flash engine reads them; and the other way round.
//!
//! mkfs.f2fs makes an image; a guest (`guest.rs`: Debian's kernel under QEMU without acceleration, a tree of a few
//! files in memory) mounts it and runs `crates/f2fs/tests/guest/guest.c`; the test `crates/f2fs/tests/linux.rs` says
//! what must be there then. Two images: one is unmounted, the other's guest is reset after an fsync. The test command
//! reads packed copies of such images, which `--pack` renews. Then the engine writes images, a guest copies what it finds on them, and the
//! engine looks at both (`crates/f2fs/tests/for_linux.rs`).

mod guest;
mod initramfs;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::{process, setup};
use guest::Guest;

/// Of an image: room for what the guest writes, and quick to pack.
const IMAGE_BYTES: u64 = 96 << 20;
const LIMIT: Duration = Duration::from_secs(600);
/// Said to the test.
const IMAGES: &str = "HEDDLE_LINUX_IMAGES";
/// Packed images, in the repository.
const PACKED: &str = "crates/f2fs/tests/images";
/// What the guest says when all has gone well.
const DONE: &str = "GUEST DONE";

/// An image, what mkfs.f2fs is told for it, and what its guest does.
struct Kind {
    name: &'static str,
    mkfs: &'static [&'static str],
    script: &'static str,
}

const KINDS: [Kind; 3] = [
    Kind { name: "plain", mkfs: &[], script: "/guest files && umount /mnt" },
    Kind {
        name: "phone",
        mkfs: &[
            "-O",
            "extra_attr,inode_checksum,inode_crtime,flexible_inline_xattr,sb_checksum,project_quota,quota",
        ],
        script: "/guest files && umount /mnt",
    },
    // The reset comes before anything is written that is not written already.
    Kind {
        name: "reset",
        mkfs: &[],
        script: "/guest files && sync && /guest fsync && echo b > /proc/sysrq-trigger",
    },
];

/// Where the engine puts images for Linux.
const FOR_LINUX: &str = "HEDDLE_FOR_LINUX";
const COPY: &str = "cp -a /mnt/tree /mnt/copy && umount /mnt && echo GUEST DONE";
const PHONE: &[&str] = &["-O", "extra_attr,inode_checksum,inode_crtime,flexible_inline_xattr,sb_checksum"];
const FOR_LINUX_KINDS: [Kind; 5] = [
    Kind { name: "for-linux", mkfs: &[], script: COPY },
    Kind { name: "for-linux-phone", mkfs: PHONE, script: COPY },
    Kind { name: "for-linux-fsynced", mkfs: &[], script: COPY },
    Kind { name: "for-linux-fsynced-phone", mkfs: PHONE, script: COPY },
    // The test makes it anew, and has it fsynced too.
    Kind { name: "for-linux-fsynced-ours", mkfs: &[], script: COPY },
];

/// `cargo xtask linux-f2fs [--pack]`
pub fn chore(root: &Path, args: &[String]) -> Result<bool> {
    let pack = match args {
        [] => false,
        [one] if one == "--pack" => true,
        _ => bail!("usage: cargo xtask linux-f2fs [--pack]"),
    };
    setup::install_packages(&["qemu-system-x86", "f2fs-tools", "libc6-dev"]);
    let home = process::target_dir(root).join("linux-f2fs");
    fs::create_dir_all(&home).with_context(|| format!("cannot make {}", home.display()))?;
    let program = compiled(root, &home)?;
    let guest = Guest::new(&process::target_dir(root).join("tools/linux"), &program)?;
    for kind in &KINDS {
        let image = image(&home, kind)?;
        println!("{}: Linux writes it", image.display());
        let said = guest.boot(&home, kind.script, &image)?;
        ensure!(
            said.contains(DONE) && !said.contains("GUEST FAILED"),
            "the guest did not get through:\n{said}"
        );
        if pack {
            packed(&image, &root.join(PACKED))?;
        }
    }
    let mut test = process::cargo(
        root,
        &["test", "--release", "-p", "heddle-f2fs", "--test", "linux", "--", "--nocapture"],
    );
    process::run(test.env(IMAGES, &home), LIMIT)?;
    read_by_linux(root, &home, &guest)?;
    Ok(true)
}

/// The engine writes, Linux copies, the engine compares.
fn read_by_linux(root: &Path, home: &Path, guest: &Guest) -> Result<()> {
    let half = |test: &str| {
        let mut cargo =
            process::cargo(root, &["test", "--release", "-p", "heddle-f2fs", "--test", "for_linux", test]);
        cargo.args(["--", "--ignored", "--nocapture"]).env(FOR_LINUX, home);
        process::run(&mut cargo, LIMIT)
    };
    let images = FOR_LINUX_KINDS.iter().map(|kind| image(home, kind)).collect::<Result<Vec<_>>>()?;
    half("a_tree_is_written_for_linux")?;
    for (image, kind) in images.iter().zip(&FOR_LINUX_KINDS) {
        println!("{}: Linux reads it", image.display());
        let said = guest.boot(home, kind.script, image)?;
        ensure!(said.contains(DONE), "the guest did not get through:\n{said}");
    }
    half("what_linux_copied_is_what_was_written")
}

/// The guest's program, which needs no library.
fn compiled(root: &Path, home: &Path) -> Result<PathBuf> {
    let program = home.join("guest");
    let mut compiler = Command::new("cc");
    compiler.args(["-static", "-O1", "-Wall", "-Werror", "-o"]).arg(&program);
    process::run(compiler.arg(root.join("crates/f2fs/tests/guest/guest.c")), LIMIT)?;
    Ok(program)
}

fn image(home: &Path, kind: &Kind) -> Result<PathBuf> {
    let image = home.join(kind.name);
    let file = File::create(&image).with_context(|| format!("cannot make {}", image.display()))?;
    file.set_len(IMAGE_BYTES)?;
    let mkfs = process::find_program("mkfs.f2fs")
        .context("mkfs.f2fs is not installed: apt-get install f2fs-tools")?;
    process::run(Command::new(mkfs).arg("-q").args(kind.mkfs).arg(&image).stdout(Stdio::null()), LIMIT)?;
    Ok(image)
}

/// As `NAME.gz`.
fn packed(image: &Path, into: &Path) -> Result<()> {
    fs::create_dir_all(into)?;
    let name = image.file_name().unwrap_or_default().to_string_lossy().into_owned() + ".gz";
    let to = into.join(name);
    let out = File::create(&to).with_context(|| format!("cannot write {}", to.display()))?;
    process::run(Command::new("gzip").args(["-9", "-n", "-c"]).arg(image).stdout(out), LIMIT)?;
    println!("{}: {} KiB", to.display(), to.metadata()?.len() / 1024);
    Ok(())
}
