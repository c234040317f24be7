//! Checks a file or device before it is overwritten: its owner and its content are read through the
//! descriptor that is then written to.

use crate::failure::usage;
use crate::output::talk;
use crate::progress::Bar;
use crate::size::Size;
use anyhow::{Result, anyhow, bail};
use heddle_f2fs::LOG_BYTES_MAX;
use heddle_pmem::LockedFile;
use heddle_signatures::{Content, Signature, have_bytes_in_common};
use std::fs::File;
use std::path::Path;

/// Whether the content of another owner or format may be overwritten.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Force {
    /// It may not.
    No,
    /// It may; the content is named.
    Yes,
}

/// A file or device that may be overwritten.
pub struct Target {
    /// The file or device, held through the descriptor that is then written to.
    pub locked_file: LockedFile,
    content: Content,
    /// The present content is to be ignored.
    forced: bool,
    /// A node log overwrites it.
    is_lost: bool,
}

/// Takes the file or device at a path, or makes a file there. Refuses, with its reason, content that the
/// caller may want to keep. `remedy` names the option that overwrites it.
pub fn take(path: &Path, force: Force, remedy: &str) -> Result<Target> {
    if path.as_os_str().is_empty() {
        return Err(usage("the name of the file or device is empty"));
    }
    let locked_file = LockedFile::new(path).map_err(|error| crate::open_error::explain(path, error))?;
    let content = if locked_file.is_new() { Content::Blank } else { locked_file.content()? };
    if let Some(why) = objection(&locked_file, &content, path) {
        match force {
            Force::No => bail!("{why}. {remedy}"),
            Force::Yes => talk(&format!("heddle: {why}: overwriting it")),
        }
    }
    Ok(Target { locked_file, content, forced: force == Force::Yes, is_lost: false })
}

/// The reason not to overwrite it without force.
fn objection(locked_file: &LockedFile, content: &Content, path: &Path) -> Option<String> {
    let shown = path.display();
    if locked_file.is_new() {
        return None;
    }
    if !locked_file.is_file() {
        return (*content != Content::Blank).then(|| format!("{shown} holds {content} already"));
    }
    match (content, locked_file.stat().st_size) {
        (Content::Known(_), _) => Some(format!("{shown} holds {content} already")),
        (_, 1..) => {
            let size = Size(locked_file.stat().st_size as u64);
            Some(format!("{shown} is a file of {size} already, and holds {content}"))
        }
        _ => others_may_write(locked_file, path),
    }
}

/// The reason why a file without content is not safe to write to.
fn others_may_write(locked_file: &LockedFile, path: &Path) -> Option<String> {
    let (stat, own, shown) = (locked_file.stat(), rustix::process::geteuid().as_raw(), path.display());
    if stat.st_uid != own {
        return Some(format!("{shown} belongs to user {}, not to you", stat.st_uid));
    }
    let mode = stat.st_mode & 0o7777;
    (mode & 0o002 != 0).then(|| format!("{shown} is writable by every user (mode {mode:03o})"))
}

impl Target {
    /// Returns true if it is this image under any name, or a device over it. Returns false if the image
    /// cannot be opened: that error is reported elsewhere.
    pub fn has_bytes_of(&self, image: &Path) -> bool {
        File::open(image).is_ok_and(|image| have_bytes_in_common(image, &self.locked_file))
    }

    /// Makes the old content unrecognisable. Call it after all other checks.
    pub fn clear(&self) -> Result<()> {
        // A file is overwritten as a whole anyway.
        if !self.locked_file.is_file() {
            self.locked_file.wipe(&self.content)?;
        }
        Ok(())
    }
}

/// The media crate's name for a node log.
const NODE_LOG: &str = "a heddle node log";

impl Target {
    /// Returns true if it is an existing file without a byte.
    pub fn is_empty_file(&self) -> bool {
        self.locked_file.is_file() && !self.locked_file.is_new() && self.locked_file.stat().st_size == 0
    }

    /// Tells the user which content a node log overwrites. Call it after all other checks.
    pub fn tell_what_is_lost(&self, path: &Path) {
        if self.is_lost {
            talk(&format!("heddle: {} holds {}: a node log overwrites it", path.display(), self.content));
        }
    }

    /// Returns true if the present content is to be ignored.
    pub fn is_forced(&self) -> bool {
        self.forced
    }

    /// Returns true if it holds a node log and nothing else.
    pub fn is_node_log(&self) -> bool {
        let alone = |found: &[Signature]| found.iter().all(|signature| signature.kind == NODE_LOG);
        !self.forced && matches!(&self.content, Content::Known(found) if alone(found))
    }
}

/// Why a node log cannot be opened. `heddle mount -o ro` opens none.
pub fn log_not_opened(path: &Path, error: heddle_pmem::Error) -> anyhow::Error {
    match error {
        heddle_pmem::Error::WriteProtected { .. } => anyhow!(
            "{} is write-protected, and a node log is written to: name another place. To look at the image as its last checkpoint has it: \
             heddle mount -o ro, without --nvm",
            path.display()
        ),
        error => crate::open_error::explain(path, error),
    }
}

/// Takes an existing node log. `remedy` names the way without it.
///
/// # Errors
/// There is no node log; the text names the present content.
pub fn present_node_log(path: &Path, remedy: &str) -> Result<Target> {
    let locked_file = LockedFile::new(path).map_err(|error| log_not_opened(path, error))?;
    let content = if locked_file.is_new() { Content::Blank } else { locked_file.content()? };
    let target = Target { locked_file, content, forced: false, is_lost: false };
    match target.is_node_log() {
        true => Ok(target),
        false => {
            bail!(
                "{} holds no node log, but {}: give the node log of the last mount. {remedy}",
                path.display(),
                target.content
            )
        }
    }
}

/// Takes the place of a node log, an existing one or a new one over zeros. With force the log is made new.
/// `needs_log`: the image needs the log that it has, and takes another one only if that one is given up.
pub fn node_log_target(path: &Path, force: Force, needs_log: bool) -> Result<Target> {
    let locked_file = LockedFile::new(path).map_err(|error| log_not_opened(path, error))?;
    let content = if locked_file.is_new() { Content::Blank } else { locked_file.content()? };
    let mut target = Target { locked_file, content, forced: force == Force::Yes, is_lost: false };
    let is_free = match target.locked_file.is_new() {
        true => true,
        // It may hold something between its two ends.
        false => {
            let bar = Bar::of_bytes("looking");
            let progress = |done, total| bar.set_position(done, total);
            target.content == Content::Blank && target.locked_file.is_zero(LOG_BYTES_MAX, &progress)?
        }
    };
    let shown = path.display();
    let (also, way) = match needs_log {
        true => (", and the fsyncs that only the log of the image has,", "with -o force-nvm,discard-nvm"),
        false => ("", "with -o force-nvm"),
    };
    if force == Force::No
        && target.is_empty_file()
        && let Some(why) = others_may_write(&target.locked_file, path)
    {
        bail!("{why}. Name another file or device for the node log, or take this one {way}");
    }
    match force {
        Force::No if !is_free && !target.is_node_log() => bail!(
            "{shown} holds {}, and no node log. Name another file or device, or give up what it holds{also} {way}",
            if target.content == Content::Blank { &Content::Unknown } else { &target.content }
        ),
        _ => {
            target.is_lost = force == Force::Yes && !is_free;
            Ok(target)
        }
    }
}
