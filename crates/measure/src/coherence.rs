//! The program that `cargo xtask coherence` observes: one workload on one variant, in turns, with a name for
//! every address.
//!
//! It is hidden: outside QEMU with heddle's plug-in it has nothing to report and refuses to run.

use crate::engines::{self, Setup};
use anyhow::{Result, anyhow, bail};
use heddle_arena::watch;
use heddle_coherence::{WORKERS_MAX, guest};
use heddle_console::failure::usage;
use heddle_fxmark::{Config, Need, Rounds, Target, Watch, WorkersAs, Workload, run_in_turns};
use heddle_nvmfs::{MountOptions, Variant, format_region, mount};
use heddle_pmem::Region;
use std::mem::MaybeUninit;
use std::sync::Arc;

/// Its name on the command line.
pub const COMMAND: &str = "coherence-worker";

/// Run one workload in turns under QEMU, for cargo xtask coherence
#[derive(clap::Args)]
pub struct Args {
    workload: String,
    #[arg(long, value_parser = heddle_console::variant::parser())]
    target: Variant,
    #[arg(long)]
    workers: usize,
}

/// Address space of volatile memory: QEMU keeps a record for every mapped page.
const ARENA_BYTES: usize = 4 << 30;
/// Bytes of one worker in the shared file: the pages under one node of the page index.
const SHARE_BYTES: u64 = 256 << 10;

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let workload = Workload::parse(&args.workload).map_err(usage)?;
    if !(1..=WORKERS_MAX).contains(&args.workers) {
        return Err(usage(format!("--workers {}: from 1 to {WORKERS_MAX}", args.workers)));
    }
    if !guest::hello(guest::program_base()) {
        bail!("nobody is watching: this command is for cargo xtask coherence");
    }
    watch::set_watcher(|told| {
        guest::say(&guest::Use {
            address: told.address,
            bytes: told.bytes,
            element_bytes: told.element_bytes,
            what: told.what,
            site: (told.site.file(), told.site.line()),
            background: told.background,
        });
    });
    let (files, rounds) = scale(workload, args.workers);
    let config = Config {
        file_size_bytes: Some(SHARE_BYTES * args.workers as u64),
        window_bytes: 64 * 4096,
        files,
        ..Config::default()
    };
    let variant = args.target;
    // The image size of a timed run, which decides how far apart lanes search. Untouched memory costs
    // nothing.
    let usual = Config { workloads: vec![workload], cores: vec![args.workers], ..Config::default() };
    let bytes = engines::image_bytes(&usual.need_max());
    let open = Arc::new(move |_: &Need| open(variant, bytes));
    // In turns, and under one emulator: threads.
    let target = Target::InProcess { name: variant.name().to_owned(), workers_as: WorkersAs::Threads, open };
    run_in_turns(&config, &target, workload, args.workers, rounds, &Turns).map_err(|error| anyhow!(error))
}

/// Files per worker, and rounds: enough that rare events (a magazine is refilled, a log page closed, a
/// directory read again from its start) happen several times.
fn scale(workload: Workload, workers: usize) -> (u32, Rounds) {
    use Workload::{MRDL, MRDM};
    match workload {
        MRDL => (16, Rounds { warm_up: 20, counted: 128 }),
        // Two passes through a directory of all workers' files.
        MRDM => (8, Rounds { warm_up: 8 * workers as u32 + 1, counted: 16 * workers as u32 }),
        _ => (256, Rounds { warm_up: 64, counted: 128 }),
    }
}

fn open(variant: Variant, bytes: u64) -> Result<heddle_fxmark::Session> {
    let region = Region::anonymous(bytes)?;
    watch::report_background(region.base_address(), bytes as usize, "region");
    format_region(&region, variant)?;
    let locks = Setup::default();
    let options = MountOptions {
        lock_mode: locks.mode,
        segment_bytes: locks.segment_bytes,
        arena_bytes: ARENA_BYTES,
        ..MountOptions::default()
    };
    Ok(engines::session_of(mount(region, &options)?))
}

/// Announces the worker whose turn it is.
struct Turns;

impl Watch for Turns {
    fn worker_starts(&self, _worker: usize) {
        forget_foreign_heap();
        if let Some((address, bytes)) = stack() {
            watch::report_background(address, bytes, "stack or thread-local data");
        }
    }

    #[inline]
    fn begins(&self, worker: usize, counted: bool) {
        guest::begin(worker, counted);
    }

    #[inline]
    fn ends(&self, _worker: usize) {
        guest::end();
    }
}

/// The C library's cache of freed memory: blocks of up to so many bytes, in steps, and so many of each size.
const CACHED_BYTES: usize = 1032;
const CACHED_STEP: usize = 16;
const CACHED_BLOCKS: usize = 7;

/// Takes for ever the memory that the main thread allocated for this thread and this thread has freed since.
/// It lies among the main thread's memory; used again by this thread, it would share cache lines with other
/// threads' memory.
fn forget_foreign_heap() {
    for bytes in (CACHED_STEP / 2..=CACHED_BYTES).step_by(CACHED_STEP) {
        for _ in 0..CACHED_BLOCKS {
            std::hint::black_box(Vec::<u8>::with_capacity(bytes).leak());
        }
    }
}

/// The address range of the calling thread's stack, with its thread-local data.
fn stack() -> Option<(usize, usize)> {
    let mut attr = MaybeUninit::uninit();
    let (mut start, mut bytes) = (std::ptr::null_mut(), 0);
    // SAFETY: the first call fills the attributes, or fails and nothing else is called; the last frees them.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), attr.as_mut_ptr()) != 0 {
            return None;
        }
        libc::pthread_attr_getstack(attr.as_ptr(), &mut start, &mut bytes);
        libc::pthread_attr_destroy(attr.as_mut_ptr());
    }
    Some((start as usize, bytes))
}
