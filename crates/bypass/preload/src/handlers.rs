//! The signal handlers that run in the calling thread. A fork with its functions of pthread_atfork(3) counts as one: an allocator may have
//! locked the heap there.
//!
//! State       the frames of the handlers, the outermost first: where on which stack each began. Their number is the thread's `in_handler`.
//! Invariants  H1  a handler that is left by longjmp takes no frame off. Its frame is dead if the present code runs above it, or on
//!                 another stack. Dead frames are taken off from the innermost to the first that is alive. So a handler that another one
//!                 has returned to by longjmp is still running.
//!                 A new handler may have a stack anywhere, so the frames alive are those of the code that it interrupts.
//!             H2  `enter` stores the frame first, then the number. A handler that comes between, and returns, leaves both as they were.
//!                 If it is left by longjmp, what it came into is left, too.
//!             H3  if there is no room, the innermost frame covers the new one as well. It may be taken for alive too long: then the kernel
//!                 serves calls that the engine could serve.

use crate::words;
use std::cell::Cell;
use std::sync::atomic::{Ordering::SeqCst, compiler_fence};

const FRAMES_MAX: usize = 8;

/// Where a handler began.
#[derive(Clone, Copy)]
pub struct Frame {
    /// Start of the stack on which it runs, if it has its own; 0: the thread's.
    pub stack: usize,
    /// Address of its frame.
    pub at: usize,
}

impl Frame {
    /// Returns true if code whose frame is there runs inside this one.
    fn is_around(&self, now: usize) -> bool {
        (self.stack..=self.at).contains(&now)
    }

    fn with(self, other: Frame) -> Frame {
        Frame { stack: self.stack.min(other.stack), at: self.at.max(other.at) }
    }
}

type Frames = [Cell<Frame>; FRAMES_MAX];

const _: () = assert!(size_of::<Frames>() == words::HANDLERS.1);

/// The calling thread's frames.
fn frames() -> &'static Frames {
    // SAFETY: the thread's own memory, of this size and alignment, which lives as long as it; zeros are valid. Cells, so no other thread
    // gets a reference.
    unsafe { &*words::of_this_thread().add(words::HANDLERS.0).cast::<Frames>() }
}

/// What a handler found, and leaves.
pub struct Outer {
    count: u32,
    at: usize,
    frame: Frame,
}

/// Called when a handler begins, inside code whose frame is at `inside`. `count` is the thread's number of handlers.
pub fn enter(count: &Cell<u32>, new: Frame, inside: usize) -> Outer {
    let living = living(count.get(), inside);
    let (at, frames) = (living.min(FRAMES_MAX - 1), frames());
    let frame = frames[at].get();
    frames[at].set(if living == at { new } else { frame.with(new) }); // H3
    let outer = Outer { count: count.get(), at, frame };
    compiler_fence(SeqCst); // H2
    count.set(at as u32 + 1);
    compiler_fence(SeqCst);
    outer
}

/// Called when a handler returns.
pub fn leave(count: &Cell<u32>, outer: &Outer) {
    compiler_fence(SeqCst);
    count.set(outer.count);
    compiler_fence(SeqCst); // H2
    frames()[outer.at].set(outer.frame);
}

/// Returns true if a handler runs, for code with a frame at `now` (H1).
pub fn is_one_running(count: &Cell<u32>, now: usize) -> bool {
    let living = living(count.get(), now);
    count.set(living as u32);
    living != 0
}

fn living(count: u32, now: usize) -> usize {
    let (mut living, frames) = ((count as usize).min(FRAMES_MAX), frames());
    while living != 0 && !frames[living - 1].get().is_around(now) {
        living -= 1;
    }
    living
}
