//! `heddle umount`: unmounts, and waits until the process behind the mount has released the image.

use crate::unmount_report;
use anyhow::{Result, bail};
use heddle_console::image::is_clean;
use heddle_fuse::{Image, Leaving};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Unmount a heddle mount, and wait until its process has released the image
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// How many seconds to wait for the process behind the mount. If it has not ended then, the command fails
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    wait: u32,
    /// The mount point
    dir: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  heddle umount /mnt/h
  heddle umount --wait 300 /mnt/h                         for example a large F2FS image on a slow disk

Exit code 0: the image is clean and free for the next command, as far as this user can see. The image of another user's mount is not
checked, nor that of a read-only mount whose process this user can see. 1: the message gives the reason. The command also removes a
mount whose process has died. It works on heddle mounts only.";

/// How often the image is checked, if this user cannot see whether the process has ended.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How long a killed process may take to end.
const DEATH_MAX: Duration = Duration::from_secs(1);

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let mut leaving = heddle_fuse::umount(&args.dir)?;
    let limit = Duration::from_secs(args.wait.into());
    if !leaving.has_trusted_user {
        leaving.wait(limit)?;
        if leaving.was_dead {
            bail!("unmounted; the process behind the mount had died. The next mount recovers its image");
        }
        return Ok(());
    }
    let found = leaving.take_image();
    let image = found.path();
    let ended = leaving.wait(limit)? || leaving.was_dead || is_free(&image, limit);
    if let Some(words) = unmount_report::take(&image).filter(|_| found.for_writing) {
        bail!("unmounted, but {words}");
    }
    let death = Death::of(&leaving);
    // An image that cannot be read is taken for clean, unless its process has died.
    let clean = ended && is_clean(&image).unwrap_or(death.is_none());
    if let Some(death) = death.filter(|_| found.for_writing && heddle_f2fs::is_f2fs(&image)) {
        // The image may look as before the mount: it is at its last checkpoint.
        bail!(
            "unmounted, but the process behind the mount {}. The next mount of {} has the rest",
            death.words(),
            found.shown.display()
        );
    }
    if found.for_writing && !clean {
        bail!(why_not_clean(&leaving, &found, ended));
    }
    if found.for_writing && stays_taken(&image) && !is_taken_anew(&image) {
        bail!(
            "unmounted, and {} is clean, but other commands find it in use until these processes have ended: {}. They had attached \
             before an earlier process of this mount was killed",
            found.shown.display(),
            holders_of(&image)
        );
    }
    Ok(())
}

/// When the process behind the mount died.
#[derive(Clone, Copy)]
enum Death {
    BeforeTheUnmount,
    /// It had not closed the image in order.
    DuringTheUnmount,
}

impl Death {
    fn of(leaving: &Leaving) -> Option<Death> {
        match leaving.is_closed_in_order() {
            _ if leaving.was_dead => Some(Death::BeforeTheUnmount),
            Some(false) => Some(Death::DuringTheUnmount),
            Some(true) | None => None,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Death::BeforeTheUnmount => "had died, and what was not synced is lost",
            // The kill may have come after the last write.
            Death::DuringTheUnmount => {
                "ended before it had noted that all is written: what was not synced may be lost"
            }
        }
    }
}

/// Returns true if the process that has locked the image has it open: it is another command, or a mount that began since.
fn is_taken_anew(image: &Path) -> bool {
    let Ok(now) = image.metadata() else { return true };
    heddle_pmem::lock_holder(image).is_some_and(|pid| heddle_vfs::procfs::has_open(pid, &now))
}

fn holders_of(image: &Path) -> String {
    let holders: Vec<String> = heddle_fuse::mappers(image).iter().map(ToString::to_string).collect();
    if holders.is_empty() { "some that this user cannot see".to_owned() } else { holders.join(", ") }
}

fn why_not_clean(leaving: &Leaving, image: &Image, ended: bool) -> String {
    let shown = image.shown.display();
    let why = match ended {
        _ if leaving.was_dead && stays_taken(&image.path()) => {
            return format!(
                "unmounted; the process behind the mount had died, and processes that work on {shown} without it go on: \
                 heddle mount serves them again"
            );
        }
        _ if leaving.was_dead => "the process behind the mount had died",
        true => "the process behind the mount has not left it in order (see its log)",
        false => "a process that this user cannot see still has it",
    };
    format!("unmounted, but {shown} is not clean: {why}. The next mount recovers it")
}

/// Waits until no process holds the image.
fn is_free(image: &Path, limit: Duration) -> bool {
    let began = Instant::now();
    // An F2FS image looks clean until its first checkpoint after an unmount.
    let shows_its_end = !heddle_f2fs::is_f2fs(image);
    while is_taken(image) {
        // Processes that attached through an earlier mount's attach socket may keep that mount's locks.
        if began.elapsed() > limit || shows_its_end && is_clean(image) == Some(true) {
            return shows_its_end && is_clean(image) == Some(true);
        }
        std::thread::sleep(LOOK_EVERY);
    }
    true
}

/// Returns true if a process holds the image after ended processes had time to release it: the kernel may still be
/// tearing them down.
fn stays_taken(image: &Path) -> bool {
    let began = Instant::now();
    while is_taken(image) {
        if began.elapsed() > DEATH_MAX {
            return true;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    false
}

fn is_taken(image: &Path) -> bool {
    heddle_pmem::lock_holder(image).is_some()
        || File::open(image).is_ok_and(|file| heddle_pmem::has_holders(&file))
}
