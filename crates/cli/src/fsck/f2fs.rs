//! F2FS images: `fsck.f2fs` checks and repairs them if it is installed. Heddle's reader checks them after it, or
//! in its place, and repairs nothing.

mod lost_files;
mod own;
mod save;

use super::{Args, CLEAN, CORRECTED, OPERATIONAL, UNCORRECTED};
use anyhow::{Context, Result, bail};
use heddle_console::output::{self, Sink};
use heddle_f2fs::{Alone, F2fs, OpenError};
use lost_files::LostFiles;
use serde::Serialize;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const CHECKER: &str = "fsck.f2fs";
/// It, and heddle's reader after it.
const BOTH: &str = "fsck.f2fs and heddle";
/// Printed for an image with a node log.
const WITHOUT_LOG: &str = "the image, not its node log, which may hold fsynced files that the image lacks: heddle fold writes them into it";
/// Printed for an image whose checkpoint asks for a check.
const ASKS: &str = "the checkpoint says that a check is needed";
/// Its usual places, for users whose `PATH` lacks them.
const SYSTEM: &str = "/usr/sbin:/sbin:/usr/local/sbin";
/// At most so many lines of findings are shown.
const LINES_MAX: usize = 20;
/// At most so many repairs are run, as long as each finds other issues.
const REPAIRS_MAX: usize = 4;

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
    /// How many of them were saved before the repair, directories and links among them.
    #[serde(skip_serializing_if = "Option::is_none")]
    lost_files_saved: Option<usize>,
}

/// The checker's name, scope and findings.
struct Found {
    by: &'static str,
    checked: String,
    issues: Vec<String>,
    repaired: bool,
    /// Only heddle's reader finds what is left.
    only_ours: bool,
    /// The reason why a requested repair was not tried.
    hindered: Option<String>,
    /// The image does not need its node log any more.
    gave_up_log: bool,
    /// The directory of files that a repair took out of the image.
    lost_files: Option<PathBuf>,
    /// How many of them were saved before.
    saved: usize,
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
        Alone::with(&args.image)?;
    }
    let mut found = match by_checker(args, is_logged)? {
        Some(mut found) => {
            own::look_behind(&args.image, &mut found);
            found
        }
        None => own::look_alone(F2fs::open(&args.image))?,
    };
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

