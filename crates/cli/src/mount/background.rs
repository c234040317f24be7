//! A mount that goes on when the command has returned.
//!
//! The command starts itself again, in a session of its own, with a pipe for its stdout. One word on it says that the
//! mount is ready; its end without that word says that it never will be, and the reason is on stderr already.

use super::{Args, log, options::Options};
use crate::failure::Said;
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

const READY: &[u8] = b"ready\n";

/// Starts it and returns when it is ready, or has failed.
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
    let mut child = command.spawn().context("cannot start the process that serves the mount")?;
    let mut said = Vec::new();
    if let Some(stdout) = &mut child.stdout {
        stdout.read_to_end(&mut said).context("cannot hear from the process that serves the mount")?;
    }
    if said == READY {
        return Ok(());
    }
    match child.wait()?.code() {
        Some(_) => Err(Said.into()),
        None => bail!(
            "the process that serves the mount was killed before it was ready. Try again with --foreground"
        ),
    }
}

/// Says that the mount is ready and lets go of the terminal: from then on talk goes to the log.
pub fn tell_ready(options: &Options) -> Result<()> {
    // Opened while there is somebody to tell when it fails.
    let log = log::open(options.log.as_deref());
    let mut stdout = std::io::stdout();
    stdout
        .write_all(READY)
        .and_then(|()| stdout.flush())
        .context("the command that started this mount has gone")?;
    std::env::set_current_dir("/")?;
    // Else it is listed as `exe`.
    let _ = rustix::thread::set_name(c"heddle");
    let null = File::options().read(true).write(true).open("/dev/null")?;
    let talk = log.as_ref().unwrap_or(&null);
    for (from, standard) in [(&null, 0), (talk, 1), (talk, 2)] {
        // SAFETY: both are descriptors of this process; no pointer is involved.
        if unsafe { libc::dup2(from.as_raw_fd(), standard) } < 0 {
            return Err(std::io::Error::last_os_error()).context("cannot leave the terminal");
        }
    }
    crate::output::date_lines();
    Ok(())
}
