//! `heddle top`: the activity of a mounted file system, second by second.

use super::figures::Stretch;
use anyhow::{Context, Result};
use heddle_console::mounted::{mounted_image, mounts_of};
use heddle_console::output::{self, talk};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Watch a mounted file system until Ctrl-C or its unmount: calls, bytes, times and lock waits, per process
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Seconds between two samples
    #[arg(long, short, default_value_t = 1.0, value_parser = seconds)]
    interval: f64,
    /// Show this many samples and end
    #[arg(long, short = 'n', value_name = "COUNT")]
    count: Option<u64>,
    /// As JSON, one line per sample
    #[arg(long)]
    json: bool,
    /// A directory of the mount, or its image
    path: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  heddle top /mnt/h
  heddle top --interval 0.5 /mnt/h
  heddle top --json -n 10 /mnt/h > ten-seconds.jsonl

heddle stat --help explains the figures.";

/// Clears the screen and moves the cursor home.
const CLEAR: &str = "\x1b[H\x1b[2J";

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(secs) if (0.05..=86_400.0).contains(&secs) => Ok(secs),
        _ => Err("write a number of seconds from 0.05 to 86400".to_owned()),
    }
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let enough = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&enough)).context("cannot catch signals")?;
    }
    let on_screen = std::io::stdout().is_terminal() && !args.json;
    let mut then = super::reading(&args.path)?;
    let mut shown = 0;
    while args.count.is_none_or(|count| shown < count) {
        if !wait(Duration::from_secs_f64(args.interval), &enough) {
            return Ok(());
        }
        let now = match super::reading(&args.path) {
            Ok(now) => now,
            Err(_) if shown > 0 && !is_mounted(&args.path) => {
                talk(&format!("heddle: {} was unmounted", args.path.display()));
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let stretch = Stretch::between(&then, &now);
        if args.json {
            output::data(&serde_json::to_string(&stretch.json()).context("no JSON form")?)?;
        } else {
            if on_screen {
                output::to_terminal(CLEAR)?;
            }
            output::data(&format!("{}\n{}\n", super::name_of(&args.path), stretch.text()))?;
        }
        (then, shown) = (now, shown + 1);
    }
    Ok(())
}

/// Returns true if the file system, which was mounted a moment ago, still is.
fn is_mounted(path: &Path) -> bool {
    !mounts_of(path).is_empty() || path.ancestors().any(|above| mounted_image(above).is_some())
}

/// Sleeps. Returns false if it was interrupted.
fn wait(long: Duration, enough: &AtomicBool) -> bool {
    const STEP: Duration = Duration::from_millis(50);
    let until = Instant::now() + long;
    loop {
        // ORDERING: Relaxed, a flag alone.
        if enough.load(Relaxed) {
            return false;
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(STEP));
    }
}
