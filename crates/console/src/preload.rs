//! The place of the bypass library.

use anyhow::{Context, Result, anyhow};
use std::path::{Path, PathBuf};

const LIBRARY: &str = "libheddle_preload.so";

/// The path of the library: beside this program, or where a package puts it.
pub fn library() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os("HEDDLE_PRELOAD").filter(|named| !named.is_empty()) {
        return PathBuf::from(&named)
            .canonicalize()
            .with_context(|| format!("cannot use HEDDLE_PRELOAD={}", Path::new(&named).display()));
    }
    let program = std::env::current_exe().context("cannot find where this program is")?;
    let here = program.parent().unwrap_or(Path::new("/"));
    let places =
        [here.join(LIBRARY), here.join("../lib/heddle").join(LIBRARY), here.join("../lib").join(LIBRARY)];
    let found = places.iter().find(|place| place.is_file());
    found.and_then(|place| place.canonicalize().ok()).ok_or_else(|| {
        anyhow!(
            "cannot find {LIBRARY} in {}, ../lib/heddle or ../lib: install it there, name it with HEDDLE_PRELOAD, \
             or build it with: cargo build --release -p heddle-preload",
            here.display()
        )
    })
}
