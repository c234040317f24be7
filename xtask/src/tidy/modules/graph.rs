//! Which module of a crate names which, read from its source files.

use std::collections::{BTreeMap, BTreeSet};

use crate::tidy::source::{Line, Source, words};

/// The modules of a crate and the arrows between them.
pub struct Graph {
    /// Module (`a::b`) and the file that holds it. The crate's root and tests are left out.
    pub modules: BTreeMap<String, String>,
    pub arrows: Vec<Arrow>,
}

/// One module names another.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Arrow {
    pub from: String,
    pub to: String,
    pub file: String,
    pub line: usize,
}

/// A word or sign of code, and its line.
struct Token {
    text: String,
    line: usize,
}

/// A path as it is written, the names in it one by one.
struct Named {
    path: Vec<String>,
    line: usize,
}

impl Graph {
    /// `files`: path and text of each source file below `folder`, which is the crate's `src`.
    pub fn of(files: &[(String, String)], folder: &str) -> Graph {
        let sources: Vec<Source<'_>> = files.iter().map(|(path, text)| Source::new(path, text)).collect();
        let tests = test_modules(&sources, folder);
        let mut modules = BTreeMap::new();
        for source in &sources {
            let module = module_of(source.path, folder);
            let in_test = module.split("::").any(|part| part == "tests")
                || tests.iter().any(|t| super::is_in(&module, t));
            if !in_test {
                modules.insert(module, source.path.to_owned());
            }
        }
        let mut arrows = BTreeSet::new();
        for source in &sources {
            let from = module_of(source.path, folder);
            if from.is_empty() || !modules.contains_key(&from) {
                continue;
            }
            for named in names(&tokens(&source.lines)) {
                let to = resolve(&modules, &from, &named.path).filter(|to| !to.is_empty() && *to != from);
                arrows.extend(to.map(|to| Arrow {
                    from: from.clone(),
                    to,
                    file: source.path.into(),
                    line: named.line,
                }));
            }
        }
        modules.remove("");
        // The first place where one names the other.
        let mut seen = BTreeSet::new();
        let arrows = arrows.into_iter().filter(|arrow| seen.insert((arrow.from.clone(), arrow.to.clone())));
        Graph { modules, arrows: arrows.collect() }
    }
}

/// `a::b` for `src/a/b.rs` and `src/a/b/mod.rs`; empty for the crate's root.
fn module_of(path: &str, folder: &str) -> String {
    let inside = path.strip_prefix(folder).unwrap_or(path).trim_start_matches('/').trim_end_matches(".rs");
    let mut parts: Vec<&str> = inside.split('/').collect();
    if parts.last() == Some(&"mod") || matches!(parts[..], ["lib" | "main"]) {
        parts.pop();
    }
    parts.join("::")
}

/// Modules that are declared behind `#[cfg(test)]` and the like.
fn test_modules(sources: &[Source<'_>], folder: &str) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources {
        let parent = module_of(source.path, folder);
        for (i, _) in source.lines.iter().enumerate().filter(|(_, line)| is_test_attribute(line)) {
            let next = source.lines[i + 1..]
                .iter()
                .map(|line| line.code.trim())
                .find(|code| !code.starts_with("#["));
            let declared = next.and_then(|code| code.split_once("mod ")?.1.strip_suffix(';'));
            found.extend(declared.map(|name| join(&parent, name)));
        }
    }
    found
}

fn join(parent: &str, name: &str) -> String {
    if parent.is_empty() { name.into() } else { format!("{parent}::{name}") }
}

fn is_test_attribute(line: &Line) -> bool {
    let code = line.code.trim();
    code.starts_with("#[cfg(") && !code.contains("any(") && words(code, "test").next().is_some()
}

