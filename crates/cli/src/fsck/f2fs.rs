//! F2FS images: `fsck.f2fs` checks and repairs them if it is installed. Heddle's reader checks them after it, or
//! in its place, and repairs nothing.

mod checker;
mod lost_files;
mod own;
mod save;
mod traced;
mod transaction;

use super::undo_files::{self, undo_name};
use super::{Args, CLEAN, CORRECTED, OPERATIONAL, UNCORRECTED, UNDO_GIVEN_UP, put_back_told, said};
use anyhow::{Result, anyhow, bail};
use checker::{CHECKER, Checker, Said};
use heddle_console::output::{self, Sink};
use heddle_f2fs::{Earlier, F2fs, Identity, OpenError, ReadLock, Restored};
use save::Changed;
use serde::Serialize;
use std::path::{Path, PathBuf};
use transaction::{Done, Order};

/// It, and heddle's reader after it.
const BOTH: &str = "fsck.f2fs and heddle";
/// Printed for an image with a node log.
const WITHOUT_LOG: &str = "the image, not its node log, which may hold fsynced files that the image lacks: heddle fold writes them into it";
/// Printed for an image whose checkpoint asks for a check.
const ASKS: &str = "the checkpoint says that a check is needed";
/// At most so many lines of findings are shown.
const LINES_MAX: usize = 20;

#[derive(Serialize)]
struct Report {
    output_version: u32,
    image: String,
    variant: &'static str,
    checked_by: &'static str,
    checked: String,
    result: &'static str,
    exit_code: u8,
    issues: Vec<String>,
    /// The reason why nothing was repaired.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_repaired: Option<String>,
    /// Changes that only the node log had are lost.
    node_log_given_up: bool,
    /// What only the undo file of an earlier repair has is lost.
    undo_given_up: bool,
    /// The directory of files that lost their names.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "undo_files::as_text_if_there")]
    lost_files: Option<PathBuf>,
    /// How many of them heddle saved, directories and links among them.
    #[serde(skip_serializing_if = "Option::is_none")]
    lost_files_saved: Option<usize>,
    /// Files that kept a name, and whose content the repair has changed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    changed_files: Vec<Changed>,
    /// Files and directories whose owner, permissions or extended attributes the repair has changed, and nothing else.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    changed_attributes: Vec<String>,
    /// The old bytes of all blocks that the repair has changed.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "undo_files::as_text_if_there")]
    undo_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    blocks_changed: Option<u64>,
    /// Undo files of repairs that were killed before they changed anything. `-y` removes them.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "undo_files::as_texts")]
    needless_undo_files: Vec<PathBuf>,
    /// The directory of files that an earlier repair has saved, which was stopped at its end.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "undo_files::as_text_if_there")]
    saved_earlier: Option<PathBuf>,
}

/// The checker's name, scope and findings.
struct Found {
    by: &'static str,
    checked: String,
    issues: Vec<String>,
    repaired: bool,
    /// Only heddle's reader finds what is left.
    only_ours: bool,
    /// The reason why a requested repair was not tried, or was undone.
    hindered: Option<String>,
    /// The checker has found nothing, because it failed.
    failed: Option<String>,
    /// The image does not need its node log any more.
    gave_up_log: bool,
    /// Nor the undo file of a repair that was stopped half-way.
    gave_up_undo: bool,
    /// What a repair did.
    done: Option<Done>,
    /// Undo files that nobody needs.
    needless: Vec<PathBuf>,
    /// Files that a repair saved which was killed at its end.
    left: Option<PathBuf>,
}

impl Found {
    fn by(by: &'static str, checked: &str) -> Found {
        Found {
            by,
            checked: checked.to_owned(),
            issues: Vec::new(),
            repaired: false,
            only_ours: false,
            hindered: None,
            failed: None,
            gave_up_log: false,
            gave_up_undo: false,
            done: None,
            needless: Vec::new(),
            left: None,
        }
    }
}

