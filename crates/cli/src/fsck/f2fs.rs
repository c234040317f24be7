//! F2FS images: `fsck.f2fs` checks and repairs them if it is installed. Heddle's reader checks them after it, or
//! in its place, and repairs nothing.

mod checker;
mod lost_files;
mod own;
mod save;
mod traced;
mod transaction;
mod unfinished;

use super::{Args, CLEAN, CORRECTED, OPERATIONAL, UNCORRECTED, undo_name};
use anyhow::{Result, anyhow, bail};
use checker::{CHECKER, Said};
use heddle_console::output::{self, Sink};
use heddle_f2fs::{F2fs, OpenError};
use save::Changed;
use serde::Serialize;
use std::os::unix::fs::FileTypeExt;
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
    /// The directory of files that lost their names.
    #[serde(skip_serializing_if = "Option::is_none")]
    lost_files: Option<PathBuf>,
    /// How many of them heddle saved, directories and links among them.
    #[serde(skip_serializing_if = "Option::is_none")]
    lost_files_saved: Option<usize>,
    /// Files that kept a name, and whose content the repair has changed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    changed_files: Vec<Changed>,
    /// The old bytes of all blocks that the repair has changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    undo_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    blocks_changed: Option<u64>,
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
    /// What a repair did.
    done: Option<Done>,
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
            done: None,
        }
    }
}

/// Checks the image, and repairs it if requested and possible. Returns the exit code.
pub fn check(args: &Args) -> Result<u8> {
    if let Err(error @ (OpenError::InUse { .. } | OpenError::System { .. })) = F2fs::open(&args.image) {
        return Err(error.into());
    }
    // Read from the superblock alone: damage elsewhere does not hide that there is a node log.
    let is_logged = heddle_f2fs::needs_log(&args.image).unwrap_or(false);
    if is_logged && args.repair && !args.discard_nvm {
        let image = args.image.display();
        bail!(
            "{image} has a node log, which may hold fsynced files that the image lacks; a repair would part the two. Fold the log first: \
             heddle fold --nvm LOG {image}. To give up what only the log has, if that cannot be: heddle fsck -y --discard-nvm {image}"
        );
    }
    if args.repair && hindrance(&args.image).is_none() {
        // A mount that only reads counts, too: it would see the image change.
        heddle_f2fs::is_unused(&args.image)?;
    }
    let half = unfinished::told(&args.image);
    let mut found = match by_checker(args, is_logged, half.as_deref())? {
        Some(mut found) => {
            own::look_behind(&args.image, &mut found);
            found
        }
        None => own::look_alone(F2fs::open(&args.image))?,
    };
    if let Some(why) = found.failed.take() {
        if found.issues.is_empty() {
            bail!(why);
        }
        found.issues.push(why.clone());
        found.hindered = Some(why);
    }
    if let Some(half) = half {
        found.issues.insert(0, half.clone());
        found.hindered = Some(half);
    }
    if is_logged && !found.gave_up_log {
        found.checked = WITHOUT_LOG.to_owned();
    }
    let code = match (found.issues.is_empty(), found.repaired) {
        (true, _) => CLEAN,
        (_, true) => CORRECTED,
        _ => UNCORRECTED,
    };
    tell(args, found, code)?;
    Ok(code)
}

/// Restores the image from an undo file. Returns the exit code.
pub fn put_back(image: &Path, undo: &Path) -> Result<u8> {
    // Told with the command that unmounts it.
    heddle_f2fs::is_unused(image)?;
    let blocks = heddle_f2fs::undo(image, undo).map_err(|why| anyhow!(why))?;
    output::data(&format!("{}: {blocks} blocks are as they were before the repair", image.display()))?;
    Ok(CORRECTED)
}