/// The code of a file, without tests.
fn tokens(lines: &[Line]) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut skipping = false;
    for (i, line) in lines.iter().enumerate() {
        skipping |= is_test_attribute(line);
        if skipping || line.in_test {
            // An attribute belongs to what ends behind it.
            skipping &= !line.code.trim_end().ends_with([';', '}']);
            continue;
        }
        let mut rest = line.code.as_str();
        while let Some(c) = rest.chars().next() {
            let word = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
            let len = match word {
                0 if rest.starts_with("::") => 2,
                0 => c.len_utf8(),
                word => word,
            };
            if !c.is_whitespace() {
                tokens.push(Token { text: rest[..len].into(), line: i + 1 });
            }
            rest = &rest[len..];
        }
    }
    tokens
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Every path that may lead to a module: imports, taken apart; and paths in code that begin at the crate, here or above, or with a
/// name that an import brought.
fn names(tokens: &[Token]) -> Vec<Named> {
    let (mut found, mut brought) = (Vec::new(), BTreeMap::new());
    let mut at = 0;
    while at < tokens.len() {
        if tokens[at].text == "use" {
            at = import(tokens, at + 1, &[], &mut found, &mut brought);
        }
        at += 1;
    }
    let mut at = 0;
    while at < tokens.len() {
        if tokens[at].text == "use" {
            while tokens.get(at).is_some_and(|token| token.text != ";") {
                at += 1;
            }
        }
        let (path, next) = path_at(tokens, at);
        let begins_here = at == 0 || tokens[at - 1].text != "::" && tokens[at - 1].text != ".";
        if path.len() > 1 && begins_here {
            let line = tokens[at].line;
            match path[0].as_str() {
                "crate" | "super" | "self" => found.push(Named { path, line }),
                first => found.extend(brought.get(first).map(|start: &Vec<String>| Named {
                    path: start.iter().chain(&path[1..]).cloned().collect(),
                    line,
                })),
            }
        }
        at = next.max(at + 1);
    }
    found
}

/// The names with `::` between them from here on, and where they end.
fn path_at(tokens: &[Token], mut at: usize) -> (Vec<String>, usize) {
    let mut path = Vec::new();
    while tokens.get(at).is_some_and(|token| is_name(&token.text)) {
        path.push(tokens[at].text.clone());
        at += 1;
        if tokens.get(at).is_none_or(|token| token.text != "::")
            || !tokens.get(at + 1).is_some_and(|t| is_name(&t.text))
        {
            break;
        }
        at += 1;
    }
    (path, at)
}

/// Takes the tree of an import apart; returns where it ends.
fn import(
    tokens: &[Token],
    mut at: usize,
    start: &[String],
    found: &mut Vec<Named>,
    brought: &mut BTreeMap<String, Vec<String>>,
) -> usize {
    let mut path = start.to_vec();
    let line = tokens.get(at).map_or(0, |token| token.line);
    while let Some(token) = tokens.get(at) {
        match token.text.as_str() {
            "::" => {}
            "{" => {
                at += 1;
                while tokens.get(at).is_some_and(|token| token.text != "}") {
                    at = import(tokens, at, &path, found, brought);
                    if tokens.get(at).is_some_and(|token| token.text == ",") {
                        at += 1;
                    }
                }
                return at + 1;
            }
            "*" => {}
            "as" => {
                let name = tokens.get(at + 1).map(|token| token.text.clone()).unwrap_or_default();
                brought.insert(name, path.clone());
                found.push(Named { path, line });
                return at + 2;
            }
            "self" if !path.is_empty() => {}
            text if is_name(text) => path.push(text.into()),
            _ => break,
        }
        at += 1;
    }
    if let Some(last) = path.last() {
        brought.insert(last.clone(), path.clone());
    }
    found.push(Named { path, line });
    at
}

/// The module that a path from `from` leads to, or into; the crate's root is the empty name.
fn resolve(modules: &BTreeMap<String, String>, from: &str, path: &[String]) -> Option<String> {
    let mut base: Vec<&str> = from.split("::").collect();
    let mut rest = path.iter().map(String::as_str).peekable();
    match rest.next()? {
        "crate" => base.clear(),
        "self" => {}
        "super" => {
            base.pop();
            while rest.next_if_eq(&"super").is_some() {
                base.pop();
            }
        }
        // A module of this one, or another crate.
        child if modules.contains_key(&join(from, child)) => base.push(child),
        _ => return None,
    }
    let mut found = base.join("::");
    for part in rest {
        let next = join(&found, part);
        if !modules.contains_key(&next) {
            break;
        }
        found = next;
    }
    modules.contains_key(&found).then_some(found)
}
