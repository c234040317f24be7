//! `heddle mount`: recovers an image and serves it through FUSE.
//!
//! Order  the place (nothing is changed where that is wrong), region (its lock says who else has it), engine with recovery, FUSE, ready.
//!        Signals are caught before all that, so that one that comes early still leaves a clean image.

mod background;
mod flash;
pub mod helper;
mod limits;
mod log;
mod metrics;
pub mod node_log;
mod options;
mod ready;

use crate::failure::usage;
use crate::last_words::LastWords;
use crate::output::talk;
use crate::progress::{Bar, Patient};
use crate::variant::System;
use anyhow::{Context, Result, bail};
use heddle_fuse::{MountPoint, Mounted, Unmounter};
use heddle_nvmfs::adopt::AdoptError;
use heddle_nvmfs::server::{Server, ServerOptions};
use heddle_nvmfs::{Variant, Volume};
use heddle_pmem::{OpenOptions, Region};
use metrics::Metrics;
use options::Options;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a mount that waits for its image tries.
const AGAIN_EVERY: Duration = Duration::from_millis(20);

/// Mount an image, so that any program can use it; recovers it first where that is needed
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Mount as this system [default: as the image was made; an F2FS image: f2fs]
    #[arg(long, value_parser = crate::variant::system())]
    variant: Option<System>,
    /// With f2fs-nl and f2fs-integrated: NVM for the node log, a file or a device; made if it is not there, of 64 MiB
    #[arg(long, value_name = "FILE")]
    nvm: Option<PathBuf>,
    /// Options, separated by commas; see below
    #[arg(short = 'o', value_name = "OPTS")]
    options: Vec<String>,
    /// Stay in the foreground until unmounted
    #[arg(long, short = 'f')]
    foreground: bool,
    /// Said by a mount to the process it starts: tell on stdout when you are ready, then be silent.
    #[arg(long, hide = true)]
    tell_ready: bool,
    /// Pass over options that do not exist.
    #[arg(long, hide = true)]
    sloppy: bool,
    /// File or device made by heddle mkfs or mkfs.f2fs
    image: PathBuf,
    /// An existing directory
    dir: PathBuf,
}

