//! The report as one self-contained page: a table of bars for each workload, drawn as inline SVG.

use super::text::{ordered, short, workers};
use super::{Cell, Report};
use std::fmt::Write;

const STYLE: &str = "
body{font:14px/1.4 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}
h2{margin:1.6em 0 .2em;font-size:1.1em}p{margin:.2em 0;color:#555}
svg{width:100%;height:auto}text{font:12px system-ui,sans-serif}
.bar{fill:#3b6ea5}.range{stroke:#222}.bad{fill:#b00020}";

const ROW: usize = 20;
const LEFT: usize = 190;
const WIDE: usize = 430;

pub(super) fn render(report: &Report) -> String {
    let machine = &report.machine;
    let mut out = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>heddle fxmark</title><style>{STYLE}</style>\
         <h1>FxMark</h1><p>{}, {} CPUs, Linux {}; {} s a run, median of {}; \
         a line across a bar's end: least to greatest. {}</p>",
        escaped(&machine.cpu_model),
        machine.cores,
        escaped(&machine.kernel),
        report.options.secs,
        report.options.repeat,
        escaped(&workers(report)),
    );
    for workload in ordered(report.summary.iter().map(|cell| cell.workload)) {
        let cells: Vec<&Cell> = report.summary.iter().filter(|cell| cell.workload == workload).collect();
        let _ = write!(out, "<h2>{workload}</h2><p>{}, ops/s</p>", escaped(workload.operation()));
        bars(&mut out, &cells);
    }
    out + "</html>\n"
}

fn bars(out: &mut String, cells: &[&Cell]) {
    let top = cells.iter().map(|cell| cell.max_ops_per_sec).fold(1.0, f64::max);
    let x = |rate: f64| LEFT as f64 + rate / top * WIDE as f64;
    let _ = write!(out, "<svg viewBox=\"0 0 {} {}\" role=\"img\">", LEFT + WIDE + 150, cells.len() * ROW + 4);
    for (row, cell) in cells.iter().enumerate() {
        let (y, middle) = (row * ROW + 3, row * ROW + 10);
        let label = format!("{} · {}", escaped(&cell.target), cell.cores);
        let _ = write!(out, "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{label}</text>", LEFT - 8, y + 11);
        if let Some(error) = &cell.error {
            let (at, y) = (LEFT, y + 11);
            let _ = write!(
                out,
                "<text class=\"bad\" x=\"{at}\" y=\"{y}\">failed<title>{}</title></text>",
                escaped(error)
            );
            continue;
        }
        let (end, least, most) =
            (x(cell.median_ops_per_sec), x(cell.min_ops_per_sec), x(cell.max_ops_per_sec));
        let ratio = cell.ratio_to_best_kernel.map_or(String::new(), |r| format!(" ({r:.2}x)"));
        let _ = write!(
            out,
            "<rect class=\"bar\" x=\"{LEFT}\" y=\"{y}\" width=\"{:.1}\" height=\"14\"/>\
             <line class=\"range\" x1=\"{least:.1}\" x2=\"{most:.1}\" y1=\"{middle}\" y2=\"{middle}\"/>\
             <text x=\"{:.1}\" y=\"{}\">{}{ratio}</text>",
            end - LEFT as f64,
            most + 6.0,
            y + 11,
            short(cell.median_ops_per_sec),
        );
    }
    out.push_str("</svg>");
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
