//! The undo file of a half repaired image, and the way back.

use crate::{Undo, head_of};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// An undo file that was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundUndo {
    /// Where it is.
    pub path: PathBuf,
    /// It says that the repair has ended.
    pub is_finished: bool,
    /// It can be used ([`Undo::open`]).
    pub is_whole: bool,
}

/// The undo file of the repair of this number. It is looked for beside the image and beside the path by which the image is named, and in
/// the working directory. One of another user does not count: anybody who reads the image knows the number, and the caller would be
/// told to write that user's bytes.
pub fn undo_file(image: &Path, repair: u64) -> Option<FoundUndo> {
    let above = |path: &Path| {
        let above = path.parent().filter(|above| !above.as_os_str().is_empty());
        above.unwrap_or(Path::new(".")).to_owned()
    };
    let real = image.canonicalize().map(|image| above(&image)).ok();
    let places = [Some(above(image)), real, Some(PathBuf::from("."))];
    let files = places.into_iter().flatten().filter_map(|place| Some((place.read_dir().ok()?, place)));
    let files = files.flat_map(|(entries, place)| {
        let counts = |entry: &std::fs::DirEntry| {
            let owners = [0, rustix::process::geteuid().as_raw()];
            entry.metadata().is_ok_and(|meta| meta.is_file() && owners.contains(&meta.uid()))
        };
        entries.filter_map(Result::ok).filter(counts).map(move |entry| place.join(entry.file_name()))
    });
    let is_its = |path: PathBuf| {
        let head = head_of(&path).filter(|head| head.image.repair == repair)?;
        let is_whole = Undo::open(&path).is_ok();
        Some(FoundUndo { path, is_finished: head.is_finished, is_whole })
    };
    // A damaged copy does not hide a whole one.
    files.filter_map(is_its).max_by_key(|undo| undo.is_whole)
}

/// How to go back from a repair that was stopped half-way, for messages, and its undo file if that was found.
pub fn way_back(image: &Path, repair: u64) -> (String, Option<FoundUndo>) {
    let (undo, shown) = (undo_file(image, repair), shell_word(image));
    let way = match &undo {
        Some(undo) if !undo.is_whole => {
            let (shown, way) = (undo.path.display(), without_it(image));
            return (format!("Its undo file {shown} is cut short or damaged. {way}"), None);
        }
        Some(undo) => format!("Go back with: heddle fsck --undo {} {shown}", shell_word(&undo.path)),
        None => format!(
            "Its undo file is not here: IMAGE.undo-DATE, or what --undo said. With that file, go back: heddle fsck \
             --undo FILE {shown}. {}",
            without_it(image)
        ),
    };
    (way, undo)
}

/// Why an undo file cannot be used, with the way out if a repair of the image was stopped half-way (`half`: its number).
pub fn useless(why: &str, image: &Path, half: Option<u64>) -> String {
    match half {
        Some(repair) => format!("{why}. {}", way_back(image, repair).0),
        None => why.to_owned(),
    }
}

/// How to go on with a half repaired image whose undo file is lost, damaged or refused, for messages.
pub fn without_it(image: &Path) -> String {
    format!("To give up what only that file has: heddle fsck -y --discard-undo {}", shell_word(image))
}

/// A path as a word of a command that a user may copy into a shell. No command takes it for an option.
pub fn shell_word(path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    if bytes.first() == Some(&b'-') {
        return shell_word(&Path::new(".").join(path));
    }
    let Ok(shown) = std::str::from_utf8(bytes).map(str::to_owned) else {
        // What a terminal cannot show: bash, zsh and ksh read this, and POSIX' shell since 2024.
        let byte = |byte: &u8| match byte {
            b'\'' | b'\\' => format!("\\{}", char::from(*byte)),
            b' '..=b'~' => char::from(*byte).to_string(),
            other => format!("\\{other:03o}"),
        };
        return format!("$'{}'", bytes.iter().map(byte).collect::<String>());
    };
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+:,@%=".contains(c);
    if !shown.is_empty() && shown.chars().all(is_plain) {
        return shown;
    }
    format!("'{}'", shown.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    #[test]
    fn a_path_with_blanks_or_quotes_is_one_word_of_a_shell() {
        for path in ["a/b-1.img", "my disk.img", "it's $HOME `x`", "~", ""] {
            let line = format!("printf %s {}", shell_word(Path::new(path)));
            let said = std::process::Command::new("sh").args(["-c", &line]).output().unwrap();
            assert_eq!(String::from_utf8(said.stdout).unwrap(), path, "{line}");
        }
        let dash = shell_word(Path::new("-y.img"));
        assert_eq!(dash, "./-y.img", "no option");
        let bytes = b"it's \xff\\.img";
        let line = format!("printf %s {}", shell_word(Path::new(OsStr::from_bytes(bytes))));
        let said = std::process::Command::new("bash").args(["-c", &line]).output().unwrap();
        assert_eq!(said.stdout, bytes, "{line}");
    }
}
