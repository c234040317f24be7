//! The plug-in: QEMU's events become touches, turns and uses.
//!
//! State       one run for the process, and `TURN`: which thread of the program has the turn, if any.
//! Invariants  I1  accesses of a thread without the turn are not looked at: what the program does to hand the turn over, and
//!                 whatever it does besides, does not exist.
//!             I2  clocks read in a turn stand still but for a microsecond a round (`clock.rs`).

use crate::WORKERS_MAX;
use crate::abi::{self, Block, Id, LOADS_AND_STORES, MemInfo, NO_REGISTERS, Qemu};
use crate::clock::Clock;
use crate::guest::{ANSWER, BEGIN, CALL, END, HELLO, QUESTION, SAY, Said};
use crate::tally::Tally;
use crate::uses::Kind;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Thread + 1 (low half) whose turn it is, worker and whether it counts (high half); 0: nobody's.
static TURN: AtomicU64 = AtomicU64::new(0);
static QEMU: OnceLock<Qemu> = OnceLock::new();
static RUN: Mutex<Option<Run>> = Mutex::new(None);

struct Run {
    tally: Tally,
    clock: Clock,
    file: String,
}

fn run() -> MutexGuard<'static, Option<Run>> {
    RUN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// QEMU's way in.
///
/// # Safety
/// QEMU calls it once, with `argc` strings at `argv`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(
    id: Id,
    _info: *const c_void,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    // SAFETY: the caller's promise.
    let options = unsafe { abi::options(argc, argv) };
    let Some(file) = options.iter().find_map(|option| option.strip_prefix("out=")) else {
        eprintln!("heddle-coherence: the option out=FILE is missing");
        return 1;
    };
    let qemu = match Qemu::find() {
        Ok(qemu) => *QEMU.get_or_init(|| qemu),
        Err(error) => {
            eprintln!("heddle-coherence: {error}");
            return 1;
        }
    };
    *run() = Some(Run { tally: Tally::default(), clock: Clock::default(), file: file.to_owned() });
    // SAFETY: functions of QEMU with the callbacks they take; all are 'static.
    unsafe {
        (qemu.on_translate)(id, on_translate);
        (qemu.on_syscall)(id, on_syscall);
        (qemu.on_return)(id, on_return);
        (qemu.on_exit)(id, on_exit, std::ptr::null_mut());
    }
    0
}

extern "C" fn on_translate(_id: Id, block: *mut Block) {
    let Some(qemu) = QEMU.get() else { return };
    // SAFETY: the block is alive during the call, and so are its instructions.
    unsafe {
        for at in 0..(qemu.insns)(block) {
            let insn = (qemu.insn)(block, at);
            let site = (qemu.insn_address)(insn) as *mut c_void;
            (qemu.on_access)(insn, on_access, NO_REGISTERS, LOADS_AND_STORES, site);
        }
    }
}

extern "C" fn on_access(vcpu: c_uint, info: MemInfo, address: u64, site: *mut c_void) {
    // ORDERING: Relaxed: only the thread that has the turn acts on it, and that thread set it itself.
    let turn = TURN.load(Relaxed);
    if turn as u32 != vcpu + 1 {
        return;
    }
    let Some(qemu) = QEMU.get() else { return };
    // SAFETY: `info` comes from QEMU for this very access.
    let (writes, bytes) = unsafe { ((qemu.is_store)(info), 1 << (qemu.size_shift)(info)) };
    let (worker, counted) = ((turn >> 32) as u32 & 0xFF, turn >> 40 != 0);
    if let Some(run) = run().as_mut() {
        run.tally.touch((address, bytes), worker, writes, site as u64, counted);
    }
}

