//! The `heddle` command line.
//!
//! A file a command. What a command finds goes to stdout, what it has to say to stderr. Exit codes: 0 it went well,
//! 1 it did not, 2 the command was wrong.

mod bandwidth;
mod coherence;
mod crash;
mod demo;
mod engines;
mod failure;
mod fxmark;
mod image;
mod info;
mod locks;
mod mkfs;
mod mount;
mod namespace;
mod output;
mod progress;
mod run;
mod scratch;
mod shell;
mod size;
mod table;
mod umount;
mod variant;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// A file system for many cores: many threads and processes read and write one file at once.
#[derive(Parser)]
#[command(name = "heddle", version, arg_required_else_help = true, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  heddle demo                              see all of it on a throw-away image, in under a minute
  heddle mkfs --size 1G /dev/shm/my.img    make an image
  heddle mount /dev/shm/my.img /mnt/h      mount it for any program
  heddle umount /mnt/h
  heddle fxmark DWOM --target heddle,tmpfs --cores 1,2

Sizes may be written 4K, 4KiB or 4096. Exit codes: 0 it went well, 1 it did not, 2 the command was wrong.";

#[derive(Subcommand)]
enum Command {
    Demo(demo::Args),
    Mkfs(mkfs::Args),
    Mount(mount::Args),
    Umount(umount::Args),
    Run(run::Args),
    Info(info::Args),
    Fxmark(fxmark::Args),
    Locks(locks::Args),
    Bandwidth(bandwidth::Args),
    Crash(crash::Args),
    #[command(hide = true)]
    Completions(shell::CompletionsArgs),
    #[command(hide = true)]
    Man(shell::ManArgs),
    #[command(hide = true, name = coherence::COMMAND)]
    Coherence(coherence::Args),
    #[command(hide = true, name = demo::WRITER)]
    DemoWriter(demo::WriterArgs),
}

fn main() -> ExitCode {
    let cli = match mount::helper::from_name(std::env::args_os().collect()) {
        Ok(Some(args)) => Cli::parse_from(args),
        Ok(None) => Cli::parse(),
        Err(error) => return failure::report(&error),
    };
    let done = match cli.command {
        Command::Demo(args) => demo::run(&args),
        Command::Mkfs(args) => mkfs::run(&args),
        Command::Mount(args) => mount::run(&args),
        Command::Umount(args) => umount::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Info(args) => info::run(&args),
        Command::Fxmark(args) => fxmark::run(&args),
        Command::Locks(args) => locks::run(&args),
        Command::Bandwidth(args) => bandwidth::run(&args),
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

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_grammar_is_sound_and_every_command_shows_examples() {
        let mut cli = super::Cli::command();
        cli.build();
        cli.clone().debug_assert();
        for command in cli.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help") {
            let help = command.clone().render_long_help().to_string();
            assert!(help.contains("Examples:"), "heddle {} --help shows no example", command.get_name());
        }
    }
}
