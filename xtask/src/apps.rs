//! Real programs on a mount and under the bypass, beside tmpfs and ext4: their content is checked afterwards, and timed on the way.
//!
//! A program is a file below `apps/` and a row of [`APPS`]. 'It ran without an error' is no pass: each checks what it has left, as far as
//! possible without the bypass; after each, the image must be unmounted cleanly and fsck must find nothing.
//!
//! All of it happens on a tmpfs in namespaces of its own (`private`): ext4 on a loop device over a file in memory, so that the four places
//! compare.

mod copies;
mod dbench;
mod fio;
mod git;
mod mariadb;
mod postgres;
mod ranks;
mod rocksdb;
mod sqlite;
mod stress;
mod test_dir;
mod tree;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use crate::step::Outcome;
use crate::{process, sandbox, setup};
pub use test_dir::{Kind, Served, TestDir, TestRoot};

/// A program.
struct App {
    name: &'static str,
    /// Debian's packages, each with a program of it that shows whether it is installed.
    packages: &'static [(&'static str, &'static str)],
    /// What is run, and what is checked.
    about: &'static str,
    /// A group whose members must be able to attach, if the program does not run as root.
    group: Option<&'static str>,
    run: fn(&TestDir, Length) -> Result<Vec<Figure>>,
}

/// How long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Length {
    /// For the test command: a second or two a place.
    Short,
    /// For docs/results.md.
    Full,
}

impl Length {
    fn pick<T>(self, short: T, full: T) -> T {
        if self == Length::Short { short } else { full }
    }
}

/// A figure of a run.
struct Figure {
    what: &'static str,
    unit: &'static str,
    value: f64,
}

/// A figure.
fn figure(what: &'static str, unit: &'static str, value: f64) -> Figure {
    Figure { what, unit, value }
}

const APPS: &[App] = &[
    fio::APP,
    sqlite::APP,
    dbench::APP,
    git::APP,
    copies::TAR,
    copies::RSYNC,
    copies::CP,
    stress::APP,
    postgres::APP,
    rocksdb::APP,
    mariadb::APP,
    ranks::MPI,
    ranks::HDF5,
];

/// Programs that the test command runs.
const IN_TEST: [&str; 3] = ["fio", "sqlite", "dbench"];

/// All of it.
const LIMIT: Duration = Duration::from_secs(4 * 3600);
const USAGE: &str =
    "usage: cargo xtask apps [NAME…] [--short] [--on tmpfs,ext4,mount,bypass] [--repeat N] [--json FILE]";

struct Options {
    apps: Vec<&'static App>,
    length: Length,
    on: Vec<Kind>,
    repeat: usize,
    json: Option<String>,
}

impl Options {
    fn parse(args: &[String]) -> Result<Options> {
        let mut options =
            Options { apps: Vec::new(), length: Length::Full, on: Kind::ALL.into(), repeat: 1, json: None };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value =
                || args.next().with_context(|| format!("{arg}: what follows it is missing; {USAGE}"));
            match arg.as_str() {
                "--short" => options.length = Length::Short,
                "--on" => options.on = value()?.split(',').map(kind).collect::<Result<_>>()?,
                "--repeat" => options.repeat = value()?.parse().context("--repeat: not a number")?,
                "--json" => options.json = Some(value()?.clone()),
                name => options.apps.push(app(name)?),
            }
        }
        ensure!(options.repeat > 0, "--repeat: at least 1");
        if options.apps.is_empty() {
            options.apps = APPS.iter().collect();
        }
        Ok(options)
    }
}

fn kind(name: &str) -> Result<Kind> {
    let found = Kind::ALL.into_iter().find(|kind| kind.name() == name);
    found.with_context(|| format!("--on {name}: there are tmpfs, ext4, mount, bypass"))
}

