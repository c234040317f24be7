//! The API documentation.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::process;

/// `cargo xtask docs`
pub fn chore(root: &Path, args: &[String]) -> Result<bool> {
    if let Some(arg) = args.first() {
        bail!("{arg}: docs takes no argument");
    }
    process::run(&mut command(root)?, Duration::from_secs(3600))?;
    println!("{}", process::target_dir(root).join("doc").display());
    Ok(true)
}

/// Rustdoc over the workspace, a broken link an error.
pub fn command(root: &Path) -> Result<Command> {
    let mut command = process::cargo(root, &["doc", "--workspace", "--no-deps", "--quiet"]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    Ok(command)
}
