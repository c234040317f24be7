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
use heddle_console::failure::usage;
use heddle_console::output::talk;
use heddle_console::variant::System;
use heddle_fuse::MountPoint;
use options::Options;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often a mount that waits for its image tries to open it.
const AGAIN_EVERY: Duration = Duration::from_millis(20);

/// Mount an image through FUSE, after recovering it if necessary
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Mount as this variant [default: as the image was made; an F2FS image: f2fs]
    #[arg(long, value_parser = heddle_console::variant::system())]
    variant: Option<System>,
    /// With f2fs-nl and f2fs-integrated: the NVM of the node log, a file or a device; a missing file is made, of 64 MiB or nvm-size
    #[arg(long, value_name = "FILE")]
    nvm: Option<PathBuf>,
    /// Options, separated by commas; see below
    #[arg(short = 'o', value_name = "OPTS")]
    options: Vec<String>,
    /// Stay in the foreground until unmounted
    #[arg(long, short = 'f')]
    foreground: bool,
    /// For the background process of a mount: report on stdout that the mount is ready, then print nothing.
    #[arg(long, hide = true)]
    tell_ready: bool,
    /// Ignore unknown options.
    #[arg(long, hide = true)]
    sloppy: bool,
    /// File or device made by heddle mkfs or mkfs.f2fs
    image: PathBuf,
    /// An existing directory
    dir: PathBuf,
}

const EXAMPLES: &str = "\
Options for -o:
  ro, rw                 allow no changes, or allow them [default: rw]
  allow_other            let other users in, as file modes allow (root's default; others need user_allow_other in /etc/fuse.conf)
  no_allow_other         let in only the user who mounts
  variant=V              as --variant V
  durability=process     NVM images: a write that returned survives the death of any process [default on tmpfs, ramfs and hugetlbfs,
                         which a power cut empties; refused on all other media]
  durability=power       a write that returned survives a power cut too [default on all other media; on memory, use it for
                         measurements only, as the papers do]. With F2FS images both options concern the node log only, and are
                         refused without one, and with ro
  lock-mode=fair         nova, nova-array and nova-tree: waiters for their locks sleep, and readers hold back for a writer that readers
                         have kept out for 1 ms [default]; lock-mode=paper: as in the papers on these, waiters spin and readers go
                         first. For nova-interval both are the same: waiters sleep, and a reader waits for the writers of an
                         overlapping range that came before it
  segment=SIZE           nova-interval, nova-array and nova-tree: the unit of the range locks; ranges are rounded out to it (4K)
  nvm=FILE               as --nvm FILE
  nvm-size=SIZE          size of a node log in a new or empty file (64M), or with force-nvm in a smaller one; others keep theirs
  discard-nvm            F2FS: lose the changes that only the node log has
  force-nvm              F2FS: make a node log over the content of the file or device; without it, only in a new or empty file, or over
                         zeros
  discard, nodiscard     F2FS: after checkpoints, but not log checkpoints, discard segments that have become free, or do not [default:
                         discard on block devices, nodiscard in a file]. In a file discard punches holes
  attach-group=G         members of group G whom allow_other lets in may attach to the image too (variant heddle), and read its
                         statistics (heddle stat); without attach-group, only you and root. To attach is to share the image's memory,
                         as programs under heddle run do. If the image is mounted for writing, an attached process has full control of
                         it, whatever the modes of its files: docs/security.md
  no_attach              let no other process attach
  metrics=PORT|PATH      serve metrics to Prometheus: at a Unix socket (a path with a slash; for you and root), or at a port of this
                         machine (9100, [::1]:9100; for every user of this machine)
  metrics-group=G        members of group G may use the socket too
  patience=SECONDS       kill an attached process that is stopped in a call while others wait for it, about this long (30; 0: never), or
                         that sleeps in one page fault for twice this time and five seconds
  wait=SECONDS           how long to wait for a process that is about to close the image, such as a running umount (10; 0: do
                         not wait)
  uid=USER, gid=GROUP    all files show this owner or group, and new files get it
  sync, dirsync, async   F2FS: a call that writes, truncates, or changes attributes or names (sync), or only names (dirsync), is durable
                         when it returns. With async [default] a change without fsync(2) is durable within about 30 seconds, a store
                         through a mapping later: sync(1) and syncfs(2) do not reach the engine. A later async cancels sync, not
                         dirsync. NVM images: no effect
  remount                change the mount at DIR: ro or rw, exec or noexec, suid or nosuid, dev or nodev. ro applies to all programs,
                         attached ones too, and needs that no file is open for writing; rw needs that the image was mounted for writing
  noexec, suid, dev      execute no programs; let set-id programs and device files have effect (only root may) [default: exec, nosuid,
                         nodev; of mount(8) by root: exec, suid, dev]
  log=FILE               log of a mount in the background [default: /var/log/heddle.log; for other users than root heddle.log in
                         $XDG_STATE_HOME, or in ~/.local/state]
  noatime, defaults      accepted without effect: reading never changes the access time
  nofail, x-...          accepted for mount(8). After mount(8) with an x- option umount(8) waits as heddle umount does, if
                         umount.fuse.heddle is a link to this program

Examples:
  heddle mount /dev/shm/my.img /mnt/h
  heddle mount -o ro,allow_other /dev/shm/my.img /mnt/h
  mount -t heddle -o nosuid,nodev /dev/shm/my.img /mnt/h  by mount(8), if mount.heddle is a link to this program
  heddle mount /dev/sdb1 /mnt/phone  an F2FS image or device; with -o ro nothing is written to it
  heddle mount --variant f2fs-rl /var/tmp/flash.img /mnt/h  an F2FS image; threads overwrite different pages of one file at once
  heddle mount --variant f2fs-integrated --nvm /dev/pmem0 /var/tmp/flash.img /mnt/h  most fsyncs store their nodes in NVM
  heddle mount --variant nova-tree -o lock-mode=paper --foreground /dev/shm/tree.img /mnt/h

If the mount's process has died, the next mount takes over from attached processes (not with ro, nor as another variant), or says why it
cannot. Without such processes it recovers the image. Its runtime files lie in /run/heddle, for other users than root in
$XDG_RUNTIME_DIR/heddle or /tmp/heddle-UID. HEDDLE_RUNTIME_DIR=DIR sets another directory (yours; only you may write to it).

Unmount with heddle umount DIR. SIGTERM, SIGINT and SIGHUP unmount as well: files that are open then are served until they are closed. A
second signal ends the process at once; the next mount recovers the image (F2FS images may lose changes that were not synced).";

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
    if let Some(log) = options.log.as_deref().filter(|log| !args.foreground && covers(&args.dir, log)) {
        let (log, dir) = (log.display(), args.dir.display());
        return Err(usage(format!(
            "-o log={log}: the mount at {dir} would cover this log; choose a path outside of it"
        )));
    }
    if args.foreground || args.tell_ready { serve(args, &options) } else { background::start(args) }
}

