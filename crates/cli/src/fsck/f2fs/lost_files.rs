//! The directory of the files that a repair removes from an image: `IMAGE.lost/lost_found`, one for each repair.
//!
//! Heddle saves the files behind the repair, from the image as it was (`save.rs`), and tells fsck.f2fs not to save them. fsck.f2fs
//! would save each under the name in its inode: of two files with one name it keeps one, and a file that finds no space it
//! truncates without a message.
//!
//! If heddle cannot read the image, fsck.f2fs saves the files, in `lost_found` of its working directory. It does not check
//! names: a name of `../` would lead out of the directory, to any file that the caller may write. So it runs so many
//! directories deep that no name is long enough to leave them.

use super::save::{Changed, LOST_FOUND, STAGING, Saver};
use heddle_f2fs::Lost;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::path::{Path, PathBuf};

/// At most so many repairs of one image may leave files.
const DIRS_MAX: usize = 1000;
/// How often the longest name, of 255 bytes, can contain `../`.
const CLIMBS_MAX: usize = 85;
/// The directory of files that fsck.f2fs saved, if heddle saved some too.
const OF_CHECKER: &str = "of_fsck.f2fs";

/// A directory for lost files. It is removed if no file was lost.
pub(super) struct LostFiles {
    dir: PathBuf,
    saver: Saver,
    is_left_to_checker: bool,
}