#[allow(clippy::too_many_arguments)]
extern "C" fn on_syscall(
    _id: Id,
    vcpu: c_uint,
    number: i64,
    what: u64,
    one: u64,
    two: u64,
    _: u64,
    _: u64,
    _: u64,
    _: u64,
    _: u64,
) {
    if number != CALL {
        // ORDERING: Relaxed, as in `on_access`.
        if number == libc::SYS_clock_gettime
            && TURN.load(Relaxed) as u32 == vcpu + 1
            && let Some(run) = run().as_mut()
        {
            run.clock.asked = (what, one);
        }
        return;
    }
    match what {
        HELLO => hello(one, two),
        BEGIN if one < WORKERS_MAX as u64 => {
            // ORDERING: Relaxed, as in `on_access`.
            TURN.store(u64::from(vcpu + 1) | one << 32 | (two & 1) << 40, Relaxed);
            if one == 0
                && let Some(run) = run().as_mut()
            {
                run.clock.round();
            }
        }
        END => {
            let turn = TURN.swap(0, Relaxed); // ORDERING: Relaxed, the emulator runs one thread at a time.
            if turn >> 40 != 0
                && let Some(run) = run().as_mut()
            {
                run.tally.operation();
            }
        }
        SAY => say(one),
        _ => {}
    }
}

/// A clock has been read: the answer lies at the address that was asked for, and is changed there.
extern "C" fn on_return(_id: Id, vcpu: c_uint, number: i64, result: i64) {
    // ORDERING: Relaxed, as in `on_access`.
    if number != libc::SYS_clock_gettime || result != 0 || TURN.load(Relaxed) as u32 != vcpu + 1 {
        return;
    }
    let mut run = run();
    // Without an answered `hello` the program's addresses are not ours.
    let Some(run) = run.as_mut().filter(|run| run.tally.base != 0 && run.clock.asked.1 != 0) else { return };
    let (clock, answer) = std::mem::take(&mut run.clock.asked);
    // SAFETY: QEMU has just written a timespec there for the program, which waits in its call.
    let answer = unsafe { &mut *(answer as *mut libc::timespec) };
    let now = run.clock.now_ns(clock, answer.tv_sec * 1_000_000_000 + answer.tv_nsec);
    (answer.tv_sec, answer.tv_nsec) = (now / 1_000_000_000, now % 1_000_000_000);
}

/// The program's addresses are ours only if QEMU has put it where it thinks it is: looked at through a file, which fails where
/// a pointer would kill.
fn hello(word: u64, base: u64) {
    use std::os::unix::fs::FileExt;
    let mut found = [0; 8];
    let read = std::fs::File::open("/proc/self/mem").and_then(|mem| mem.read_exact_at(&mut found, word));
    if read.is_err() || u64::from_ne_bytes(found) != QUESTION {
        eprintln!("heddle-coherence: QEMU has moved the program's memory (guest_base is not 0)");
        return;
    }
    // SAFETY: the program waits in its call, and the word was found to be its.
    unsafe { (word as *mut u64).write_volatile(ANSWER) };
    if let Some(run) = run().as_mut() {
        run.tally.base = base;
    }
}

fn say(at: u64) {
    let mut run = run();
    let Some(run) = run.as_mut().filter(|run| run.tally.base != 0) else { return };
    // SAFETY: the program, which `hello` found at its own addresses, waits in its call with this alive.
    let said = unsafe { &*(at as *const Said) };
    // SAFETY: as above.
    let text = |at: *const u8, len: u64| unsafe {
        String::from_utf8_lossy(std::slice::from_raw_parts(at, len as usize)).replace(['\t', '\n'], " ")
    };
    let kind = Kind {
        what: text(said.what, said.what_len),
        file: text(said.file, said.file_len),
        line: said.line as u32,
        element_bytes: said.element_bytes,
    };
    run.tally.uses.say(said.address, said.bytes, kind, said.background != 0);
}

extern "C" fn on_exit(_id: Id, _: *mut c_void) {
    // ORDERING: Relaxed: the program has ended.
    TURN.store(0, Relaxed);
    if let Some(run) = run().take()
        && let Err(error) = std::fs::write(&run.file, run.tally.report())
    {
        eprintln!("heddle-coherence: cannot write {}: {error}", run.file);
    }
}
