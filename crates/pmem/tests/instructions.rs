//! Which instructions a store to a region takes, looked at one by one: a child is stepped through its calls, and the bytes at each
//! instruction are compared with those of stores past the cache, flushes and fences.
#![cfg(target_arch = "x86_64")]

use heddle_pmem::{Durability, Pos, Region};
use std::collections::{BTreeMap, BTreeSet};

/// What costs a write its speed where memory is not persistent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Costly {
    StorePastCache,
    Flush,
    StoreFence,
    LockedInstruction,
}

#[test]
fn small_stores_that_survive_processes_take_plain_instructions() {
    assert_eq!(instructions_of(Durability::Process, small_stores), BTreeSet::new());
}

#[test]
fn stores_that_survive_power_cuts_pass_the_cache_or_are_flushed() {
    use Costly::{Flush, LockedInstruction, StoreFence, StorePastCache};
    let mut all = BTreeSet::from([StorePastCache, Flush, StoreFence]);
    all.extend(waits().then_some(LockedInstruction));
    assert_eq!(instructions_of(Durability::Power, small_stores), all);
}

#[test]
fn long_copies_pass_the_cache_and_fence_themselves() {
    let found = instructions_of(Durability::Process, |region| region.nt_write(Pos(0), &[7; 64 << 10]));
    assert_eq!(found, BTreeSet::from([Costly::StorePastCache, Costly::StoreFence]));
}

/// Kinds are not enough: a call that flushes one line of two has them all.
#[test]
fn each_line_of_a_store_passes_the_cache_or_is_flushed_once() {
    use Costly::{Flush, LockedInstruction, StoreFence, StorePastCache};
    let counts = |work: fn(&Region)| counts_of(Durability::Power, work);
    for (lines, flushed) in [
        (1, counts(|region| region.store_u64(Pos(8320), 3))),
        (1, counts(|region| region.store_line(Pos(8256), &[2; 8]))),
        (64, counts(|region| region.flush_unfenced(Pos(0), 4096))),
        (65, counts(|region| region.flush_unfenced(Pos(60), 4096))),
        (2, counts(|region| region.flush_unfenced(Pos(4095), 2))),
    ] {
        assert_eq!(flushed, BTreeMap::from([(Flush, lines)]));
    }
    // Eight words past the cache; bytes at the edges of words through it.
    assert_eq!(counts(|region| region.nt_line(Pos(8192), &[1; 8])), BTreeMap::from([(StorePastCache, 8)]));
    assert_eq!(counts(|region| region.nt_zero(Pos(8), 4080)), BTreeMap::from([(StorePastCache, 510)]));
    let edges = counts(|region| region.nt_zero(Pos(3), 4090));
    assert_eq!(edges, BTreeMap::from([(StorePastCache, 510), (Flush, 2)]));
    let stored = counts(|region| region.nt_write(Pos(3), &[7; 4090]));
    // By 8 or 32 bytes each, as the processor can.
    assert!(stored[&StorePastCache] >= 4080 / 32 && stored[&Flush] == 2, "{stored:?}");
    // PERSIST: nothing is to be kept; the instruction is looked at.
    assert_eq!(counts(|region| region.fence()), BTreeMap::from([(StoreFence, 1)]));
    let mut fenced = BTreeMap::from([(StoreFence, 1)]);
    fenced.extend(waits().then_some((LockedInstruction, 1)));
    // PERSIST: as above.
    assert_eq!(counts(|region| region.fence_and_wait()), fenced);
}

/// An Intel alone gains by waiting after a copy (docs/results.md).
fn waits() -> bool {
    std::arch::x86_64::__cpuid_count(0, 0).ebx == u32::from_le_bytes(*b"Genu")
}

fn small_stores(region: &Region) {
    region.nt_write(Pos(3), &[7; 4090]);
    region.nt_line(Pos(8192), &[1; 8]);
    region.store_line(Pos(8256), &[2; 8]);
    region.store_u64(Pos(8320), 3);
    region.nt_zero(Pos(12288), 4096);
    region.nt_copy(Pos(16384), Pos(0), 4096);
    region.flush_unfenced(Pos(0), 4096);
    // PERSIST: nothing is to be kept; the instruction is looked at.
    region.fence();
    // PERSIST: as above.
    region.fence_and_wait();
}