fn tell(args: &Args, found: Found, code: u8) -> Result<()> {
    let image = args.image.display();
    let result = match code {
        CLEAN => "clean",
        CORRECTED => "corrected",
        _ => "uncorrected",
    };
    if args.json {
        let Found { by, checked, issues, hindered: not_repaired, gave_up_log: node_log_given_up, .. } = found;
        let lost_files_saved = found.lost_files.is_some().then_some(found.saved);
        let lost_files = found.lost_files;
        let (image, variant) = (image.to_string(), "f2fs");
        let report = Report {
            output_version: 1,
            image,
            variant,
            checked_by: by,
            checked,
            result,
            exit_code: code,
            issues,
            not_repaired,
            node_log_given_up,
            lost_files,
            lost_files_saved,
        };
        return output::json(&Sink::Stdout, &report);
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
    let way = match &found.lost_files {
        Some(dir) if found.saved > 0 => {
            format!("{way}; files that lost their names are in {}: {} of them", dir.display(), found.saved)
        }
        Some(dir) => format!(
            "{way}; files that lost their names are in {}, as {CHECKER} saves them: one of each name",
            dir.display()
        ),
        None => way,
    };
    output::data(&format!("{shown}{more}{image}: {way}. Checked by {}: {}", found.by, found.checked))
}

/// Runs the checker. Returns `None` if it is not installed. With `is_logged` the image has a node log, which
/// is discarded before a repair.
fn by_checker(args: &Args, is_logged: bool) -> Result<Option<Found>> {
    let (image, repair) = (args.image.as_path(), args.repair);
    let Some(Said { mut issues, unreachable, ended }) = asked(image, &Ask::Look)? else { return Ok(None) };
    let asks = || F2fs::open(image).is_ok_and(|fs| fs.info().needs_fsck);
    if asks() {
        issues.push(ASKS.to_owned());
    }
    if issues.is_empty() && ended != 0 {
        if ended & i32::from(OPERATIONAL) != 0 {
            bail!("{CHECKER} could not check {}: it ended with {ended}", image.display());
        }
        issues.push(format!("{CHECKER} ended with {ended}"));
    }
    let (mut repaired, mut gave_up_log) = (false, false);
    let is_asked = repair && (is_logged || !issues.is_empty());
    let mut hindered = if is_asked { hindrance(image) } else { None };
    let mut keeps = None;
    if is_asked && hindered.is_none() {
        // Released before the checker runs, which takes a device exclusively.
        drop(Alone::with(image)?);
        match lost_files(image, &unreachable, is_logged, !issues.is_empty())? {
            Ok(made) => (keeps, gave_up_log) = (Some(made), is_logged),
            Err(why) => hindered = Some(why),
        }
    }
    if hindered.is_some() && issues.is_empty() {
        issues.push("it needs its node log, which is not given up".to_owned());
    }
    if let Some(lost) = keeps.as_mut().filter(|_| !issues.is_empty()) {
        match repair_while_it_helps(image, lost, &issues)? {
            Ok(all) => repaired = all,
            Err(why) => issues.insert(0, why),
        }
        lost.let_go();
        issues.extend(lost.take_holes());
        if repaired && asks() {
            Alone::with(image)?.note_checked()?;
        }
    }
    let saved = keeps.as_ref().map_or(0, LostFiles::count);
    let lost_files = keeps.and_then(|lost| lost.left());
    let checked = "all that it knows of".to_owned();
    let only_ours = false;
    Ok(Some(Found {
        by: CHECKER,
        checked,
        issues,
        repaired,
        only_ours,
        hindered,
        gave_up_log,
        lost_files,
        saved,
    }))
}

/// Makes the directory of lost files. If the image is to be repaired, saves the files there that the repair would
/// remove. Then discards the node log, if there is one. Returns the reason if nothing is changed.
fn lost_files(
    image: &Path,
    unreachable: &[u32],
    is_logged: bool,
    is_repair: bool,
) -> Result<std::result::Result<LostFiles, String>> {
    let save = |lost: &mut LostFiles| if is_repair { lost.save(image, unreachable) } else { Ok(()) };
    let made = LostFiles::of(image).and_then(|mut lost| save(&mut lost).map(|()| lost));
    let mut lost = match made {
        Ok(lost) if is_logged => lost,
        other => return Ok(other),
    };
    lost.let_go();
    Alone::with(image)?.give_up_log()?;
    // All is saved. This reads the image again, as it is now.
    let _ = save(&mut lost);
    Ok(Ok(lost))
}

/// Returns true if no issue is left, and the reason if it stopped because a file could not be saved. One repair may
/// leave issues for the next: counts of objects that it has just removed, with which no mount accepts the image.
fn repair_while_it_helps(
    image: &Path,
    lost: &mut LostFiles,
    issues: &[String],
) -> Result<std::result::Result<bool, String>> {
    let mut seen = issues.to_vec();
    for n in 0..REPAIRS_MAX {
        let Some(said) = asked(image, &Ask::Repair(lost))? else { break };
        if let Err(why) = lost.save_late(&said.unreachable) {
            return Ok(Err(why));
        }
        // The exit code does not tell whether issues are left: it is 255 if the checker stops at a question.
        let Some(left) = asked(image, &Ask::Look)? else { break };
        if left.issues.is_empty() && left.ended == 0 {
            return Ok(Ok(true));
        }
        if left.issues == seen || n + 1 == REPAIRS_MAX {
            break;
        }
        if let Err(why) = lost.save(image, &left.unreachable) {
            return Ok(Err(why));
        }
        seen = left.issues;
    }
    Ok(Ok(false))
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

/// The checker's task.
enum Ask<'l> {
    Look,
    Repair(&'l LostFiles),
}

/// The output of the checker.
struct Said {
    issues: Vec<String>,
    /// Numbers of nodes that it does not reach. A repair removes them.
    unreachable: Vec<u32>,
    /// Its exit code.
    ended: i32,
}

/// Runs the checker. Returns `None` if it is not installed.
fn asked(image: &Path, ask: &Ask<'_>) -> Result<Option<Said>> {
    let path = std::env::var("PATH").unwrap_or_default();
    let (how, dir, answers) = match ask {
        Ask::Look => ("--dry-run", PathBuf::from("."), b"n\nn\nn\n"),
        // The checker asks whether to keep lost files.
        Ask::Repair(lost) if lost.is_left_to_checker() => ("-y", lost.dir(), b"y\ny\ny\n"),
        Ask::Repair(lost) => ("-y", lost.dir(), b"n\nn\nn\n"),
    };
    let started = Command::new(CHECKER)
        .arg(how)
        .current_dir(dir)
        .arg(image.canonicalize().unwrap_or_else(|_| image.into()))
        .env("PATH", format!("{path}:{SYSTEM}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = match started {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        started => started.with_context(|| format!("cannot run {CHECKER}"))?,
    };
    if let Some(mut stdin) = child.stdin.take() {
        // The checker may have ended by now.
        let _ = stdin.write_all(answers);
    }
    let said = child.wait_with_output().with_context(|| format!("cannot run {CHECKER}"))?;
    let text = String::from_utf8_lossy(&said.stdout);
    // Issues that it would only repair in passing do not change its exit code: for example a wrong hash of a
    // name, by which no call finds it.
    let bad = |line: &&str| ["[Fail]", "[ASSERT]", "[FIX]"].iter().any(|sign| line.contains(sign));
    let issues = text.lines().filter(bad).map(|line| line.trim().to_owned()).collect();
    let unreachable = text.lines().filter_map(unreachable_node).collect();
    Ok(Some(Said { issues, unreachable, ended: said.status.code().unwrap_or(255) }))
}

/// The number in a line as `NID[0x1c] is unreachable, blkaddr:0x5003`.
fn unreachable_node(line: &str) -> Option<u32> {
    let (_, behind) = line.split_once("NID[0x")?;
    let (number, behind) = behind.split_once(']')?;
    behind.starts_with(" is unreachable").then(|| u32::from_str_radix(number, 16).ok()).flatten()
}
