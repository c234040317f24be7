//! What is written about the project: the API documentation, and the pages, each of whose commands, files, tests and figures is there.

mod blocks;
mod chores;
mod figures;
mod names;
mod pages;
mod prose;
mod words;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::step::Outcome;
use crate::{process, sandbox};

/// `cargo xtask docs [--short]`
pub fn chore(root: &Path, args: &[String]) -> Result<bool> {
    let short = match args {
        [] => false,
        [word] if word == "--short" => true,
        _ => bail!("docs takes --short alone: the pages' words, without running their commands"),
    };
    if short {
        return Ok(pages_outcome(root)? == Outcome::Passed);
    }
    if sandbox::is_inside() {
        return blocks::run(root, &pages::read_all(root)?);
    }
    process::run(&mut process::cargo(root, process::RELEASE_BUILD), Duration::from_secs(3600))?;
    let right = pages_outcome(root)? == Outcome::Passed;
    process::run(&mut command(root)?, Duration::from_secs(3600))?;
    println!("{}", process::target_dir(root).join("doc").display());
    let ran = sandbox::enter(root, &["docs"], Duration::from_secs(1800))?;
    Ok(right && ran == Some(true))
}

/// Rustdoc over the workspace, a broken link an error.
pub fn command(root: &Path) -> Result<Command> {
    let mut command = process::cargo(root, &["doc", "--workspace", "--no-deps", "--quiet"]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    Ok(command)
}

/// The pages' words, in a second or two: files, tests, headings, commands, options and figures that they name are there, and sentences are
/// short.
pub fn pages_outcome(root: &Path) -> Result<Outcome> {
    let pages = pages::read_all(root)?;
    let tree = names::Tree::read(root)?;
    let mut wrong = names::check(&tree, &pages);
    wrong.extend(chores::check(root, &tree)?);
    wrong.extend(words::check(&words::Helps::ask(&heddle(root)?)?, &crate::chores(), &pages));
    wrong.extend(figures::check(&pages));
    wrong.extend(prose::check(&pages));
    for what in &wrong {
        println!("{what}");
    }
    Ok(if wrong.is_empty() {
        Outcome::Passed
    } else {
        Outcome::Failed(format!("{} lines are wrong", wrong.len()))
    })
}

/// Tests that pages name and that were not among those that ran.
pub fn not_run(root: &Path, ran: &[String]) -> Result<Vec<String>> {
    names::not_run(&names::Tree::read(root)?, &pages::read_all(root)?, ran)
}

/// The program that was built last.
fn heddle(root: &Path) -> Result<PathBuf> {
    let built = ["release/heddle", "debug/heddle"].map(|name| process::target_dir(root).join(name));
    let age = |path: &PathBuf| path.metadata().and_then(|data| data.modified()).ok();
    built
        .into_iter()
        .filter(|path| path.exists())
        .max_by_key(age)
        .context("heddle is not built: cargo build --release")
}
