//! Taking a file or device to write over it: whose it is and what it holds are looked at first, through the descriptor that is then
//! written to.

use crate::failure::usage;
use crate::output::talk;
use crate::progress::Bar;
use crate::size::Size;
use anyhow::{Result, bail};
use heddle_f2fs::LOG_BYTES_MAX;
use heddle_pmem::LockedFile;
use heddle_signatures::{Content, Signature, have_bytes_in_common};
use std::fs::File;
use std::path::Path;

/// May something be overwritten that is somebody's?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Force {
    /// Nothing.
    No,
    /// Whatever it is; it is named.
    Yes,
}

/// Something that may be written over.
pub struct Target {
    /// The file or device, held through the descriptor that is then written to.
    pub locked_file: LockedFile,
    content: Content,
    /// What is there does not count.
    forced: bool,
}

/// Holds what is at a path, or makes a file there; refuses by name what is not the caller's to lose. `remedy` says how to insist.
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
    Ok(Target { locked_file, content, forced: force == Force::Yes })
}

/// Why it is not to be written over without being asked.
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

/// Why a file without content is no place for what the caller writes.
fn others_may_write(locked_file: &LockedFile, path: &Path) -> Option<String> {
    let (stat, own, shown) = (locked_file.stat(), rustix::process::geteuid().as_raw(), path.display());
    if stat.st_uid != own {
        return Some(format!("{shown} belongs to user {}, not to you", stat.st_uid));
    }
    let mode = stat.st_mode & 0o7777;
    (mode & 0o002 != 0).then(|| format!("{shown} can be written by everybody (mode {mode:03o})"))
}

impl Target {
    /// Is it this image, by whatever name, or a device over it? False if the image cannot be opened: that has an error of its own.
    pub fn has_bytes_of(&self, image: &Path) -> bool {
        File::open(image).is_ok_and(|image| have_bytes_in_common(image, &self.locked_file))
    }

    /// Nothing finds what was there any more. For the moment when all else has been checked.
    pub fn clear(&self) -> Result<()> {
        // Of a file nothing stays anyway.
        if !self.locked_file.is_file() {
            self.locked_file.wipe(&self.content)?;
        }
        Ok(())
    }
}

/// What the media crate calls a node log of ours.
const NODE_LOG: &str = "a heddle node log";

impl Target {
    /// Is it a file that was there, without a byte in it?
    pub fn is_empty_file(&self) -> bool {
        self.locked_file.is_file() && !self.locked_file.is_new() && self.locked_file.stat().st_size == 0
    }

    /// Does what is there not count?
    pub fn is_forced(&self) -> bool {
        self.forced
    }

    /// Is there one of ours, and nothing else?
    pub fn is_node_log(&self) -> bool {
        let alone = |found: &[Signature]| found.iter().all(|signature| signature.kind == NODE_LOG);
        !self.forced && matches!(&self.content, Content::Known(found) if alone(found))
    }
}

/// The node log that lies there. `remedy` says how to go on without it.
///
/// # Errors
/// There is none, with what is there.
pub fn present_node_log(path: &Path, remedy: &str) -> Result<Target> {
    let locked_file = LockedFile::new(path).map_err(|error| crate::open_error::explain(path, error))?;
    let content = if locked_file.is_new() { Content::Blank } else { locked_file.content()? };
    let target = Target { locked_file, content, forced: false };
    match target.is_node_log() {
        true => Ok(target),
        false => {
            bail!(
                "{} holds no node log, but {}: name that of the last mount. {remedy}",
                path.display(),
                target.content
            )
        }
    }
}

/// What is to become a node log: it may be there already, or be made where nothing but zeros is. One that is forced is made anew.
pub fn node_log_target(path: &Path, force: Force) -> Result<Target> {
    let locked_file = LockedFile::new(path).map_err(|error| crate::open_error::explain(path, error))?;
    let content = if locked_file.is_new() { Content::Blank } else { locked_file.content()? };
    let target = Target { locked_file, content, forced: force == Force::Yes };
    let is_free = match target.locked_file.is_new() {
        true => true,
        // It may hold something between its ends.
        false => {
            let bar = Bar::of_bytes("looking");
            let progress = |done, total| bar.at(done, total);
            target.content == Content::Blank && target.locked_file.is_zero(LOG_BYTES_MAX, &progress)?
        }
    };
    let shown = path.display();
    if force == Force::No
        && target.is_empty_file()
        && let Some(why) = others_may_write(&target.locked_file, path)
    {
        bail!("{why}. Name another file or device for the node log, or take this one with -o force-nvm");
    }
    match force {
        Force::No if !is_free && !target.is_node_log() => bail!(
            "{shown} holds {}, and no node log. Name another file or device, or give up what it holds with -o force-nvm",
            if target.content == Content::Blank { &Content::Unknown } else { &target.content }
        ),
        Force::Yes if !is_free => {
            talk(&format!("heddle: {shown} holds {}: a node log is made over it", target.content));
            Ok(target)
        }
        _ => Ok(target),
    }
}