/// Checks the image, and repairs it if requested and possible. Returns the exit code.
pub fn check(args: &Args) -> Result<u8> {
    let image = args.image.as_path();
    let (lock, left) = locked(args)?;
    lock.is_ours()?;
    // Read from the superblock alone: damage elsewhere does not hide that there is a node log.
    let is_logged = heddle_f2fs::needs_log(image).unwrap_or(false);
    if is_logged && args.repair && !args.discard_nvm {
        let (image, word) = (image.display(), heddle_undo::shell_word(image));
        bail!(
            "{image} has a node log, which may hold fsynced files that the image lacks; a repair would part the two. Fold the log first: \
             heddle fold --nvm LOG {word}. To give up what only the log has, if that cannot be: heddle fsck -y --discard-nvm {word}"
        );
    }
    let needless = undo_files::needless(image, args.repair, |file| lock.needs_not(file));
    let mut found = match lock.is_whole() {
        Err(half) if !args.discard_undo => half_repaired(&half),
        whole => examined(args, is_logged, whole.is_err(), lock)?,
    };
    (found.needless, found.left) = (needless, left);
    if let Some(why) = found.failed.take() {
        if found.issues.is_empty() {
            bail!(why);
        }
        found.issues.push(why.clone());
        found.hindered = Some(why);
    }
    if is_logged && !found.gave_up_log {
        found.checked = WITHOUT_LOG.to_owned();
    }
    let is_changed = found.done.as_ref().is_some_and(|done| done.undo.is_some());
    let code = match (found.issues.is_empty(), found.repaired || is_changed) {
        (true, false) => CLEAN,
        // What only a log or an undo file had was given up, and nothing else was wrong.
        (true, true) => CORRECTED,
        _ if found.repaired => CORRECTED,
        _ => UNCORRECTED,
    };
    tell(args, found, code)
}

/// Keeps writers away from the image. An end of a repair that nobody has noted is noted first; then with the directory of the files
/// that it has saved.
fn locked(args: &Args) -> Result<(ReadLock, Option<PathBuf>)> {
    let mut left = None;
    if args.repair && hindrance(&args.image).is_none() {
        // It fails with a mount that only reads, too: that would see the image change.
        heddle_f2fs::end_repair(&args.image, &mut |id| {
            left = lost_files::publish_killed(&args.image, id)?;
            Ok(())
        })?;
    }
    Ok((ReadLock::of(&args.image)?, left))
}

/// Nothing is said of the rest of such an image, which may be anything.
fn half_repaired(half: &OpenError) -> Found {
    let mut found = Found::by("heddle", "what its superblocks say of a repair");
    found.issues.push("a repair of it was stopped half-way".to_owned());
    found.hindered = Some(half.to_string());
    found
}

/// What both checkers find. `is_half`: an earlier repair was stopped half-way, and is given up.
fn examined(args: &Args, is_logged: bool, is_half: bool, lock: ReadLock) -> Result<Found> {
    let image = args.image.as_path();
    let Some(checker) = Checker::installed() else {
        if args.repair && (is_logged || is_half) {
            bail!(
                "{}: nothing was discarded: that is a part of a repair, which needs fsck.f2fs. Install it (Debian: f2fs-tools)",
                image.display()
            );
        }
        return own::look_alone(F2fs::open(image));
    };
    let looked_at = lock.identity()?;
    // No other repair begins until this is told, or this one begins.
    let (mut found, lock) = by_checker(args, &checker, is_logged, is_half, lock, looked_at)?;
    let lock = match lock {
        None => ReadLock::of(image),
        Some(lock) => Ok(lock),
    };
    let is_moved = image.metadata().map_or(true, |meta| Identity::of(&meta) != looked_at);
    if is_moved && found.done.is_none() && found.hindered.is_none() {
        bail!("cannot check {}: somebody has moved or replaced it meanwhile", image.display());
    }
    match found.done.as_ref().map_or(Ok(()), |done| done.signals.check()) {
        _ if is_moved => {
            found.checked = format!("{}; heddle did not look at it: it was moved or replaced", found.checked);
        }
        Ok(()) => own::look_behind(image, &mut found),
        Err(why) => found.checked = format!("{}; heddle did not look at it: {why}", found.checked),
    }
    if let Err(half) = lock.map_or(Ok(()), |lock| lock.is_whole())
        && found.hindered.is_none()
        && !is_moved
    {
        found.issues.push(half.to_string());
        found.repaired = false;
    }
    Ok(found)
}

