//! The library that `heddle run` preloads into a program.
//!
//! It exports the C library's own names. A call on a descriptor of a heddle mount goes to the engine; every
//! other call goes to the C library. Other ways of a program (static programs, its own system calls, the
//! inside of stdio) go through the mount and see the same data.
//!
//! State       `table`: the descriptors that are ours; `thread`: the present activity of a thread; `counts`: the counts.
//! Invariants  P1  each descriptor of ours is also a descriptor of the kernel, with the same number; only the kernel closes it.
//!             P2  a number means the file that was opened last under it: every function that closes, replaces or returns a number
//!                 updates `table`. Numbers of stdio's streams, 0 to 2 among them, have the kernel's offset (`streams`).
//!             P3  no signal handler runs while its thread is inside the engine or the table (`signals`). So a handler may call every
//!                 function that is allowed in handlers. Calls in a handler go through the mount, because the engine may allocate.
//!             P4  an offset is known only to this process. Before a user that knows only the kernel's (a child, another program,
//!                 stdio) can see it, it is given to the kernel: for ever, or until a child that shares it is gone.
//! Lock order  the table's lock, a file's lock. Neither is held while another function of the C library runs, except for
//!             system calls that take an offset.
//!
//! No panic leaves an exported function: panics of the engine are caught (`heddle_bypass`), and nothing here
//! panics.

mod barrier;
mod calls;
mod cancellation;
mod changes;
mod counts;
mod descriptor;
mod descriptor_numbers;
mod fault;
mod fork;
mod gone;
mod handlers;
mod inherited_filter;
mod loader;
mod memory;
mod real;
mod replaced;
mod report;
mod signals;
mod streams;
mod stubs;
mod table;
mod taking;
mod thread;
mod undelayed;
mod waiting_signals;
mod words;
