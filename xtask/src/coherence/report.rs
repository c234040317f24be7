//! What the plug-in writes at the end of a run (`crates/coherence/src/tally.rs`): fields between tabs.

use anyhow::{Context, Result, bail};

const HEADER: &str = "heddle-coherence 1";

/// A run's report.
#[derive(Debug, PartialEq)]
pub struct Report {
    pub ops: u64,
    pub things: Vec<Thing>,
}

/// Transfers of one line of one kind of thing.
#[derive(Debug, PartialEq)]
pub struct Thing {
    pub transfers: u64,
    pub what: What,
    /// Transfers, address of the code that wrote, address of the code that touched.
    pub by: Vec<(u64, u64, u64)>,
}

/// What a line belongs to.
#[derive(Debug, PartialEq)]
pub enum What {
    /// Told by the program.
    Named {
        /// Different lines of memory.
        count: u64,
        /// A type, or words.
        what: String,
        /// Where it was made.
        file: String,
        line: u32,
        element_bytes: u64,
        /// Which line of it.
        at: u32,
    },
    /// An address, from the program's start.
    Address(u64),
}

impl Report {
    pub fn parse(text: &str) -> Result<Report> {
        let mut lines = text.lines();
        if lines.next() != Some(HEADER) {
            bail!("the plug-in's report is of another version: build both anew");
        }
        let mut report = Report { ops: 0, things: Vec::new() };
        for line in lines {
            let fields: Vec<&str> = line.split('\t').collect();
            report.take(&fields).with_context(|| format!("the plug-in's report has a bad line: {line}"))?;
        }
        if report.ops == 0 {
            bail!("no operation was counted");
        }
        Ok(report)
    }

    fn take(&mut self, fields: &[&str]) -> Result<()> {
        let number = |text: &str| text.parse::<u64>();
        match *fields {
            ["ops", ops] => self.ops = number(ops)?,
            ["thing", transfers, count, what, file, line, element_bytes, at] => {
                let what = What::Named {
                    count: number(count)?,
                    what: what.to_owned(),
                    file: file.to_owned(),
                    line: line.parse()?,
                    element_bytes: number(element_bytes)?,
                    at: at.parse()?,
                };
                self.things.push(Thing { transfers: number(transfers)?, what, by: Vec::new() });
            }
            ["address", transfers, at] => {
                let what = What::Address(number(at)?);
                self.things.push(Thing { transfers: number(transfers)?, what, by: Vec::new() });
            }
            ["by", transfers, writer, toucher] => {
                let thing = self.things.last_mut().context("code before a thing")?;
                thing.by.push((number(transfers)?, number(writer)?, number(toucher)?));
            }
            _ => bail!("unknown"),
        }
        Ok(())
    }
}