const EXAMPLES: &str = "\
Options for -o:
  ro                     change nothing
  allow_other            let other users in, as far as modes allow (root's default)
  no_allow_other         let only the user in who mounts
  variant=V              as --variant V
  durability=WHAT        what a write that returned survives. process: the death of any process, at the speed of plain memory
                         [on tmpfs, ramfs, hugetlbfs: they are empty after a power cut whatever we do]; power: a power cut
                         too [on all else, where nothing less can be had; on memory: for measurements, as the papers did]
  lock-mode=paper        the papers' variants spin and let readers first, as published; default: waiters sleep, writers age
  segment=SIZE           segment of the papers' range locks (4K)
  nvm=FILE               as --nvm FILE
  nvm-size=SIZE          size of a node log that is made (64M)
  discard-nvm            F2FS: give up what was fsynced and only the node log has; the image goes on from its last checkpoint
  force-nvm              F2FS: make a node log in the file or device, whatever it holds; without, only where zeros are
  discard, nodiscard     F2FS: tell the device at each checkpoint which segments hold nothing any more [on block devices];
                         an image's file gives their space back, and is slower to write there again
  attach-group=G         members of group G may attach to the image too (heddle run); else only you and root. Who attaches has
                         full control of the image, whatever the modes of its files: docs/security.md
  no_attach              let no other process attach
  metrics=PORT|PATH      answer Prometheus at a Unix socket (a path; only you may ask) or at a port of this machine alone (9100,
                         [::1]:9100; every user of this machine may ask)
  metrics-group=G        members of group G may ask at the socket too
  patience=SECONDS       kill an attached process that is stopped while others wait for it for so long (30; 0: never)
  wait=SECONDS           how long to wait for a process that is about to let go of the image, as a running umount (10; 0: not)
  uid=USER, gid=GROUP    all files show this owner or group, and new ones get it
  sync, dirsync          F2FS: each call that changes something, or a name, is durable when it returns; without, what is not synced
                         by fsync(2) is durable within 30 seconds: sync(1) and syncfs(2) do not reach a FUSE mount. Of NVM images
                         every call is durable when it returns
  remount                change the mount at DIR: ro, rw, exec, suid, dev and their opposites. It becomes read-only for all, also for
                         programs with the bypass, when no file is open for writing; rw where the image was mounted for writing
  noexec, suid, dev      no programs; set-id programs and device files have their effect (root's to allow)
  log=FILE               where a mount in the background writes what happens to it
                         [default: /var/log/heddle.log, for others than root ~/.local/state/heddle.log]
  noatime, defaults, nofail, x-...
                         taken and without effect: reading never changes the access time, the rest is for mount(8)
                         (with any x- option umount(8) waits until the image is clean, where umount.fuse.heddle is
                         a link to this program)

Examples:
  heddle mount /dev/shm/my.img /mnt/h
  heddle mount -o ro,allow_other /dev/shm/my.img /mnt/h
  mount -t heddle -o noatime /dev/shm/my.img /mnt/h            (where mount.heddle is a link to this program)
  heddle mount /dev/sdb1 /mnt/phone                            (an F2FS image or device; with -o ro nothing is written to it)
  heddle mount --variant f2fs-rl /var/tmp/flash.img /mnt/h     (the same image; writers of different pages of a file in parallel)
  heddle mount --variant f2fs-integrated --nvm /dev/pmem0 /var/tmp/flash.img /mnt/h    (fsyncs go into NVM; give it at every mount)
  heddle mount --variant nova-tree -o lock-mode=paper --foreground /dev/shm/my.img /mnt/h

Should the mount's process die, the next mount takes over from processes that have attached: what it needs to know lies in
/run/heddle, for others than root in $XDG_RUNTIME_DIR/heddle or /tmp/heddle-UID; HEDDLE_RUNTIME_DIR=DIR names another
directory (yours alone, mode 700).

Unmount with heddle umount DIR. SIGTERM, SIGINT and SIGHUP unmount as well: what runs is finished; files still open are served
until they are closed, a second signal ends it at once (nothing is lost: the next mount recovers).";

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let mut options = Options::parse(args.variant, &args.options, args.sloppy)?;
    options.nvm = args.nvm.clone().or(options.nvm);
    if let Some(change) = options.remount {
        return Ok(heddle_fuse::remount(&args.dir, change)?);
    }
    if args.foreground || args.tell_ready { serve(args, &options) } else { background::start(args) }
}

fn serve(args: &Args, options: &Options) -> Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).context("cannot catch signals")?;
    limits::raise();
    // All that can be wrong with the place is found before the image is touched, and before processes that hold it are.
    let place = MountPoint::check(&args.dir, &source_of(args))?;
    if heddle_f2fs::is_f2fs(&args.image) {
        return flash::serve(args, options, signals, place);
    }
    if options.nvm.is_some() {
        let image = args.image.display();
        return Err(usage(format!(
            "{image} is no F2FS image: --nvm is for those, as f2fs-nl or f2fs-integrated"
        )));
    }
    if let Some(System::Flash(variant)) = options.variant {
        let (image, name) = (args.image.display(), variant.name());
        return Err(usage(format!(
            "{image} is no F2FS image, and {name} works on no other: make one with heddle mkfs --variant f2fs"
        )));
    }
    let (volume, origin) = recover(args, options)?;
    let last_words = LastWords::of(&args.image);
    let give_up = |volume: Volume| match origin {
        Origin::Media => volume.unmount(),
        Origin::TakenOver => volume.relinquish(),
    };
    let mounted = begin(args, options, (&volume, origin), place, &mut signals);
    let (mounted, door, answers) = match mounted {
        Ok(mounted) => mounted,
        Err(error) => {
            give_up(volume);
            return Err(error);
        }
    };
    let served = finish(args, mounted, volume, (door, answers), &last_words);
    say_ended(args, &served);
    served
}

/// Where a volume's state comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Media,
    /// From processes whose daemon had died; if this one gets no further, they go on as before.
    TakenOver,
}

/// Mounts it, and says that it is ready. After an error nothing is mounted.
fn begin(
    args: &Args,
    options: &Options,
    (volume, origin): (&Volume, Origin),
    place: MountPoint,
    signals: &mut Signals,
) -> Result<(Mounted, Option<Server>, Option<Metrics>)> {
    stop_if_told(args, signals)?;
    let fs = volume.fs();
    let reading = move || fs.counters();
    let answers =
        options.metrics.as_ref().map(|at| metrics::start(reading, at, options.metrics_group)).transpose()?;
    let door = hand_out(volume, options);
    let mounted = place.mount(Arc::new(volume.fs()), &shown_as(args, options, door.as_ref()));
    let begun = mounted.map_err(anyhow::Error::from).and_then(|mounted| {
        say_ready(args, options, &mounted, signals)?;
        Ok(mounted)
    });
    match begun {
        Ok(mounted) => Ok((mounted, door, answers)),
        Err(error) => {
            if let (Some(door), Origin::TakenOver) = (door, origin) {
                // The next one finds the state by what this door has noted.
                door.abandon();
            }
            Err(error)
        }
    }
}

