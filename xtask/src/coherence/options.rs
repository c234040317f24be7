//! The command line of `cargo xtask coherence`.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

const WORKLOADS: [&str; 19] = [
    "DRBL", "DRBM", "DRBH", "DWOL", "DWOM", "DWAL", "DWTL", "DWSL", "MRPL", "MRPM", "MRPH", "MRDL", "MRDM",
    "MWCL", "MWCM", "MWUL", "MWUM", "MWRL", "MWRM",
];
const TARGETS: [&str; 5] = ["nova", "nova-interval", "nova-array", "nova-tree", "heddle"];
/// A worker is a bit of a word in the plug-in.
const WORKERS_MAX: usize = 64;

const USAGE: &str =
    "cargo xtask coherence [WORKLOAD…] [--target T,…] [--workers N,…] [--json FILE|-] [--svg FILE]";

/// Where the JSON goes.
#[derive(Debug, PartialEq)]
pub enum Sink {
    Stdout,
    File(PathBuf),
}

/// What to run.
#[derive(Debug, PartialEq)]
pub struct Options {
    pub workloads: Vec<String>,
    pub targets: Vec<String>,
    pub workers: Vec<usize>,
    pub json: Option<Sink>,
    pub svg: Option<PathBuf>,
}

impl Options {
    /// All workloads, `heddle`, 2, 16 and 64 workers, unless said otherwise.
    pub fn parse(args: &[String]) -> Result<Options> {
        let mut options = Options {
            workloads: Vec::new(),
            targets: vec!["heddle".into()],
            workers: vec![2, 16, 64],
            json: None,
            svg: None,
        };
        let mut rest = args.iter();
        while let Some(arg) = rest.next() {
            let mut value = || rest.next().with_context(|| format!("{arg} wants a value; usage: {USAGE}"));
            match arg.as_str() {
                "--target" => options.targets = names(value()?, &TARGETS, "target")?,
                "--workers" => options.workers = value()?.split(',').map(workers).collect::<Result<_>>()?,
                "--svg" => options.svg = Some(value()?.into()),
                "--json" => {
                    let to = value()?;
                    options.json = Some(if to == "-" { Sink::Stdout } else { Sink::File(PathBuf::from(to)) });
                }
                option if option.starts_with('-') => bail!("{option}: unknown option; usage: {USAGE}"),
                name => options.workloads.extend(names(&name.to_uppercase(), &WORKLOADS, "workload")?),
            }
        }
        if options.workloads.is_empty() {
            options.workloads = WORKLOADS.map(String::from).into();
        }
        Ok(options)
    }
}

fn names(list: &str, known: &[&str], what: &str) -> Result<Vec<String>> {
    let one = |name: &str| match known.contains(&name) {
        true => Ok(name.to_owned()),
        false => bail!("no {what} is called {name}; there are: {}", known.join(" ")),
    };
    list.split(',').map(one).collect()
}

fn workers(text: &str) -> Result<usize> {
    let number = text.parse().ok().filter(|n| (1..=WORKERS_MAX).contains(n));
    number.with_context(|| format!("--workers {text}: numbers from 1 to {WORKERS_MAX}, with commas"))
}
