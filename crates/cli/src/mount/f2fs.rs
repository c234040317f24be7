//! An F2FS image, opened for reading and writing, or only for reading. An image that is opened only for
//! reading is recovered in memory, and nothing is written to it. No other process attaches to it.

use super::options::Options;
use super::serving::{End, OpenImage};
use super::{Args, covers, limits, metrics, node_log, wait_until_free};
use crate::counters::counted::Counted;
use crate::unmount_report::UnmountReport;
use anyhow::{Context, Result, bail};
use heddle_console::failure::usage;
use heddle_console::output::talk;
use heddle_console::size::Size;
use heddle_console::variant::System;
use heddle_f2fs::{F2fs, Variant};
use heddle_nvmfs::counters::Counters;
use heddle_nvmfs::server::{Server, ServerOptions};
use heddle_vfs::FileSystem;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A change is durable after this time even without fsync; in Linux after a minute.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(30);

/// An opened F2FS image.
pub struct F2fsImage {
    /// Its path, for messages.
    name: String,
    fs: Arc<F2fs>,
    counted: Arc<Counted>,
    /// The uncleaned segments that were reported.
    told_uncleaned: Arc<Mutex<BTreeSet<u32>>>,
}

/// Opens the image with `options`, and reports what was recovered.
pub fn open(args: &Args, options: &Options) -> Result<F2fsImage> {
    let name = args.image.display().to_string();
    let variant = variant_of(&name, options)?;
    options.refuse_what_is_not_for(&args.image, System::F2fs(variant))?;
    if options.durability.is_some() && !variant.has_node_log() {
        return Err(usage(format!(
            "-o durability: {name} is an F2FS image without a node log, where an fsync says what survives. The option is for NVM images, \
             and for the memory of a node log"
        )));
    }
    if options.durability.is_some() && options.read_only {
        return Err(usage(format!(
            "-o durability: a mount of {name} that is read-only writes no node log. Leave out ro, or leave out durability"
        )));
    }
    limit_of_files(&args.image)?;
    wait_until_free(&args.image, options);
    if let Some(nvm) = &options.nvm {
        wait_until_free(nvm, options);
    }
    if let Some(nvm) = &options.nvm {
        refuse_hidden(nvm, &args.dir)?;
    }
    let own;
    let options = if !options.read_only && heddle_f2fs::is_write_protected(&args.image) {
        let without = if options.nvm.is_some() { ", without its node log" } else { "" };
        talk(&format!("{name}: is write-protected, and mounted read-only{without}"));
        own = Options { read_only: true, nvm: None, ..options.clone() };
        &own
    } else {
        options
    };
    if let (Some(place), true) = (&options.metrics, options.force_nvm || options.discard_nvm) {
        metrics::check(place, options.metrics_group)?;
    }
    let fs = open_as(args, options, variant)?;
    fs.set_sync(options.sync, options.dirsync);
    if let Some(discards) = options.discard {
        fs.set_discards(discards);
    }
    tell(&name, &fs, options);
    let fs = Arc::new(fs);
    let engine = Arc::clone(&fs);
    let counted = Arc::new(Counted::new(Arc::clone(&fs) as _, move || engine.has_failed()));
    Ok(F2fsImage { name, fs, counted, told_uncleaned: Arc::default() })
}

fn variant_of(name: &str, options: &Options) -> Result<Variant> {
    match options.variant {
        None => Ok(Variant::default()),
        Some(System::F2fs(variant)) => Ok(variant),
        Some(System::Nvm(variant)) => Err(usage(format!(
            "{name} is an F2FS image, and {} mounts none: mount it as {}",
            variant.name(),
            Variant::ALL.map(Variant::name).join(", ")
        ))),
    }
}

/// Reports the image, and what was and was not recovered.
fn tell(name: &str, fs: &F2fs, options: &Options) {
    let info = fs.info();
    talk(&format!("{name}: F2FS, checkpoint {}; inodes: {}", info.checkpoint_version, info.inodes));
    if let Some(what) = &info.contradiction {
        talk(&format!(
            "{name}: is damaged, and served to copy files from: {what}. What df shows is wrong. Repair it with: heddle fsck -y {name}"
        ));
    }
    if info.fsynced_inodes > 0 {
        talk(&format!(
            "{name}: was not unmounted; the fsyncs of {} files after its last checkpoint, or log checkpoint, are shown too",
            info.fsynced_inodes
        ));
    }
    for (nid, why) in fs.orphans_left() {
        talk(&format!(
            "{name}: inode {nid}, which has no name, keeps its space: {why}. fsck.f2fs can free it"
        ));
    }
    if info.is_half_repaired {
        talk(&format!(
            "{name}: is half repaired: files may lack in it that its undo file has. Unmount it, and see: heddle fsck {name}"
        ));
    }
    if options.read_only && info.is_logged {
        talk(&format!(
            "{name}: later fsyncs may be only in its node log, which is not shown: mount it with the log, without ro"
        ));
    }
}

