//! A repair by fsck.f2fs, as a transaction: at its end nothing of the old content is gone, or nothing is changed.
//!
//! Order       T1  the image is locked, an undo file is made, and the image marked (`heddle_f2fs::Repair`).
//!             T2  fsck.f2fs repairs, traced, as often as that leaves other findings than before.
//!             T3  the image as it was is compared with the image as it is. What is gone, or another content, is saved in `IMAGE.lost`.
//!             T4  the undo file says that the repair has ended, the saved files get their names, and the image says so, too. The undo
//!                 file stays.
//! Deaths      heddle is killed in T2 or T3: fsck.f2fs is killed too. The undo file stays, and the image says that its repair has not
//!             ended: nobody writes it, and the next `fsck` tells how to go back. Between, the image may be half repaired.
//!             fsck.f2fs is killed, or crashes: heddle goes back.
//!             A signal asks heddle to end in T1 or T2: it goes back. In T3 it finishes first.
//!             No space for the undo file (T2) or for what is gone (T3): heddle goes back.
//!             Heddle cannot read the image behind the repair: it goes back.
//! Whose image fsck.f2fs gets the descriptor that is locked, and no path that may lead to another image by then. If the image's own path
//!             leads to another one in T1 to T3, heddle goes back.
//! Lock        from T1 to T4 no other heddle takes the image. A device is also held against mounts, but for the time of T2, in which
//!             fsck.f2fs opens it exclusively, and looks for mounts itself.

use super::checker::{CHECKER, Checker};
use super::lost_files::LostFiles;
use super::save::Changed;
use super::traced::Ended;
use anyhow::Result;
use heddle_f2fs::{Earlier, Identity, OpenError, Repair};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// At most so many repairs are run, as long as each finds other issues.
const REPAIRS_MAX: usize = 4;

/// What a repair was asked for.
pub(super) struct Order<'a> {
    pub(super) checker: &'a Checker,
    pub(super) image: &'a Path,
    pub(super) undo: &'a Path,
    /// What was looked at before.
    pub(super) looked_at: Identity,
    /// Found before it.
    pub(super) issues: &'a [String],
    /// The node log is given up first.
    pub(super) gives_up_log: bool,
    /// What an earlier repair that was stopped half-way means.
    pub(super) earlier: Earlier,
}

/// A repair that has ended well.
pub(super) struct Done {
    /// The checker finds nothing more.
    pub(super) is_clean: bool,
    /// The undo file, and its blocks; `None`: nothing was changed.
    pub(super) undo: Option<(PathBuf, u64)>,
    /// The directory of what is gone from the image.
    pub(super) lost_files: Option<PathBuf>,
    /// How many files and directories without a name are there.
    pub(super) saved: usize,
    /// Files that kept a name, and what they were.
    pub(super) changed: Vec<Changed>,
    /// Paths of files and directories whose attributes were changed, and nothing else. The undo file has the old ones.
    pub(super) attributes: Vec<String>,
    /// What of the saved files was damaged before.
    pub(super) damage: Vec<String>,
    /// Until all of this is told.
    pub(super) signals: Interrupted,
}

/// Repairs an image. `Ok(Err(why))`: nothing is changed.
///
/// # Errors
/// The image may be half repaired; the message says how to go back.
pub(super) fn run(order: &Order<'_>) -> Result<Result<Done, String>> {
    let signals = Interrupted::watch();
    let begun = Repair::begin(order.image, order.undo, order.looked_at, order.earlier);
    let mut repair = match begun.map_err(|why| anyhow::anyhow!(why))? {
        Ok(repair) => repair,
        Err(why) => return Ok(Err(why)),
    };
    let mut lost = match LostFiles::of(order.image, repair.id()) {
        Ok(lost) => lost,
        Err(why) => return go_back(repair, why),
    };
    match steps(order, &mut repair, &mut lost, signals) {
        Ok(done) => Ok(Ok(done)),
        Err(why) => {
            let gone_back = go_back(repair, why)?;
            // The image has it again.
            lost.discard();
            Ok(gone_back)
        }
    }
}

