//! A repair that was killed half-way: the undo file beside the image says so.

use super::beside;
use std::path::{Path, PathBuf};

/// What the names of undo files have behind that of the image.
const SUFFIX: &str = ".undo-";

/// The undo file of such a repair, if it has its usual name, and nobody has gone back yet.
fn undo_file(image: &Path) -> Option<PathBuf> {
    let beside = beside(image);
    let name = beside.file_name()?.to_str()?;
    let above = beside.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let files = above.read_dir().ok()?.filter_map(Result::ok);
    let is_one = |file: &std::fs::DirEntry| {
        file.file_name()
            .to_str()
            .and_then(|file| file.strip_prefix(name))
            .is_some_and(|end| end.starts_with(SUFFIX))
    };
    let mut found: Vec<PathBuf> = files
        .filter(is_one)
        .map(|file| above.join(file.file_name()))
        .filter(|file| heddle_f2fs::is_half_repaired(image, file))
        .collect();
    found.sort();
    found.pop()
}

/// The same, in words.
pub(super) fn told(image: &Path) -> Option<String> {
    let undo = undo_file(image)?;
    let (undo, image) = (undo.display(), image.display());
    Some(format!("a repair of it was stopped half-way; go back first: heddle fsck --undo {undo} {image}"))
}
