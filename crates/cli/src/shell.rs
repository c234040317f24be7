//! Shell completions and manual pages, for packages and for single users.

use crate::Cli;
use anyhow::{Context, Result};
use clap::CommandFactory;
use heddle_console::output;
use std::path::PathBuf;

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
  mkdir -p ~/.local/share/man/man1 && heddle man ~/.local/share/man/man1     then: man heddle-mount")]
pub struct ManArgs {
    /// The directory, which must exist
    dir: PathBuf,
}

/// `heddle completions SHELL`
pub fn completions(args: &CompletionsArgs) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "heddle", &mut script);
    output::data(&String::from_utf8_lossy(&script))
}

/// `heddle man DIR`
pub fn man(args: &ManArgs) -> Result<()> {
    clap_mangen::generate_to(Cli::command(), &args.dir)
        .with_context(|| format!("cannot write manual pages to {}", args.dir.display()))
}
