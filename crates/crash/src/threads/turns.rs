//! The turn of the threads: which one may run.
//!
//! State       the thread that may run, and a counter of steps.
//! Invariants  I1  of the participating threads only the one with the turn passes [`Turns::step`].
//!             I2  if the thread with the turn takes no step for a while, it waits for a lock that a waiting thread holds: then a
//!                 waiting thread takes the turn.

use crate::cut::Random;
use std::cell::Cell;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long the thread with the turn may take no step (I2).
const SILENCE: Duration = Duration::from_millis(2);
/// One step in so many passes the turn on.
const TURN: u64 = 6;

thread_local! {
    static ME: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The turn (see the module).
pub struct Turns {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    turn: usize,
    steps: u64,
    inside: Vec<bool>,
    entered: usize,
    random: Random,
}

impl Turns {
    /// A turn for so many threads, none of which participates yet.
    pub fn new(threads: usize, seed: u64) -> Turns {
        let state =
            State { turn: 0, steps: 0, inside: vec![false; threads], entered: 0, random: Random::new(seed) };
        Turns { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The calling thread participates as `me` from now on. Returns when all participate.
    pub fn enter(&self, me: usize) {
        ME.set(Some(me));
        let mut state = self.state();
        state.inside[me] = true;
        state.entered += 1;
        self.changed.notify_all();
        while state.entered < state.inside.len() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The calling thread does not participate any more.
    pub fn leave(&self, me: usize) {
        ME.set(None);
        let mut state = self.state();
        state.inside[me] = false;
        if state.turn == me {
            state.pass();
        }
        self.changed.notify_all();
    }

    /// A store, flush or fence of the calling thread: waits for its turn.
    pub fn step(&self) {
        let Some(me) = ME.get() else { return };
        let mut state = self.state();
        state.steps += 1;
        if state.turn == me && state.random.below(TURN) == 0 {
            state.pass();
            self.changed.notify_all();
        }
        let mut seen = state.steps;
        while state.turn != me {
            let (back, silent) =
                self.changed.wait_timeout(state, SILENCE).unwrap_or_else(PoisonError::into_inner);
            state = back;
            if silent.timed_out() && state.steps == seen {
                // I2.
                state.turn = me;
            }
            seen = state.steps;
        }
    }
}

impl State {
    /// Passes the turn to a participating thread, possibly the same.
    fn pass(&mut self) {
        let inside: Vec<usize> = (0..self.inside.len()).filter(|t| self.inside[*t]).collect();
        if !inside.is_empty() {
            self.turn = inside[self.random.below(inside.len() as u64) as usize];
        }
    }
}
