//! Hidden commands for packagers: shell completions and manual pages.

use crate::{Cli, output};
use anyhow::{Context, Result};
use clap::CommandFactory;
use std::path::PathBuf;

/// Write the completions of a shell to stdout
#[derive(clap::Args)]
pub struct CompletionsArgs {
    /// Which shell
    shell: clap_complete::Shell,
}

/// Write the manual pages into a directory
#[derive(clap::Args)]
pub struct ManArgs {
    /// Where to
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
