//! Samples as figures: rates and times of an interval, as text and as JSON.

use crate::large_pages;
use heddle_console::size::Size;
use heddle_console::table::table;
use heddle_nvmfs::counters::{Counters, Kind, SPANS, Spans, Tally, Totals, span_end_ns};
use heddle_pmem::Durability;
use serde::Serialize;
use std::collections::BTreeMap;

/// The activity in an interval.
pub struct Stretch<'a> {
    /// The sample at its end.
    pub now: &'a Counters,
    /// Sums over the interval.
    pub totals: Totals,
    /// Timed calls of the interval.
    pub spans: Box<Spans>,
    /// Clients, the busiest first.
    pub clients: Vec<Share>,
    /// Its length; `None` for the time since the mount.
    pub secs: Option<f64>,
}

/// A client's share.
pub struct Share {
    pub pid: u32,
    pub name: String,
    pub threads: u32,
    pub totals: Totals,
}

impl<'a> Stretch<'a> {
    /// All activity until `now`.
    pub fn until(now: &'a Counters) -> Stretch<'a> {
        let share = |pid, threads, totals| Share { pid, name: super::program(pid), threads, totals };
        let clients = now.clients.iter().map(|c| share(c.pid, c.threads, c.totals)).collect();
        let mut stretch = Stretch { now, totals: now.totals, spans: now.spans.clone(), clients, secs: None };
        stretch.sort();
        stretch
    }

    /// The activity since `then`.
    pub fn between(then: &Counters, now: &'a Counters) -> Stretch<'a> {
        let mut stretch = Stretch::until(now);
        stretch.totals = now.totals.since(&then.totals);
        for (spans, earlier) in stretch.spans.iter_mut().zip(then.spans.iter()) {
            spans.iter_mut().zip(earlier).for_each(|(now, then)| *now = now.saturating_sub(*then));
        }
        for share in &mut stretch.clients {
            if let Some(earlier) = then.clients.iter().find(|client| client.pid == share.pid) {
                share.totals = share.totals.since(&earlier.totals);
            }
        }
        let ns = now.gauges.now_ns.saturating_sub(then.gauges.now_ns).max(1);
        stretch.secs = Some(ns as f64 / 1e9);
        stretch.sort();
        stretch
    }

    fn sort(&mut self) {
        self.clients.sort_by_key(|share| (std::cmp::Reverse(share.totals.calls()), share.pid));
    }

    /// A count, or a rate if the interval has a length.
    fn per_sec(&self, count: u64) -> f64 {
        count as f64 / self.secs.unwrap_or(1.0)
    }

    /// Tables as text: kinds of calls that were made, clients, the rest.
    pub fn text(&self) -> String {
        let (calls, bytes) = if self.secs.is_some() { ("calls/s", "bytes/s") } else { ("calls", "bytes") };
        let kinds = Kind::ALL.iter().filter(|kind| self.totals.of(**kind).calls > 0).map(|kind| {
            let (tally, spans) = (self.totals.of(*kind), &self.spans[*kind as usize]);
            let time = |share| quantile_ns(spans, share).map_or("-".to_owned(), ns_text);
            [
                kind.name().to_owned(),
                count_text(self.per_sec(tally.calls)),
                bytes_text(self.per_sec(tally.bytes)),
                mean_ns(&tally).map_or("-".to_owned(), |ns| ns_text(ns as u64)),
                time(0.5),
                time(0.99),
            ]
        });
        let kinds = table(["", calls, bytes, "mean", "half in", "99 % in"], kinds);
        let clients = self.clients.iter().map(|share| {
            let of = |kind| share.totals.of(kind);
            let role = if u64::from(share.pid) == self.now.gauges.daemon_pid { " (the mount)" } else { "" };
            [
                format!("{} {}{role}", share.pid, share.name),
                share.threads.to_string(),
                count_text(self.per_sec(share.totals.calls())),
                bytes_text(self.per_sec(of(Kind::Read).bytes)),
                bytes_text(self.per_sec(of(Kind::Write).bytes)),
                count_text(self.per_sec(share.totals.waits())),
            ]
        });
        let clients = table(["process", "threads", calls, "read", "written", "waits"], clients);
        format!("{}\n\n{}\n\n{}", self.waits_text(), kinds.trim_end(), clients.trim_end())
    }

    /// What a write that returned survives. `None` if the daemon has a number that this build does not know.
    fn durability(&self) -> Option<&'static str> {
        let raw = u32::try_from(self.now.gauges.durability).ok()?;
        Durability::from_raw(raw).map(Durability::name)
    }

    fn huge_bytes(&self) -> Option<u64> {
        Some(self.now.gauges.huge_bytes).filter(|bytes| *bytes != u64::MAX)
    }

    fn waits_text(&self) -> String {
        let (waits, g) = (self.totals.waits(), &self.now.gauges);
        let mean = self
            .totals
            .wait_ns()
            .checked_div(waits)
            .map_or(String::new(), |ns| format!(", {} each", ns_text(ns)));
        let per = if self.secs.is_some() { "/s" } else { "" };
        let damaged =
            if g.damaged == 0 { "" } else { "; DAMAGED: nothing is changed any more, run heddle fsck" };
        let survives = self.durability().map_or(String::new(), |it| format!("; durability {it}"));
        format!(
            "waits for locks {}{per}{mean}; free {} of {}; inodes {}; {} processes attached so far, \
             {} dead lanes settled{survives}{damaged}{}",
            count_text(self.per_sec(waits)),
            Size(g.blocks_free * 4096),
            Size(g.blocks_total * 4096),
            g.inodes_total - g.inodes_free,
            g.attached,
            g.settled,
            large_pages::shown(self.huge_bytes(), g.blocks_total * 4096),
        )
    }

    /// The figures for programs.
    pub fn json(&self) -> Figures {
        Figures {
            output_version: 1,
            time_ns: self.now.gauges.now_ns,
            seconds: self.secs,
            calls: self.calls_json(&self.totals, Some(&self.spans)),
            lock_waits: self.totals.waits(),
            lock_wait_ns: self.totals.wait_ns(),
            clients: self
                .clients
                .iter()
                .map(|share| ClientFigures {
                    pid: share.pid,
                    name: share.name.clone(),
                    is_mount: u64::from(share.pid) == self.now.gauges.daemon_pid,
                    threads: share.threads,
                    calls: self.calls_json(&share.totals, None),
                    lock_waits: share.totals.waits(),
                    lock_wait_ns: share.totals.wait_ns(),
                })
                .collect(),
            bytes_total: self.now.gauges.blocks_total * 4096,
            bytes_free: self.now.gauges.blocks_free * 4096,
            inodes_total: self.now.gauges.inodes_total,
            inodes_free: self.now.gauges.inodes_free,
            attached: self.now.gauges.attached,
            settled: self.now.gauges.settled,
            damaged: self.now.gauges.damaged != 0,
            durability: self.durability(),
            huge_bytes: self.huge_bytes(),
        }
    }

    fn calls_json(&self, totals: &Totals, spans: Option<&Spans>) -> BTreeMap<&'static str, CallFigures> {
        let of = |kind: Kind| {
            let tally = totals.of(kind);
            let time = |share| spans.and_then(|spans| quantile_ns(&spans[kind as usize], share));
            CallFigures {
                count: tally.calls,
                bytes: tally.bytes,
                timed: tally.timed,
                timed_mean_ns: mean_ns(&tally),
                p50_ns: time(0.5),
                p99_ns: time(0.99),
            }
        };
        Kind::ALL.into_iter().map(|kind| (kind.name(), of(kind))).collect()
    }
}

