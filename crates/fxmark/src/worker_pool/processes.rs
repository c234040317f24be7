//! Workers as forked processes: FxMark's way, so that descriptor tables and address spaces are apart.
//!
//! State      program -> leader -> workers, all forked. The leader enters the environment, if there is one, leads the run and cleans up.
//! Invariants I1  when one process dies, the others end too: workers get SIGKILL when the leader dies, the leader gets SIGTERM when
//!                the thread that forked it dies. Signals to end are blocked in the leader, which looks for them
//!                whenever it naps, so it always gets to clean up.
//!            I2  between fork and exit a child touches nothing that another thread of the program may have held at the
//!                fork: no printing, no program-wide locks. glibc keeps its allocator usable in a forked child.

use super::{WorkerPool, attached, lead};
use crate::bench::WorkerContext;
use crate::config::Job;
use crate::environment::{Entered, Environment};
use crate::machine::pin;
use crate::ops::posix::Posix;
use crate::result_board::ResultBoard;
use crate::target::Attach;
use crate::worker::{self, panic_text};
use libc::c_int;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{io, ptr};

/// The place where the workers work.
pub(crate) enum Home {
    /// In a directory, with the kernel's calls.
    Environment(Environment),
    /// In an engine, to which each worker attaches itself.
    Engine(Attach),
}

struct Processes {
    /// `None`: reaped.
    workers: Vec<Option<libc::pid_t>>,
    ends: libc::sigset_t,
}

impl WorkerPool for Processes {
    fn nap(&mut self, time: Duration) -> Result<(), String> {
        let time = libc::timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
        // SAFETY: a set made by `ending_signals`; no details are asked for.
        let signal = unsafe { libc::sigtimedwait(&self.ends, ptr::null_mut(), &time) };
        if signal > 0 { Err(format!("stopped by signal {signal}")) } else { Ok(()) }
    }

    fn look(&mut self) -> Result<(), String> {
        for (me, place) in self.workers.iter_mut().enumerate() {
            let Some(pid) = *place else { continue };
            if let Some(status) = reap(pid, libc::WNOHANG) {
                *place = None;
                describe(status).map_or(Ok(()), |end| Err(format!("worker {me} {end}")))?;
            }
        }
        Ok(())
    }
}

/// How long a worker may take to end after its run: it may still print the bypass's report or release
/// resources.
const LEAVE_MAX: Duration = Duration::from_secs(30);
/// The same for a failed run.
const LEAVE: Duration = Duration::from_millis(500);

impl Processes {
    /// Gives workers of a successful run time to end. A worker that ends badly even now fails the run.
    fn let_leave(&mut self) -> Result<(), String> {
        let began = Instant::now();
        while self.workers.iter().any(Option::is_some) {
            self.look()?;
            if began.elapsed() > LEAVE_MAX {
                return Err(format!("a worker did not leave within {LEAVE_MAX:?}"));
            }
            self.nap(Duration::from_millis(1))?;
        }
        Ok(())
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        let began = Instant::now();
        while self.workers.iter().any(Option::is_some) && began.elapsed() < LEAVE {
            // A worker that ended badly has reported so on the board, or is gone: its exit status adds
            // nothing.
            let _said = self.look();
            std::thread::sleep(Duration::from_millis(1));
        }
        for pid in self.workers.iter().flatten() {
            // SAFETY: our own child, not reaped yet, so the number is still its.
            unsafe { libc::kill(*pid, libc::SIGKILL) };
            reap(*pid, 0);
        }
    }
}

/// Status of a child that ended; `None` if it runs.
fn reap(pid: libc::pid_t, flags: c_int) -> Option<c_int> {
    let mut status = 0;
    loop {
        // SAFETY: room for the answer.
        let rc = unsafe { libc::waitpid(pid, &mut status, flags) };
        match rc {
            -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => continue,
            0 => return None,
            _ => return Some(status),
        }
    }
}

