//! What `cargo xtask floors` is asked for, and how long that takes.

use anyhow::{Context, Result, bail};

use super::table::{CAMPAIGNS, FLOORS};

/// Medians are over this many interleaved repeats.
const REPEATS: usize = 5;
/// Fewer are no median.
const REPEATS_MIN: usize = 3;
const SECS: &str = "2";
/// What a cell takes besides: its image or RAM disk, its files.
const AROUND_SECS: f64 = 1.2;

pub struct Options {
    workloads: Vec<String>,
    pub repeats: usize,
    pub secs: String,
    pub json: Option<String>,
    pub markdown: Option<String>,
}

impl Default for Options {
    fn default() -> Options {
        Options { workloads: Vec::new(), repeats: REPEATS, secs: SECS.into(), json: None, markdown: None }
    }
}

/// The text of `--help`.
pub fn usage() -> String {
    let whole = Options::default();
    let short = Options { repeats: REPEATS_MIN, secs: "1".into(), ..Options::default() };
    format!(
        "usage: cargo xtask floors [WORKLOAD…] [--repeats N] [--secs S] [--json FILE] [--markdown FILE]
heddle beside tmpfs, ext4, xfs and btrfs, and the papers' variants beside each other, under both durabilities.
  WORKLOAD         as MRPM: these rows alone
  --repeats N      interleaved repeats, {REPEATS_MIN} at least [{REPEATS}]
  --secs S         seconds of each run [{SECS}]
  --json FILE      the verdicts
  --markdown FILE  the verdicts and the rates of all targets, as tables for docs/results.md
It takes about {} minutes after the release build, on a machine that does nothing else; with --repeats {REPEATS_MIN} --secs 1 about {},
which is enough to see that it works and no measurement for docs/results.md. Needs root, for RAM disks.",
        whole.minutes(),
        short.minutes()
    )
}

impl Options {
    /// `None`: the help is wanted.
    pub fn read(args: &[String]) -> Result<Option<Options>> {
        let mut options = Options::default();
        let mut words = args.iter();
        while let Some(word) = words.next() {
            if word == "--help" || word == "-h" {
                return Ok(None);
            }
            if !word.starts_with('-') {
                if FLOORS.iter().all(|floor| floor.workload != word) {
                    bail!("no floor for {word:?}\n{}", usage());
                }
                options.workloads.push(word.clone());
                continue;
            }
            let value = words.next().with_context(|| format!("{word}: its value is missing"))?.clone();
            match word.as_str() {
                "--repeats" => {
                    options.repeats =
                        value.parse().with_context(|| format!("--repeats {value}: not a number"))?;
                }
                "--secs" => {
                    let _number: f64 =
                        value.parse().with_context(|| format!("--secs {value}: not a number"))?;
                    options.secs = value;
                }
                "--json" => options.json = Some(value),
                "--markdown" => options.markdown = Some(value),
                _ => bail!("{word}: unknown\n{}", usage()),
            }
        }
        if options.repeats < REPEATS_MIN {
            bail!("--repeats {}: {REPEATS_MIN} at least", options.repeats);
        }
        Ok(Some(options))
    }

    pub fn wants(&self, workload: &str) -> bool {
        self.workloads.is_empty() || self.workloads.iter().any(|wanted| wanted == workload)
    }

    /// As long as what stands in docs/results.md.
    pub fn is_whole(&self) -> bool {
        self.repeats >= REPEATS && self.secs() >= 2.0
    }

    fn secs(&self) -> f64 {
        self.secs.parse().unwrap_or(2.0)
    }

    /// How long it takes, the build aside.
    pub fn minutes(&self) -> u64 {
        let cells = CAMPAIGNS.iter().map(|campaign| {
            let workloads = campaign.workloads.iter().filter(|name| self.wants(name)).count();
            workloads * campaign.targets.len() * campaign.cores.len()
        });
        let runs = cells.sum::<usize>() * self.repeats;
        (runs as f64 * (self.secs() + AROUND_SECS) / 60.0).ceil() as u64
    }
}
