//! Workloads for corner cases, by name: files of `workloads/` in the workload language.

use crate::op::Workload;
use crate::text;

macro_rules! corpus {
    ($($name:literal),* $(,)?) => {
        /// Names and texts.
        const CORPUS: &[(&str, &str)] = &[$(($name, include_str!(concat!("../workloads/", $name, ".txt")))),*];
    };
}

corpus![
    "data",
    "data-in-pieces",
    "sizes",
    "sizes-cleaned",
    "ranges",
    "shifts",
    "names",
    "long-names",
    "renames",
    "names-in-chains",
    "renames-cleaned",
    "attributes",
    "attributes-cleaned",
    "log-page",
    "log-cleaning",
    "log-cleaning-names",
    "tombstones",
    "threads",
    "full-image",
    "open-files",
    "remounts",
    "removals-kept",
    "inode-chunks",
    "slots-ended",
    "chunks-given-back",
    "logged-anew",
    "directory-moved",
    "removals-moved",
    "removals-in-place",
    "crowded-page",
    "two-chains",
    "many-chains",
    "page-ends",
    "exchanges-cleaned",
    "unnamed",
    "unwritten",
    "kinds",
    "exchanges-remounted",
    "shifts-cleaned",
    "younger-chain",
    "growing-directory",
    "holes-remounted",
];

/// All of them.
///
/// # Panics
/// If one cannot be parsed; a test reports that first.
pub fn workloads() -> Vec<Workload> {
    let read =
        |(name, text): &(&str, &str)| text::parse(name, text).unwrap_or_else(|e| panic!("{name}: {e}"));
    CORPUS.iter().map(read).collect()
}

/// The workload of this name.
pub fn workload(name: &str) -> Option<Workload> {
    workloads().into_iter().find(|workload| workload.name == name)
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_workload_of_the_corpus_can_be_read() {
        assert!(super::workloads().len() >= 15);
        assert!(super::workload("data").is_some() && super::workload("nothing").is_none());
    }
}
