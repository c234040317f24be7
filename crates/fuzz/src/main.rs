//! Hostile input, in search of a panic, a hang, an absurd allocation or a promise that is not kept.
//!
//! `heddle-fuzz [TARGET…] [--seed N] [--seconds N] [--inputs N] [--dir DIR]` tries inputs, each target in a process of its own that
//! another one watches; without bounds a short run that is the same every time. `heddle-fuzz TARGET --replay FILE…` tries these
//! inputs, here. `cargo xtask fuzz` builds it with counters, so that it knows which inputs lead somewhere new.
#![warn(missing_docs)]

mod coverage;
mod engine;
mod image;
mod shared_page;
mod targets;
mod watch;

use engine::Bounds;
use rustix::process::{Resource, Rlimit, setrlimit};
use shared_page::SharedPage;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use targets::{Row, TARGETS};
use watch::{Report, Watch};

/// Address space of a process that tries inputs: far more than any of them has reason to ask for.
const MEMORY_MAX: u64 = 3 << 30;

type Result<T> = std::result::Result<T, String>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = match args.first().map(String::as_str) {
        Some("--child") => child(&args[1..]).map(|()| true),
        _ => Options::of(&args).and_then(|options| options.run()),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(why) => {
            eprintln!("heddle-fuzz: {why}");
            ExitCode::from(2)
        }
    }
}

fn row(name: &str) -> Result<&'static Row> {
    let names = || TARGETS.iter().map(|row| format!("\n  {:<9} {}", row.name, row.about)).collect::<String>();
    let found = TARGETS.iter().find(|row| row.name == name);
    found.ok_or_else(|| format!("no target is called {name}; there are{}", names()))
}

struct Options {
    targets: Vec<&'static Row>,
    seed: u64,
    seconds: Option<u64>,
    inputs: Option<u64>,
    dir: Option<PathBuf>,
    replay: Vec<PathBuf>,
}

impl Options {
    fn of(args: &[String]) -> Result<Options> {
        let mut options = Options {
            targets: Vec::new(),
            seed: 1,
            seconds: None,
            inputs: None,
            dir: None,
            replay: Vec::new(),
        };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg}: a value is missing"));
            let number = |text: &String| text.parse().map_err(|_| format!("{arg} {text}: not a number"));
            match arg.as_str() {
                "--seed" => options.seed = number(value()?)?,
                "--seconds" => options.seconds = Some(number(value()?)?),
                "--inputs" => options.inputs = Some(number(value()?)?),
                "--dir" => options.dir = Some(value()?.into()),
                "--replay" => {
                    options.replay.push(value()?.into());
                    options.replay.extend(args.by_ref().map(PathBuf::from));
                }
                name => options.targets.push(row(name)?),
            }
        }
        if options.targets.is_empty() {
            options.targets = TARGETS.iter().collect();
        }
        Ok(options)
    }

    fn run(&self) -> Result<bool> {
        if !self.replay.is_empty() {
            let [row] = self.targets[..] else { return Err("--replay: of which target? Name one".into()) };
            return replay(row, &self.replay);
        }
        let temporary = tempfile::tempdir().map_err(|e| e.to_string())?;
        let mut sound = true;
        for row in &self.targets {
            let dir = self.dir.as_deref().unwrap_or(temporary.path()).join(row.name);
            let inputs = match (self.inputs, self.seconds) {
                (Some(inputs), _) => inputs,
                (None, Some(_)) => u64::MAX,
                (None, None) => row.short,
            };
            let time = Duration::from_secs(self.seconds.unwrap_or(3600));
            let bounds = Bounds { inputs, time };
            let watch = Watch { target: row.name.into(), seed: self.seed, bounds, dir };
            let report = watch.run().map_err(|e| format!("{}: {e}", row.name))?;
            tell(row, &report, self.dir.is_some());
            sound &= report.findings.is_empty();
        }
        Ok(sound)
    }
}

fn tell(row: &Row, report: &Report, kept: bool) {
    let edges = if report.edges > 0 { format!(", {} edges", report.edges) } else { String::new() };
    println!(
        "{:<9} {} inputs in {:.1} s of processor time, {} worth keeping{edges}, {} findings",
        row.name,
        report.inputs,
        report.time.as_secs_f64(),
        report.kept,
        report.findings.len()
    );
    for (path, said) in &report.findings {
        if kept {
            println!("  again with: cargo xtask fuzz {} --replay {}", row.name, path.display());
        } else if let Ok(input) = std::fs::read(path) {
            println!("  the input: {}", input.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
        }
        said.lines().for_each(|line| println!("    {line}"));
    }
}

fn replay(row: &Row, paths: &[PathBuf]) -> Result<bool> {
    let mut target = (row.make)(true);
    for path in paths {
        let input = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
        match target.run(&input) {
            Ok(_) => println!("{}: nothing happened", path.display()),
            Err(broken) => {
                println!("{}: {broken}", path.display());
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// `--child TARGET BOARD CORPUS SEED INPUTS MILLISECONDS`
fn child(args: &[String]) -> Result<()> {
    let [target, shared_page, corpus, numbers @ ..] = args else {
        return Err("--child is for heddle-fuzz itself".into());
    };
    let numbers: Vec<u64> = numbers.iter().filter_map(|text| text.parse().ok()).collect();
    let [seed, inputs, millis] = numbers[..] else { return Err("--child is for heddle-fuzz itself".into()) };
    let limit = |which, most| {
        setrlimit(which, Rlimit { current: Some(most), maximum: Some(most) }).map_err(|e| e.to_string())
    };
    limit(Resource::As, MEMORY_MAX)?;
    limit(Resource::Core, 0)?;
    // In whatever thread: the process is lost.
    let told = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        told(info);
        std::process::abort();
    }));
    let shared_page = SharedPage::open(Path::new(shared_page)).map_err(|e| e.to_string())?;
    let row = row(target)?;
    let mut target = (row.make)(inputs > row.short);
    engine::run(
        &mut *target,
        &shared_page,
        Path::new(corpus),
        seed,
        Bounds { inputs, time: Duration::from_millis(millis) },
    );
    Ok(())
}
