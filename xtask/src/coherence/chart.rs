//! The curves as an SVG: a field a workload, transfers an operation over workers, a line a target.

use std::collections::BTreeSet;

use super::Run;

const COLUMNS: usize = 4;
const WIDTH: f64 = 260.0;
const HEIGHT: f64 = 180.0;
/// Room around a field for its title and its numbers.
const LEFT: f64 = 48.0;
const TOP: f64 = 30.0;
const RIGHT: f64 = 16.0;
const BOTTOM: f64 = 30.0;
const LEGEND: f64 = 34.0;

const COLOURS: [(&str, &str); 5] = [
    ("nova", "#b3261e"),
    ("nova-interval", "#c77700"),
    ("nova-array", "#1f6fb2"),
    ("nova-tree", "#7b4fa3"),
    ("heddle", "#1b7f4b"),
];

/// What makes a file an SVG: a name, which nobody looks up.
const NAMESPACE: &str = "http://www.w3.org/2000/svg";

/// Draws all runs.
pub fn draw(runs: &[Run]) -> String {
    let mut workloads: Vec<&str> = Vec::new();
    for run in runs {
        if !workloads.contains(&run.workload.as_str()) {
            workloads.push(&run.workload);
        }
    }
    let columns = workloads.len().clamp(1, COLUMNS);
    let rows = workloads.len().div_ceil(columns);
    let (width, height) = (columns as f64 * WIDTH, rows as f64 * HEIGHT + LEGEND);
    let mut svg = format!(
        "<svg xmlns=\"{NAMESPACE}\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    svg += &legend(runs);
    for (i, workload) in workloads.iter().enumerate() {
        let (x, y) = ((i % columns) as f64 * WIDTH, (i / columns) as f64 * HEIGHT + LEGEND);
        let of: Vec<&Run> = runs.iter().filter(|run| run.workload == *workload).collect();
        svg += &format!("<g transform=\"translate({x} {y})\">\n{}</g>\n", field(workload, &of));
    }
    svg + "</svg>\n"
}

fn legend(runs: &[Run]) -> String {
    let used = COLOURS.iter().filter(|(name, _)| runs.iter().any(|run| run.target == *name));
    let entries: String = used
        .enumerate()
        .map(|(i, (name, colour))| {
            let x = LEFT + i as f64 * 110.0;
            format!(
                "<line x1=\"{x}\" y1=\"14\" x2=\"{}\" y2=\"14\" stroke=\"{colour}\" stroke-width=\"2\"/>\
                 <text x=\"{}\" y=\"18\">{name}</text>\n",
                x + 16.0,
                x + 20.0
            )
        })
        .collect();
    entries + "<text x=\"48\" y=\"32\" fill=\"#555\">cache-line transfers an operation, by workers</text>\n"
}

fn field(workload: &str, runs: &[&Run]) -> String {
    let per_op = |run: &Run| run.per_op(run.transfers());
    let most = runs.iter().map(|run| per_op(run)).fold(0.0, f64::max);
    let top = [0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 500.0]
        .into_iter()
        .find(|bound| *bound >= most)
        .unwrap_or(most);
    let workers: BTreeSet<usize> = runs.iter().map(|run| run.workers).collect();
    let (low, high) = (
        workers.first().map_or(0.0, |n| (*n as f64).log2()),
        workers.last().map_or(1.0, |n| (*n as f64).log2()),
    );
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    let x = |n: usize| {
        let span = if high > low { ((n as f64).log2() - low) / (high - low) } else { 0.5 };
        LEFT + span * (right - LEFT)
    };
    let y = |value: f64| bottom - value / top * (bottom - TOP);
    let mut svg = format!("<text x=\"{LEFT}\" y=\"{}\" font-weight=\"bold\">{workload}</text>\n", TOP - 8.0);
    for value in [0.0, top / 2.0, top] {
        svg += &format!(
            "<line x1=\"{LEFT}\" y1=\"{0}\" x2=\"{right}\" y2=\"{0}\" stroke=\"#ddd\"/>\
             <text x=\"{1}\" y=\"{2}\" text-anchor=\"end\">{value}</text>\n",
            y(value),
            LEFT - 6.0,
            y(value) + 4.0
        );
    }
    for n in &workers {
        svg += &format!("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{n}</text>\n", x(*n), bottom + 16.0);
    }
    for (target, colour) in COLOURS {
        let mut points: Vec<(usize, f64)> =
            runs.iter().filter(|run| run.target == target).map(|run| (run.workers, per_op(run))).collect();
        points.sort_by_key(|point| point.0);
        let path: Vec<String> = points.iter().map(|(n, v)| format!("{:.1},{:.1}", x(*n), y(*v))).collect();
        if path.is_empty() {
            continue;
        }
        svg += &format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\n",
            path.join(" ")
        );
        for (n, v) in points {
            svg += &format!(
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.5\" fill=\"{colour}\">\
                 <title>{target}, {n} workers: {v:.3}</title></circle>\n",
                x(n),
                y(v)
            );
        }
    }
    svg
}
