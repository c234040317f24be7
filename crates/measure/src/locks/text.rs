//! The results as text.

use super::Report;
use heddle_console::size::Size;
use heddle_console::table::table;

/// All four tables.
pub fn render(report: &Report) -> String {
    let (machine, options) = (&report.machine, &report.options);
    format!(
        "{}, {} CPUs; lock mode {}, M = {}, S = {}, d = {}\n\n\
         Time to get the lock inside DWOM, in ns (the clock's own {} ns included)\n{}\n\n\
         Memory of one file's lock\n{}\n\n\
         Fences of one 4 KiB overwrite, and one thread writing 1 GiB in 4 KiB writes\n{}",
        machine.cpu_model,
        machine.cores,
        options.lock_mode,
        options.file_bits,
        options.segment_bits,
        options.depth,
        options.clock_ns,
        latency(report),
        memory(report),
        cost(report),
    )
}

fn latency(report: &Report) -> String {
    let rows = report.latency.iter().map(|row| {
        let crowd = if row.oversubscribed { "oversubscribed" } else { "" };
        [
            row.lock.to_owned(),
            row.pattern.to_owned(),
            row.threads.to_string(),
            row.median_ns.to_string(),
            row.p999_ns.to_string(),
            row.max_ns.to_string(),
            crowd.to_owned(),
        ]
    });
    table(["lock", "pattern", "threads", "median", "p99.9", "max", ""], rows)
}

fn memory(report: &Report) -> String {
    let rows = report.memory.iter().map(|row| {
        let model = row.model_bytes.map_or("-".to_owned(), |bytes| Size(bytes).to_string());
        [
            row.lock.to_owned(),
            Size(row.working_set_bytes).to_string(),
            model,
            Size(row.measured_bytes).to_string(),
        ]
    });
    table(["lock", "working set", "paper's model", "measured"], rows)
}

fn cost(report: &Report) -> String {
    let pairs = report.fences_per_write.iter().zip(&report.write_1gb);
    let rows = pairs.map(|(fences, gigabyte)| {
        [fences.variant.to_owned(), fences.fences.to_string(), format!("{:.2} s", gigabyte.secs)]
    });
    table(["variant", "fences", "1 GiB"], rows)
}
