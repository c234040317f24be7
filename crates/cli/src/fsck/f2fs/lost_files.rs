//! Where fsck.f2fs leaves the files whose names it takes away: in `lost_found` of the directory that it runs in.
//!
//! A repair gets a directory of its own, made before anything is changed: content that could not be kept would be gone.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::path::{Path, PathBuf};

/// So many repairs of one image may leave files.
const DIRS_MAX: usize = 1000;

/// A directory for them.
pub(super) struct LostFiles {
    dir: PathBuf,
}

impl LostFiles {
    /// A new one beside an image, for root or its owner alone. That of a device is made where the command runs.
    ///
    /// # Errors
    /// Why there can be none, and what to do.
    pub(super) fn of(image: &Path) -> Result<LostFiles, String> {
        let image = image.canonicalize().unwrap_or_else(|_| image.into());
        let is_device = image.metadata().is_ok_and(|meta| meta.file_type().is_block_device());
        let above = if is_device { Path::new(".") } else { image.parent().unwrap_or(Path::new(".")) };
        let name = image.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for n in 0..DIRS_MAX {
            let suffix = if n == 0 { String::new() } else { format!(".{n}") };
            let dir = above.join(format!("{name}.lost{suffix}"));
            match fs::DirBuilder::new().mode(0o700).create(&dir) {
                Ok(()) => return Ok(LostFiles { dir }),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => {
                    return Err(format!(
                        "no directory for lost files can be made: {}: {error}",
                        dir.display()
                    ));
                }
            }
        }
        Err(format!("{} has lost files of {DIRS_MAX} repairs: remove some", above.display()))
    }

    /// Where the checker is to run.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// What holds files now; a directory without any is taken away.
    pub(super) fn left(self) -> Option<PathBuf> {
        let inner = self.dir.join("lost_found");
        // Each fails where there is something in it.
        let _ = fs::remove_dir(&inner);
        fs::remove_dir(&self.dir).err().map(|_| if inner.is_dir() { inner } else { self.dir })
    }
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
        assert!(lost.dir().ends_with("a.img.lost"));
        fs::create_dir(lost.dir().join("lost_found")).unwrap();
        assert_eq!(lost.left(), None);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1, "the image alone");
        let lost = LostFiles::of(&image).unwrap();
        fs::create_dir(lost.dir().join("lost_found")).unwrap();
        fs::write(lost.dir().join("lost_found/n"), "x").unwrap();
        let left = lost.left().unwrap();
        assert!(left.ends_with("a.img.lost/lost_found") && left.join("n").is_file());
        assert!(LostFiles::of(&image).unwrap().dir().ends_with("a.img.lost.1"));
    }
}
