//! `heddle crash`: simulates power cuts at each fence, and after the return, of the watched operations, and checks images that could be
//! left.

use anyhow::{Context, Result};
use heddle_console::failure::{judged, usage};
use heddle_console::output::{self, Sink};
use heddle_crash::cut::{Bounds, read_runs};
use heddle_crash::emit::Emitter;
use heddle_crash::op::Workload;
use heddle_crash::rig::{Config, Failure, Nobody, Only, Report, run as run_workload};
use heddle_nvmfs::Variant;
use heddle_pmem::Model;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Instant;

/// Simulate power cuts at the fences of a workload, and check images that could be left
///
/// The workload is a text file with at most one operation per line (docs/crash.md). It runs in memory, on a simulated image. The command
/// watches the operations after the line `watch`; without that line, all. At each fence of a watched operation, and after its return, it
/// forms states. A state is a content that a power cut could leave. An image is a state that was recovered and checked: those that may
/// behave differently are.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The workload, or - for stdin
    #[arg(long, value_name = "FILE")]
    workload: PathBuf,
    /// The system under test
    #[arg(long, value_parser = heddle_console::variant::parser(), default_value = "heddle")]
    variant: Variant,
    /// The power cut: ordered (x86 with ADR), pessimistic (words of a cache line may be lost separately), eadr (caches survive). process:
    /// no power cut, the process dies and its memory stays (durability=process)
    #[arg(long, default_value = "ordered")]
    model: Model,
    /// Seed of the random choice of images
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Limit, approximate, on systematically chosen states per cut: all subsets of the stores that recovery read, if few. Otherwise states
    /// in which one store, one word or two words arrived alone or are missing alone. No effect with eadr and process, which form every
    /// prefix
    #[arg(long, default_value_t = 1024, value_name = "N")]
    images: usize,
    /// Limit on further states per cut, chosen at random; those that may behave differently are checked. No effect with eadr and process
    #[arg(long, default_value_t = 64, value_name = "N")]
    random: usize,
    /// Write the images that it recovers, and manifest.json, to this directory
    #[arg(long, value_name = "DIR")]
    emit: Option<PathBuf>,
    /// Most images to write; beyond that, those that fail are written
    #[arg(long, default_value_t = 2000, value_name = "N", requires = "emit")]
    emit_max: usize,
    /// Check only the image that a failure names: STEP.FENCE:STORES (fence 0: after the return)
    #[arg(long, value_name = "WHERE")]
    at: Option<String>,
    /// As JSON, to a file or to stdout (-)
    #[arg(long, value_name = "FILE|-")]
    json: Option<Sink>,
}

const EXAMPLES: &str = "\
Examples:
  printf 'create /a\\nwrite /a 0 5000\\nrename /a /b\\n' > w.txt
  heddle crash --workload w.txt
  heddle crash --variant nova --workload w.txt --seed 7 --json -
  heddle crash --workload w.txt --emit /dev/shm/images      to look at the images yourself

Exit codes: 0 no image failed, 1 an image failed, or a call returned a wrong result without a power cut, or --at named stores that are not
there, or images or results could not be written, 2 the command line or the workload was wrong, or the image could not be made.";

#[derive(Serialize)]
struct Output<'a> {
    states: u64,
    images: u64,
    failures: usize,
    seconds: f64,
    output_version: u32,
    variant: &'static str,
    workload: &'a str,
    seed: u64,
    cuts: u64,
    recoveries_cut: u64,
    emitted: Option<usize>,
    first_failure: Option<First>,
}

#[derive(Serialize)]
struct First {
    text: String,
    replay: String,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let workload = read(args)?;
    let only = args.at.as_deref().map(place).transpose()?;
    if only.as_ref().is_some_and(|only| only.step >= workload.watched.len()) {
        return Err(usage(format!("--at: the workload watches {} operations", workload.watched.len())));
    }
    args.json.as_ref().map_or(Ok(()), Sink::check)?;
    let bounds = Bounds { ordered: args.images, random: args.random, seed: args.seed };
    let config = Config { variant: args.variant, model: args.model, bounds, only };
    quiet_panics();
    heddle_crash::judge::keep_memory();
    let start = Instant::now();
    let (report, emitted) = match &args.emit {
        None => (run_workload(&workload, &config, &mut Nobody).map_err(usage)?, None),
        Some(dir) => {
            let cannot = || format!("cannot write crash images to {}", dir.display());
            let mut emitter = Emitter::new(dir, &workload, args.emit_max).with_context(cannot)?;
            let report = run_workload(&workload, &config, &mut emitter).map_err(usage)?;
            let finished = emitter.finish(&workload, args.variant, args.model.name(), args.seed);
            let (count, left_out) = finished.with_context(cannot)?;
            if left_out > 0 {
                output::talk(&format!(
                    "heddle: {left_out} judged images were not written (--emit-max {})",
                    args.emit_max
                ));
            }
            (report, Some(count))
        }
    };
    if let (Some(at), 0, true) = (&args.at, report.images, report.failures.is_empty()) {
        return Err(usage(format!("--at {at}: the operation has no such fence")));
    }
    say(args, &workload, &report, emitted, start.elapsed().as_secs_f64())
}

