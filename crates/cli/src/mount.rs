//! `heddle mount`: recovers an image and serves it through FUSE.
//!
//! Order  the mount point (an error there changes nothing), the image (its lock names another holder), the engine with recovery, FUSE,
//!        ready. Signals are caught before all that, so that an early one still leaves a clean image.
//! Files  `nvm` and `f2fs` open an image of their engine; `serving` serves either.

mod background;
pub mod f2fs;
pub mod helper;
mod limits;
mod log;
mod metrics;
pub mod node_log;
mod nvm;
mod options;
mod ready;
mod serving;

use anyhow::{Context, Result};
use heddle_console::output::talk;
use heddle_console::variant::System;
use heddle_fuse::MountPoint;
use options::Options;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often a mount that waits for its image tries.
const AGAIN_EVERY: Duration = Duration::from_millis(20);

/// Mount an image, so that any program can use it; recovers it first where that is needed
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Mount as this system [default: as the image was made; an F2FS image: f2fs]
    #[arg(long, value_parser = heddle_console::variant::system())]
    variant: Option<System>,
    /// With f2fs-nl and f2fs-integrated: NVM for the node log, a file or a device; a new file is made, of 64 MiB
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
  no_allow_other         let in the user who mounts alone
  variant=V              as --variant V
  durability=process     NVM images: a write that returned survives the death of any process, at the speed of plain memory
                         [default on tmpfs, ramfs and hugetlbfs, which a power cut empties; refused on all other media]
  durability=power       it survives a power cut too [default on all other media; on memory for measurements, as the papers did].
                         Of F2FS images both are for the memory of the node log alone
  lock-mode=paper        the papers' NVM variants spin and let readers first, as published; default: waiters sleep, writers age
  segment=SIZE           segment of the papers' range locks (4K)
  nvm=FILE               as --nvm FILE
  nvm-size=SIZE          size of a new node log (64M)
  discard-nvm            F2FS: give up the fsyncs that the node log alone has; the image goes on from its last checkpoint
  force-nvm              F2FS: make a node log over any content of the file or device; without, only over zeros
  discard, nodiscard     F2FS: tell the device at each checkpoint which segments hold nothing any more [on block devices];
                         an image's file gives their space back, and is slower to write there again
  attach-group=G         members of group G may attach to the image too (heddle run), and look on (heddle stat); else only you and
                         root. A process that attaches has full control of the image, whatever the modes of its files:
                         docs/security.md
  no_attach              let no other process attach
  metrics=PORT|PATH      answer Prometheus: at a Unix socket (a path; only you may ask), or at a port of this machine alone (9100,
                         [::1]:9100; every user of this machine may ask)
  metrics-group=G        members of group G may ask at the socket too
  patience=SECONDS       kill an attached process that is stopped while others wait for it for so long (30; 0: never), or that sleeps
                         in one page fault for twice as long and five seconds more
  wait=SECONDS           how long to wait for a process that is about to let go of the image, as a running umount (10; 0: not)
  uid=USER, gid=GROUP    all files show this owner or group, and new ones get it
  sync, dirsync          F2FS: each call that changes something, or a name, is durable when it returns. Without, a change that is not
                         synced by fsync(2) is durable within 30 seconds: sync(1) and syncfs(2) do not reach a FUSE mount. On NVM
                         images every call is durable when it returns
  remount                change the mount at DIR: ro, rw, exec, suid, dev and their opposites. It becomes read-only for all, also for
                         programs with the bypass, when no file is open for writing; rw where the image was mounted for writing
  noexec, suid, dev      no programs; set-id programs and device files have their effect (root's to allow)
  log=FILE               log of a mount in the background
                         [default: /var/log/heddle.log; for others than root heddle.log in $XDG_STATE_HOME, or in ~/.local/state]
  noatime, defaults, nofail, x-...
                         taken without effect: reading never changes the access time, the others are for mount(8)
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

If the mount's process dies, the next mount takes over from processes that have attached. Its notes lie in /run/heddle, for others
than root in $XDG_RUNTIME_DIR/heddle or /tmp/heddle-UID. HEDDLE_RUNTIME_DIR=DIR names another directory (yours; others may not write to it).

Unmount with heddle umount DIR. SIGTERM, SIGINT and SIGHUP unmount as well. Calls that run are finished, and open files are served
until they are closed. A second signal ends the process at once; the next mount recovers (on F2FS images changes that were not
synced are lost).";

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let mut options = Options::parse(args.variant, &args.options, args.sloppy)?;
    options.nvm = args.nvm.clone().or(options.nvm);
    if let Some(change) = options.remount {
        heddle_fuse::remount(&args.dir, change)?;
        if !options.unchanged.is_empty() {
            let unchanged = options.unchanged.join(", ");
            talk(&format!(
                "heddle: remount changes ro, rw, exec, suid and dev alone. As they were at the mount: {unchanged}. Unmount, and mount with \
                 them"
            ));
        }
        return Ok(());
    }
    if let Some(place) = &options.metrics {
        place.refuse_below(&args.dir)?;
    }
    if args.foreground || args.tell_ready { serve(args, &options) } else { background::start(args) }
}

fn serve(args: &Args, options: &Options) -> Result<()> {
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).context("cannot catch signals")?;
    limits::raise();
    // A wrong mount point is found before the image is touched, and before processes that hold it are.
    let place = MountPoint::check(&args.dir, &source_of(args))?;
    match heddle_f2fs::is_f2fs(&args.image) {
        true => serving::serve(args, options, f2fs::open(args, options)?, signals, place),
        false => serving::serve(args, options, nvm::open(args, options)?, signals, place),
    }
}

/// What the mount table shows as the source.
fn source_of(args: &Args) -> PathBuf {
    args.image.canonicalize().unwrap_or_else(|_| args.image.clone())
}

/// Waits until nobody has the file, unless it is mounted.
fn wait_until_free(file: &Path, options: &Options) {
    let began = Instant::now();
    while heddle_pmem::lock_holder(file).is_some()
        && began.elapsed() < options.wait
        && !heddle_console::mounted::is_mounted(file)
    {
        std::thread::sleep(AGAIN_EVERY);
    }
}
