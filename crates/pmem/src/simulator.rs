//! A region on a machine that can lose its power at any moment.
//!
//! State       [`Recorder`]: the log of stores that are not yet durable, beside the memory that holds all of them.
//! Invariants  I1  every store of the region happens under the log's lock, so the log's order is memory's order.
//!             I2  the recorder reads the stored bytes back from memory: it sees what the real store code did, not
//!                 what it was asked to do.
//! Lock order  log, then hook. A hook runs under both: a thread that stores meanwhile waits.
//! Source      the in-flight store model of Yat, Vinter and Chipmunk, refined by x86's order within a line.

mod choices;
mod crash_point;
mod log;

pub use crash_point::{CrashPoint, Pending};
pub(crate) use log::StoreKind;

use crate::mapping::Mapping;
#[cfg(feature = "planted")]
use crate::planted::{Kind, Site};
use crate::{LINE_BYTES, Pos};
use log::Log;
#[cfg(feature = "planted")]
use std::collections::HashMap;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

/// What a power cut, or a death, may do to stores that no fence covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Model {
    /// x86 with ADR. Stores through the cache reach the media line by line, each line as some prefix of its
    /// stores; non-temporal stores as words, independently. No store is certain before a flush and a fence by
    /// one thread.
    #[default]
    Ordered,
    /// As `Ordered`, but words of one line are independent of each other too.
    Pessimistic,
    /// Caches are inside the power-fail domain: a store is durable at once, in the order of all stores.
    Eadr,
    /// The process dies, and memory stays ([`Durability::Process`](crate::Durability::Process)): no store is
    /// lost. The cut falls between any two stores, and between any two words of a copy. As `Eadr`; but the
    /// stores of a call that returned are durable without a fence, so the observer of calls fences for them.
    Process,
}

impl Model {
    /// All of them.
    pub const ALL: [Model; 4] = [Model::Ordered, Model::Pessimistic, Model::Eadr, Model::Process];

    /// Its name in options and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Model::Ordered => "ordered",
            Model::Pessimistic => "pessimistic",
            Model::Eadr => "eadr",
            Model::Process => "process",
        }
    }

    /// Returns true if the only possible state is that all stores up to some word arrived, and none after
    /// it.
    pub const fn keeps_order(self) -> bool {
        matches!(self, Model::Eadr | Model::Process)
    }
}

impl FromStr for Model {
    type Err = String;

    fn from_str(text: &str) -> Result<Model, String> {
        let known = Model::ALL.into_iter().find(|model| model.name() == text);
        known.ok_or_else(|| format!("'{text}' is not a model: choose ordered, pessimistic, eadr or process"))
    }
}

