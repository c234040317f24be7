//! A Rust file as lines of code and lines of comment: enough of a lexer that no rule is fooled by a string.
//!
//! Invariants  `code` has neither comments nor the insides of strings and character literals, so braces in it balance.
//!             `comment` has the text of all comments on the line.

/// One line, taken apart.
#[derive(Default, Debug)]
pub struct Line {
    pub code: String,
    pub comment: String,
    /// In a test file or in a `#[cfg(test)]` module.
    pub in_test: bool,
}

impl Line {
    fn is_comment_only(&self) -> bool {
        self.code.trim().is_empty() && !self.comment.is_empty()
    }

    fn ends_statement(&self) -> bool {
        self.code.trim_end().ends_with([';', '{', '}'])
    }
}

/// A file under the rules.
pub struct Source<'a> {
    pub path: &'a str,
    pub lines: Vec<Line>,
}

impl<'a> Source<'a> {
    pub fn new(path: &'a str, text: &str) -> Source<'a> {
        let mut lines = lex(text);
        mark_tests(path, &mut lines);
        Source { path, lines }
    }

    /// Does the statement around line `at` have a comment with `marker`: inside it, or above it with at most `reach`
    /// lines of other code or blank lines between? Lines of comment and attributes between do not count.
    pub fn has_reason(&self, at: usize, marker: &str, reach: usize) -> bool {
        let start = self.statement_start(at);
        let end = self.statement_end(at);
        if self.lines[start..=end].iter().any(|line| line.comment.contains(marker)) {
            return true;
        }
        let mut left = reach;
        for line in self.lines[..start].iter().rev() {
            if !line.is_comment_only() {
                if left == 0 {
                    break;
                }
                left -= 1;
            }
            if line.comment.contains(marker) {
                return true;
            }
        }
        self.has_reason_throughout(start, marker)
    }

    /// A reason may say that it holds `throughout`: to the end of its function, or, in the file's header, `throughout this
    /// file`.
    fn has_reason_throughout(&self, start: usize, marker: &str) -> bool {
        let says = |line: &Line, reach: &str| line.comment.contains(marker) && line.comment.contains(reach);
        let begins_function =
            |line: &Line| words(&line.code, "fn").next().is_some() && line.code.contains('(');
        let function = self.lines[..start].iter().rposition(begins_function).unwrap_or(0);
        self.lines[function..start].iter().any(|line| says(line, "throughout"))
            || self.lines.iter().any(|line| says(line, "throughout this file"))
    }

    /// The first line of the statement that line `at` belongs to; attributes belong to it.
    pub fn statement_start(&self, at: usize) -> usize {
        let mut start = at;
        for (i, line) in self.lines[..at].iter().enumerate().rev() {
            if line.is_comment_only() {
                continue;
            }
            if line.code.trim().is_empty() || line.ends_statement() {
                break;
            }
            start = i;
        }
        start
    }

    fn statement_end(&self, at: usize) -> usize {
        let rest = self.lines[at..].iter();
        at + rest
            .take_while(|line| !line.ends_statement() && !line.code.trim().is_empty())
            .count()
            .min(self.lines.len() - 1 - at)
    }
}

/// The line of the brace that closes the first `{` at or after `column` of line `from`; none if a `;` comes first.
pub fn block_end(lines: &[Line], from: usize, column: usize) -> Option<usize> {
    let mut depth = 0usize;
    let mut nested = 0isize;
    for (i, line) in lines.iter().enumerate().skip(from) {
        let skip = if i == from { column } else { 0 };
        for c in line.code.chars().skip(skip) {
            match c {
                '(' | '[' => nested += 1,
                ')' | ']' => nested -= 1,
                ';' if depth == 0 && nested == 0 => return None,
                '{' => depth += 1,
                '}' if depth == 1 => return Some(i),
                '}' => depth = depth.saturating_sub(1),
                _ => {}
            }
        }
    }
    None
}

/// Byte offsets at which `word` stands alone in `text`.
pub fn words<'t>(text: &'t str, word: &'t str) -> impl Iterator<Item = usize> + 't {
    text.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn mark_tests(path: &str, lines: &mut [Line]) {
    let test_file =
        path.ends_with("/tests.rs") || path.split('/').any(|part| matches!(part, "tests" | "benches"));
    let mut i = 0;
    while i < lines.len() {
        let code = lines[i].code.trim();
        let test_module = code.starts_with("#[cfg(") && words(code, "test").next().is_some();
        let end = if test_module { block_end(lines, i, 0) } else { None };
        let last = end.unwrap_or(i);
        for line in &mut lines[i..=last] {
            line.in_test = test_file || end.is_some();
        }
        i = last + 1;
    }
}

enum State {
    Code,
    LineComment,
    /// Block comments nest.
    BlockComment(usize),
    /// Ends at a quote and this many hashes; escapes count only in cooked strings.
    Str {
        hashes: usize,
        raw: bool,
    },
}

fn lex(text: &str) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut state = State::Code;
    for raw_line in text.lines() {
        let chars: Vec<char> = raw_line.chars().collect();
        let mut line = Line::default();
        let mut i = 0;
        while i < chars.len() {
            i += match state {
                State::Code => lex_code(&chars, i, &mut line, &mut state),
                State::LineComment => take(chars[i], &mut line.comment),
                State::BlockComment(depth) => lex_block_comment(&chars, i, depth, &mut line, &mut state),
                State::Str { hashes, raw } => lex_string(&chars, i, hashes, raw, &mut line, &mut state),
            };
        }
        if matches!(state, State::LineComment) {
            state = State::Code;
        }
        lines.push(line);
    }
    lines
}

fn take(c: char, to: &mut String) -> usize {
    to.push(c);
    1
}

/// Each of these returns how many characters it took.
fn lex_code(chars: &[char], i: usize, line: &mut Line, state: &mut State) -> usize {
    let next = chars.get(i + 1).copied();
    match (chars[i], next) {
        ('/', Some('/')) => {
            *state = State::LineComment;
            line.comment.push_str("//");
            2
        }
        ('/', Some('*')) => {
            *state = State::BlockComment(1);
            line.comment.push_str("/*");
            2
        }
        ('"', _) => {
            let (hashes, raw) = string_prefix(&line.code);
            *state = State::Str { hashes, raw };
            take('"', &mut line.code)
        }
        ('\'', Some('\\')) => {
            // The character after the backslash may itself be a quote.
            let closing = chars.iter().skip(i + 3).position(|&c| c == '\'').unwrap_or(0);
            line.code.push_str("''");
            closing + 4
        }
        ('\'', Some(_)) if chars.get(i + 2) == Some(&'\'') => {
            line.code.push_str("''");
            3
        }
        (c, _) => take(c, &mut line.code),
    }
}

/// What stands before a quote says whether the string is raw and how many hashes close it.
fn string_prefix(code: &str) -> (usize, bool) {
    let bare = code.trim_end_matches('#');
    let prefix = bare.rsplit(|c| !is_word(c)).next().unwrap_or_default();
    let raw = matches!(prefix, "r" | "br" | "cr");
    (if raw { code.len() - bare.len() } else { 0 }, raw)
}

fn lex_block_comment(chars: &[char], i: usize, depth: usize, line: &mut Line, state: &mut State) -> usize {
    let next = chars.get(i + 1).copied();
    let (delta, taken) = match (chars[i], next) {
        ('*', Some('/')) => (-1, 2),
        ('/', Some('*')) => (1, 2),
        _ => (0, 1),
    };
    line.comment.extend(&chars[i..i + taken]);
    *state = match depth.saturating_add_signed(delta) {
        0 => State::Code,
        depth => State::BlockComment(depth),
    };
    taken
}

fn lex_string(
    chars: &[char],
    i: usize,
    hashes: usize,
    raw: bool,
    line: &mut Line,
    state: &mut State,
) -> usize {
    if chars[i] == '\\' && !raw {
        return 2;
    }
    let closing = chars[i + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes;
    if chars[i] == '"' && closing {
        *state = State::Code;
        line.code.push('"');
        return 1 + hashes;
    }
    1
}
