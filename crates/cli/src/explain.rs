//! `heddle explain`: explains the issues of `heddle fsck`.

use anyhow::Result;
use heddle_console::failure::usage;
use heddle_console::output::{self, Sink};
use heddle_nvmfs::fsck::{CATALOGUE, Code, Entry};
use serde::Serialize;

/// Explain an issue that fsck finds in NVM images, and its repair; without ID, list these issues
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// As JSON
    #[arg(long)]
    json: bool,
    /// ID of an issue, as fsck prints it
    id: Option<String>,
}

const EXAMPLES: &str = "\
Examples:
  heddle explain NV-0042
  heddle explain --json
  heddle explain | grep 'log page'";

#[derive(Serialize)]
struct Shown {
    id: String,
    severity: &'static str,
    structure: &'static str,
    title: &'static str,
    meaning: &'static str,
    repair: &'static str,
}

#[derive(Serialize)]
struct List {
    output_version: u32,
    issues: Vec<Shown>,
}

fn shown(entry: &Entry) -> Shown {
    Shown {
        id: entry.code.to_string(),
        severity: entry.severity.name(),
        structure: entry.structure,
        title: entry.title,
        meaning: entry.meaning,
        repair: entry.repair,
    }
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let wanted = args.id.as_ref().map(|id| {
        Code::parse(id)
            .ok_or_else(|| usage(format!("there is no issue {id}. All are listed by: heddle explain")))
    });
    let wanted = wanted.transpose()?;
    let chosen: Vec<&Entry> = CATALOGUE.iter().filter(|e| wanted.is_none_or(|code| e.code == code)).collect();
    if args.json {
        let list = List { output_version: 1, issues: chosen.into_iter().map(shown).collect() };
        return output::json(&Sink::Stdout, &list);
    }
    let line = |e: &&Entry| match wanted {
        None => format!("{}  {:<8} {:<16} {}", e.code, e.severity.name(), e.structure, e.title),
        Some(_) => format!(
            "{} ({}, {}): {}\n\n{}\n\nRepair: {}",
            e.code,
            e.severity.name(),
            e.structure,
            e.title,
            e.meaning,
            e.repair
        ),
    };
    output::data(&chosen.iter().map(line).collect::<Vec<_>>().join("\n"))
}