/// Restores the image from an undo file. Returns the exit code.
pub fn put_back(args: &Args, undo: &Path) -> Result<u8> {
    // Told with the command that unmounts it.
    heddle_f2fs::is_unused(&args.image)?;
    if let Some(why) = hindrance(&args.image) {
        bail!("{}: nothing was restored: {why}", args.image.display());
    }
    let Restored { blocks, repair } = heddle_f2fs::undo(&args.image, undo).map_err(|why| anyhow!(why))?;
    lost_files::forget_killed(&args.image, repair);
    put_back_told(args, undo, blocks)
}

fn tell(args: &Args, found: Found, code: u8) -> Result<u8> {
    let image = args.image.display().to_string();
    let shown = found.issues.iter().take(LINES_MAX).map(|issue| format!("         {issue}\n"));
    let more = found.issues.len().saturating_sub(LINES_MAX);
    let more = if more > 0 { format!("         and {more} more; --json lists all\n") } else { String::new() };
    let way = match (found.by, code) {
        (_, CLEAN) => "clean".to_owned(),
        (_, CORRECTED) => format!("repaired; {} findings before", found.issues.len()),
        _ if found.hindered.is_some() => {
            format!("NOT clean; nothing was changed: {}", found.hindered.as_deref().unwrap_or_default())
        }
        (CHECKER | BOTH, _) if found.only_ours => format!(
            "NOT clean, and fsck.f2fs sees nothing more to repair. Mount it (-o ro is enough), copy what can be read, and make {image} anew"
        ),
        (CHECKER | BOTH, _) if args.repair => "NOT clean, and not all could be repaired".to_owned(),
        (CHECKER | BOTH, _) => {
            format!(
                "NOT clean; nothing was changed. Repair it with: heddle fsck -y {}",
                heddle_undo::shell_word(&args.image)
            )
        }
        _ => "NOT clean; nothing was changed. Install fsck.f2fs (package f2fs-tools) to repair it".to_owned(),
    };
    let shown: String = shown.collect();
    let way = if found.gave_up_log {
        format!("{way}; the changes that only its node log had are lost")
    } else {
        way
    };
    let way = if found.gave_up_undo { format!("{way}; {UNDO_GIVEN_UP}") } else { way };
    let (changed, done) = found.done.as_ref().map(|done| told(done, &args.image)).unwrap_or_default();
    let mut needless = undo_files::told(&found.needless, args.repair);
    if let Some(dir) = &found.left {
        needless += &format!(
            "{}: files that an earlier repair has saved, which was stopped at its end\n",
            dir.display()
        );
    }
    let text = format!(
        "{needless}{shown}{more}{changed}{image}: {way}{done}. Checked by {}: {}",
        found.by, found.checked
    );
    let is_changed = found.done.as_ref().is_some_and(|done| done.undo.is_some());
    let on_stdout = match args.json {
        true => output::json(&Sink::Stdout, &report(image, found, code)),
        false => output::data(&text),
    };
    said(on_stdout, &text, is_changed, code)
}

fn report(image: String, found: Found, code: u8) -> Report {
    let done = found.done;
    let undo = done.as_ref().and_then(|done| done.undo.clone());
    let lost_files = done.as_ref().and_then(|done| done.lost_files.clone());
    let saved_earlier = found.left;
    Report {
        output_version: 1,
        image,
        variant: "f2fs",
        checked_by: found.by,
        checked: found.checked,
        result: match code {
            CLEAN => "clean",
            CORRECTED => "corrected",
            _ => "uncorrected",
        },
        exit_code: code,
        issues: found.issues,
        not_repaired: found.hindered,
        node_log_given_up: found.gave_up_log,
        undo_given_up: found.gave_up_undo,
        lost_files_saved: lost_files.is_some().then(|| done.as_ref().map_or(0, |done| done.saved)),
        lost_files,
        changed_attributes: done.as_ref().map(|done| done.attributes.clone()).unwrap_or_default(),
        changed_files: done.map(|done| done.changed).unwrap_or_default(),
        blocks_changed: undo.as_ref().map(|(_, blocks)| *blocks),
        undo_file: undo.map(|(file, _)| file),
        needless_undo_files: found.needless,
        saved_earlier,
    }
}

