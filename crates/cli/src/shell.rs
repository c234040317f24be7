//! Shell completions and manual pages, for packages and for single users.

use crate::{Cli, help};
use anyhow::{Context, Result};
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use heddle_console::output;
use std::path::PathBuf;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Write the completion script of a shell to stdout
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  heddle completions bash > ~/.local/share/bash-completion/completions/heddle
  heddle completions zsh > /usr/local/share/zsh/site-functions/_heddle
  heddle completions fish > ~/.config/fish/completions/heddle.fish")]
pub struct CompletionsArgs {
    /// The shell
    shell: clap_complete::Shell,
}

/// Write the manual pages into a directory
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  mkdir -p ~/.local/share/man/man1 && heddle man ~/.local/share/man/man1
  man -M ~/.local/share/man heddle-mount")]
pub struct ManArgs {
    /// The directory, which must exist
    dir: PathBuf,
}

/// `heddle completions SHELL`
pub fn completions(args: &CompletionsArgs) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut for_users(), "heddle", &mut script);
    output::data(&String::from_utf8_lossy(&script))
}

/// The command line without the commands that this program, or a rig, starts by itself: a shell would offer them.
fn for_users() -> Command {
    let all = Cli::command();
    let shown = all.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    Command::new("heddle").version(VERSION).subcommands(shown)
}

/// `heddle man DIR`
pub fn man(args: &ManArgs) -> Result<()> {
    let mut all = help::fitted(for_users().disable_help_subcommand(true), help::MAN_COLUMNS);
    all.build();
    let top = help::fitted(Cli::command().disable_help_subcommand(true), help::MAN_COLUMNS);
    for page in all.get_subcommands().chain([&top]) {
        let page = Man::new(page.clone()).source(format!("heddle {VERSION}"));
        page.generate_to(&args.dir)
            .with_context(|| format!("cannot write manual pages to {}", args.dir.display()))?;
    }
    Ok(())
}