fn tell(args: &Args, found: Found, code: u8) -> Result<()> {
    let image = args.image.display().to_string();
    if args.json {
        return output::json(&Sink::Stdout, &report(image, found, code));
    }
    let shown = found.issues.iter().take(LINES_MAX).map(|issue| format!("         {issue}\n"));
    let more = found.issues.len().saturating_sub(LINES_MAX);
    let more = if more > 0 { format!("         and {more} more; --json lists all\n") } else { String::new() };
    let way = match (found.by, code) {
        (_, CLEAN) => "clean".to_owned(),
        (_, CORRECTED) => format!("repaired; {} findings before", found.issues.len()),
        (CHECKER | BOTH, _) if found.hindered.is_some() => {
            format!("NOT clean; nothing was changed: {}", found.hindered.as_deref().unwrap_or_default())
        }
        (CHECKER | BOTH, _) if found.only_ours => format!(
            "NOT clean, and fsck.f2fs sees nothing more to repair. Mount it (-o ro is enough), copy what can be read, and make {image} anew"
        ),
        (CHECKER | BOTH, _) if args.repair => "NOT clean, and not all could be repaired".to_owned(),
        (CHECKER | BOTH, _) => {
            format!("NOT clean; nothing was changed. Repair it with: heddle fsck -y {image}")
        }
        _ => "NOT clean; nothing was changed. Install fsck.f2fs (package f2fs-tools) to repair it".to_owned(),
    };
    let shown: String = shown.collect();
    let way = if found.gave_up_log {
        format!("{way}; the changes that only its node log had are lost")
    } else {
        way
    };
    let (changed, done) = found.done.as_ref().map(|done| told(done, &image)).unwrap_or_default();
    output::data(&format!(
        "{shown}{more}{changed}{image}: {way}{done}. Checked by {}: {}",
        found.by, found.checked
    ))
}

fn report(image: String, found: Found, code: u8) -> Report {
    let done = found.done;
    let undo = done.as_ref().and_then(|done| done.undo.clone());
    let lost_files = done.as_ref().and_then(|done| done.lost_files.clone());
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
        lost_files_saved: lost_files.is_some().then(|| done.as_ref().map_or(0, |done| done.saved)),
        lost_files,
        changed_files: done.map(|done| done.changed).unwrap_or_default(),
        blocks_changed: undo.as_ref().map(|(_, blocks)| *blocks),
        undo_file: undo.map(|(file, _)| file),
    }
}

/// A line for each file that was changed, and what else a repair did.
fn told(done: &Done, image: &str) -> (String, String) {
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
        let undo = undo.display();
        way += &format!("; {blocks} blocks changed. To go back: heddle fsck --undo {undo} {image}");
    }
    (lines, way)
}

/// Runs the checker. Returns `None` if it is not installed. With `is_logged` the image has a node log, which
/// is discarded before a repair. `half`: why another repair has to be undone first.
fn by_checker(args: &Args, is_logged: bool, half: Option<&str>) -> Result<Option<Found>> {
    let image = args.image.as_path();
    let Some(Said { mut issues, ended }) = checker::look(image)? else { return Ok(None) };
    let mut found = Found::by(CHECKER, "all that it knows of");
    if F2fs::open(image).is_ok_and(|fs| fs.info().needs_fsck) {
        issues.push(ASKS.to_owned());
    }
    if issues.is_empty() && ended & i32::from(OPERATIONAL) != 0 {
        found.failed = Some(format!("{CHECKER} could not check {}: it ended with {ended}", image.display()));
        return Ok(Some(found));
    }
    if issues.is_empty() && ended != 0 {
        issues.push(format!("{CHECKER} ended with {ended}"));
    }
    if args.repair && (is_logged || !issues.is_empty()) {
        found.hindered = half.map(str::to_owned).or_else(|| hindrance(image));
        if found.hindered.is_none() {
            let undo = args.undo.clone().unwrap_or_else(|| undo_name(&beside(image)));
            let order = Order { image, undo: &undo, issues: &issues, gives_up_log: is_logged };
            match transaction::run(&order)? {
                Ok(done) => found.done = Some(done),
                Err(why) => found.hindered = Some(why),
            }
        }
        if found.hindered.is_some() && issues.is_empty() {
            issues.push("it needs its node log, which is not given up".to_owned());
        }
    }
    if let Some(done) = &mut found.done {
        found.gave_up_log = is_logged;
        found.repaired = done.is_clean && !issues.is_empty();
        issues.append(&mut done.holes);
    }
    found.issues = issues;
    Ok(Some(found))
}

/// What the names of files beside the image begin with. Those of a device lie in the command's working directory.
fn beside(image: &Path) -> PathBuf {
    let is_device = image.metadata().is_ok_and(|meta| meta.file_type().is_block_device());
    match image.file_name().filter(|_| is_device) {
        Some(name) => name.into(),
        None => image.into(),
    }
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
