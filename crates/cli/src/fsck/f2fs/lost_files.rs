//! The directory of the files that a repair removes from an image: `IMAGE.lost/lost_found`, one for each repair.
//!
//! Heddle saves the files behind the repair, from the image as it was (`save.rs`), and tells fsck.f2fs not to save them. fsck.f2fs
//! would save each under the name in its inode: of two files with one name it keeps one, and a file that finds no space it
//! truncates without a message.
//!
//! If heddle cannot read the image, fsck.f2fs saves the files, in `lost_found` of its working directory. It does not check
//! names: a name of `../` would lead out of the directory, to any file that the caller may write. So it runs so many
//! directories deep that no name is long enough to leave them.
//!
//! Until the end of the repair everything lies under names that have the repair's number. What a killed repair has left is known by it,
//! and nothing else is removed: `IMAGE.lost` is its owner's.

use super::super::undo_files::beside;
use super::save::{Changed, LOST_FOUND, Saver};
use heddle_f2fs::{Lost, RepairId};
use rustix::fs::{CWD, RenameFlags};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
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
    id: RepairId,
    saver: Saver,
    is_left_to_checker: bool,
    /// What has got its name.
    published: Vec<&'static str>,
}

/// Names of what a repair works with, below its directory.
fn staging(RepairId(id): RepairId) -> String {
    format!(".heddle-{id:016x}-saving")
}

fn of_checker(RepairId(id): RepairId) -> String {
    format!(".heddle-{id:016x}-fsck")
}

/// Where the directories of an image lie, and their name before the number.
fn places(image: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let mut first = beside(image).into_os_string();
    first.push(".lost");
    (0..DIRS_MAX).map(move |n| {
        let mut dir = first.clone();
        if n > 0 {
            dir.push(format!(".{n}"));
        }
        dir.into()
    })
}

impl LostFiles {
    /// A new directory beside an image, for root or the image's owner only. For a device it is made in the
    /// command's working directory.
    ///
    /// # Errors
    /// The reason why it cannot be made, and the remedy.
    pub(super) fn of(image: &Path, id: RepairId) -> Result<LostFiles, String> {
        for dir in places(image) {
            match fs::DirBuilder::new().mode(0o700).create(&dir) {
                Ok(()) => {
                    let saver = Saver::of(&dir, staging(id)).map_err(|error| cannot_make(&dir, &error))?;
                    let lost = LostFiles { dir, id, saver, is_left_to_checker: false, published: Vec::new() };
                    return match fs::create_dir_all(lost.dir()) {
                        Ok(()) => Ok(lost),
                        Err(error) => Err(cannot_make(&lost.dir, &error)),
                    };
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(cannot_make(&dir, &error)),
            }
        }
        Err(format!("{} has lost files of {DIRS_MAX} repairs: remove some", image.display()))
    }

    /// The working directory of the checker.
    pub(super) fn dir(&self) -> PathBuf {
        inside(&self.dir, self.id)
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
        self.saver.count_nameless()
    }

    /// Damage of the saved files, as texts.
    pub(super) fn take_damage(&mut self) -> Vec<String> {
        self.saver.take_damage()
    }

    /// Removes all that was saved.
    pub(super) fn discard(&mut self) {
        // Before that everything of this repair has names with its number: other names are a stranger's.
        let here = self.saver.here();
        for made in std::mem::take(&mut self.published) {
            let _ = fs::remove_dir_all(here.join(made));
        }
        remove_work(&here, self.id);
        self.take_empty_away();
    }

    /// Gives all files their names, at the end of the repair. Returns the directory that holds files now.
    ///
    /// # Errors
    /// The reason why not.
    pub(super) fn publish(&mut self) -> Result<Option<PathBuf>, String> {
        if self.is_left_to_checker {
            self.saver.is_in_place()?;
        }
        if self.saver.publish()? {
            self.published.push(LOST_FOUND);
        }
        self.published.extend(publish_of_checker(&self.dir, self.id));
        Ok(where_files_are(&self.dir, &self.published))
    }

    /// Removes empty directories, from the inside.
    fn take_empty_away(&self) {
        take_empty_away(&self.saver.here(), self.id);
        if self.saver.is_in_place().is_ok() {
            let _ = fs::remove_dir(&self.dir);
        }
    }
}

/// Where the checker runs, below the directory of a repair.
fn inside(dir: &Path, id: RepairId) -> PathBuf {
    (0..CLIMBS_MAX).fold(dir.join(of_checker(id)), |dir, _| dir.join("d"))
}

fn take_empty_away(dir: &Path, id: RepairId) {
    let inside = inside(dir, id);
    let levels = inside.ancestors().take_while(|level| *level != dir);
    // Each removal fails if the directory holds something.
    levels.chain([dir]).for_each(|dir| _ = fs::remove_dir(dir));
}

/// Gives the files that the checker saved their place. Returns its name; `None`: it saved no file.
fn publish_of_checker(dir: &Path, id: RepairId) -> Option<&'static str> {
    let by_checker = inside(dir, id).join(LOST_FOUND);
    let _ = fs::remove_dir(&by_checker);
    let name = if dir.join(LOST_FOUND).exists() { OF_CHECKER } else { LOST_FOUND };
    let renamed = fs::rename(by_checker, dir.join(name));
    take_empty_away(dir, id);
    renamed.is_ok().then_some(name)
}