type Hook = Box<dyn FnMut(&CrashPoint<'_>) + Send>;
type Turn = Arc<dyn Fn() + Send + Sync>;

/// The power switch of a simulated region: observes every store, flush and fence, and computes what a power
/// cut would leave.
#[derive(Clone, Debug)]
pub struct Simulator {
    pub(crate) recorder: Arc<Recorder>,
}

impl Simulator {
    /// Sets the image that is durable at the start.
    pub(crate) fn start_as(&self, image: &[u8]) {
        self.recorder.log().load_image(image);
    }

    /// Chooses the model. Panics while stores are pending: they were recorded under another.
    pub fn set_model(&self, model: Model) {
        self.recorder.log().set_model(model);
    }

    /// Number of store operations so far: one for each contiguous range handed to the processor.
    pub fn stores(&self) -> u64 {
        self.recorder.log().stores()
    }

    /// Number of fences so far, by all threads.
    pub fn fences(&self) -> u64 {
        self.recorder.log().fences()
    }

    /// Calls `hook` at every fence before it takes effect: all pending stores are still undecided. Replaces
    /// an earlier hook.
    ///
    /// Other threads' stores and fences wait meanwhile. The hook may use any region but this one, which panics.
    pub fn on_fence(&self, hook: Box<dyn FnMut(&CrashPoint<'_>) + Send>) {
        *self.recorder.hook() = Some(hook);
    }

    /// Calls `turn` before every store, flush and fence, in the thread that makes it and before any lock is
    /// taken: it may make that thread wait for others. Replaces an earlier one.
    pub fn on_step(&self, turn: impl Fn() + Send + Sync + 'static) {
        *lock(&self.recorder.turn) = Some(Arc::new(turn));
    }

    /// Removes the function set by [`Simulator::on_step`].
    pub fn stop_stepping(&self) {
        *lock(&self.recorder.turn) = None;
    }

    /// The calls that have stored or fenced, with their counts.
    #[cfg(feature = "planted")]
    pub fn sites(&self) -> HashMap<Site, u64> {
        lock(&self.recorder.sites).clone()
    }

    /// Removes the hook.
    pub fn stop_watching(&self) {
        *self.recorder.hook() = None;
    }

    /// A power cut at this moment. It is a copy, so the region can continue.
    pub fn crash_point(&self) -> CrashPoint<'static> {
        self.recorder.log().crash_point().into_owned()
    }
}

/// The region's side of the simulator.
pub(crate) struct Recorder {
    log: Mutex<Log>,
    hook: Mutex<Option<Hook>>,
    in_hook: Mutex<Option<ThreadId>>,
    turn: Mutex<Option<Turn>>,
    #[cfg(feature = "planted")]
    sites: Mutex<HashMap<Site, u64>>,
}

impl Recorder {
    pub(crate) fn new(memory: Arc<Mapping>) -> Recorder {
        Recorder {
            log: Mutex::new(Log::new(memory)),
            hook: Mutex::default(),
            in_hook: Mutex::default(),
            turn: Mutex::default(),
            #[cfg(feature = "planted")]
            sites: Mutex::default(),
        }
    }

    /// Runs `store`, which stores exactly `[at, at + len_bytes)`, and records the bytes in memory afterwards.
    #[cfg_attr(feature = "planted", track_caller)]
    pub(crate) fn store(&self, kind: StoreKind, at: u64, len_bytes: usize, store: &dyn Fn()) {
        self.take_turn();
        #[cfg(feature = "planted")]
        let stays = self.met(Site::here(Kind::Store)) || crate::planted::left_out();
        #[cfg(feature = "planted")]
        let kind = if stays { StoreKind::Cached } else { kind };
        self.log().record(kind, at, len_bytes, store);
    }

    #[cfg_attr(feature = "planted", track_caller)]
    pub(crate) fn flush(&self, lines: impl Iterator<Item = u64>) {
        self.take_turn();
        #[cfg(feature = "planted")]
        if Site::here(Kind::Store).is_left_out() {
            return;
        }
        self.log().flush(thread::current().id(), lines);
    }

    #[cfg_attr(feature = "planted", track_caller)]
    pub(crate) fn fence(&self) {
        self.take_turn();
        #[cfg(feature = "planted")]
        let left_out = self.met(Site::here(Kind::Fence));
        let mut log = self.log();
        if let Some(hook) = self.hook().as_mut() {
            let _inside = InHook::enter(self);
            hook(&log.crash_point());
        }
        #[cfg(feature = "planted")]
        if left_out {
            return;
        }
        log.fence(thread::current().id());
    }

    /// Counts a call. Returns true if it is to be left out.
    #[cfg(feature = "planted")]
    fn met(&self, site: Site) -> bool {
        *lock(&self.sites).entry(site).or_default() += 1;
        site.is_left_out()
    }

    fn take_turn(&self) {
        let turn = lock(&self.turn).clone();
        if let Some(turn) = turn {
            turn();
        }
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.refuse_in_hook();
        lock(&self.log)
    }

    fn hook(&self) -> MutexGuard<'_, Option<Hook>> {
        self.refuse_in_hook();
        lock(&self.hook)
    }

    fn refuse_in_hook(&self) {
        let inside = *lock(&self.in_hook) == Some(thread::current().id());
        assert!(
            !inside,
            "a crash hook used the region it watches; recover a copy: Region::simulated_from(&image)"
        );
    }
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Recorder")
    }
}

/// A hook that panics fails its test; the other threads of that test should still end.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Marks the thread that runs the hook, until dropped.
struct InHook<'a>(&'a Recorder);

impl<'a> InHook<'a> {
    fn enter(recorder: &'a Recorder) -> InHook<'a> {
        *lock(&recorder.in_hook) = Some(thread::current().id());
        InHook(recorder)
    }
}

impl Drop for InHook<'_> {
    fn drop(&mut self) {
        *lock(&self.0.in_hook) = None;
    }
}

/// Position of the line that contains a word.
fn line_of(word: Pos) -> u64 {
    word.0 & !(LINE_BYTES as u64 - 1)
}

#[cfg(test)]
mod tests;
