//! A virtual machine that boots Debian's kernel into a script.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::initramfs::Archive;
use crate::process;

/// What the guest needs of the kernel beyond its image; what these need is found.
const MODULES: [&str; 4] = ["virtio_pci", "virtio_blk", "crc32_generic", "f2fs"];
const LIMIT: Duration = Duration::from_secs(600);

/// A kernel and what it boots into.
pub struct Guest {
    kernel: PathBuf,
    modules: Vec<PathBuf>,
    busybox: PathBuf,
    program: PathBuf,
}

impl Guest {
    /// Fetches what is missing into `home`.
    ///
    /// # Errors
    /// No network, no package, a kernel without a module.
    pub fn new(home: &Path, program: &Path) -> Result<Guest> {
        let unpacked = home.join("unpacked");
        if !unpacked.join("whole").exists() {
            fetch(home, &unpacked)?;
        }
        let kernel =
            files(&unpacked.join("boot"))?.into_iter().find(|file| name_of(file).starts_with("vmlinuz"));
        let all = modules_below(&unpacked.join("lib/modules"))?;
        let mut modules = Vec::new();
        for name in MODULES {
            add_module(&all, name, &mut modules)?;
        }
        Ok(Guest {
            kernel: kernel.context("the kernel's package has no vmlinuz")?,
            modules,
            busybox: unpacked.join("bin/busybox"),
            program: program.into(),
        })
    }

    /// Boots it with the image as its only disk, mounted at /mnt, runs the script, and gives what it said.
    pub fn boot(&self, home: &Path, script: &str, image: &Path) -> Result<String> {
        let initramfs = home.join("initramfs");
        fs::write(&initramfs, self.initramfs(script)?)?;
        let said = home.join("console");
        let mut qemu = Command::new("qemu-system-x86_64");
        qemu.args(["-accel", "tcg", "-cpu", "max", "-m", "512", "-nographic", "-no-reboot", "-net", "none"]);
        qemu.arg("-kernel").arg(&self.kernel).arg("-initrd").arg(&initramfs);
        qemu.args(["-append", "console=ttyS0 panic=-1 quiet"]);
        qemu.arg("-drive").arg(format!("file={},if=virtio,format=raw,cache=unsafe", image.display()));
        qemu.stdin(Stdio::null()).stdout(fs::File::create(&said)?);
        process::run(&mut qemu, LIMIT).context("qemu-system-x86_64 (Debian: qemu-system-x86)")?;
        Ok(String::from_utf8_lossy(&fs::read(&said)?).into_owned())
    }

    fn initramfs(&self, script: &str) -> Result<Vec<u8>> {
        let mut archive = Archive::default();
        for dir in ["bin", "proc", "dev", "mnt", "modules"] {
            archive.dir(dir);
        }
        let read = |file: &Path| fs::read(file).with_context(|| format!("cannot read {}", file.display()));
        archive.program("bin/busybox", &read(&self.busybox)?);
        archive.link("bin/sh", "busybox");
        archive.program("guest", &read(&self.program)?);
        let mut load = String::new();
        for module in &self.modules {
            archive.program(&format!("modules/{}", name_of(module)), &read(module)?);
            load += &format!("insmod /modules/{}\n", name_of(module));
        }
        let init = format!(
            "#!/bin/sh\n/bin/busybox --install -s /bin\nexport PATH=/bin\nmount -t proc p /proc\nmount -t devtmpfs d /dev\n\
             {load}mount -t f2fs /dev/vda /mnt && {script}\npoweroff -f\n"
        );
        archive.program("init", init.as_bytes());
        Ok(archive.finish())
    }
}

/// The newest kernel of the distribution and a shell that needs no library.
fn fetch(home: &Path, unpacked: &Path) -> Result<()> {
    fs::create_dir_all(home)?;
    let kernel = newest_kernel()?;
    println!("fetching {kernel}");
    let mut apt = Command::new("apt-get");
    apt.args(["download", "--quiet", &kernel, "busybox-static"]).current_dir(home);
    process::run(apt.stdin(Stdio::null()), LIMIT)?;
    for package in files(home)?.into_iter().filter(|file| name_of(file).ends_with(".deb")) {
        process::run(Command::new("dpkg-deb").arg("-x").arg(&package).arg(unpacked), LIMIT)?;
        fs::remove_file(package)?;
    }
    // Said last: what was begun and not ended is fetched again.
    Ok(fs::write(unpacked.join("whole"), kernel)?)
}

/// What the distribution's own name for its newest kernel stands for.
fn newest_kernel() -> Result<String> {
    let asked = Command::new("apt-cache").args(["depends", "linux-image-amd64"]).output();
    let said = asked.context("apt-cache (this chore needs Debian's packages)")?.stdout;
    let said = String::from_utf8_lossy(&said).into_owned();
    let depends = said.lines().find_map(|line| line.trim().strip_prefix("Depends: ").map(str::to_owned));
    depends.context("there is no package linux-image-amd64: apt-get update may help")
}

fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}

fn name_of(file: &Path) -> String {
    file.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// All kernel modules below a directory.
fn modules_below(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for path in files(dir)? {
        if path.is_dir() && !path.is_symlink() {
            found.extend(modules_below(&path)?);
        } else if name_of(&path).ends_with(".ko") {
            found.push(path);
        }
    }
    Ok(found)
}

/// Adds a module after those that it needs.
fn add_module(all: &[PathBuf], name: &str, chosen: &mut Vec<PathBuf>) -> Result<()> {
    // File names have either of the two.
    let same = |file: &&PathBuf| name_of(file).replace('-', "_") == format!("{}.ko", name.replace('-', "_"));
    let Some(file) = all.iter().find(same) else { bail!("the kernel has no module {name}") };
    if chosen.contains(file) {
        return Ok(());
    }
    let needs = needs(&fs::read(file)?);
    ensure!(needs.len() < 100, "{name} needs {} modules", needs.len());
    for need in needs {
        add_module(all, &need, chosen)?;
    }
    chosen.push(file.clone());
    Ok(())
}

/// What a module says that it needs: `depends=a,b`, ended by a NUL.
fn needs(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|bytes| bytes == KEY) else { return Vec::new() };
    let list = module[at + KEY.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    let names = String::from_utf8_lossy(list).into_owned();
    names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_module_needs_is_read() {
        assert_eq!(needs(b"license=GPL\0depends=virtio_ring,virtio\0name=x\0"), ["virtio_ring", "virtio"]);
        assert_eq!(needs(b"x\0depends=\0name=x\0"), [""; 0]);
        assert_eq!(needs(b"nothing"), [""; 0]);
    }
}
