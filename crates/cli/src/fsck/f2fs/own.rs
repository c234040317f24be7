//! What heddle itself finds in an F2FS image: behind fsck.f2fs, or in its place. Nothing is changed.

use super::{ASKS, BOTH, Found};
use anyhow::Result;
use heddle_console::progress::DelayedBar;
use heddle_f2fs::{F2fs, OpenError, Survey};
use std::path::Path;

/// What a look alone looks at.
const WHAT: &str = "superblocks, checkpoint, NAT, SIT, and all nodes and names that the root leads to; not which blocks belong to nobody";

/// Looks behind the checker, also where that has found nothing, or has repaired all that it knows of: for what a mount would refuse.
pub(super) fn look_behind(image: &Path, found: &mut Found) {
    let fs = match F2fs::open(image) {
        Ok(fs) => fs,
        // The checker does not see that a device was cut short, if what it reads is there.
        Err(error @ (OpenError::Damaged { .. } | OpenError::NotF2fs { .. })) => {
            found.issues.push(error.to_string());
            found.repaired = false;
            return;
        }
        Err(OpenError::Unsupported { what, .. }) => {
            found.checked = format!("{}; heddle does not read it: {what}", found.checked);
            return;
        }
        Err(error) => {
            found.checked = format!("{}; heddle did not read it: {error}", found.checked);
            return;
        }
    };
    let survey = survey(&fs);
    found.by = BOTH;
    found.checked = checked("all that they know of", &survey);
    add(found, survey.problems);
}

/// What was looked at, and how much of it could not be read.
fn checked(what: &str, survey: &Survey) -> String {
    match survey.unread {
        0 => what.to_owned(),
        unread => format!(
            "{what}; heddle does not read files that are encrypted or compressed, nor directories that ignore case: {unread}"
        ),
    }
}

fn add(found: &mut Found, problems: Vec<String>) {
    if problems.is_empty() {
        return;
    }
    found.only_ours = found.issues.is_empty() || found.repaired;
    found.repaired = false;
    // The first ones are shown, and these say paths.
    found.issues.splice(0..0, problems);
}

/// Reads what a mount reads, and everything that names lead to.
pub(super) fn look_alone(opened: std::result::Result<F2fs, OpenError>) -> Result<Found> {
    let mut found = Found::by("heddle", WHAT);
    let fs = match opened {
        Ok(fs) => fs,
        Err(error @ OpenError::Unsupported { .. }) => return Err(error.into()),
        Err(error) => {
            found.issues.push(error.to_string());
            return Ok(found);
        }
    };
    if fs.info().needs_fsck {
        found.issues.push(ASKS.to_owned());
    }
    let survey = survey(&fs);
    found.checked = checked(WHAT, &survey);
    found.issues.extend(survey.problems);
    Ok(found)
}

fn survey(fs: &F2fs) -> Survey {
    let shown = DelayedBar::new("reading");
    fs.examine(&mut |seen, all| shown.at("inodes", seen, all))
}