/// Was a signal sent before there was anything to unmount?
fn stop_if_told(args: &Args, signals: &mut Signals) -> Result<()> {
    match signals.pending().next() {
        Some(_) => bail!("{}: interrupted; it is not mounted, and as it should be", args.image.display()),
        None => Ok(()),
    }
}

/// What the mount table shows as the source.
fn source_of(args: &Args) -> PathBuf {
    args.image.canonicalize().unwrap_or_else(|_| args.image.clone())
}

/// As what the kernel mounts it.
fn shown_as(args: &Args, options: &Options, door: Option<&Server>) -> heddle_fuse::MountOptions {
    heddle_fuse::MountOptions {
        source: source_of(args),
        door: door.map(Server::bell),
        read_only: options.read_only,
        allow_other: options.allow_other,
        uid: options.uid,
        gid: options.gid,
        exec: options.exec,
        suid: options.suid,
        dev: options.dev,
        ..heddle_fuse::MountOptions::default()
    }
}

/// Says that it is mounted, to whoever waits for it, and from then on obeys signals.
fn say_ready(args: &Args, options: &Options, mounted: &Mounted, signals: &mut Signals) -> Result<()> {
    let ready = format!("{}: mounted at {}", args.image.display(), mounted.dir().display());
    talk(&ready);
    if args.tell_ready {
        background::tell_ready(options)?;
        talk(&ready);
    }
    ready::tell_service_manager();
    let unmounter = mounted.unmounter();
    // Other commands of this program have no use for these signals: they stay caught.
    let mut signals = std::mem::replace(signals, Signals::new([] as [i32; 0])?);
    std::thread::spawn(move || leave_on_signal(&mut signals, &unmounter));
    Ok(())
}

fn say_ended(args: &Args, served: &Result<()>) {
    if args.tell_ready {
        match served {
            Ok(()) => talk(&format!("{}: unmounted", args.image.display())),
            Err(error) => talk(&format!("{}: {error:#}", args.image.display())),
        }
    }
}

/// Lets other processes attach and look on. A mount without that is a mount all the same.
fn hand_out(volume: &Volume, options: &Options) -> Option<Server> {
    let how = ServerOptions {
        no_attach: !options.attach,
        group: options.attach_group,
        patience: options.patience,
        ..ServerOptions::default()
    };
    let server = Server::start(volume, &how);
    if let Some(why) = server.as_ref().ok().and_then(Server::no_note) {
        talk(&format!("heddle: should this mount's process die, its clients could not be taken over: {why}"));
    }
    server
        .map_err(|error| talk(&format!("heddle: no process can attach to this mount, or look on: {error}")))
        .ok()
}

/// Serves until it is unmounted, then marks the image clean.
fn finish(
    args: &Args,
    mounted: Mounted,
    volume: Volume,
    others: (Option<Server>, Option<Metrics>),
    last_words: &LastWords,
) -> Result<()> {
    let was_shut_down = mounted.shut_down();
    let served = mounted.wait();
    let (door, answers) = others;
    drop(answers);
    match door {
        Some(door) if was_shut_down() => door.abandon(),
        door => drop(door),
    }
    if let Some(damage) = volume.damage_found() {
        talk(&format!("heddle: {damage}"));
        last_words.leave(&damage);
    }
    if let Err(heddle_fuse::Error::Unmount { .. }) = served {
        // Calls may still come.
        volume.abandon();
    } else if was_shut_down() {
        talk(
            "heddle: shut down by FS_IOC_SHUTDOWN: the image is left as a power cut would leave it; the next mount recovers",
        );
        volume.abandon();
    } else {
        // While it has the image: who unmounts looks when that is free.
        let lost = volume.close_with(&|error| {
            last_words.lost(&anyhow::anyhow!("{}: {error}", args.image.display()));
        });
        ended(served)?;
        return Ok(lost?);
    }
    ended(served)
}

