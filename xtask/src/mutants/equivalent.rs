//! Mutants that change nothing a test could see, each with its reason.
//!
//! One a line: file, change, source line, reason, with ` | ` between; `\|` is a bar in one of them. The source line tells two changes of
//! one function apart and, unlike a number, stays right when other lines move.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::list::Mutant;

/// From the workspace's root.
pub const FILE: &str = "xtask/mutants-equivalent.txt";

/// The list, read.
pub struct Equivalents(Vec<[String; 4]>);

impl Equivalents {
    /// # Errors
    /// A line without its four parts, or without a reason.
    pub fn read(root: &Path) -> Result<Equivalents> {
        let text = std::fs::read_to_string(root.join(FILE)).with_context(|| format!("cannot read {FILE}"))?;
        Equivalents::parse(&text)
    }

    fn parse(text: &str) -> Result<Equivalents> {
        let rows = text.lines().enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let rows = rows.map(|(n, line)| {
            let parts: Vec<String> = line.split(" | ").map(|part| part.trim().replace("\\|", "|")).collect();
            let parts = <[String; 4]>::try_from(parts);
            let parts = parts.map_err(|_| anyhow::anyhow!("{FILE}:{}: not four parts", n + 1))?;
            ensure!(!parts[3].is_empty(), "{FILE}:{}: no reason", n + 1);
            Ok(parts)
        });
        Ok(Equivalents(rows.collect::<Result<_>>()?))
    }

    /// Why this one need not be seen.
    pub fn reason(&self, mutant: &Mutant) -> Option<&str> {
        let is_it =
            |row: &&[String; 4]| row[0] == mutant.file && row[1] == mutant.change() && row[2] == mutant.line;
        self.0.iter().find(is_it).map(|row| row[3].as_str())
    }

    /// Rows of these crates that excuse none of `all`: their source has changed.
    pub fn stale(&self, all: &[Mutant], crates: &[String]) -> Vec<String> {
        let is_of_crates =
            |row: &&[String; 4]| crates.iter().any(|name| row[0].starts_with(&format!("crates/{name}/")));
        let excuses = |row: &[String; 4]| {
            all.iter().any(|it| row[0] == it.file && row[1] == it.change() && row[2] == it.line)
        };
        let rows = self.0.iter().filter(is_of_crates).filter(|row| !excuses(row));
        rows.map(|row| row[..3].join(" | ")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutants::list::tests::mutant;

    #[test]
    fn a_mutant_is_excused_by_its_change_and_its_line() {
        let list = "# why\n\ncrates/a/src/b.rs | replace < with <= in c | a < b | both ends are padding\n";
        let list = Equivalents::parse(list).unwrap();
        let mut it = mutant([(1, 1), (1, 1)], "");
        assert_eq!(list.reason(&it), Some("both ends are padding"));
        it.line = "b < c".into();
        assert_eq!(list.reason(&it), None);
        let of_bars = Equivalents::parse("a | replace \\| with ^ | a \\| b | no common bit\n").unwrap();
        assert_eq!(of_bars.0[0], ["a", "replace | with ^", "a | b", "no common bit"]);
    }

    #[test]
    fn a_row_whose_line_has_changed_is_stale() {
        let list = "crates/a/src/b.rs | replace < with <= in c | a < b | both ends are padding\n";
        let list = Equivalents::parse(list).unwrap();
        let mut it = mutant([(1, 1), (1, 1)], "");
        let of_a = ["a".to_owned()];
        assert!(list.stale(std::slice::from_ref(&it), &of_a).is_empty());
        it.line = "b < c".into();
        let stale = ["crates/a/src/b.rs | replace < with <= in c | a < b"];
        assert_eq!(list.stale(std::slice::from_ref(&it), &of_a), stale);
        assert!(list.stale(&[it], &["other".to_owned()]).is_empty());
    }

    #[test]
    fn a_line_without_a_reason_is_refused() {
        assert!(Equivalents::parse("a | b | c |  ").is_err());
        assert!(Equivalents::parse("a | b | c").is_err());
    }
}
