//! `heddle fsck`: checks an image, and repairs it on request. Exit codes are those of fsck(8).

mod f2fs;
mod undo_files;

use anyhow::{Result, bail};
use heddle_console::failure::{Exit, usage};
use heddle_console::image;
use heddle_console::output::{self, Sink, talk};
use heddle_nvmfs::fsck::{FsckError, Issue, Severity, Verdict, examine, give_up_undo, undo};
use heddle_pmem::{OpenOptions, Region, SizeInUse};
use serde::Serialize;
use std::io::{BufRead, IsTerminal};
use std::path::{Path, PathBuf};
use undo_files::undo_name;

/// Check an unmounted image; repair it with -y
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Change nothing; show issues (20 of a kind; F2FS: 20) and, of NVM images, repairs [default for F2FS images, with --json, and if stdin
    /// is no terminal]
    #[arg(short = 'n', conflicts_with = "repair")]
    look: bool,
    /// Show issues, and repair what it can
    #[arg(short = 'y')]
    repair: bool,
    /// With -y: save the bytes that the repair overwrites to this file [default: IMAGE.undo-DATE]. Without -y: restore them
    #[arg(long, value_name = "FILE")]
    undo: Option<PathBuf>,
    /// F2FS images, with -y: lose the changes that only the node log has, to repair an image that cannot be folded
    #[arg(long)]
    discard_nvm: bool,
    /// With -y: lose what only the undo file of a repair that was stopped half-way has, if that file is lost or of no use any more
    #[arg(long)]
    discard_undo: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
    /// File or device
    image: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  heddle fsck /dev/shm/my.img                        check; for an NVM image, on a terminal, ask whether to repair what it can
  heddle fsck -n --json /dev/shm/my.img
  heddle fsck -y /dev/shm/my.img                     repair; save the old bytes to /dev/shm/my.img.undo-DATE
  heddle fsck --undo my.img.undo-20260101T120000 /dev/shm/my.img     restore them
  heddle fsck -y --discard-nvm /dev/sdb1             an F2FS image that needs its node log, and cannot be folded
  heddle fsck -y --discard-undo /dev/sdb1            an image that is half repaired, and its undo file is lost
  heddle explain NV-0042                             explain an issue

F2FS images are checked and repaired by fsck.f2fs. Heddle traces its repair: what it overwrites goes into the undo file first, and files
that it removes, or whose content it changes, are saved in IMAGE.lost/lost_found (IMAGE.lost.1 and so on, if there is one). If a file cannot
be saved, nothing is repaired. If the image has a feature that heddle does not know, fsck.f2fs saves the files that it removes, one of each
name. The saved files of a device, and its undo file without --undo, lie in the working directory. After fsck.f2fs, or where it is not
installed, heddle itself reads the image's nodes and names, as far as it knows the image's features. It reports what contradicts itself,
and repairs nothing of that.

If a repair was killed half-way, fsck says so, and heddle mount refuses the image for writing: go back with --undo.

An NVM image needs no fsck because it was not unmounted: the next mount recovers it.

Exit codes, as fsck(8): 0 no issue (or notes only), 1 repaired or restored, 4 issues are left, 5 repaired in part (F2FS: 4),
8 the command failed, 16 wrong usage. With 8 added: the image was changed, and stdout did not take the report, which is on stderr.";

/// No issue.
const CLEAN: u8 = 0;
const CORRECTED: u8 = 1;
const UNCORRECTED: u8 = 4;
const OPERATIONAL: u8 = 8;
/// The command line was wrong.
pub const USAGE: u8 = 16;

#[derive(Serialize)]
struct Report {
    output_version: u32,
    image: String,
    variant: Option<&'static str>,
    inodes: u64,
    result: &'static str,
    exit_code: u8,
    /// The reason why an image that an earlier repair has left half done was not looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_repaired: Option<String>,
    errors: usize,
    warnings: usize,
    notes: usize,
    blocks_changed: usize,
    /// What only the undo file of an earlier repair has is lost.
    undo_given_up: bool,
    undo_file: Option<String>,
    /// Those of repairs that were killed before they changed anything. `-y` removes them.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "undo_files::as_texts")]
    needless_undo_files: Vec<PathBuf>,
    issues: Vec<Shown>,
}

#[derive(Serialize)]
struct Shown {
    id: String,
    severity: &'static str,
    structure: &'static str,
    inode: Option<u64>,
    block: Option<u64>,
    slot: Option<u32>,
    title: &'static str,
    detail: String,
    repair: &'static str,
    repairable: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let code = match &args.undo {
        Some(_) if args.look => {
            return Err(Exit::because(USAGE, usage("--undo restores bytes: leave out -n")));
        }
        _ if args.discard_nvm && !args.repair => {
            return Err(Exit::because(USAGE, usage("--discard-nvm is for repairs: add -y")));
        }
        _ if args.discard_undo && !args.repair => {
            return Err(Exit::because(USAGE, usage("--discard-undo is for repairs: add -y")));
        }
        _ if args.discard_nvm && !heddle_f2fs::is_f2fs(&args.image) => {
            return Err(Exit::because(
                USAGE,
                usage("--discard-nvm is for F2FS images: only those have node logs"),
            ));
        }
        // The image's superblocks may be gone, and the undo file has them.
        Some(file)
            if !args.repair && (heddle_f2fs::is_f2fs(&args.image) || heddle_f2fs::is_undo_file(file)) =>
        {
            f2fs::put_back(args, file)
        }
        Some(file) if !args.repair => put_back(args, file),
        _ if heddle_f2fs::is_f2fs(&args.image) => f2fs::check(args),
        _ => check(args),
    };
    let code = code.map_err(|error| {
        let is_half = matches!(error.downcast_ref(), Some(FsckError::HalfRepaired { .. }));
        Exit::because(if is_half { UNCORRECTED } else { OPERATIONAL }, error)
    })?;
    if code == CLEAN { Ok(()) } else { Err(Exit::silent(code)) }
}

fn open(path: &Path, read_only: bool) -> Result<Region> {
    let size_in_use: SizeInUse<'_> = &heddle_nvmfs::size_in_use;
    let how =
        OpenOptions { read_only, prefault: false, size_in_use: Some(size_in_use), ..OpenOptions::default() };
    image::open(path, &how)
}

fn put_back(args: &Args, file: &Path) -> Result<u8> {
    let region = open(&args.image, false)?;
    let blocks = undo::restore(file, &region)?;
    put_back_told(args, file, blocks)
}

/// The report of `--undo`, as JSON.
#[derive(Serialize)]
struct PutBack {
    output_version: u32,
    image: String,
    result: &'static str,
    exit_code: u8,
    undo_file: String,
    blocks_restored: u64,
}

/// Says that so many blocks were restored. Returns the exit code.
fn put_back_told(args: &Args, file: &Path, blocks: u64) -> Result<u8> {
    let [image, undo_file] = [&args.image, file].map(|path| path.display().to_string());
    let (code, result, text) = match blocks {
        0 => (
            CLEAN,
            "unchanged",
            format!("{image}: nothing was changed: it has the bytes that {undo_file} has kept"),
        ),
        _ => (CORRECTED, "restored", format!("{image}: {blocks} blocks are as they were before the repair")),
    };
    let report =
        PutBack { output_version: 1, image, result, exit_code: code, undo_file, blocks_restored: blocks };
    let on_stdout = if args.json { output::json(&Sink::Stdout, &report) } else { output::data(&text) };
    said(on_stdout, &text, blocks > 0, code)
}

/// The exit code. If stdout has not taken the report of a change, stderr gets it: it names the files with what the image had.
fn said(on_stdout: Result<()>, text: &str, is_changed: bool, code: u8) -> Result<u8> {
    match on_stdout {
        Err(error) if is_changed => {
            talk(&format!("heddle: {}\n{text}", heddle_console::failure::text(&error)));
            Ok(code | OPERATIONAL)
        }
        on_stdout => on_stdout.map(|()| code),
    }
}

fn check(args: &Args) -> Result<u8> {
    let name = args.image.display().to_string();
    let mut repair = args.repair;
    let mut region = open(&args.image, !repair)?;
    let undo_given_up = args.discard_undo && give_up_undo(&name, &region)?;
    let mut verdict = match examine(&name, &region) {
        Err(half @ FsckError::HalfRepaired { .. }) if args.json => {
            output::json(&Sink::Stdout, &half_repaired(name, &half))?;
            return Ok(UNCORRECTED);
        }
        examined => examined?,
    };
    let mendable = verdict.found() > verdict.left();
    if !args.json {
        let findings = findings(&verdict);
        if !findings.is_empty() {
            output::data(&findings)?;
        }
        if mendable && !repair && !args.look && std::io::stdin().is_terminal() {
            repair = ask(&name);
            if repair {
                // Another process may have changed the image during the question.
                drop(region);
                region = open(&args.image, false)?;
                let shown = std::mem::replace(&mut verdict, examine(&name, &region)?);
                if shown.issues != verdict.issues {
                    bail!(
                        "{name} was changed while the question stood: nothing was repaired. Check it again: heddle fsck {}",
                        heddle_undo::shell_word(&args.image)
                    );
                }
            }
        }
    }
    let mut kept = None;
    if repair && mendable {
        let file = args.undo.clone().unwrap_or_else(|| undo_name(&args.image));
        verdict.apply(&region, &file)?;
        kept = Some(file);
    }
    let needless = undo_files::needless(&args.image, repair, |file| undo::is_needless(file, &region));
    let code = match (verdict.found(), verdict.left(), kept.is_some()) {
        // The image was changed.
        (0, ..) if undo_given_up => CORRECTED,
        (0, ..) => CLEAN,
        (_, 0, true) => CORRECTED,
        (_, _, is_repaired) if is_repaired || undo_given_up => CORRECTED | UNCORRECTED,
        _ => UNCORRECTED,
    };
    let report = Report {
        needless_undo_files: needless,
        undo_given_up,
        ..report(&name, &verdict, code, kept.as_deref())
    };
    let text = undo_files::told(&report.needless_undo_files, repair)
        + &summary(&report, &args.image, kept.as_deref());
    let on_stdout = if args.json { output::json(&Sink::Stdout, &report) } else { output::data(&text) };
    said(on_stdout, &text, kept.is_some() || undo_given_up, code)
}

fn ask(name: &str) -> bool {
    talk(&format!("{name}: repair? What is overwritten is kept in an undo file. [y/N]"));
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}

fn counts(verdict: &Verdict, severity: Severity) -> usize {
    verdict.issues.iter().filter(|(issue, _)| issue.severity() == severity).count()
}

fn report(name: &str, verdict: &Verdict, code: u8, undo: Option<&Path>) -> Report {
    Report {
        output_version: 1,
        image: name.to_owned(),
        variant: verdict.variant.map(|v| v.name()),
        inodes: verdict.inodes,
        result: match code {
            CLEAN => "clean",
            CORRECTED => "corrected",
            _ => "uncorrected",
        },
        exit_code: code,
        not_repaired: None,
        errors: counts(verdict, Severity::Error),
        warnings: counts(verdict, Severity::Warning),
        notes: counts(verdict, Severity::Note),
        blocks_changed: if undo.is_some() { verdict.changes().count() } else { 0 },
        undo_file: undo.map(|file| file.display().to_string()),
        undo_given_up: false,
        needless_undo_files: Vec::new(),
        issues: verdict.issues.iter().map(|(issue, mended)| shown(issue, *mended)).collect(),
    }
}

/// Nothing is said of the rest of such an image, which may be anything.
fn half_repaired(image: String, half: &FsckError) -> Report {
    Report {
        output_version: 1,
        image,
        variant: None,
        inodes: 0,
        result: "uncorrected",
        exit_code: UNCORRECTED,
        not_repaired: Some(half.to_string()),
        errors: 0,
        warnings: 0,
        notes: 0,
        blocks_changed: 0,
        undo_given_up: false,
        undo_file: None,
        needless_undo_files: Vec::new(),
        issues: Vec::new(),
    }
}

fn shown(issue: &Issue, repairable: bool) -> Shown {
    let entry = issue.code.entry();
    Shown {
        id: issue.code.to_string(),
        severity: entry.severity.name(),
        structure: entry.structure,
        inode: issue.location.ino.map(|i| i.0),
        block: issue.location.block.map(|b| b.0),
        slot: issue.location.slot,
        title: entry.title,
        detail: issue.what.clone(),
        repair: entry.repair,
        repairable,
    }
}

/// Printed after `--discard-undo` of an image that was half repaired.
const UNDO_GIVEN_UP: &str = "what only the undo file of the earlier repair has is lost to the image";
/// Large damage gives many lines of one kind: at most so many of each kind are shown.
const LINES_A_KIND: usize = 20;

fn findings(verdict: &Verdict) -> String {
    let mut text = String::new();
    let mut before = None;
    let mut of_kind = 0;
    for (issue, mended) in &verdict.issues {
        let entry = issue.code.entry();
        of_kind = if before == Some(issue.code) { of_kind + 1 } else { 1 };
        if of_kind > LINES_A_KIND {
            if of_kind == LINES_A_KIND + 1 {
                let more = verdict.issues.iter().filter(|(i, _)| i.code == issue.code).count() - LINES_A_KIND;
                text += &format!("         and {more} more of {}; --json lists all\n", issue.code);
            }
            continue;
        }
        if before != Some(issue.code) {
            // Other programs may repair what this command cannot, if the catalogue says so.
            let way = if *mended || entry.repair.starts_with("None") { entry.repair } else { "" };
            let line = format!("{} {}: {}. {way}", issue.code, entry.severity.name(), entry.title);
            text += &format!("{}\n", line.trim_end());
        }
        before = Some(issue.code);
        text += &format!("         {}: {}\n", issue.location, issue.what);
    }
    text
}

fn summary(report: &Report, path: &Path, undo: Option<&Path>) -> String {
    let (image, word) = (&report.image, heddle_undo::shell_word(path));
    let back =
        |undo: &Path| format!("To go back: heddle fsck --undo {} {word}", heddle_undo::shell_word(undo));
    let found = format!("{} errors, {} warnings, {} notes", report.errors, report.warnings, report.notes);
    let found = if report.undo_given_up { format!("{found}; {UNDO_GIVEN_UP}") } else { found };
    match (report.exit_code, undo) {
        (CLEAN, _) => format!("{image}: clean; {} inodes, {found}", report.inodes),
        (CORRECTED, None) => format!("{image}: {found}"),
        (CORRECTED, Some(undo)) => {
            format!("{image}: repaired; {found}; {} blocks changed. {}", report.blocks_changed, back(undo))
        }
        (_, Some(undo)) => format!(
            "{image}: repaired in part; {found}; {} blocks changed. {}",
            report.blocks_changed,
            back(undo)
        ),
        _ => {
            let mendable = report.issues.iter().any(|i| i.repairable);
            let way =
                if mendable { "Repair it with" } else { "No issue can be repaired; each is explained by" };
            let command =
                if mendable { format!("heddle fsck -y {word}") } else { "heddle explain ID".to_owned() };
            let else_ = if report.undo_given_up { " else" } else { "" };
            format!("{image}: NOT clean; {found}; nothing{else_} was changed. {way}: {command}")
        }
    }
}