/// Silences panic messages: a panic of the engine is reported as a finding.
fn quiet_panics() {
    std::panic::set_hook(Box::new(|_| {}));
}

fn read(args: &Args) -> Result<Workload> {
    let text = match args.workload.as_os_str() {
        dash if dash == "-" => std::io::read_to_string(std::io::stdin()),
        _ => heddle_console::output::file_bytes(&args.workload)
            .and_then(|bytes| String::from_utf8(bytes).map_err(std::io::Error::other)),
    };
    let shown = args.workload.display().to_string();
    let text = text.map_err(|error| usage(format!("cannot read the workload {shown}: {error}")))?;
    heddle_crash::text::parse(&shown, &text).map_err(|error| usage(format!("{shown}: {error}")))
}

/// Parses STEP.FENCE:STORES, with steps counted from 1.
fn place(text: &str) -> Result<Only> {
    let wrong =
        || usage(format!("--at {text}: it is written STEP.FENCE:STORES, for instance 2.1:0-3,7 or 1.2:none"));
    let (place, arrived) = text.split_once(':').ok_or_else(wrong)?;
    let (step, fence) = place.split_once('.').ok_or_else(wrong)?;
    let step: usize = step.parse().ok().filter(|s| *s > 0).ok_or_else(wrong)?;
    let fence = fence.parse().map_err(|_| wrong())?;
    if !["all", "none"].contains(&arrived) {
        read_runs(arrived).map_err(|_| wrong())?;
    }
    Ok(Only { step: step - 1, fence, arrived: arrived.to_string() })
}

fn say(
    args: &Args,
    workload: &Workload,
    report: &Report,
    emitted: Option<usize>,
    seconds: f64,
) -> Result<()> {
    let first = report.failures.first();
    if let Some(failure) = first {
        output::talk(&format!("heddle: {failure}\nreplay: {}", replay(args, failure)));
    }
    let failures = report.failures.len();
    let written = if let Some(sink) = &args.json {
        let output = Output {
            states: report.states,
            images: report.images,
            failures,
            seconds,
            output_version: 1,
            variant: args.variant.name(),
            workload: &workload.name,
            seed: args.seed,
            cuts: report.cuts,
            recoveries_cut: report.nested,
            emitted,
            first_failure: first.map(|f| First { text: f.to_string(), replay: replay(args, f) }),
        };
        output::json(sink, &output)
    } else {
        let Report { cuts, states, images, nested, .. } = report;
        output::data(&format!(
            "{}: {cuts} power cuts, {states} crash states, {images} images, {nested} recoveries cut, \
             {failures} failures, {seconds:.1} s",
            args.variant.name()
        ))
    };
    if let (Some(dir), Some(count)) = (&args.emit, emitted) {
        output::talk(&format!("heddle: {count} images and manifest.json in {}", dir.display()));
    }
    judged(written, failures > 0)
}

/// The command that checks the image of this failure again.
fn replay(args: &Args, failure: &Failure) -> String {
    let variant = args.variant.name();
    let (workload, input) = match args.workload.as_os_str() {
        // A workload that came from stdin is redirected; otherwise the command would read the terminal.
        dash if dash == "-" => ("-".to_owned(), " < WORKLOAD"),
        _ => (args.workload.display().to_string(), ""),
    };
    let model =
        if args.model == Model::Ordered { String::new() } else { format!(" --model {}", args.model.name()) };
    let at = match (failure.fence, &args.at) {
        (Some(fence), _) => format!(" --at {}.{fence}:{}", failure.step + 1, failure.arrived),
        (None, Some(at)) => format!(" --at {at}"),
        (None, None) => String::new(),
    };
    format!("heddle crash --variant {variant} --workload {workload} --seed {}{model}{at}{input}", args.seed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    /// A workload that came from stdin is redirected in the replay command; otherwise the command would read the terminal.
    #[test]
    fn the_command_that_makes_an_image_again_can_be_copied() {
        let failure = Failure {
            workload: String::new(),
            variant: Variant::Heddle,
            step: 2,
            op: String::new(),
            returned: false,
            fence: Some(1),
            arrived: "0-3".into(),
            text: String::new(),
        };
        for (path, input) in [("w.txt", ""), ("-", " < WORKLOAD")] {
            let line = Line::try_parse_from(["crash", "--workload", path]).unwrap();
            let told = replay(&line.args, &failure);
            assert_eq!(
                told,
                format!("heddle crash --variant heddle --workload {path} --seed 1 --at 3.1:0-3{input}")
            );
        }
    }
}
