//! A sample in Prometheus' text format (version 0.0.4).

use heddle_nvmfs::counters::{Counters, Kind, SPANS, span_end_ns};
use std::fmt::Write;

/// The whole page.
pub fn page(counters: &Counters) -> String {
    let mut page = Page(String::new());
    let kinds = Kind::ALL.map(|kind| (format!("{{call=\"{}\"}}", kind.name()), counters.totals.of(kind)));
    let calls = kinds.iter().map(|(label, tally)| (label.as_str(), tally.calls as f64));
    page.family("heddle_calls_total", "counter", "Calls of the engine, failed ones included.", calls);
    let moved = kinds.iter().filter(|(_, tally)| tally.bytes > 0);
    let moved = moved.map(|(label, tally)| (label.as_str(), tally.bytes as f64));
    page.family("heddle_bytes_total", "counter", "Bytes that calls moved.", moved);
    page.times(counters);
    let (waits, wait_ns) = (counters.totals.waits() as f64, counters.totals.wait_ns() as f64);
    page.single("heddle_lock_waits_total", "counter", "Times a call slept for a lock.", waits);
    page.single(
        "heddle_lock_wait_seconds_total",
        "counter",
        "How long calls slept for locks.",
        wait_ns / 1e9,
    );
    let g = &counters.gauges;
    page.single("heddle_size_bytes", "gauge", "Size of the file system.", (g.blocks_total * 4096) as f64);
    page.single("heddle_free_bytes", "gauge", "Free space.", (g.blocks_free * 4096) as f64);
    page.single("heddle_inodes", "gauge", "Inodes there can be.", g.inodes_total as f64);
    page.single("heddle_free_inodes", "gauge", "Inodes that can be made.", g.inodes_free as f64);
    let threads: u32 = counters.clients.iter().map(|client| client.threads).sum();
    page.single(
        "heddle_clients",
        "gauge",
        "Processes at work, the mount's own included.",
        counters.clients.len() as f64,
    );
    page.single("heddle_client_threads", "gauge", "Their threads.", threads.into());
    page.single("heddle_attached_total", "counter", "Processes that have attached.", g.attached as f64);
    page.single(
        "heddle_settled_lanes_total",
        "counter",
        "Lanes of dead processes that were settled.",
        g.settled as f64,
    );
    page.single(
        "heddle_damaged",
        "gauge",
        "1: damage was found, nothing is changed any more.",
        g.damaged as f64,
    );
    page.0
}

struct Page(String);

impl Page {
    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "{line}");
    }

    fn head(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
    }

    fn family<'a>(&mut self, name: &str, kind: &str, help: &str, rows: impl Iterator<Item = (&'a str, f64)>) {
        self.head(name, kind, help);
        for (label, value) in rows {
            self.line(format_args!("{name}{label} {value}"));
        }
    }

    fn single(&mut self, name: &str, kind: &str, help: &str, value: f64) {
        self.family(name, kind, help, [("", value)].into_iter());
    }

    /// One bucket per power of two; calls that were not timed are in none.
    fn times(&mut self, counters: &Counters) {
        let name = "heddle_call_seconds";
        self.head(name, "histogram", "Times of calls in the engine; one call in 64 is timed.");
        for kind in Kind::ALL {
            let (spans, tally, call) =
                (&counters.spans[kind as usize], counters.totals.of(kind), kind.name());
            if spans.iter().all(|count| *count == 0) {
                continue;
            }
            let mut sum = 0;
            for (at, count) in spans.iter().enumerate().take(SPANS - 1) {
                sum += count;
                if at % 4 == 0 {
                    let end = span_end_ns(at) as f64 / 1e9;
                    self.line(format_args!("{name}_bucket{{call=\"{call}\",le=\"{end}\"}} {sum}"));
                }
            }
            sum += spans[SPANS - 1];
            self.line(format_args!("{name}_bucket{{call=\"{call}\",le=\"+Inf\"}} {sum}"));
            self.line(format_args!("{name}_sum{{call=\"{call}\"}} {}", tally.timed_ns as f64 / 1e9));
            self.line(format_args!("{name}_count{{call=\"{call}\"}} {sum}"));
        }
    }
}
