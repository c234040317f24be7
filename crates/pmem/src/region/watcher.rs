//! An observer of stores beside the memory.

use crate::dirty::DirtyPages;
use crate::probe::ProbeLog;
use crate::simulator::{Recorder, StoreKind};
use std::sync::Arc;

/// An observer of stores beside the memory.
#[derive(Debug)]
pub(super) enum Watcher {
    Dirty(DirtyPages),
    Recorder(Arc<Recorder>),
    Probe(Arc<ProbeLog>),
}

impl Watcher {
    #[cold]
    #[cfg_attr(feature = "planted", track_caller)]
    pub(super) fn store(&self, kind: StoreKind, at: u64, len_bytes: usize, store: &dyn Fn()) {
        match self {
            Watcher::Dirty(pages) => pages.store(at, len_bytes as u64, store),
            Watcher::Recorder(recorder) => recorder.store(kind, at, len_bytes, store),
            Watcher::Probe(log) => {
                if len_bytes > 0 {
                    log.note_store(at, len_bytes as u64);
                }
                store();
            }
        }
    }

    #[cold]
    #[cfg_attr(feature = "planted", track_caller)]
    pub(super) fn fence(&self, base: *mut u8) {
        match self {
            Watcher::Dirty(pages) => pages.write_back(base),
            Watcher::Recorder(recorder) => recorder.fence(),
            Watcher::Probe(_) => {}
        }
    }
}