fn app(name: &str) -> Result<&'static App> {
    let names = || APPS.iter().map(|app| format!("  {:<10} {}\n", app.name, app.about)).collect::<String>();
    let found = APPS.iter().find(|app| app.name == name);
    found.with_context(|| format!("{name}: no such program. {USAGE}\n{}", names()))
}

/// `cargo xtask apps [NAME…] …`; true if every program found its content right everywhere.
pub fn chore(root: &Path, args: &[String]) -> Result<bool> {
    let options = Options::parse(args)?;
    let mut again = vec!["apps"];
    again.extend(args.iter().map(String::as_str));
    if let Some(ended) = sandbox::enter(root, &again, LIMIT)? {
        return Ok(ended);
    }
    let results = run_all(root, &options)?;
    print!("{}", table(&results, &options.on));
    if let Some(file) = &options.json {
        let text = serde_json::to_string_pretty(&json_of(&results))? + "\n";
        std::fs::write(file, text).with_context(|| format!("cannot write {file}"))?;
    }
    Ok(results.iter().all(|result| result.failure.is_none()))
}

/// The short run of the test command: heddle's two places alone.
pub fn short(root: &Path) -> Result<Outcome> {
    let lacking: Vec<&str> = IN_TEST.iter().filter(|name| !is_installed(app(name).ok())).copied().collect();
    let mut args = vec!["apps", "--short", "--on", "mount,bypass"];
    args.extend(IN_TEST.iter().filter(|name| !lacking.contains(name)));
    let ended = sandbox::enter(root, &args, Duration::from_secs(300))?;
    Ok(match ended {
        Some(true) if lacking.is_empty() => Outcome::Passed,
        Some(true) => Outcome::Skipped(format!("not installed: {}", lacking.join(", "))),
        _ => Outcome::Failed("see above".into()),
    })
}

fn is_installed(app: Option<&App>) -> bool {
    app.is_some_and(|app| app.packages.iter().all(|(_, program)| process::find_program(program).is_some()))
}

/// A program in a place.
struct Ran {
    app: &'static str,
    test_dir: Kind,
    /// One value a repeat.
    figures: Vec<(&'static str, &'static str, Vec<f64>)>,
    /// What the bypass did.
    served: Option<Served>,
    failure: Option<String>,
}

fn run_all(root: &Path, options: &Options) -> Result<Vec<Ran>> {
    let build = ["build", "--quiet", "--release", "-p", "heddle-cli", "-p", "heddle-preload"];
    process::run(&mut process::cargo(root, &build), Duration::from_secs(1800))?;
    let heddle = process::target_dir(root).join("release/heddle");
    let test_root = TestRoot::new(&heddle)?;
    let mut results: Vec<Ran> = Vec::new();
    for app in &options.apps {
        let missing = || app.packages.iter().filter(|(_, program)| process::find_program(program).is_none());
        if missing().next().is_some() {
            setup::install_packages(&missing().map(|(package, _)| *package).collect::<Vec<_>>());
        }
        if let Some((package, program)) = missing().next() {
            bail!("{}: no {program} (install {package})", app.name);
        }
        // Interleaved, so that what disturbs the machine disturbs all places.
        for _ in 0..options.repeat {
            for kind in &options.on {
                let ran = run_one(&test_root, app, *kind, options.length);
                println!("{}", line_of(&ran));
                merge(&mut results, ran);
            }
        }
    }
    Ok(results)
}

fn run_one(test_root: &TestRoot, app: &'static App, kind: Kind, length: Length) -> Ran {
    let mut ran = Ran { app: app.name, test_dir: kind, figures: Vec::new(), served: None, failure: None };
    let done = test_root.test_dir(kind, app.group).and_then(|test_dir| {
        let figures = (app.run)(&test_dir, length).and_then(|figures| {
            if kind == Kind::Bypass {
                let served = test_dir.served()?;
                ensure!(served.calls > 0, "the bypass served nothing: {served}");
                ran.served = Some(served);
            }
            Ok(figures)
        });
        match figures {
            Ok(figures) => test_dir.finish().map(|()| figures),
            Err(error) => {
                test_dir.give_up();
                Err(error)
            }
        }
    });
    match done {
        Ok(figures) => ran.figures = figures.into_iter().map(|f| (f.what, f.unit, vec![f.value])).collect(),
        Err(error) => ran.failure = Some(format!("{error:#}")),
    }
    ran
}

