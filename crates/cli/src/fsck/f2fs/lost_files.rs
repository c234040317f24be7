//! The directory in which fsck.f2fs puts files whose names it removes: `lost_found` in its working directory.
//!
//! Each repair gets a directory of its own, made before anything is changed: otherwise the content of lost
//! files would be lost, too.
//!
//! fsck.f2fs saves a file under the name in its inode, without checking that name. A name of `../` would lead
//! out of the directory, to any file that the caller may write. So it runs so many directories deep that no
//! name is long enough to leave them.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::path::{Path, PathBuf};

/// At most so many repairs of one image may leave files.
const DIRS_MAX: usize = 1000;
/// How often the longest name, of 255 bytes, can contain `../`.
const CLIMBS_MAX: usize = 85;
/// The name that fsck.f2fs gives to the directory of lost files.
const LOST_FOUND: &str = "lost_found";

/// A directory for lost files. It is removed if no file was lost.
pub(super) struct LostFiles {
    dir: PathBuf,
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
        for n in 0..DIRS_MAX {
            let suffix = if n == 0 { String::new() } else { format!(".{n}") };
            let dir = above.join(format!("{name}.lost{suffix}"));
            match fs::DirBuilder::new().mode(0o700).create(&dir) {
                Ok(()) => {
                    let lost = LostFiles { dir };
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

    /// The directory that holds files now.
    pub(super) fn left(&self) -> Option<PathBuf> {
        let found = self.dir.join(LOST_FOUND);
        let _ = fs::remove_dir(self.dir().join(LOST_FOUND));
        // It fails if no file was lost.
        let _ = fs::rename(self.dir().join(LOST_FOUND), &found);
        self.take_empty_away();
        self.dir.exists().then(|| if found.is_dir() { found } else { self.dir.clone() })
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
