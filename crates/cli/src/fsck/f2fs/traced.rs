//! A program that changes an image, traced: the old bytes are kept before each of its writes.
//!
//! The program is stopped at each system call (ptrace(2)). A call that writes to the image waits until the repair has the old bytes of its
//! range. A call that could change the image in another way, or a change that cannot be kept, ends the program before the call is made.
//!
//! Seen as the image: each descriptor of the same device and inode, or of the same block device, and paths of it.
//!
//! Deaths      this process: the kernel kills the program (`PTRACE_O_EXITKILL`; before that is set, the signal at the death of its parent).
//!             the program: told by its status, whatever it was doing.
//! Limits      a program that hides writes on purpose, by another name of a device or through another process that is not its child, is not
//!             seen: what runs here is a checker, not an enemy.

mod calls;
mod process;

use calls::{Call, Effect, effect};
use heddle_f2fs::{Identity, Repair};
use process::{Process, Stop};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::io;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// How a traced program ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Ended {
    /// With this code.
    Exited(i32),
    /// By this signal.
    Signalled(i32),
    /// It was killed before a change that could not be kept.
    Stopped(String),
}

/// Runs the program to its end. `is_interrupted` ends it early.
///
/// # Errors
/// Those of the system; [`io::ErrorKind::NotFound`]: there is no such program.
pub(super) fn run(
    command: &mut Command,
    repair: &mut Repair,
    is_interrupted: &AtomicBool,
) -> io::Result<Ended> {
    let image = repair.identity()?;
    let first = process::spawn_traced(command)?;
    let mut tracer = Tracer { image, first, tasks: BTreeSet::new(), ended: None, stopped: None };
    tracer.follow(repair, is_interrupted)?;
    let ended = tracer.stopped.map(Ended::Stopped).or(tracer.ended);
    ended.ok_or_else(|| io::Error::other("it was lost while it was traced"))
}

struct Tracer {
    image: Identity,
    first: Pid,
    /// Those that have stopped once.
    tasks: BTreeSet<i32>,
    ended: Option<Ended>,
    /// Why it is being killed.
    stopped: Option<String>,
}

impl Tracer {
    /// Until the last of its processes has ended.
    fn follow(&mut self, repair: &mut Repair, is_interrupted: &AtomicBool) -> io::Result<()> {
        loop {
            // ORDERING: Relaxed, it says nothing about other memory.
            if is_interrupted.load(Relaxed) && self.stopped.is_none() {
                self.stop("it was interrupted".into());
            }
            match process::wait() {
                Err(Errno::INTR) => {}
                Err(Errno::CHILD) => return Ok(()),
                Err(errno) => return Err(errno.into()),
                Ok((pid, Stop::Exited(code))) => self.note_end(pid, Ended::Exited(code)),
                Ok((pid, Stop::Signalled(signal))) => self.note_end(pid, Ended::Signalled(signal)),
                Ok((pid, stop)) => self.handle(pid, &stop, repair),
            }
        }
    }

    fn note_end(&mut self, pid: Pid, ended: Ended) {
        self.tasks.remove(&pid.as_raw_nonzero().get());
        if pid == self.first {
            self.ended = Some(ended);
        }
    }

    fn handle(&mut self, pid: Pid, stop: &Stop, repair: &mut Repair) {
        let is_new = self.tasks.insert(pid.as_raw_nonzero().get());
        let process = Process(pid);
        let mut deliver = 0;
        match stop {
            Stop::Call => {
                if let Err(why) = self.judge(process, repair) {
                    self.stop(why);
                }
            }
            // The stop after its first execve, or the one that each new task begins with.
            Stop::Signal(_) if is_new => {
                if pid == self.first
                    && let Err(error) = process.follow_all()
                {
                    self.stop(format!("it cannot be traced: {error}"));
                }
            }
            Stop::Signal(signal) => deliver = *signal,
            Stop::Event | Stop::Exited(_) | Stop::Signalled(_) => {}
        }
        if self.stopped.is_some() {
            // One that has begun meanwhile.
            let _ = kill_process(pid, Signal::KILL);
        }
        // It fails only if the task was killed.
        let _ = process.resume(deliver);
    }

    /// Kills all of it.
    fn stop(&mut self, why: String) {
        self.stopped.get_or_insert(why);
        let tasks = self.tasks.iter().filter_map(|task| Pid::from_raw(*task));
        for pid in tasks.chain(self.ended.is_none().then_some(self.first)) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    /// Keeps what the call is about to change.
    fn judge(&self, process: Process, repair: &mut Repair) -> Result<(), String> {
        let call = match process.call() {
            Ok(Some(call)) => call,
            // It has made it.
            Ok(None) => return repair.see_to_mark(),
            // It was killed at this stop.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(()),
            Err(error) => return Err(format!("it cannot be traced: {error}")),
        };
        let Call { number, .. } = call;
        match effect(&call, process, self.image) {
            Ok(Effect::None) => Ok(()),
            Ok(Effect::Write { at, len_bytes }) => repair.keep(at, len_bytes),
            Ok(Effect::Flush) => repair.sync(),
            Ok(Effect::Unknown(what)) => {
                Err(format!("it would change the image in a way of which nothing can be kept: {what}"))
            }
            Err(error) => Err(format!("its system call {number} cannot be looked at: {error}")),
        }
    }
}