fn merge(results: &mut Vec<Ran>, ran: Ran) {
    let Some(earlier) = results.iter_mut().find(|r| (r.app, r.test_dir) == (ran.app, ran.test_dir)) else {
        return results.push(ran);
    };
    for (what, unit, values) in ran.figures {
        match earlier.figures.iter_mut().find(|(name, ..)| *name == what) {
            Some((_, _, all)) => all.extend(values),
            None => earlier.figures.push((what, unit, values)),
        }
    }
    earlier.served = ran.served.or(earlier.served.take());
    earlier.failure = earlier.failure.take().or(ran.failure);
}

fn line_of(ran: &Ran) -> String {
    let head = format!("{:<10} {:<7}", ran.app, ran.test_dir.name());
    if let Some(failure) = &ran.failure {
        return format!("{head} FAILED: {failure}");
    }
    let figures: Vec<String> = ran
        .figures
        .iter()
        .map(|(what, unit, values)| format!("{what} {} {unit}", short_number(median(values))))
        .collect();
    let served = ran.served.as_ref().map_or(String::new(), |served| format!("; {served}"));
    format!("{head} content right; {}{served}", figures.join(", "))
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

fn short_number(value: f64) -> String {
    match value.abs() {
        v if v >= 1e5 => format!("{:.0}k", value / 1e3),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Markdown, for docs/results.md.
fn table(results: &[Ran], on: &[Kind]) -> String {
    let names: Vec<&str> = on.iter().map(|kind| kind.name()).collect();
    let mut text =
        format!("\n| program | figure | {} |\n|---|---|{}\n", names.join(" | "), "---|".repeat(names.len()));
    let mut rows: Vec<(&str, &str, &str)> = Vec::new();
    for ran in results {
        for (what, unit, _) in &ran.figures {
            if !rows.contains(&(ran.app, what, unit)) {
                rows.push((ran.app, what, unit));
            }
        }
    }
    for (app, what, unit) in rows {
        let cell = |kind: &Kind| {
            let ran = results.iter().find(|ran| (ran.app, ran.test_dir) == (app, *kind))?;
            if ran.failure.is_some() {
                return Some("FAILED".to_owned());
            }
            ran.figures
                .iter()
                .find(|(name, ..)| *name == what)
                .map(|(_, _, values)| short_number(median(values)))
        };
        let cells: Vec<String> = on.iter().map(|kind| cell(kind).unwrap_or_else(|| "-".to_owned())).collect();
        text += &format!("| {app} | {what}, {unit} | {} |\n", cells.join(" | "));
    }
    let failures: String = results
        .iter()
        .filter_map(|ran| {
            Some(format!("FAILED {} on {}: {}\n", ran.app, ran.test_dir.name(), ran.failure.as_ref()?))
        })
        .collect();
    text + &failures
}

fn json_of(results: &[Ran]) -> serde_json::Value {
    let runs: Vec<_> = results
        .iter()
        .map(|ran| {
            let figures: Vec<_> = ran
                .figures
                .iter()
                .map(|(what, unit, values)| json!({"what": what, "unit": unit, "values": values, "median": median(values)}))
                .collect();
            json!({
                "program": ran.app,
                "place": ran.test_dir.name(),
                "figures": figures,
                "served": ran.served.as_ref().map(|served| served.calls),
                "passed_on": ran.served.as_ref().map(|served| &served.passed_on),
                "failure": ran.failure,
            })
        })
        .collect();
    json!({"output_version": 1, "runs": runs})
}
