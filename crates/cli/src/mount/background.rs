//! A mount that continues after the command has returned.
//!
//! The command starts itself again, in a new session, with a pipe for its stdout. One word on the pipe
//! reports that the mount is ready. If the pipe ends without it, the mount has failed and its error is on
//! stderr already. A signal that arrives meanwhile is forwarded. The mount keeps none of the caller's
//! descriptors: the caller's pipes and locks end with the caller.

use super::Args;
use anyhow::{Context, Result, bail};
use heddle_console::failure::{Exit, Said};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

const READY: &[u8] = b"ready\n";

/// Starts the background process. Returns when the mount is ready or has failed.
pub fn start(args: &Args) -> Result<()> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("heddle").args(["mount", "--tell-ready"]).args(args.sloppy.then_some("--sloppy"));
    if let Some(variant) = args.variant {
        command.args(["--variant", variant.name()]);
    }
    if let Some(nvm) = &args.nvm {
        command.arg("--nvm").arg(nvm);
    }
    for list in &args.options {
        command.arg("-o").arg(list);
    }
    command.arg("--").arg(&args.image).arg(&args.dir);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    // SAFETY: setsid takes no pointers and may be called between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            Ok(())
        })
    };
    close_on_exec();
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).context("cannot catch signals")?;
    let mut child = command.spawn().context("cannot start the process that serves the mount")?;
    let serving = Pid::from_child(&child);
    std::thread::spawn(move || {
        for _ in signals.forever() {
            // The process was not waited for yet, so no other process has its number.
            let _ = kill_process(serving, Signal::TERM);
        }
    });
    let mut said = Vec::new();
    if let Some(stdout) = &mut child.stdout {
        stdout.read_to_end(&mut said).context("cannot read from the process that serves the mount")?;
    }
    if said == READY {
        return Ok(());
    }
    match child.wait()?.code() {
        Some(code) => Err(Exit::because(code.clamp(1, 255) as u8, Said.into())),
        None => bail!(
            "the process that serves the mount was killed before it was ready. Try again with --foreground"
        ),
    }
}

/// Closes, at exec, all descriptors but the standard three: the mount must not inherit the caller's
/// descriptors.
fn close_on_exec() {
    for entry in std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten() {
        let number = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
        if let Some(fd) = number.filter(|fd| *fd > 2) {
            // SAFETY: no memory is involved; a number that is not a descriptor any more is refused.
            unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
}

/// Reports that the mount is ready and detaches from the terminal: from then on messages go to the log.
pub fn tell_ready(log: Option<&File>) -> Result<()> {
    // All steps that can fail come first, while the command can still report an error.
    std::env::set_current_dir("/")?;
    // Process lists would show it as `exe`.
    let _ = rustix::thread::set_name(c"heddle");
    let null =
        File::options().read(true).write(true).open("/dev/null").context("cannot leave the terminal")?;
    let stdout = std::io::stdout().as_fd().try_clone_to_owned().context("cannot leave the terminal")?;
    let talk = log.unwrap_or(&null);
    for (from, standard) in [(&null, 0), (talk, 1)] {
        // SAFETY: both are descriptors of this process; no pointer is involved.
        if unsafe { libc::dup2(from.as_raw_fd(), standard) } < 0 {
            return Err(std::io::Error::last_os_error()).context("cannot leave the terminal");
        }
    }
    File::from(stdout).write_all(READY).context("the command that started this mount has ended")?;
    // SAFETY: as above. Later messages would not be read at the terminal.
    unsafe { libc::dup2(talk.as_raw_fd(), 2) };
    heddle_console::output::date_lines();
    Ok(())
}