impl OpenImage for F2fsImage {
    fn file_system(&self) -> Arc<dyn FileSystem> {
        Arc::clone(&self.counted) as _
    }

    fn counters(&self) -> impl Fn() -> Counters + Send + 'static {
        let counted = Arc::clone(&self.counted);
        move || counted.reading()
    }

    fn open_attach_socket(&self, args: &Args, options: &Options) -> Option<Server> {
        let why = "it is an F2FS image, to which no process attaches. Use the mount";
        let how = ServerOptions { group: options.attach_group, ..ServerOptions::default() };
        Server::start_for_counters(self.counters(), &args.image, why, &how)
            .map_err(|error| {
                talk(&format!("heddle: no process can read the statistics of this mount: {error}"))
            })
            .ok()
    }

    /// Makes a checkpoint at intervals. An error stays: every later change fails with it.
    fn upkeep(&self) -> Option<(Duration, Box<dyn FnMut() + Send>)> {
        let (fs, name) = (Arc::clone(&self.fs), self.name.clone());
        let (mut failed, told) = (false, Arc::clone(&self.told_uncleaned));
        let checkpoint = move || {
            if let Err(error) = fs.checkpoint_if_changed()
                && !std::mem::replace(&mut failed, true)
            {
                talk(&format!("{name}: {error}"));
            }
            tell_uncleaned(&name, &fs, &told);
        };
        Some((CHECKPOINT_EVERY, Box::new(checkpoint)))
    }

    fn is_held_by_clients(&self) -> bool {
        false
    }

    fn give_up(self) -> Result<()> {
        self.fs.give_up().with_context(|| format!("{}: the last checkpoint", self.name))
    }

    fn close(self, end: End, unmount_report: &UnmountReport) -> Result<()> {
        if end == End::ShutDown {
            let left = "it was shut down (FS_IOC_SHUTDOWN): what was not synced is lost, as by a power cut";
            talk(&format!("{}: {left}", self.name));
            unmount_report.leave(left);
            return Ok(());
        }
        let written = self.fs.unmount().with_context(|| format!("{}: the last checkpoint", self.name));
        tell_uncleaned(&self.name, &self.fs, &self.told_uncleaned);
        // Done while this process holds the image: `heddle umount` reads the report once the image is free.
        if let Err(error) = &written {
            unmount_report.lost(error);
        }
        written
    }
}

/// Reports the segments that cleaning met damage in, each once.
fn tell_uncleaned(name: &str, fs: &F2fs, told: &Mutex<BTreeSet<u32>>) {
    let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
    for (segment, why) in fs.left_uncleaned().into_iter().filter(|(segment, _)| told.insert(*segment)) {
        talk(&format!(
            "{name}: segment {segment} is not cleaned: {why}; look at it with fsck.f2fs --dry-run"
        ));
    }
}

/// A node log in the directory that the mount covers could not be opened by path any more.
fn refuse_hidden(nvm: &Path, dir: &Path) -> Result<()> {
    if covers(dir, nvm) {
        return Err(usage(format!(
            "the node log {} would lie under the mount point, where nothing reaches it while the image is mounted: name another place",
            nvm.display()
        )));
    }
    Ok(())
}

/// Refuses an image that this process may not write to its end: it cannot be served or folded.
pub fn limit_of_files(image: &Path) -> Result<()> {
    let Some(max) = limits::file_bytes_max() else { return Ok(()) };
    let bytes = image.metadata().map_or(0, |meta| meta.len());
    if bytes > max {
        let (image, bytes, max) = (image.display(), Size(bytes), Size(max));
        bail!(
            "cannot use {image}: it has {bytes}, and this process may write files of {max} at most. Raise that (ulimit -f)"
        );
    }
    Ok(())
}

fn open_as(args: &Args, options: &Options, variant: Variant) -> Result<F2fs> {
    let name = variant.name();
    let Some(nvm) = &options.nvm else {
        if variant.has_node_log() && !options.read_only {
            return Err(usage(format!(
                "{name} needs NVM for its node log: add --nvm FILE, and give the same at every mount"
            )));
        }
        return Ok(match (options.read_only, options.discard_nvm) {
            (true, _) => F2fs::open(&args.image)?,
            (false, true) => F2fs::open_without_log(&args.image, variant)?,
            (false, false) => F2fs::open_as(&args.image, variant)?,
        });
    };
    if !variant.has_node_log() {
        return Err(usage(format!("{name} has no node log: with --nvm mount as f2fs-nl or f2fs-integrated")));
    }
    if options.read_only {
        return Err(usage("a mount that is read-only uses no node log: leave out ro, or leave out --nvm"));
    }
    node_log::open(&args.image, variant, nvm, options)
}
