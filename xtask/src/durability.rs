//! `--durability process|power` of the rigs that work under both: their tests read `HEDDLE_DURABILITY`. Without it a rig deals its rounds
//! out to both where it can, and has `process` else.

use anyhow::{Result, bail};

/// What a chore's usage says of it.
pub const OPTION: &str = "[--durability process|power]";

/// A variable of the environment and what it says.
type Variable = (&'static str, String);

/// The arguments without the option, and the variable that it stands for.
///
/// # Errors
/// It names no durability.
pub fn taken_from(args: &[String]) -> Result<(Vec<String>, Option<Variable>)> {
    let Some(at) = args.iter().position(|arg| arg == "--durability") else {
        return Ok((args.to_vec(), None));
    };
    match args.get(at + 1).map(String::as_str) {
        Some(name @ ("process" | "power")) => {
            let rest = [&args[..at], &args[at + 2..]].concat();
            Ok((rest, Some(("HEDDLE_DURABILITY", name.into()))))
        }
        _ => bail!("--durability: there are process and power"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_durability_is_taken_out_of_the_arguments() {
        let read = |args: &[&str]| taken_from(&args.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(read(&["--rounds", "3"]).unwrap(), (vec!["--rounds".into(), "3".into()], None));
        let (rest, named) = read(&["--processes", "--durability", "power", "--reads", "3"]).unwrap();
        assert_eq!(rest, ["--processes", "--reads", "3"]);
        assert_eq!(named, Some(("HEDDLE_DURABILITY", "power".into())));
        assert!(read(&["--durability"]).is_err() && read(&["--durability", "both"]).is_err());
    }
}
