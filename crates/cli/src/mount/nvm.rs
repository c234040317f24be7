//! An NVM image: recovered, or taken over from processes whose daemon has died.

use super::options::Options;
use super::serving::{End, OpenImage};
use super::{AGAIN_EVERY, Args};
use crate::large_pages;
use crate::unmount_report::UnmountReport;
use anyhow::Result;
use heddle_console::failure::usage;
use heddle_console::output::talk;
use heddle_console::progress::{Bar, DelayedBar};
use heddle_console::variant::System;
use heddle_nvmfs::adopt::{AdoptError, is_left_to_clients};
use heddle_nvmfs::counters::Counters;
use heddle_nvmfs::server::{Server, ServerOptions};
use heddle_nvmfs::{Variant, Volume, VolumeError};
use heddle_pmem::{OpenOptions, Region};
use heddle_vfs::FileSystem;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The source of a volume's state.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Media,
    /// Taken over from processes whose daemon had died. If this mount fails, they go on as before.
    TakenOver,
}

/// An opened NVM image.
pub struct NvmImage {
    /// Its path, for messages.
    path: PathBuf,
    volume: Volume,
    origin: Origin,
}

/// Opens the image. Refuses options that are only for F2FS images.
pub fn open(args: &Args, options: &Options) -> Result<NvmImage> {
    let image = args.image.display();
    if options.nvm.is_some() {
        return Err(usage(format!(
            "{image} is not an F2FS image: --nvm is only for those, as f2fs-nl or f2fs-integrated"
        )));
    }
    if let Some(System::F2fs(variant)) = options.variant {
        return Err(usage(format!(
            "{image} is not an F2FS image, and {} mounts no other: make one with heddle mkfs --variant f2fs",
            variant.name()
        )));
    }
    recover(args, options)
}

impl OpenImage for NvmImage {
    fn file_system(&self) -> Arc<dyn FileSystem> {
        Arc::new(self.volume.fs())
    }

    fn counters(&self) -> impl Fn() -> Counters + Send + 'static {
        let fs = self.volume.fs();
        move || fs.counters()
    }

    fn open_attach_socket(&self, _: &Args, options: &Options) -> Option<Server> {
        let how = ServerOptions {
            no_attach: !options.attach,
            group: options.attach_group,
            patience: options.patience,
            ..ServerOptions::default()
        };
        let server = Server::start(&self.volume, &how);
        if let Some(why) = server.as_ref().ok().and_then(Server::no_note) {
            talk(&format!(
                "heddle: should this mount's process die, its clients could not be taken over: {why}"
            ));
        }
        server
            .map_err(|error| {
                talk(&format!("heddle: no process can attach to this mount or read its statistics: {error}"))
            })
            .ok()
    }

    fn upkeep(&self) -> Option<(Duration, Box<dyn FnMut() + Send>)> {
        None
    }

    fn is_held_by_clients(&self) -> bool {
        self.origin == Origin::TakenOver
    }

    fn give_up(self) -> Result<()> {
        match self.origin {
            Origin::Media => self.volume.unmount(),
            Origin::TakenOver => self.volume.relinquish(),
        }
        Ok(())
    }

    fn close(self, end: End, unmount_report: &UnmountReport) -> Result<()> {
        if let Some(damage) = self.volume.damage_found() {
            talk(&format!("heddle: {damage}"));
            unmount_report.leave(&damage);
        }
        match end {
            // Calls may still come.
            End::StillMounted => self.volume.abandon(),
            End::ShutDown => {
                talk(
                    "heddle: shut down by FS_IOC_SHUTDOWN: the image is left as a power cut would leave it; the next mount recovers",
                );
                self.volume.abandon();
            }
            // Done while this process holds the image: `heddle umount` reads the report once the image is free.
            End::Unmounted => {
                let image = self.path.display();
                self.volume.close_with(&|error| match error {
                    VolumeError::NotClean { .. } => unmount_report.leave(&error.to_string()),
                    _ => unmount_report.lost(&anyhow::anyhow!("{image}: {error}")),
                })?;
            }
        }
        Ok(())
    }
}

/// Opens the image, and recovers it or takes its state over from processes whose daemon has died. If another
/// process is about to release the image, waits for that.
fn recover(args: &Args, options: &Options) -> Result<NvmImage> {
    let began = Instant::now();
    loop {
        let in_use = match map(args, options) {
            Ok(region) => {
                return Ok(NvmImage {
                    path: args.image.clone(),
                    volume: read(args, options, region)?,
                    origin: Origin::Media,
                });
            }
            Err(in_use @ heddle_pmem::Error::InUse { .. }) => in_use,
            Err(error) => return Err(heddle_console::open_error::explain(&args.image, error)),
        };
        let other_variant = options.variant.is_some_and(|v| v != System::Nvm(Variant::Heddle));
        let takes_over = !options.read_only && !other_variant;
        let refused = if !takes_over {
            None
        } else {
            match heddle_nvmfs::adopt::adopt(&args.image) {
                Ok(volume) => {
                    let volume = as_asked(args, options, volume)?;
                    talk(&format!(
                        "{}: taken over from processes whose mount had died; nothing to recover",
                        args.image.display()
                    ));
                    return Ok(NvmImage { path: args.image.clone(), volume, origin: Origin::TakenOver });
                }
                Err(refused) => Some(refused),
            }
        };
        if began.elapsed() >= options.wait || heddle_console::mounted::is_mounted(&args.image) {
            if !takes_over && is_left_to_clients(&args.image) {
                return Err(left_to_clients(args, options, other_variant));
            }
            let told = heddle_console::open_error::explain(&args.image, in_use);
            return Err(match refused {
                Some(AdoptError::NotFound { .. }) => told.context(
                    "the processes that use the image hold no state that this user may look at: end them, then mount again",
                ),
                Some(
                    why @ (AdoptError::NotNoted { .. }
                    | AdoptError::OtherBuild { .. }
                    | AdoptError::ServedElsewhere { .. }),
                ) => why.into(),
                _ => told,
            });
        }
        std::thread::sleep(AGAIN_EVERY);
    }
}

