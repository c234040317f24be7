//! Sentences of the pages are short enough to be read once.

use super::pages::Page;

/// Words of a sentence, or of what stands before or behind a colon or semicolon; a code span is one.
const WORDS_MAX: usize = 25;

/// Pages that keep to it, tables aside.
const PAGES: [&str; 18] = [
    "README.md",
    "ARCHITECTURE.md",
    "SEMANTICS.md",
    "SHORTCOMINGS.md",
    "SECURITY.md",
    "CONTRIBUTING.md",
    "docs/mounting.md",
    "docs/bypass.md",
    "docs/security.md",
    "docs/glossary.md",
    "docs/protocol.md",
    "docs/processes.md",
    "docs/f2fs.md",
    "docs/format-nvm.md",
    "docs/format-node-log.md",
    "docs/crash.md",
    "docs/coherence.md",
    "docs/results.md",
];

/// What is wrong, a line each.
pub fn check(pages: &[Page]) -> Vec<String> {
    let kept = pages.iter().filter(|page| PAGES.contains(&page.path.as_str()));
    kept.flat_map(|page| {
        let long = paragraphs(page).into_iter().flat_map(|(line, text)| {
            sentences(&text)
                .filter(|words| words.len() > WORDS_MAX)
                .map(move |words| (line, words))
                .collect::<Vec<_>>()
        });
        long.map(|(line, words)| {
            let (path, count, begins) = (&page.path, words.len(), words[..6].join(" "));
            format!(
                "{path}:{line}: a sentence of {count} words, at most {WORDS_MAX} are read once: {begins} …"
            )
        })
    })
    .collect()
}

/// Each with its first line's number. Headings and tables are none.
fn paragraphs(page: &Page) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut last = 0;
    for (number, line) in page.prose() {
        let text = line.trim();
        if text.is_empty() || ["|", "#", "<!--"].iter().any(|start| text.starts_with(start)) {
            continue;
        }
        let begins = text.starts_with("- ")
            || text.split_once(". ").is_some_and(|(first, _)| first.parse::<u32>().is_ok());
        match found.last_mut() {
            Some((_, before)) if number == last + 1 && !begins => {
                before.push(' ');
                before.push_str(text);
            }
            _ => found.push((number, text.to_owned())),
        }
        last = number;
    }
    found
}

/// The words of each.
fn sentences(text: &str) -> impl Iterator<Item = Vec<String>> {
    let mut sentences = vec![Vec::new()];
    for word in without_code(text).split_whitespace() {
        let bare = word.trim_end_matches(['*', ')', '"', ']']);
        if let (true, Some(sentence)) = (word.contains(char::is_alphanumeric), sentences.last_mut()) {
            sentence.push(word.to_owned());
        }
        if bare.ends_with(['.', '!', '?', ':', ';']) {
            sentences.push(Vec::new());
        }
    }
    sentences.into_iter()
}

/// Code spans, and where links lead, as one word or none.
fn without_code(text: &str) -> String {
    let spans = text.split('`').enumerate();
    let plain: String = spans.map(|(i, part)| if i % 2 == 1 { "code" } else { part }).collect();
    let mut parts = plain.split("](");
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        kept.push_str(part.split_once(')').map_or(part, |(_, behind)| behind));
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(text: &str) -> Page {
        Page { path: PAGES[0].into(), text: text.into() }
    }

    #[test]
    fn a_sentence_of_more_than_25_words_is_found_where_it_begins() {
        let words = |count: usize| vec!["word"; count].join(" ");
        let right =
            format!("# {}\n\n{}. {}: {}\n\n| {} |\n", words(30), words(25), words(25), words(25), words(30));
        assert_eq!(check(&[page(&right)]), [""; 0]);
        let wrong = format!("one\n\n- {}\n  {}.\n- {}\n", words(13), words(13), words(25));
        let found = check(&[page(&wrong)]);
        assert!(found.len() == 1 && found[0].starts_with("README.md:3: a sentence of 26 words"), "{found:?}");
    }

    #[test]
    fn code_and_the_target_of_a_link_are_a_word_at_most() {
        let text = "`a b c` ".repeat(24) + "[it](docs/x.md \"a title of words\") **word.** `x.` more";
        assert_eq!(sentences(&text).map(|words| words.len()).collect::<Vec<_>>(), [26, 2]);
    }
}
