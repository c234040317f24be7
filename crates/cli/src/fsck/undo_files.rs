//! Undo files beside an image: their names, and those that nobody needs.

use std::path::{Path, PathBuf};

/// Between the name of an image and the date.
const INFIX: &str = ".undo-";

/// `IMAGE.undo-20260101T120000`, with a number behind it if there are several of one second.
pub fn undo_name(image: &Path) -> PathBuf {
    let image = beside(image);
    let stamp = heddle_console::clock::stamp();
    let name = |n: u32| {
        let mut name = image.as_os_str().to_owned();
        name.push(format!("{INFIX}{stamp}"));
        if n > 0 {
            name.push(format!(".{n}"));
        }
        PathBuf::from(name)
    };
    (0..).map(name).find(|name| name.symlink_metadata().is_err()).unwrap_or_else(|| name(0))
}

/// What the names of files beside the image begin with. If the path is a symbolic link, they lie beside the file to which it leads, where
/// the next command looks for them. Those of a device lie in the command's working directory: what is in `/dev` is gone at the next start.
pub fn beside(image: &Path) -> PathBuf {
    let image = image.canonicalize().unwrap_or_else(|_| image.into());
    let is_device = image.metadata().is_ok_and(|meta| !meta.is_file());
    let name = image.file_name().filter(|_| is_device).map(PathBuf::from);
    name.unwrap_or(image)
}

/// Undo files beside the image of repairs that were killed before they changed anything, as `is_needless` tells. They hold nothing. With
/// `removes` they are removed.
pub fn needless(image: &Path, removes: bool, is_needless: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    let image = beside(image);
    let above = image.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut prefix = image.file_name().unwrap_or_default().to_owned();
    prefix.push(INFIX);
    let is_named = |file: &std::fs::DirEntry| {
        file.file_name().as_encoded_bytes().starts_with(prefix.as_encoded_bytes())
            && file.file_type().is_ok_and(|kind| kind.is_file())
    };
    let files = above.read_dir().into_iter().flatten().filter_map(Result::ok).filter(is_named);
    let mut files: Vec<PathBuf> =
        files.map(|file| above.join(file.file_name())).filter(|file| is_needless(file)).collect();
    files.sort();
    if removes {
        files.retain(|file| std::fs::remove_file(file).is_ok());
    }
    files
}

/// A path in a report in JSON, which is text. What is no UTF-8 is replaced.
pub fn as_text<S: serde::Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&path.display())
}

/// As [`as_text`], of a path that may be missing.
pub fn as_text_if_there<S: serde::Serializer>(path: &Option<PathBuf>, to: S) -> Result<S::Ok, S::Error> {
    match path {
        Some(path) => as_text(path, to),
        None => to.serialize_none(),
    }
}

/// As [`as_text`], of several.
pub fn as_texts<S: serde::Serializer>(paths: &[PathBuf], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(paths.iter().map(|path| path.display().to_string()))
}

/// A line for each of them.
pub fn told(files: &[PathBuf], removed: bool) -> String {
    let way = if removed { "it is removed" } else { "heddle fsck -y removes it" };
    let line = |file: &PathBuf| {
        format!("{}: its repair was stopped before it changed anything; {way}\n", file.display())
    };
    files.iter().map(line).collect()
}
