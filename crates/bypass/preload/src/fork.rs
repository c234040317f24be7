//! Children, and other programs in this process: offsets are given to the kernel before (P4). Other threads wait at `fork_gate`.

use crate::descriptor::Descriptor;
use crate::handlers::Frame;
use crate::table::{CHANGES, each};
use crate::thread::{Busy, clear_other_threads, this_thread};
use crate::{barrier, descriptor_numbers, real, report, signals, table, taking};
use heddle_bypass::fork_gate::{self, Waiter};
use heddle_bypass::{File, Words};
use libc::{c_int, c_void};
use rustix::fd::BorrowedFd;
use std::mem::forget;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Runs when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

/// Runs when the program ends.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

extern "C" fn start() {
    #[cfg(feature = "planted")]
    heddle_bypass::planted::plant_from_environment();
    barrier::start(taking::may());
    heddle_bypass::handlers_are_known_by(|| this_thread().is_in_handler());
    report::start();
    signals::start();
    be_first();
}

type AtFork = Option<extern "C" fn()>;

/// Registers our fork handlers before all others. So they are the last before a fork and the first after it,
/// and no other handler runs while the table is locked. Libraries that the program is linked with may
/// register theirs before this library is started.
fn be_first() {
    static SET: AtomicBool = AtomicBool::new(false);
    if !SET.swap(true, SeqCst) {
        // SAFETY: these functions take no arguments, may be called at a fork, and are never unloaded.
        unsafe {
            real::__register_atfork(Some(before), Some(after_in_parent), Some(after_in_child), null_mut())
        };
    }
}

/// The function behind pthread_atfork(3), which programs and libraries have in their own code.
///
/// # Safety
/// As pthread_atfork(3); the last argument identifies the library of the handlers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __register_atfork(
    before: AtFork,
    in_parent: AtFork,
    in_child: AtFork,
    of: *mut c_void,
) -> c_int {
    be_first();
    // SAFETY: the caller's promise.
    unsafe { real::__register_atfork(before, in_parent, in_child, of) }
}

/// pthread_atfork(3) of programs and libraries from before glibc 2.3.2, which have it in the C library
/// (`pthread_atfork@GLIBC_2.2.5` on x86-64). There it would not come to [`__register_atfork`]. This function has
/// no version, so the loader takes it for every version that a library asks for.
///
/// # Safety
/// As pthread_atfork(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_atfork(before: AtFork, in_parent: AtFork, in_child: AtFork) -> c_int {
    // As there, the handlers belong to no library, and stay when one is unloaded.
    // SAFETY: the caller's promise.
    unsafe { __register_atfork(before, in_parent, in_child, null_mut()) }
}

extern "C" fn end() {
    report::write();
}

/// As fork(2), whose functions of pthread_atfork(3) run behind the closed gate (`fork_gate`).
///
/// # Safety
/// As fork(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fork() -> libc::pid_t {
    // SAFETY: the caller's promise.
    behind_the_gate(|| unsafe { real::fork() })
}

/// Makes a call that forks, and runs the functions of pthread_atfork(3). An allocator may have locked the heap while they run, for this
/// thread, too. So they are under the rules of signal handlers (D3 of `table`).
pub fn behind_the_gate(call: impl FnOnce() -> c_int) -> c_int {
    struct Gate;
    impl Drop for Gate {
        fn drop(&mut self) {
            fork_gate::open();
        }
    }
    let (this, frame) = (this_thread(), 0_u8);
    if this.is_vfork_child() {
        return call();
    }
    // It passes the gates of other forks: one of them may open this gate, and wait for a signal handler of this thread.
    let _forks = fork_gate::Forks::begin();
    let _opens = close_gate().then(|| Gate);
    let at = (&raw const frame).addr();
    this.as_handler(Frame { stack: 0, at }, at, call)
}

/// Waits until no other thread holds a lock of this library. Returns false if this thread cannot do that.
fn close_gate() -> bool {
    let mut waiter = Waiter::default();
    let _busy = loop {
        let Some(busy) = Busy::enter() else { return false };
        if fork_gate::close() {
            break busy;
        }
        // Signals are handled meanwhile: the fork under way may wait for that.
        drop(busy);
        if !waiter.waits_for_fork() {
            return false;
        }
    };
    let _held = CHANGES.hold();
    CHANGES.lending(|| each(|_, descriptor| descriptor.file.wait_until_unlocked()));
    true
}

/// Before fork(2): locks the table, and gives all offsets to the kernel.
pub extern "C" fn before() {
    if let Some(busy) = Busy::enter() {
        forget(busy);
    }
    let is_for_another = this_thread().is_vfork_child();
    this_thread().forks_for_another.set(is_for_another);
    CHANGES.take_for_fork();
    heddle_bypass::a_fork_begins();
    CHANGES.lend();
    if is_for_another {
        // The table has the parent's numbers, not those of this process.
        return;
    }
    let mut words = Words::default();
    each(|fd, descriptor| {
        // SAFETY: open, if the program's own calls are in order.
        descriptor.file.share_with_child(unsafe { BorrowedFd::borrow_raw(fd) }, &mut words);
    });
    // The fork waits for no lock of this library any more.
    fork_gate::open();
}