/// How a child ended, or `None` if it ended well.
fn describe(status: c_int) -> Option<String> {
    match (libc::WIFSIGNALED(status), libc::WEXITSTATUS(status)) {
        (true, _) => Some(format!("was killed by signal {}", libc::WTERMSIG(status))),
        (false, 0) => None,
        (false, code) => Some(format!("ended with exit code {code}")),
    }
}

fn ending_signals() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset fills the set.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    }
}

/// Forks; the child runs `life` and exits. Signals of `ends` are blocked in the child from its first instruction on.
fn fork(ends: &libc::sigset_t, death: c_int, life: impl FnOnce()) -> io::Result<libc::pid_t> {
    let mut before = MaybeUninit::uninit();
    // SAFETY: valid sets; the child only runs `life`, under I2, and leaves by `_exit`.
    unsafe {
        let parent = libc::getpid();
        libc::pthread_sigmask(libc::SIG_BLOCK, ends, before.as_mut_ptr());
        let pid = libc::fork();
        if pid == 0 {
            libc::prctl(libc::PR_SET_PDEATHSIG, death);
            // The parent may have died before the request took effect.
            if libc::getppid() != parent {
                libc::_exit(0);
            }
            let ended = catch_unwind(AssertUnwindSafe(life));
            libc::_exit(if ended.is_ok() { 0 } else { 3 });
        }
        let error = io::Error::last_os_error();
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut());
        if pid < 0 { Err(error) } else { Ok(pid) }
    }
}

/// Runs a job. The board carries results and failures; an `Err` is a run that could not be made. No worker is left, unless the leader
/// was killed: then they get their signal a moment later.
pub(crate) fn run(home: &Home, job: &Job, cpus: &[usize]) -> Result<Arc<ResultBoard>, String> {
    let board = ResultBoard::new(job.workers).map_err(|e| format!("cannot map the shared page: {e}"))?;
    let ends = ending_signals();
    let leader = fork(&ends, libc::SIGTERM, || {
        if let Err(text) = lead_on(home, job, cpus, &board, ends) {
            board.fail_run(&text);
        }
    });
    let leader = leader.map_err(|e| format!("cannot fork: {e}"))?;
    match reap(leader, 0).and_then(describe) {
        Some(end) => Err(format!("the leader {end}")),
        None => Ok(Arc::new(board)),
    }
}

/// The leader's life. Whatever happens to the run, the environment is left clean.
fn lead_on(
    home: &Home,
    job: &Job,
    cpus: &[usize],
    board: &ResultBoard,
    ends: libc::sigset_t,
) -> Result<(), String> {
    let stay = match home {
        Home::Environment(environment) => Some(environment.enter()?),
        Home::Engine(_) => None,
    };
    let led = catch_unwind(AssertUnwindSafe(|| lead_workers(home, job, cpus, board, ends)));
    let led = led.unwrap_or_else(|panic| Err(format!("the leader panicked: {}", panic_text(&*panic))));
    led.and(stay.map_or(Ok(()), Entered::leave))
}

fn lead_workers(
    home: &Home,
    job: &Job,
    cpus: &[usize],
    board: &ResultBoard,
    ends: libc::sigset_t,
) -> Result<(), String> {
    let mut pool = Processes { workers: Vec::new(), ends };
    for (me, cpu) in cpus[..job.workers].iter().copied().enumerate() {
        let worker = fork(&ends, libc::SIGKILL, || {
            // SAFETY: back to the defaults a worker needs to end on a signal.
            unsafe {
                for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                    libc::signal(signal, libc::SIG_DFL);
                }
                libc::pthread_sigmask(libc::SIG_UNBLOCK, &ends, ptr::null_mut());
            }
            match (pin(cpu), home) {
                (Ok(()), Home::Environment(_)) => {
                    worker::dispatch_worker(&WorkerContext { ops: &Posix, job, me }, board)
                }
                (Ok(()), Home::Engine(attach)) => attached::run_worker(attach, job, me, board),
                (Err(error), _) => board.fail(me, &format!("cannot be pinned to CPU {cpu}: {error}")),
            }
        });
        pool.workers.push(Some(worker.map_err(|e| format!("cannot fork: {e}"))?));
    }
    lead(board, job, &mut pool).and_then(|()| pool.let_leave())
}