impl LostFiles {
    /// A new directory beside an image, for root or the image's owner only. For a device it is made in the
    /// command's working directory.
    ///
    /// # Errors
    /// The reason why it cannot be made, and the remedy.
    pub(super) fn of(image: &Path) -> Result<LostFiles, String> {
        let image = image.canonicalize().unwrap_or_else(|_| image.into());
        let is_device = image.metadata().is_ok_and(|meta| meta.file_type().is_block_device());
        let above = if is_device { Path::new(".") } else { image.parent().unwrap_or(Path::new(".")) };
        let name = image.file_name().unwrap_or_default().to_string_lossy().into_owned();
        forget_killed(above, &name);
        for n in 0..DIRS_MAX {
            let suffix = if n == 0 { String::new() } else { format!(".{n}") };
            let dir = above.join(format!("{name}.lost{suffix}"));
            match fs::DirBuilder::new().mode(0o700).create(&dir) {
                Ok(()) => {
                    let saver = Saver::of(&dir).map_err(|error| cannot_make(&dir, &error))?;
                    let lost = LostFiles { dir, saver, is_left_to_checker: false };
                    return match fs::create_dir_all(lost.dir()) {
                        Ok(()) => Ok(lost),
                        Err(error) => Err(cannot_make(&lost.dir, &error)),
                    };
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(cannot_make(&dir, &error)),
            }
        }
        Err(format!("{} has lost files of {DIRS_MAX} repairs: remove some", above.display()))
    }

    /// The working directory of the checker.
    pub(super) fn dir(&self) -> PathBuf {
        (0..=CLIMBS_MAX).fold(self.dir.clone(), |dir, _| dir.join("d"))
    }

    /// Heddle cannot read the image: fsck.f2fs is to save the files.
    pub(super) fn leave_to_checker(&mut self, is_left: bool) {
        self.is_left_to_checker = is_left;
    }

    /// Returns true if fsck.f2fs is to save the files.
    pub(super) fn is_left_to_checker(&self) -> bool {
        self.is_left_to_checker
    }

    /// Saves what the repair has taken away.
    ///
    /// # Errors
    /// The reason why not all files can be saved.
    pub(super) fn save(&mut self, lost: &Lost) -> Result<(), String> {
        self.saver.save(lost)
    }

    /// Files that kept a name, and what they were.
    pub(super) fn take_changed(&mut self) -> Vec<Changed> {
        self.saver.take_changed()
    }

    /// Number of files and directories that were saved.
    pub(super) fn count(&self) -> usize {
        self.saver.count()
    }

    /// Damage of the saved files, as texts.
    pub(super) fn take_holes(&mut self) -> Vec<String> {
        self.saver.take_holes()
    }

    /// Removes all of it.
    pub(super) fn discard(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }

    /// The directory that holds files now.
    pub(super) fn left(&self) -> Option<PathBuf> {
        let found = self.dir.join(LOST_FOUND);
        let _ = fs::remove_dir(self.dir().join(LOST_FOUND));
        let to = if found.exists() { self.dir.join(OF_CHECKER) } else { found.clone() };
        // It fails if the checker saved no file.
        let _ = fs::rename(self.dir().join(LOST_FOUND), &to);
        self.take_empty_away();
        let is_one = found.is_dir() && !self.dir.join(OF_CHECKER).exists();
        self.dir.exists().then(|| if is_one { found } else { self.dir.clone() })
    }

    /// Removes empty directories, from the inside.
    fn take_empty_away(&self) {
        let inside = self.dir();
        let levels = inside.ancestors().take_while(|dir| dir.file_name() == Some(OsStr::new("d")));
        // Each removal fails if the directory holds something.
        levels.chain([self.dir.as_path()]).for_each(|dir| _ = fs::remove_dir(dir));
    }
}

impl Drop for LostFiles {
    fn drop(&mut self) {
        let _ = fs::remove_dir(self.dir().join(LOST_FOUND));
        self.take_empty_away();
    }
}

/// Removes what repairs of this image left half saved when they were killed: their undo files have all of it. The image is locked.
fn forget_killed(above: &Path, name: &str) {
    for n in 0..DIRS_MAX {
        let suffix = if n == 0 { String::new() } else { format!(".{n}") };
        let dir = above.join(format!("{name}.lost{suffix}"));
        if !dir.exists() {
            break;
        }
        // Only in a directory as `of` makes it.
        if let Ok(saver) = Saver::of(&dir) {
            let _ = fs::remove_dir_all(dir.join(STAGING));
            LostFiles { dir, saver, is_left_to_checker: false }.take_empty_away();
        }
    }
}

fn cannot_make(dir: &Path, error: &io::Error) -> String {
    format!("no directory for lost files can be made: {}: {error}", dir.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_files_lie_beside_the_image_and_no_empty_directory_stays() {
        let place = tempfile::tempdir().unwrap();
        let image = place.path().join("a.img");
        fs::write(&image, "").unwrap();
        let lost = LostFiles::of(&image).unwrap();
        fs::create_dir(lost.dir().join(LOST_FOUND)).unwrap();
        assert_eq!(lost.left(), None);
        drop(LostFiles::of(&image).unwrap());
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1, "the image alone");
        let lost = LostFiles::of(&image).unwrap();
        fs::create_dir(lost.dir().join(LOST_FOUND)).unwrap();
        fs::write(lost.dir().join(LOST_FOUND).join("n"), "x").unwrap();
        let left = lost.left().unwrap();
        drop(lost);
        assert!(left.ends_with("a.img.lost/lost_found") && left.join("n").is_file());
        assert_eq!(fs::read_dir(left.parent().unwrap()).unwrap().count(), 1, "what was lost alone");
        assert!(LostFiles::of(&image).unwrap().dir.ends_with("a.img.lost.1"));
    }

    /// The inode of a foreign image may have any name: as root this once overwrote files of the system.
    #[test]
    fn no_name_of_a_lost_file_leads_out_of_its_directory() {
        let place = tempfile::tempdir().unwrap();
        let image = place.path().join("a.img");
        fs::write(&image, "").unwrap();
        fs::write(place.path().join("victim"), "precious").unwrap();
        let lost = LostFiles::of(&image).unwrap();
        fs::create_dir(lost.dir().join(LOST_FOUND)).unwrap();
        let names =
            (0..CLIMBS_MAX).map(|climbs| "../".repeat(climbs) + "victim").filter(|name| name.len() <= 255);
        for name in names {
            let at = lost.dir().join(LOST_FOUND).join(name);
            fs::write(&at, "evil").unwrap();
            assert!(at.canonicalize().unwrap().starts_with(lost.dir.canonicalize().unwrap()));
        }
        assert_eq!(fs::read_to_string(place.path().join("victim")).unwrap(), "precious");
        assert!(lost.left().unwrap().join("victim").is_file());
    }
}
