//! The library that `heddle run` preloads into a program.
//!
//! It has the C library's own names. A call on a descriptor of a heddle mount goes to the engine; every other call goes on to
//! the C library. What a program does by other ways (static programs, system calls of its own, stdio's insides) goes through the
//! mount and sees the same data.
//!
//! State       `table`: which descriptors are ours; `thread`: what this thread is doing; `counts`: what was counted.
//! Invariants  P1  a descriptor of the kernel stands behind each of ours, under the same number; only the kernel closes it.
//!             P2  a number means what was opened last under it: whatever closes, replaces or hands out a number says so to
//!                 `table`. Numbers 0 to 2 are stdio's: their offset is the kernel's.
//!             P3  no handler of a signal runs while this thread is inside the engine or the table (`signals`): so a handler may
//!                 call whatever it may call of the C library's. In a handler calls go through the mount: the engine may allocate.
//!             P4  an offset is ours alone: before it can be seen by somebody who only knows the kernel's (a child, another
//!                 program, stdio), it is given to the kernel: for ever, or until a child that shares it has gone.
//! Lock order  the table's lock, a file's lock. Neither is held while another function of the C library runs, but for the
//!             kernel's calls that take an offset.
//!
//! No panic leaves an exported function: the engine's are caught (`heddle_bypass`), and nothing here panics.

mod barrier;
mod calls;
mod cancellation;
mod counts;
mod descriptor;
mod fault;
mod fork;
mod loader;
mod memory;
mod numbers;
mod patience;
mod real;
mod report;
mod signals;
mod stubs;
mod table;
mod thread;
mod waiting_signals;
mod words;