fn serve(args: &Args, options: &Options) -> Result<()> {
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).context("cannot catch signals")?;
    limits::raise();
    // A wrong mount point is reported before the image, or a process that holds it, is touched.
    let place = MountPoint::check(&args.dir, &source_of(args))?;
    // So is a log that cannot be written: nobody would see a message of the process in the background.
    let log = if args.tell_ready { log::open(options.log.as_deref())? } else { None };
    let target = serving::Target { place, log };
    match heddle_f2fs::is_f2fs(&args.image) {
        true => serving::serve(args, options, f2fs::open(args, options)?, signals, target),
        false => serving::serve(args, options, nvm::open(args, options)?, signals, target),
    }
}

/// Returns true if a mount at `dir` would cover this file.
fn covers(dir: &Path, file: &Path) -> bool {
    let whole = |path: &Path| path.canonicalize().or_else(|_| std::path::absolute(path));
    let above = file.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    matches!((whole(above), whole(dir)), (Ok(above), Ok(dir)) if above.starts_with(&dir))
}

/// The source that the mount table shows.
fn source_of(args: &Args) -> PathBuf {
    args.image.canonicalize().unwrap_or_else(|_| args.image.clone())
}

/// Waits until no process holds the file, unless it is mounted.
fn wait_until_free(file: &Path, options: &Options) {
    let began = Instant::now();
    while heddle_pmem::lock_holder(file).is_some()
        && began.elapsed() < options.wait
        && !heddle_console::mounted::is_mounted(file)
    {
        std::thread::sleep(AGAIN_EVERY);
    }
}