/// A line for each file that was changed, and what else a repair did.
fn told(done: &Done, image: &Path) -> (String, String) {
    let line = |changed: &Changed| {
        format!(
            "         {}: its content was changed; what it was: {}\n",
            changed.path,
            changed.saved.display()
        )
    };
    let mut lines: String = done.changed.iter().take(LINES_MAX).map(line).collect();
    let more = done.changed.len().saturating_sub(LINES_MAX);
    if more > 0 {
        lines += &format!("         and {more} more whose content was changed; --json lists all\n");
    }
    for path in done.attributes.iter().take(LINES_MAX) {
        lines += &format!("         {path}: its owner, permissions or extended attributes were changed\n");
    }
    let more = done.attributes.len().saturating_sub(LINES_MAX);
    if more > 0 {
        lines += &format!("         and {more} more whose attributes were changed; --json lists all\n");
    }
    let mut way = String::new();
    match &done.lost_files {
        Some(dir) if done.saved > 0 => {
            way += &format!("; files that lost their names are in {}: {} of them", dir.display(), done.saved);
        }
        Some(dir) if done.changed.is_empty() => {
            way += &format!(
                "; files that lost their names are in {}, as {CHECKER} saves them: one of each name",
                dir.display()
            );
        }
        _ => {}
    }
    if !done.changed.is_empty() {
        way += &format!("; files that kept their names, and not their content: {}", done.changed.len());
    }
    if let Some((undo, blocks)) = &done.undo {
        let [undo, image] = [undo, image].map(heddle_undo::shell_word);
        way += &format!("; {blocks} blocks changed. To go back: heddle fsck --undo {undo} {image}");
    }
    (lines, way)
}

/// Runs the checker. With `is_logged` the image has a node log, with `is_half` an undo file of a repair that was stopped half-way: a
/// repair loses what only these have. A repair ends the lock; otherwise it is returned.
fn by_checker(
    args: &Args,
    checker: &Checker,
    is_logged: bool,
    is_half: bool,
    lock: ReadLock,
    looked_at: Identity,
) -> Result<(Found, Option<ReadLock>)> {
    let image = args.image.as_path();
    // Without /proc it is told what is wrong, and nothing is repaired.
    let path = lock.path_for_programs().or_else(|_| image.canonicalize())?;
    let Said { mut issues, ended } = checker.look(&path)?;
    let mut found = Found::by(CHECKER, "all that it knows of");
    if F2fs::open(image).is_ok_and(|fs| fs.info().needs_fsck) {
        issues.push(ASKS.to_owned());
    }
    if issues.is_empty() && ended & i32::from(OPERATIONAL) != 0 {
        found.failed = Some(format!("{CHECKER} could not check {}: it ended with {ended}", image.display()));
        return Ok((found, Some(lock)));
    }
    if issues.is_empty() && ended != 0 {
        issues.push(format!("{CHECKER} ended with {ended}"));
    }
    let mut lock = Some(lock);
    if args.repair && (is_logged || is_half || !issues.is_empty()) {
        found.hindered = hindrance(image);
        if found.hindered.is_none() {
            lock = None;
            let undo = args.undo.clone().unwrap_or_else(|| undo_name(image));
            let earlier = if is_half { Earlier::GivenUp } else { Earlier::Counts };
            let (issues, gives_up_log) = (issues.as_slice(), is_logged);
            let order = Order { checker, image, undo: &undo, looked_at, issues, gives_up_log, earlier };
            match transaction::run(&order)? {
                Ok(done) => found.done = Some(done),
                Err(why) => found.hindered = Some(why),
            }
        }
        if found.hindered.is_some() && issues.is_empty() {
            issues.push("it needs its node log, or an undo file, which is not given up".to_owned());
        }
    }
    if let Some(done) = &mut found.done {
        (found.gave_up_log, found.gave_up_undo) = (is_logged, is_half);
        found.repaired = done.is_clean && !issues.is_empty();
        issues.append(&mut done.damage);
    }
    found.issues = issues;
    Ok((found, lock))
}

/// The reason why no program could repair the image.
fn hindrance(image: &Path) -> Option<String> {
    if heddle_f2fs::is_write_protected(image) {
        return Some("it is write-protected".to_owned());
    }
    // The checker would be killed by its first write behind the limit.
    let limit = crate::mount::f2fs::limit_of_files(image).err();
    limit.map(|error| error.to_string())
}