/// After fork(2), in the parent.
pub extern "C" fn after_in_parent() {
    heddle_bypass::a_fork_ended();
    CHANGES.end_lending();
    CHANGES.give();
    this_thread().leave();
}

/// After fork(2), in the child.
pub extern "C" fn after_in_child() {
    fork_gate::reset_in_child();
    heddle_bypass::this_is_a_child();
    if !this_thread().forks_for_another.get() {
        // The child shares its memory with no process.
        this_thread().vfork_in.set(0);
    }
    barrier::start(taking::may());
    table::reset_in_child();
    descriptor_numbers::reset_in_child();
    each(|_, descriptor| {
        // SAFETY: a forked child has one thread.
        unsafe { descriptor.file.forked() };
    });
    clear_other_threads();
    CHANGES.reset_in_child();
    this_thread().leave();
}

/// A call that makes a child with a copy of this memory, and runs none of fork(3)'s handlers. In such a child the lock of the heap may
/// be held for ever by a thread that it does not have. A served call may need memory, so the kernel serves all calls of the child.
///
/// With CLONE_VFORK the table is not locked: the caller sleeps until its child ends, and the child may wait for another thread. A file
/// that another thread opens meanwhile has an old offset in the child.
#[derive(Clone, Copy)]
pub struct Copied {
    /// True: the table is locked, so that all files of the child have the kernel's offset.
    is_locked: bool,
}

impl Copied {
    /// Before the call.
    pub fn begin(flags: u64) -> Copied {
        let waits = flags & libc::CLONE_VFORK as u64 != 0;
        let is_locked = !waits && !this_thread().is_vfork_child();
        if !is_locked {
            offsets_to_kernel(true);
            return Copied { is_locked };
        }
        if let Some(busy) = Busy::enter() {
            forget(busy);
        }
        CHANGES.take();
        heddle_bypass::a_fork_begins();
        let give = |fd, descriptor: &Descriptor| {
            // SAFETY: open, if the program's own calls are in order.
            descriptor.file.share_with_stranger(unsafe { BorrowedFd::borrow_raw(fd) });
        };
        CHANGES.lending(|| each(give));
        Copied { is_locked }
    }

    /// After the call, in both processes.
    pub fn end(self, in_child: bool) {
        if in_child {
            fork_gate::reset_in_child();
            heddle_bypass::this_is_a_child();
            this_thread().vfork_in.set(0);
            barrier::start(false);
            descriptor_numbers::reset_in_child();
            clear_other_threads();
            table::forget_all_in_child();
            report::write_none();
            CHANGES.reset_in_child();
        } else if self.is_locked {
            heddle_bypass::a_fork_ended();
            CHANGES.give();
        } else {
            return;
        }
        this_thread().leave();
    }
}

/// Called before a program without this library gets all descriptors, or those that survive exec(3).
pub fn offsets_to_kernel(all: bool) {
    hand_out(all, File::share_with_stranger);
}

/// Called before a message that may carry descriptors.
pub fn before_sending() {
    hand_out(true, File::share_with_unknown_number);
}

/// Prepares all descriptors, or those that survive exec(3).
fn hand_out(all: bool, prepare: fn(&File, BorrowedFd<'_>)) {
    if this_thread().is_vfork_child() {
        return;
    }
    let Some(_busy) = Busy::enter() else { return };
    let _held = CHANGES.hold();
    let give = |fd, descriptor: &Descriptor| {
        // SAFETY: open, if the program's own calls are in order.
        let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
        let survives = rustix::io::fcntl_getfd(borrowed)
            .is_ok_and(|flags| !flags.contains(rustix::io::FdFlags::CLOEXEC));
        if all || survives {
            prepare(&descriptor.file, borrowed);
        }
    };
    CHANGES.lending(|| each(give));
}

/// Called before vfork(2): the child shares this memory, and may use every descriptor.
pub extern "C" fn before_vfork() {
    before_sharing_child(libc::CLONE_VFORK as u64);
}

/// Called before clone(2) makes a child with these flags that shares this memory. If the child runs beside
/// this thread, the kernel serves all its calls for ever.
pub fn before_sharing_child(flags: u64) {
    offsets_to_kernel(true);
    let h = this_thread();
    if h.is_vfork_child() {
        // Its own child is a vfork child too.
        return;
    }
    let beside = h.vfork_in.get() < 0 || flags & libc::CLONE_VFORK as u64 == 0;
    let process = rustix::process::getpid().as_raw_nonzero().get();
    h.shares_actions.set(flags & libc::CLONE_SIGHAND as u64 != 0);
    h.vfork_in.set(if beside { -process } else { process });
}

/// Called before exec(3), which may end this program.
pub fn before_exec() {
    if this_thread().is_vfork_child() {
        return;
    }
    offsets_to_kernel(false);
    report::write();
}

/// Called before a function that writes to a descriptor inside the C library (`dprintf`).
pub extern "C" fn before_inner_write(fd: c_int) {
    if let Some(used) = crate::table::holding(fd) {
        used.file().give_offset_away(&used);
    }
}