fn ended(served: Result<(), heddle_fuse::Error>) -> Result<()> {
    match served {
        Err(heddle_fuse::Error::Session { source, .. }) if is_an_end(&source) => Ok(()),
        other => Ok(other?),
    }
}

/// When a detached mount loses its last file, the kernel may end the connection in the middle of telling us so.
fn is_an_end(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(libc::ECONNABORTED)
}

/// The first signal unmounts; where files are open the mount leaves the tree and is served until they are closed, whoever else has it
/// mounted. The second one ends the process.
fn leave_on_signal(signals: &mut Signals, unmounter: &Unmounter) {
    let mut come = signals.forever();
    if come.next().is_some() {
        if let Some(dir) = unmounter.covered_at() {
            talk(&format!(
                "heddle: another file system is mounted over {}: what is left below it is taken away with heddle umount",
                dir.display()
            ));
        }
        if let Err(busy) = unmounter.unmount() {
            talk(&format!("heddle: {busy}"));
            talk(
                "heddle: detached; serving what is open until it is closed. A second signal ends this at once",
            );
            if let Err(error) = unmounter.detach() {
                talk(&format!("heddle: {error}"));
            }
        }
        unmounter.leave();
    }
    if come.next().is_some() {
        talk("heddle: ended at once; the next mount recovers the image");
        std::process::exit(1);
    }
}

/// Opens the image, recovers it, or takes its state over from processes whose daemon has died. While another process is about to let go of
/// it, that is waited for.
fn recover(args: &Args, options: &Options) -> Result<(Volume, Origin)> {
    let began = Instant::now();
    loop {
        let in_use = match open(args, options) {
            Ok(region) => return Ok((read(args, options, region)?, Origin::Media)),
            Err(in_use @ heddle_pmem::Error::InUse { .. }) => in_use,
            Err(error) => return Err(crate::image::explain(&args.image, error)),
        };
        let other_variant = options.variant.is_some_and(|v| v != System::Nvm(Variant::Heddle));
        let refused = if options.read_only || other_variant {
            None
        } else {
            match heddle_nvmfs::adopt::adopt(&args.image) {
                Ok(volume) => {
                    talk(&format!(
                        "{}: taken over from processes whose mount had died; nothing to recover",
                        args.image.display()
                    ));
                    return Ok((volume, Origin::TakenOver));
                }
                Err(refused) => Some(refused),
            }
        };
        if began.elapsed() >= options.wait || crate::image::is_served(&args.image) {
            let told = crate::image::explain(&args.image, in_use);
            return Err(match refused {
                Some(AdoptError::NotFound { .. }) => told.context(
                    "the processes that use the image hold no state that this user may look at: end them, then mount again",
                ),
                Some(not_noted @ AdoptError::NotNoted { .. }) => not_noted.into(),
                _ => told,
            });
        }
        std::thread::sleep(AGAIN_EVERY);
    }
}

/// Waits until nobody has the file, unless it is mounted.
fn wait_until_free(file: &Path, options: &Options) {
    let began = Instant::now();
    while heddle_pmem::lock_holder(file).is_some()
        && began.elapsed() < options.wait
        && !crate::image::is_served(file)
    {
        std::thread::sleep(AGAIN_EVERY);
    }
}

fn open(args: &Args, options: &Options) -> Result<Region, heddle_pmem::Error> {
    let bar = Bar::of_bytes("mapping");
    let progress = |done, total| bar.at(done, total);
    let how = OpenOptions {
        read_only: options.read_only,
        durability: options.durability,
        extent: Some(&heddle_nvmfs::extent),
        progress: Some(&progress),
        ..OpenOptions::default()
    };
    Region::open(&args.image, &how)
}

/// Brings it into order.
fn read(args: &Args, options: &Options, region: Region) -> Result<Volume> {
    // Asked with the image held: what is mounted elsewhere now is another one.
    crate::image::refuse_twin(&args.image)?;
    let found = heddle_nvmfs::inspect(&args.image, region.len_bytes(), &|at, into| region.read(at, into))?;
    options.refuse_what_is_not_for(&args.image, options.variant.unwrap_or(System::Nvm(found.variant)))?;
    let plain = heddle_nvmfs::MountOptions::default();
    let shown = Patient::new("reading");
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
    if found.clean && report.names_dropped > 0 {
        talk(&format!(
            "heddle: {}: {} names lead to no file though it was unmounted cleanly: something has damaged it; `heddle fsck -n` names them",
            args.image.display(),
            report.names_dropped,
        ));
    }
    Ok(volume)
}
