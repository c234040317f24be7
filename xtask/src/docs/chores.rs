//! The tests that chores name are there: Cargo runs nothing for a name that no test has, and succeeds.

use std::path::Path;

use anyhow::{Context, Result};

use super::names::Tree;

/// Names of tests in the chores' sources that no test has, a line each.
pub fn check(root: &Path, tree: &Tree) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    for file in tree.files().filter(|file| file.starts_with("xtask/src/") && !file.ends_with("/tests.rs")) {
        let text = std::fs::read_to_string(root.join(file)).with_context(|| format!("cannot read {file}"))?;
        let missing = named(&text).filter(|name| !tree.tests().any(|test| test.contains(name)));
        wrong.extend(missing.map(|name| format!("{file}: {name}: no test has this name")));
    }
    Ok(wrong)
}

/// Strings of four words or more, joined by underscores, before the file's own tests.
fn named(text: &str) -> impl Iterator<Item = &str> {
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    code.split('"').filter(|string| {
        let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        string.chars().all(word) && string.matches('_').count() >= 3
    })
}

#[cfg(test)]
mod tests {
    use super::named;

    #[test]
    fn strings_that_name_tests_are_found_in_a_chore() {
        let chore =
            "let rig = [\"reads_of_one_process\", \"planted_damage\", \"-p\"];\n#[cfg(test)]\n\"a_b_c_d\"";
        assert_eq!(named(chore).collect::<Vec<_>>(), ["reads_of_one_process"]);
    }
}