fn go_back(repair: Repair, why: String) -> Result<Result<Done, String>> {
    match repair.go_back() {
        Ok(()) => Ok(Err(why)),
        Err(also) => Err(anyhow::anyhow!("{why}; and then {also}")),
    }
}

fn steps(
    order: &Order<'_>,
    repair: &mut Repair,
    lost: &mut LostFiles,
    signals: Interrupted,
) -> Result<Done, String> {
    signals.check()?;
    if order.gives_up_log {
        repair.give_up_log()?;
    }
    let (mut is_clean, mut attributes) = (order.issues.is_empty(), Vec::new());
    if !is_clean {
        let is_read = match repair.is_readable() {
            Ok(()) => true,
            Err(OpenError::Unsupported { .. }) => false,
            Err(error) => {
                return Err(format!(
                    "heddle cannot read it, and could not save what a repair takes away: {error}"
                ));
            }
        };
        lost.leave_to_checker(!is_read);
        // It also looks at no device that somebody has open exclusively.
        repair.lend();
        let helped = repair_while_it_helps(order, repair, lost, &signals);
        repair.take_back()?;
        is_clean = helped?;
        if is_read && repair.is_changed() {
            let left = |error| format!("{CHECKER} would leave an image that heddle cannot read: {error}");
            let losses = repair.losses().map_err(left)?;
            attributes = losses.changed_attributes().to_vec();
            lost.save(&losses)?;
        }
        if is_clean && repair.asks_for_check() {
            repair.note_checked()?;
        }
    }
    repair.is_in_place()?;
    let blocks = repair.finish()?;
    // Killed from here on, the next `fsck -y` gives them their names.
    let lost_files = lost.publish()?;
    repair.note_end()?;
    let undo = (blocks > 0).then(|| (repair.undo_file().to_owned(), blocks));
    let (saved, changed, damage) = (lost.count(), lost.take_changed(), lost.take_damage());
    Ok(Done { is_clean, undo, lost_files, saved, changed, attributes, damage, signals })
}

/// Returns true if no issue is left. One repair may leave issues for the next: counts of objects that it has just
/// removed, with which no mount accepts the image.
fn repair_while_it_helps(
    order: &Order<'_>,
    repair: &mut Repair,
    lost: &LostFiles,
    signals: &Interrupted,
) -> Result<bool, String> {
    let told = |error: anyhow::Error| format!("{error:#}");
    let mut seen = order.issues.to_vec();
    let image = repair.path_for_programs().map_err(|error| error.to_string())?;
    for _ in 0..REPAIRS_MAX {
        let ended = order.checker.repair(&image, repair, lost, &signals.flag);
        repair.see_to_mark()?;
        // Its exit code does not tell whether issues are left: it is 255 if the checker stops at a question.
        match ended.map_err(told)? {
            Ended::Exited(_) => {}
            Ended::Signalled(signal) => return Err(format!("{CHECKER} was ended by signal {signal}")),
            Ended::Stopped(why) => return Err(format!("{CHECKER} was stopped: {why}")),
        }
        let left = order.checker.look(&image).map_err(told)?;
        signals.check()?;
        if left.issues.is_empty() && left.ended == 0 {
            return Ok(true);
        }
        if left.issues == seen {
            break;
        }
        seen = left.issues;
    }
    Ok(false)
}

/// Signals that ask this process to end are noted, as long as this is there.
pub(super) struct Interrupted {
    flag: Arc<AtomicBool>,
    registered: Vec<signal_hook::SigId>,
}

impl Interrupted {
    fn watch() -> Interrupted {
        let flag = Arc::new(AtomicBool::new(false));
        let register = |signal| signal_hook::flag::register(signal, Arc::clone(&flag)).ok();
        let registered = [SIGINT, SIGTERM, SIGHUP].into_iter().filter_map(register).collect();
        Interrupted { flag, registered }
    }

    /// Fails if one has come.
    pub(super) fn check(&self) -> Result<(), String> {
        // ORDERING: Relaxed, it says nothing about other memory.
        if self.flag.load(Relaxed) { Err("it was interrupted".into()) } else { Ok(()) }
    }
}

impl Drop for Interrupted {
    fn drop(&mut self) {
        self.registered.drain(..).for_each(|id| _ = signal_hook::low_level::unregister(id));
    }
}
