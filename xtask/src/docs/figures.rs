//! Figures come from docs/results.md: a row that another page repeats says what it says there, and so does a link with a row as its title,
//! `[1.46](docs/results.md "DWOM nova-interval@2 over nova-interval@1")`.

use super::pages::{Page, links};

const RESULTS: &str = "docs/results.md";

/// What is wrong, a line each.
pub fn check(pages: &[Page]) -> Vec<String> {
    let Some(results) = pages.iter().find(|page| page.path == RESULTS) else {
        return vec![format!("there is no {RESULTS}")];
    };
    let mut wrong = Vec::new();
    for page in pages.iter().filter(|page| page.path != RESULTS && page.path != "CHANGELOG.md") {
        for (line, text) in page.prose() {
            let mut say = |what: String| wrong.push(format!("{}:{line}: {what}", page.path));
            for (figure, target, title) in links(text) {
                if target.ends_with("results.md") && !title.is_empty() {
                    for number in numbers(figure).filter(|number| !stands(results, title, number)) {
                        say(format!("no line of {RESULTS} with \"{title}\" has {number}"));
                    }
                }
            }
            let cells = cells(text);
            let [row, figure, ..] = &cells[..] else { continue };
            for number in numbers(figure).filter(|_| row.contains(" over ")) {
                if !stands(results, row, number) {
                    say(format!("the row {row} of {RESULTS} does not have {number}"));
                }
            }
        }
    }
    wrong
}

fn cells(line: &str) -> Vec<String> {
    if !line.starts_with('|') {
        return Vec::new();
    }
    line.trim_matches('|').split('|').map(|cell| cell.replace('`', "").trim().to_owned()).collect()
}

/// 1.46, 12, 2,048; not the 2 of `@2`.
fn numbers(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_digit() && c != '.' && c != ',' && c != '@' && !c.is_alphabetic())
        .map(|word| word.trim_end_matches(['.', ',']))
        .filter(|word| word.starts_with(|c: char| c.is_ascii_digit()))
}

fn stands(results: &Page, row: &str, number: &str) -> bool {
    let lines = results.text.lines().filter(|line| line.contains(row));
    lines.into_iter().any(|line| numbers(&line.replace("..", " ")).any(|known| known == number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_that_is_not_in_the_results_is_found() {
        let page = |path: &str, text: &str| Page { path: path.into(), text: text.into() };
        let results = page(RESULTS, "| DWOM nova@2 over nova@1 | <= 1.15 | 0.86 | 0.79..0.89 |");
        let told =
            "| `DWOM nova@2 over nova@1` | 0.86 times |\n[0.79 to 0.89](docs/results.md \"DWOM nova@2\")";
        assert_eq!(check(&[page("README.md", told), results]), [""; 0]);
        let results = page(RESULTS, "| DWOM nova@2 over nova@1 | <= 1.15 | 0.87 | 0.79..0.88 |");
        assert_eq!(check(&[page("README.md", told), results]).len(), 2);
    }
}
