//! The `heddle` command line.
//!
//! One file per command; commands that measure lie in `heddle-measure`. Data goes to stdout, messages to
//! stderr. Exit codes: 0 success, 1 failure, 2 a wrong command line; `fsck` has those of fsck(8), `run` those
//! of the program.

mod counters;
mod demo;
mod dump;
mod explain;
mod fold;
mod fsck;
mod help;
mod info;
mod large_pages;
mod mkfs;
mod mount;
mod panics;
mod run;
mod shell;
mod tune;
mod umount;
mod unmount_report;

use clap::{Parser, Subcommand};
use heddle_console::{failure, inherited, output};
use heddle_measure::{bandwidth, coherence, crash, fxmark, locks, mount_times};
use std::borrow::Cow;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

/// A file system for many cores: many threads and processes read and overwrite one file at once.
#[derive(Parser)]
#[command(name = "heddle", version, arg_required_else_help = true, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  heddle demo                              show NVM images at work, on temporary ones
  heddle mkfs --size 1G /dev/shm/my.img    make an image
  heddle mount /dev/shm/my.img /mnt/h      mount it
  heddle top /mnt/h                        watch it
  heddle umount /mnt/h
  heddle fsck -n /dev/shm/my.img           check it; repair with -y
  heddle fxmark DWOM --target heddle,tmpfs --cores 1,2

Sizes may be written 4K, 4KiB or 4096.
Exit codes: 0 success, 1 failure, 2 a wrong command line, 130 interrupted (demo, mount-times, fxmark with a target +mount or +bypass);
fsck has those of fsck(8), run has those of the program; their --help says more.";

#[derive(Subcommand)]
enum Command {
    Demo(demo::Args),
    Mkfs(mkfs::Args),
    Mount(mount::Args),
    Umount(umount::Args),
    Fold(fold::Args),
    Run(run::Args),
    Stat(counters::stat::Args),
    Top(counters::top::Args),
    Info(info::Args),
    Fsck(fsck::Args),
    Explain(explain::Args),
    Tune(tune::Args),
    Dump(dump::Args),
    #[command(visible_alias = "workload")]
    Fxmark(fxmark::Args),
    Locks(locks::Args),
    Bandwidth(bandwidth::Args),
    MountTimes(mount_times::Args),
    Crash(crash::Args),
    Completions(shell::CompletionsArgs),
    Man(shell::ManArgs),
    #[command(hide = true, name = coherence::COMMAND)]
    Coherence(coherence::Args),
    #[command(hide = true, name = demo::WRITER)]
    DemoWriter(demo::WriterArgs),
}

/// Enough stack to parse a command line, with a margin.
const STACK_BYTES: usize = 1 << 20;

/// If the caller has little stack (`ulimit -s 64`), a thread with a larger stack runs the command.
fn main() -> ExitCode {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Stack).current;
    if limit.is_none_or(|bytes| bytes >= STACK_BYTES as u64) {
        return command();
    }
    let worker = std::thread::Builder::new().stack_size(8 * STACK_BYTES).spawn(command);
    match worker.map(std::thread::JoinHandle::join) {
        Ok(Ok(code)) => code,
        _ => ExitCode::FAILURE,
    }
}

fn command() -> ExitCode {
    // If an image is truncated, or its media fails, the call that needs it fails; this process goes on.
    heddle_pmem::install_fault_handler();
    #[cfg(feature = "planted")]
    heddle_vfs::planted::plant_from_environment();
    let args = match mount::helper::from_name(std::env::args_os().collect()) {
        Ok(Some(args)) => args,
        Ok(None) => std::env::args_os().collect(),
        Err(error) => return failure::report(&error),
    };
    let cli = match help::parse::<Cli>(args) {
        Ok(cli) => cli,
        Err(error) => return wrong_words(&error),
    };
    if !matches!(cli.command, Command::Run(_)) {
        // If a file may not grow further, the call that would grow it fails; this process goes on.
        // SAFETY: no handler is set; the signal is ignored from here on.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    }
    let done = match cli.command {
        Command::Demo(args) => demo::run(&args),
        Command::Mkfs(args) => mkfs::run(&args),
        Command::Mount(args) => {
            panics::tell_the_first();
            mount::run(&args)
        }
        Command::Umount(args) => umount::run(&args),
        Command::Fold(args) => fold::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Stat(args) => counters::stat::run(&args),
        Command::Top(args) => counters::top::run(&args),
        Command::Info(args) => info::run(&args),
        Command::Fsck(args) => fsck::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Tune(args) => tune::run(&args),
        Command::Dump(args) => dump::run(&args),
        Command::Fxmark(args) => fxmark::run(&args),
        Command::Locks(args) => locks::run(&args),
        Command::Bandwidth(args) => bandwidth::run(&args),
        Command::MountTimes(args) => mount_times::run(&args),
        Command::Crash(args) => crash::run(&args),
        Command::Completions(args) => shell::completions(&args),
        Command::Man(args) => shell::man(&args),
        Command::Coherence(args) => coherence::run(&args),
        Command::DemoWriter(args) => demo::write_until_killed(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure::report(&error),
    }
}

/// Help and version go to stdout and are no failure, unless they cannot be written. A caller of fsck learns of a wrong command line by
/// the exit code of fsck(8).
fn wrong_words(error: &clap::Error) -> ExitCode {
    let plain = error.render().to_string();
    let printed = match output::escaped(&plain) {
        // An argument contains characters that control a terminal.
        Cow::Owned(harmless) => {
            output::talk(&harmless);
            Ok(())
        }
        Cow::Borrowed(_) if !error.use_stderr() && inherited::is_closed(1) => {
            Err(std::io::Error::other("it is closed"))
        }
        Cow::Borrowed(_) => error.print().and_then(|()| std::io::stdout().flush()),
    };
    if let Err(unwritten) = printed
        && !error.use_stderr()
        && unwritten.kind() != ErrorKind::BrokenPipe
    {
        return failure::report(&anyhow::Error::new(unwritten).context("cannot write to stdout"));
    }
    let of_fsck = std::env::args_os().nth(1).is_some_and(|command| command == "fsck");
    match error.exit_code() {
        0 => ExitCode::SUCCESS,
        _ if of_fsck => ExitCode::from(fsck::USAGE),
        code => ExitCode::from(code as u8),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn every_command_shows_examples_and_stands_in_the_readme() {
        let readme = include_str!("../../../README.md");
        let mut cli = super::Cli::command();
        cli.build();
        cli.clone().debug_assert();
        for command in cli.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help") {
            let help = command.clone().render_long_help().to_string();
            let name = command.get_name();
            assert!(help.contains("Examples:"), "heddle {name} --help shows no example");
            assert!(
                readme.contains(&format!("`heddle {name} ")) || readme.contains(&format!("`heddle {name}`")),
                "README: no heddle {name}"
            );
        }
    }
}
