//! Targets `NAME+mount`: an image in memory, served through FUSE and used by forked processes like any
//! directory. `heddle+bypass`: the same with the bypass preloaded; a new process of this program makes each
//! run, and must report that calls were served.
//!
//! One image serves all runs of its target, sized for the largest of them; each run works in its own
//! directory.

use crate::engines::{self, Setup};
use anyhow::{Context, Result, anyhow, bail, ensure};
use heddle_console::namespace;
use heddle_console::preload::library;
use heddle_console::scratch::Scratch;
use heddle_console::variant::System;
use heddle_f2fs::F2fs;
use heddle_fuse::{MountOptions, Mounted};
use heddle_fxmark::{Need, Run, Target, Workload};
use heddle_nvmfs::server::{Server, ServerOptions};
use heddle_nvmfs::{Variant, Volume, format_region, mount};
use heddle_pmem::{OpenOptions, Region};
use heddle_vfs::FileSystem;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// The kind of a target that needs a mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// `NAME+mount`.
    Mount(System),
    /// `heddle+bypass`.
    Bypass,
}

/// The kind of the target of this name, if it needs a mount.
pub fn way_of(target: &str) -> Option<Way> {
    match target.split_once('+')? {
        (name, "mount") => System::from_name(name).map(Way::Mount),
        (name, "bypass") => Variant::from_name(name).filter(|v| *v == Variant::Heddle).map(|_| Way::Bypass),
        _ => None,
    }
}

/// The mounted image.
enum Image {
    Nvm(Volume),
    F2fs(Arc<F2fs>),
}

/// All mounts of a benchmark. Dropping it unmounts them, and then removes the directory.
pub struct Mounts {
    mounts: Vec<(Mounted, Image, Option<Server>)>,
    scratch: Scratch,
}

impl Mounts {
    /// Call it from the thread that runs the benchmark: the mounts are private to that thread.
    pub fn new() -> Result<Mounts> {
        namespace::enter()
            .map_err(|why| anyhow!("targets NAME+mount and heddle+bypass cannot be mounted: {why}"))?;
        Ok(Mounts { mounts: Vec::new(), scratch: Scratch::new()? })
    }

    /// Makes and mounts a fresh image.
    pub fn add(&mut self, system: System, setup: Setup, need: &Need) -> Result<Target> {
        let label = format!("{}+mount", system.name());
        let image = match system {
            System::Nvm(variant) => Image::Nvm(engines::fresh(variant, setup, engines::image_bytes(need))?),
            System::F2fs(variant) => Image::F2fs(engines::fresh_f2fs(variant, setup.durability, need)?),
        };
        let path = self.serve(&label, image, None, MountOptions::default())?;
        Ok(Target::Directory { label, path })
    }

    /// Makes and mounts a fresh image to which programs with the bypass attach. `args`: the options of each
    /// run.
    pub fn add_bypass(&mut self, args: Vec<OsString>, setup: Setup, need: &Need) -> Result<Target> {
        let name = "heddle+bypass".to_owned();
        let preload = library()?;
        let image = self.scratch.dir().join("bypass.img");
        let how = OpenOptions { durability: Some(setup.durability), ..OpenOptions::default() };
        let region = Region::create(&image, engines::image_bytes(need), &how)?;
        format_region(&region, Variant::Heddle)?;
        let volume = mount(region, &heddle_nvmfs::MountOptions::default())?;
        let server = Server::start(&volume, &ServerOptions::default())?;
        let how = MountOptions {
            source: image,
            attach_ioctl: Some(server.attach_ioctl()),
            ..MountOptions::default()
        };
        let path = self.serve(&name, Image::Nvm(volume), Some(server), how)?;
        let program = Bypassed { preload, path, report: self.scratch.dir().join("report"), args };
        let run = move |workload, workers| program.run(workload, workers).map_err(|e| format!("{e:#}"));
        Ok(Target::Elsewhere { name, run: Arc::new(run) })
    }

    fn serve(
        &mut self,
        label: &str,
        image: Image,
        server: Option<Server>,
        how: MountOptions,
    ) -> Result<PathBuf> {
        let path = self.scratch.dir().join(label);
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let fs: Arc<dyn FileSystem> = match &image {
            Image::Nvm(volume) => Arc::new(volume.fs()),
            Image::F2fs(fs) => Arc::clone(fs) as Arc<dyn FileSystem>,
        };
        let mounted = heddle_fuse::mount(fs, &path, &how)?;
        self.scratch.detach_at_end(mounted.unmounter());
        self.mounts.push((mounted, image, server));
        Ok(path)
    }
}

/// The parameters of runs under the bypass.
struct Bypassed {
    preload: PathBuf,
    path: PathBuf,
    report: PathBuf,
    args: Vec<OsString>,
}

impl Bypassed {
    fn run(&self, workload: Workload, workers: usize) -> Result<Run> {
        let _gone = fs::remove_file(&self.report);
        let mut target = OsString::from("bypassed=");
        target.push(&self.path);
        let mut program = Command::new("/proc/self/exe");
        program.args(["fxmark", &workload.to_string(), "--cores", &workers.to_string(), "--repeat", "1"]);
        program.args(["--retakes", "0", "--json", "-", "--target"]).arg(target).args(&self.args);
        program.env("LD_PRELOAD", &self.preload);
        // As in process: all pages are mapped before the clock starts.
        program.env("HEDDLE_PREFAULT", "1");
        let said = program.env("HEDDLE_REPORT", &self.report).output().context("cannot start it")?;
        let Ok(mut report) = serde_json::from_slice::<serde_json::Value>(&said.stdout) else {
            bail!("it gave no result: {}", String::from_utf8_lossy(&said.stderr).trim());
        };
        let run: Run = serde_json::from_value(report["runs"][0].take()).context("it gave no result")?;
        if run.error.is_none() && is_of_data(workload) {
            let served = served(&self.report)?;
            ensure!(served >= run.ops, "the bypass served {served} of {} calls", run.ops);
        }
        Ok(run)
    }
}

/// Returns true if each operation reads or writes an open file at least once.
fn is_of_data(workload: Workload) -> bool {
    let name = workload.to_string();
    name.starts_with('D') || name.starts_with("MIX") || workload.is_application()
}

/// Data calls of all processes that the engine served.
fn served(report: &Path) -> Result<u64> {
    let lines = fs::read_to_string(report).context("the bypass gave no report: it was not loaded")?;
    let mut served = 0;
    for line in lines.lines() {
        let line: serde_json::Value = serde_json::from_str(line).context("the report of the bypass")?;
        served += ["read", "write", "resize"].iter().filter_map(|what| line[what].as_u64()).sum::<u64>();
    }
    Ok(served)
}

impl Drop for Mounts {
    fn drop(&mut self) {
        for (mounted, image, server) in self.mounts.drain(..) {
            // Unmounts. Returns when the engine is not in use any more.
            drop(mounted);
            drop(server);
            match image {
                Image::Nvm(volume) => volume.unmount(),
                // The results are complete, and the image is not needed any more.
                Image::F2fs(fs) => drop(fs),
            }
        }
    }
}