/// The costly ones among the instructions that `work` takes in a child.
fn instructions_of(durability: Durability, work: impl Fn(&Region)) -> BTreeSet<Costly> {
    counts_of(durability, work).into_keys().collect()
}

/// The same, with how many there are of each.
fn counts_of(durability: Durability, work: impl Fn(&Region)) -> BTreeMap<Costly, usize> {
    let region = Region::anonymous_as(1 << 20, durability).unwrap();
    // First calls bind symbols and detect the processor: not what is asked.
    work(&region);
    // SAFETY: the child makes no call but of the region, raise and _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: asks to be traced by the parent, stops for it, works, stops again and ends.
        unsafe {
            libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
            libc::syscall(libc::SYS_tkill, libc::gettid(), libc::SIGSTOP);
            work(&region);
            libc::syscall(libc::SYS_tkill, libc::gettid(), libc::SIGSTOP);
            libc::_exit(0);
        }
    }
    assert!(child > 0);
    assert_eq!(wait(child), Some(libc::SIGSTOP));
    let mut found = BTreeMap::new();
    loop {
        if let Some(kind) = costly(&at_instruction(child)) {
            *found.entry(kind).or_default() += 1;
        }
        // SAFETY: the child is stopped.
        assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, child, 0, 0) }, 0);
        match wait(child) {
            Some(libc::SIGTRAP) => {}
            Some(libc::SIGSTOP) => break,
            other => panic!("the child ended or stopped otherwise: {other:?}"),
        }
    }
    // SAFETY: this test's own child.
    unsafe { libc::kill(child, libc::SIGKILL) };
    assert_eq!(wait(child), None);
    found
}

/// The signal that stopped the child; `None` once it has ended.
fn wait(child: i32) -> Option<i32> {
    let mut status = 0;
    // SAFETY: a child of this process, room for its status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    libc::WIFSTOPPED(status).then(|| libc::WSTOPSIG(status))
}

fn at_instruction(child: i32) -> [u8; 16] {
    // SAFETY: the registers are plain numbers; the child is stopped.
    let at = unsafe {
        let mut registers: libc::user_regs_struct = std::mem::zeroed();
        assert_eq!(libc::ptrace(libc::PTRACE_GETREGS, child, 0, &mut registers), 0);
        registers.rip
    };
    let word = |at: u64| {
        // SAFETY: the child is stopped; a page that is not there gives an error, which reads as all ones.
        unsafe { libc::ptrace(libc::PTRACE_PEEKTEXT, child, at, 0) }.to_le_bytes()
    };
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&word(at));
    bytes[8..].copy_from_slice(&word(at + 8));
    bytes
}

/// By the encodings in Intel's manual, volume 2.
fn costly(code: &[u8; 16]) -> Option<Costly> {
    let mut rest = &code[..];
    if let [0xc5, _, 0xe7, ..] | [0xc4, _, _, 0xe7, ..] = rest {
        return Some(Costly::StorePastCache); // vmovntdq
    }
    let (mut locked, mut wide) = (false, false);
    while let [prefix @ (0x66 | 0xf0 | 0xf2 | 0xf3 | 0x40..=0x4f), after @ ..] = rest {
        locked |= *prefix == 0xf0;
        wide |= *prefix == 0x66;
        rest = after;
    }
    match rest {
        _ if locked => Some(Costly::LockedInstruction),
        [0x0f, 0xc3, ..] => Some(Costly::StorePastCache), // movnti
        [0x0f, 0xae, 0xf8, ..] => Some(Costly::StoreFence),
        // clwb is 66 0f ae /6, clflushopt 66 0f ae /7, clflush 0f ae /7, each with a place in memory.
        [0x0f, 0xae, place, ..] if *place < 0xc0 => {
            let which = *place >> 3 & 7;
            (which == 7 || wide && which == 6).then_some(Costly::Flush)
        }
        _ => None,
    }
}