/// The directory that holds all of these.
fn where_files_are(dir: &Path, published: &[&str]) -> Option<PathBuf> {
    match published {
        [] => None,
        [one] => Some(dir.join(one)),
        _ => Some(dir.to_owned()),
    }
}

/// Gives the files of a repair their names that was killed when it had ended, and not given them. Returns their directory.
pub(super) fn publish_killed(image: &Path, id: RepairId) -> io::Result<Option<PathBuf>> {
    for dir in places(image).filter(|dir| dir.exists()) {
        let [saved, by_checker] = [staging(id), of_checker(id)].map(|work| dir.join(work));
        let mut published = Vec::new();
        if saved.exists() {
            let (from, to) = (&saved, dir.join(LOST_FOUND));
            rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)?;
            published.push(LOST_FOUND);
        } else if !by_checker.exists() {
            continue;
        }
        published.extend(publish_of_checker(&dir, id));
        let left = where_files_are(&dir, &published);
        if let Some(left) = &left {
            fs::File::open(left)?.sync_all()?;
            fs::File::open(&dir)?.sync_all()?;
        }
        return Ok(left);
    }
    Ok(None)
}

impl Drop for LostFiles {
    fn drop(&mut self) {
        let _ = fs::remove_dir(self.dir().join(LOST_FOUND));
        self.take_empty_away();
    }
}

/// Removes what a repair of this image left half saved when it was killed. The image has all of it again.
pub(super) fn forget_killed(image: &Path, id: RepairId) {
    places(image).filter(|dir| dir.exists()).for_each(|dir| remove_work(&dir, id));
}

/// Removes what only this repair can have made, and then its directory if that is empty.
fn remove_work(dir: &Path, id: RepairId) {
    let works = [staging(id), of_checker(id)].map(|work| dir.join(work));
    let removed = works.map(|work| fs::remove_dir_all(work).is_ok());
    if removed.contains(&true) {
        let _ = fs::remove_dir(dir);
    }
}

fn cannot_make(dir: &Path, error: &io::Error) -> String {
    format!("no directory for lost files can be made: {}: {error}", dir.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: RepairId = RepairId(7);

    #[test]
    fn lost_files_lie_beside_the_image_and_no_empty_directory_stays() {
        let place = tempfile::tempdir().unwrap();
        let image = place.path().join("a.img");
        fs::write(&image, "").unwrap();
        let mut lost = LostFiles::of(&image, ID).unwrap();
        fs::create_dir(lost.dir().join(LOST_FOUND)).unwrap();
        assert_eq!(lost.publish(), Ok(None));
        drop(LostFiles::of(&image, ID).unwrap());
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1, "the image alone");
        let mut lost = LostFiles::of(&image, ID).unwrap();
        fs::create_dir(lost.dir().join(LOST_FOUND)).unwrap();
        fs::write(lost.dir().join(LOST_FOUND).join("n"), "x").unwrap();
        let left = lost.publish().unwrap().unwrap();
        drop(lost);
        assert!(left.ends_with("a.img.lost/lost_found") && left.join("n").is_file());
        assert_eq!(fs::read_dir(left.parent().unwrap()).unwrap().count(), 1, "what was lost alone");
        assert!(LostFiles::of(&image, ID).unwrap().dir.ends_with("a.img.lost.1"));
    }

    /// The inode of a foreign image may have any name: as root this once overwrote files of the system.
    #[test]
    fn no_name_of_a_lost_file_leads_out_of_its_directory() {
        let place = tempfile::tempdir().unwrap();
        let image = place.path().join("a.img");
        fs::write(&image, "").unwrap();
        fs::write(place.path().join("victim"), "precious").unwrap();
        let mut lost = LostFiles::of(&image, ID).unwrap();
        fs::create_dir(lost.dir().join(LOST_FOUND)).unwrap();
        let names =
            (0..CLIMBS_MAX).map(|climbs| "../".repeat(climbs) + "victim").filter(|name| name.len() <= 255);
        for name in names {
            let at = lost.dir().join(LOST_FOUND).join(name);
            fs::write(&at, "evil").unwrap();
            assert!(at.canonicalize().unwrap().starts_with(lost.dir.canonicalize().unwrap()));
        }
        assert_eq!(fs::read_to_string(place.path().join("victim")).unwrap(), "precious");
        assert!(lost.publish().unwrap().unwrap().join("victim").is_file());
    }
}
