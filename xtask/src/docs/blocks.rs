//! Runs the blocks of commands of all pages, in order, each in a shell, on a machine that nobody has used before: folders that blocks
//! write to are fresh or can be written without a trace.
//!
//! `<!-- not run: WHY -->` above a block leaves it out, and WHY is printed; docs/results.md is left out: its commands make its tables.
//! A `text` block with `<!-- output -->` above it is what the block of commands before it prints to stdout; `…` stands for anything.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};

use super::pages::{Block, Page};
use crate::process;

/// Empty folders instead of these.
const FRESH: [&str; 3] = ["/mnt", "/srv", "/dev/shm"];
/// These as they are, but what is written there goes with the namespace.
const OVERLAID: [&str; 3] = ["/usr/local", "/usr/sbin", "/var/lib"];
const NOT_RUN: &str = "docs/results.md";
const LIMIT: Duration = Duration::from_secs(900);

/// In a namespace of its own. True if all went well.
pub fn run(root: &Path, pages: &[Page]) -> Result<bool> {
    prepare()?;
    let mut well = true;
    for page in pages.iter().filter(|page| page.path != NOT_RUN) {
        let blocks = page.blocks();
        let mut said = String::new();
        for block in &blocks {
            let place = format!("{}:{}", page.path, block.line);
            let skipped = block.mark.and_then(|mark| mark.strip_prefix("not run: "));
            match (block.kind, block.mark, skipped) {
                ("sh", _, Some(why)) => println!("{place}: not run: {why}"),
                ("sh", ..) => match shell(root, folder(root, page), block) {
                    Ok(output) => {
                        println!("{place}: ran");
                        said = output;
                    }
                    Err(error) => {
                        println!("{place}: FAILED: {error:#}");
                        well = false;
                    }
                },
                (_, Some("output"), _) if !alike(&block.lines, &said) => {
                    println!("{place}: FAILED: it printed\n{said}");
                    well = false;
                }
                _ => {}
            }
        }
    }
    Ok(well)
}

fn prepare() -> Result<()> {
    let script = FRESH
        .iter()
        .map(|folder| format!("mount -t tmpfs -o mode=1777 fresh {folder}\n"))
        .chain(OVERLAID.iter().map(|folder| {
            let above = format!("/mnt/above{}", folder.replace('/', "-"));
            let layers = format!("lowerdir={folder},upperdir={above}/new,workdir={above}/work");
            format!("mkdir -p {above}/new {above}/work\nmount -t overlay -o {layers} over {folder}\n")
        }))
        .collect::<String>();
    process::run(Command::new("sh").args(["-e", "-c", &script]), LIMIT).context("folders for the blocks")
}

/// README's blocks build the project; those of other pages have a folder of their own, for what they make.
fn folder<'a>(root: &'a Path, page: &Page) -> &'a Path {
    if page.path == "README.md" { root } else { Path::new("/srv") }
}

/// What it printed to stdout.
fn shell(root: &Path, folder: &Path, block: &Block<'_>) -> Result<String> {
    let output = process::target_dir(root).join("tmp/docs-output");
    std::fs::create_dir_all(output.parent().context("no folder")?)?;
    let mut command = Command::new("sh");
    command.args(["-e", "-c", &block.lines.join("\n")]).current_dir(folder).stdin(Stdio::null());
    command.stdout(std::fs::File::create(&output)?);
    process::run(&mut command, LIMIT)?;
    Ok(std::fs::read_to_string(&output)?)
}

/// Line by line; `…` is anything.
fn alike(wanted: &[&str], said: &str) -> bool {
    let said: Vec<&str> = said.lines().collect();
    wanted.len() == said.len() && wanted.iter().zip(said).all(|(wanted, said)| line_alike(wanted, said))
}

fn line_alike(wanted: &str, mut said: &str) -> bool {
    let mut parts = wanted.split('…');
    let Some(rest) = parts.next().and_then(|first| said.strip_prefix(first)) else { return false };
    said = rest;
    let mut open = false;
    for part in parts {
        let Some(at) = said.rfind(part) else { return false };
        said = &said[at + part.len()..];
        open = part.is_empty();
    }
    open || said.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_is_compared_but_for_what_may_differ() {
        assert!(alike(&["a … c", "…"], "a b c\nx"));
        assert!(!alike(&["a … c"], "a b d"));
        assert!(!alike(&["a"], "a\nb"));
        assert!(!alike(&["a"], "ab"));
    }
}