/// The refusal of a mount that could not take over because of its options.
fn left_to_clients(args: &Args, options: &Options, other_variant: bool) -> anyhow::Error {
    let how = match (options.read_only, other_variant) {
        (true, true) => "without ro, and as variant heddle,",
        (true, false) => "without ro",
        (false, _) => "as variant heddle",
    };
    anyhow::anyhow!(
        "cannot mount {} as asked: processes whose mount had died still use it. A mount {how} takes over from them; or end them first",
        args.image.display()
    )
}

/// Gives a volume that was taken over back if it does not have what the options ask for: its clients keep what
/// their first mount had.
fn as_asked(args: &Args, options: &Options, volume: Volume) -> Result<Volume> {
    let has = volume.durability();
    let refused = match options.durability {
        Some(asked) if asked != has => Err(usage(format!(
            "-o durability={asked}: processes whose mount had died still use {} with durability={has}. End them first, or leave the \
             option out",
            args.image.display()
        ))),
        // The daemon would leave the clients that it has to themselves.
        _ if !options.attach => Err(usage(format!(
            "-o no_attach: processes whose mount had died are still attached to {}. End them first, or leave the option out",
            args.image.display()
        ))),
        _ => options.refuse_what_is_not_for(&args.image, System::Nvm(volume.variant())),
    };
    match refused {
        Ok(()) => Ok(volume),
        Err(why) => {
            volume.relinquish();
            Err(why)
        }
    }
}

fn map(args: &Args, options: &Options) -> Result<Region, heddle_pmem::Error> {
    let bar = Bar::of_bytes("mapping");
    let progress = |done, total| bar.set_position(done, total);
    let how = OpenOptions {
        read_only: options.read_only,
        durability: options.durability,
        size_in_use: Some(&heddle_nvmfs::size_in_use),
        progress: Some(&progress),
        ..OpenOptions::default()
    };
    Region::open(&args.image, &how)
}

/// Recovers the image.
fn read(args: &Args, options: &Options, region: Region) -> Result<Volume> {
    // Checked while the image is held: an image that is mounted elsewhere now is another one.
    heddle_console::image::refuse_mounted_copy(&args.image)?;
    let found = heddle_nvmfs::inspect(&args.image, region.len_bytes(), &|at, into| region.read(at, into))?;
    options.refuse_what_is_not_for(&args.image, options.variant.unwrap_or(System::Nvm(found.variant)))?;
    let plain = heddle_nvmfs::MountOptions::default();
    let shown = DelayedBar::new("reading");
    let progress = |what: &'static str, done, total| shown.at(what, done, total);
    let how = heddle_nvmfs::MountOptions {
        variant: match options.variant {
            Some(System::Nvm(variant)) => Some(variant),
            _ => None,
        },
        read_only: options.read_only,
        lock_mode: options.lock_mode.unwrap_or(plain.lock_mode),
        segment_bytes: options.segment_bytes.unwrap_or(plain.segment_bytes),
        progress: Some(&progress),
        ..plain
    };
    let began = Instant::now();
    let durability = region.durability();
    if region.backend() == heddle_pmem::Backend::File && !options.read_only {
        talk(&format!(
            "heddle: {}: each call waits for msync, for this file lies on a disk. Faster: an image on tmpfs or persistent memory, or \
             an F2FS image (heddle mkfs --variant f2fs)",
            args.image.display()
        ));
    }
    if let Some(advice) = large_pages::advice(&region) {
        talk(&format!("heddle: {}: {advice}", args.image.display()));
    }
    let volume = heddle_nvmfs::mount(region, &how)?;
    drop(shown);
    let report = &volume.report;
    talk(&format!(
        "{}: variant {}, durability {durability}, {} in {} ms; inodes: {}, \
         torn records dropped: {}, files without a name freed: {}, names without a file dropped: {}",
        args.image.display(),
        volume.variant().name(),
        if found.clean { "was unmounted cleanly, read" } else { "was not unmounted, recovered" },
        began.elapsed().as_millis(),
        report.inodes,
        report.torn_slots,
        report.orphans,
        report.names_dropped,
    ));
    if found.is_half_repaired {
        let image = heddle_undo::shell_word(&args.image);
        talk(&format!(
            "heddle: {}: is half repaired: files may lack in it, or be wrong, that its undo file has. Unmount it, and see: heddle fsck \
             {image}",
            args.image.display()
        ));
    }
    if found.clean && report.names_dropped > 0 {
        talk(&format!(
            "heddle: {}: {} names lead to no file though it was unmounted cleanly: something has damaged it; `heddle fsck -n` names them",
            args.image.display(),
            report.names_dropped,
        ));
    }
    Ok(volume)
}