/// An interval as JSON. Counts are of the whole interval (`seconds`; none: since the mount), not rates.
#[derive(Serialize)]
pub struct Figures {
    output_version: u32,
    time_ns: u64,
    seconds: Option<f64>,
    calls: BTreeMap<&'static str, CallFigures>,
    lock_waits: u64,
    lock_wait_ns: u64,
    clients: Vec<ClientFigures>,
    bytes_total: u64,
    bytes_free: u64,
    inodes_total: u64,
    inodes_free: u64,
    attached: u64,
    settled: u64,
    damaged: bool,
    durability: Option<&'static str>,
    huge_bytes: Option<u64>,
}

#[derive(Serialize)]
struct CallFigures {
    count: u64,
    bytes: u64,
    timed: u64,
    timed_mean_ns: Option<f64>,
    p50_ns: Option<u64>,
    p99_ns: Option<u64>,
}

#[derive(Serialize)]
struct ClientFigures {
    pid: u32,
    name: String,
    is_mount: bool,
    threads: u32,
    calls: BTreeMap<&'static str, CallFigures>,
    lock_waits: u64,
    lock_wait_ns: u64,
}

fn mean_ns(tally: &Tally) -> Option<f64> {
    (tally.timed > 0).then(|| tally.timed_ns as f64 / tally.timed as f64)
}

/// The upper bound of the span that contains this quantile of the timed calls.
fn quantile_ns(spans: &[u64; SPANS], share: f64) -> Option<u64> {
    let all: u64 = spans.iter().sum();
    let wanted = ((all as f64 * share).ceil() as u64).max(1);
    let mut sum = 0;
    let at = spans.iter().position(|count| {
        sum += count;
        sum >= wanted
    });
    at.filter(|_| all > 0).map(span_end_ns)
}

fn ns_text(ns: u64) -> String {
    match ns as f64 {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.1} us", ns / 1e3),
        ns if ns < 1e9 => format!("{:.1} ms", ns / 1e6),
        ns => format!("{:.1} s", ns / 1e9),
    }
}

fn count_text(count: f64) -> String {
    match count {
        n if n < 10.0 && n.fract() != 0.0 => format!("{n:.1}"),
        n if n < 1e4 => format!("{n:.0}"),
        n if n < 1e7 => format!("{:.1}k", n / 1e3),
        n => format!("{:.1}M", n / 1e6),
    }
}

fn bytes_text(bytes: f64) -> String {
    if bytes < 1.0 { "-".to_owned() } else { Size(bytes as u64).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_calls_are_over_within_the_span_they_fall_into() {
        let mut spans = [0; SPANS];
        assert_eq!(quantile_ns(&spans, 0.5), None, "nothing was timed");
        (spans[3], spans[10]) = (99, 1);
        assert_eq!(quantile_ns(&spans, 0.5), Some(span_end_ns(3)));
        assert_eq!(quantile_ns(&spans, 0.99), Some(span_end_ns(3)));
        assert_eq!(quantile_ns(&spans, 1.0), Some(span_end_ns(10)));
    }

    #[test]
    fn figures_are_short() {
        assert_eq!([0.0, 0.5, 12.0, 12_345.0, 2.5e7].map(count_text), ["0", "0.5", "12", "12.3k", "25.0M"]);
        assert_eq!(
            [950, 1_500, 2_000_000, 3_000_000_000].map(ns_text),
            ["950 ns", "1.5 us", "2.0 ms", "3.0 s"]
        );
    }
}
