//! What of the source a plain build has: code of models and tests is none of it, and no test of this program would see it changed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::list::Mutant;
use crate::tidy::source::{Source, block_end, words};

/// What is set for models and tests alone.
const NOT_PLAIN: [&str; 3] = ["test", "loom", "shuttle"];

/// See the module; files are read when they are asked for.
#[derive(Default)]
pub struct Compiled {
    /// By file, from the workspace's root: lines that are left out, counted from 1.
    left_out: BTreeMap<String, BTreeSet<usize>>,
}

impl Compiled {
    /// Is the first line of this mutant part of a plain build?
    pub fn has(&mut self, root: &Path, mutant: &Mutant) -> bool {
        if !self.left_out.contains_key(&mutant.file) {
            let text = std::fs::read_to_string(root.join(&mutant.file)).unwrap_or_default();
            let lines = if is_file_left_out(root, &mutant.file) {
                (1..=text.lines().count()).collect()
            } else {
                left_out(&text)
            };
            self.left_out.insert(mutant.file.clone(), lines);
        }
        !self.left_out[&mutant.file].contains(&mutant.span[0].0)
    }
}

/// Lines of items and statements that a plain build leaves out.
fn left_out(text: &str) -> BTreeSet<usize> {
    let source = Source::new("src/lib.rs", text);
    let mut out = BTreeSet::new();
    for (i, line) in source.lines.iter().enumerate().filter(|(_, line)| is_not_plain(&line.code)) {
        let ends = |line: &crate::tidy::source::Line| line.code.trim_end().ends_with(';');
        let end = block_end(&source.lines, i, line.code.find("#[cfg").unwrap_or(0));
        let end = end.unwrap_or_else(|| source.lines[i..].iter().position(ends).map_or(i, |n| i + n));
        out.extend(i + 1..=end + 1);
    }
    out
}

/// Does a module above declare this file for models or tests alone?
fn is_file_left_out(root: &Path, file: &str) -> bool {
    let file = Path::new(file);
    let Some(dir) = file.parent() else { return false };
    // `a/b.rs` and `a/b/mod.rs` are declared in `a.rs`, `a/mod.rs` or, at the top, `lib.rs`.
    let (name, home) = match file.file_stem().and_then(|stem| stem.to_str()) {
        Some("lib" | "main") | None => return false,
        Some("mod") => (dir.file_name().unwrap_or_default().to_string_lossy(), dir.parent().unwrap_or(dir)),
        Some(stem) => (stem.into(), dir),
    };
    let parents: [PathBuf; 3] = [home.join("lib.rs"), home.join("mod.rs"), home.with_extension("rs")];
    let parent = parents.iter().find(|parent| root.join(parent).is_file() && parent.as_path() != file);
    let Some(parent) = parent else { return false };
    let text = std::fs::read_to_string(root.join(parent)).unwrap_or_default();
    declares_left_out(&text, &name) || parent.to_str().is_some_and(|parent| is_file_left_out(root, parent))
}

fn declares_left_out(text: &str, name: &str) -> bool {
    let left_out = left_out(text);
    let declares = |line: &str| {
        let line = line.trim().trim_end_matches(';');
        line.strip_suffix(name).is_some_and(|before| before == "mod " || before.ends_with(" mod "))
    };
    let mut declared = text.lines().enumerate().filter(|(_, line)| declares(line)).peekable();
    declared.peek().is_some() && declared.all(|(i, _)| left_out.contains(&(i + 1)))
}

/// Is this an attribute that leaves what follows out of a plain build? What stands in a `not(…)` does not.
fn is_not_plain(code: &str) -> bool {
    let Some(attribute) = code.trim().strip_prefix("#[cfg(") else { return false };
    let mut wanted = String::new();
    let mut rest = attribute;
    while let Some(at) = rest.find("not(") {
        wanted.push_str(&rest[..at]);
        let mut depth = 0;
        let end = rest[at..].find(|c| {
            depth += i32::from(c == '(') - i32::from(c == ')');
            c == ')' && depth == 0
        });
        rest = end.map_or("", |end| &rest[at + end + 1..]);
    }
    wanted.push_str(rest);
    NOT_PLAIN.iter().any(|word| words(&wanted, word).next().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_of_models_and_tests_is_left_out() {
        let text = "fn a() {\n    #[cfg(loom)]\n    let b = c(\n        d);\n    e();\n}\n#[cfg(shuttle)]\nmod f {\n    fn g() {}\n}\n\
                    #[cfg(all(test, not(loom)))]\nmod tests;\n#[cfg(not(any(loom, shuttle)))]\nfn h() {}\n";
        assert_eq!(left_out(text).into_iter().collect::<Vec<_>>(), [2, 3, 4, 7, 8, 9, 10, 11, 12]);
        assert!(declares_left_out(text, "tests") && !declares_left_out(text, "h"));
        assert!(
            !declares_left_out("mod tests;\n#[cfg(loom)]\nmod tests;\n", "tests"),
            "one of them is plain"
        );
    }

    #[test]
    fn a_plain_build_has_what_the_attribute_does_not_ask_for() {
        for plain in ["not(loom)", "all(not(loom), target_arch = \"x86_64\")", "feature = \"planted\""] {
            assert!(!is_not_plain(&format!("    #[cfg({plain})]")), "{plain}");
        }
        for other in
            ["test", "any(loom, not(a))", "all(not(any(b, c)), shuttle)", "any(test, feature = \"\")"]
        {
            assert!(is_not_plain(&format!("#[cfg({other})]")), "{other}");
        }
    }

    #[test]
    fn files_of_models_are_found_by_their_declaration() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for file in
            ["arena/src/sync/plant.rs", "nvmfs/src/deaths.rs", "nvmfs/src/upkeep/settle/tests/costs.rs"]
        {
            assert!(is_file_left_out(root, &format!("crates/{file}")), "{file}");
        }
        for file in [
            "arena/src/sync/mod.rs",
            "nvmfs/src/state/cell.rs",
            "nvmfs/src/upkeep/settle/mod.rs",
            "f2fs/src/lib.rs",
        ] {
            assert!(!is_file_left_out(root, &format!("crates/{file}")), "{file}");
        }
    }
}
