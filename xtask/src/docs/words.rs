//! Commands, chores and options that pages write are there.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::pages::{Page, spans};

/// What `heddle` says of itself.
pub struct Helps {
    all: String,
    of: BTreeMap<String, String>,
}

impl Helps {
    pub fn ask(heddle: &Path) -> Result<Helps> {
        let help = |args: &[&str]| -> Result<String> {
            let output = Command::new(heddle)
                .args(args)
                .arg("--help")
                .output()
                .with_context(|| format!("cannot run {}", heddle.display()))?;
            ensure!(output.status.success(), "{} {} --help failed", heddle.display(), args.join(" "));
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        };
        let all = help(&[])?;
        let names =
            all.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
        // Names stand two blanks in, their second lines further.
        let names = names.filter_map(|line| {
            line.strip_prefix("  ")?.split_whitespace().next().filter(|_| !line.starts_with("   "))
        });
        let of = names.filter(|name| *name != "help").map(|name| Ok((name.to_owned(), help(&[name])?)));
        Ok(Helps { of: of.collect::<Result<_>>()?, all })
    }
}

/// What is wrong, a line each. `chores`: names and their usages.
pub fn check(helps: &Helps, chores: &[(&str, &str)], pages: &[Page]) -> Vec<String> {
    let mut wrong = Vec::new();
    for page in pages.iter().filter(|page| page.path != "CHANGELOG.md") {
        let mut commands: Vec<(usize, &str)> = Vec::new();
        for (line, text) in page.prose() {
            commands.extend(spans(text).map(|span| (line, span)));
        }
        for block in page.blocks() {
            commands.extend(block.lines.iter().enumerate().map(|(i, text)| (block.line + i, *text)));
        }
        for (line, command) in commands {
            let words = words(command);
            let what = match words.first().map(String::as_str) {
                Some("heddle") => of_heddle(helps, &words[1..]),
                Some("cargo") if words.get(1).is_some_and(|word| word == "xtask") => {
                    of_xtask(chores, &words[2..])
                }
                _ => None,
            };
            wrong.extend(what.map(|what| format!("{}:{line}: {what}", page.path)));
        }
    }
    wrong
}

/// Without comments, and without the marks of what may be left out or chosen.
fn words(command: &str) -> Vec<String> {
    let command = command.split(" #").next().unwrap_or_default();
    let apart = |c: char| c.is_whitespace() || "[]|…,;\\".contains(c);
    command.split(apart).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

fn of_heddle(helps: &Helps, words: &[String]) -> Option<String> {
    let name = words.first()?;
    if name.chars().any(char::is_uppercase) {
        return None;
    }
    if name.starts_with('-') {
        return (!says(&helps.all, name)).then(|| format!("heddle has no option {name}"));
    }
    let alias = format!("[alias: {name}]");
    let Some(help) = helps.of.get(name) else {
        return (!helps.all.contains(&alias)).then(|| format!("heddle has no command {name}"));
    };
    let mut words = words[1..].iter().take_while(|word| *word != "--");
    words
        .find(|word| word.starts_with("--") && !says(help, word))
        .map(|word| format!("heddle {name} has no option {word}"))
}

fn of_xtask(chores: &[(&str, &str)], words: &[String]) -> Option<String> {
    let name = words.first()?;
    if name == "CHORE" {
        return None;
    }
    let Some((_, usage)) = chores.iter().find(|(chore, _)| chore == name) else {
        return Some(format!("there is no chore {name}"));
    };
    // A usage that ends so has more to say, in its own help.
    if usage.ends_with('…') && !usage.ends_with("…]") {
        return None;
    }
    let mut words = words[1..].iter().take_while(|word| *word != "--");
    let known = |word: &str| word == "--help" || says(usage, word);
    words
        .find(|word| word.starts_with("--") && !known(word))
        .map(|word| format!("cargo xtask {name} has no option {word}"))
}

/// Does the text name the option, and not only a longer one?
fn says(help: &str, word: &str) -> bool {
    let word = word.split('=').next().unwrap_or(word);
    help.match_indices(word)
        .any(|(at, _)| !help[at + word.len()..].starts_with(|c: char| c.is_alphanumeric() || c == '-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_and_commands_that_are_not_there_are_found() {
        let helps = Helps {
            all: "Commands:\n  mount  Mount [alias: m]\n".into(),
            of: [("mount".to_owned(), "--foreground, --nvm <FILE>".to_owned())].into(),
        };
        let text = "`heddle mount --nvm=F [--foreground|--nv]` `heddle COMMAND --x` `heddle m` `heddle moun` `cargo xtask a --b --c`";
        let page = Page { path: "README.md".into(), text: text.into() };
        let wrong = check(&helps, &[("a", "[--b]")], &[page]);
        let said: Vec<&str> = wrong.iter().map(|line| line.split_once(": ").unwrap().1).collect();
        assert_eq!(
            said,
            [
                "heddle mount has no option --nv",
                "heddle has no command moun",
                "cargo xtask a has no option --c"
            ]
        );
    }
}
