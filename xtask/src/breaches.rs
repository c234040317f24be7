//! The test of the tests: promises of SEMANTICS.md are broken on purpose in the NVM engine (its feature `planted`), one at a time, and the
//! test that the promise's row names must fail, which without that passes.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::process;

/// A row that is broken.
struct Breach {
    /// How its promise begins.
    row: &'static str,
    /// What `HEDDLE_BREACH` calls it (`crates/nvmfs/src/planted.rs`).
    name: &'static str,
    /// File in `crates/nvmfs/tests` and test, as the row names them.
    test: (&'static str, &'static str),
}

const fn breach(row: &'static str, name: &'static str, test: (&'static str, &'static str)) -> Breach {
    Breach { row, name, test }
}

const BREACHES: &[Breach] = &[
    breach(
        "A write that has returned is seen",
        "WriteNotShown",
        ("threads", "a_write_that_returned_is_seen_by_every_later_read"),
    ),
    breach("A write is atomic", "ReadsOnce", ("torn", "heddle_never_shows_half_of_a_write")),
    breach(
        "A write of up to 2 GiB",
        "FailedWriteGrows",
        ("space", "a_write_into_fragmented_space_is_whole_and_gives_its_blocks_back"),
    ),
    breach("Appends never overlap", "AppendsAtOldEnd", ("threads", "appends_never_overlap_nor_get_lost")),
    breach(
        "What was cut off never",
        "stale-bytes-beyond-end",
        ("threads", "what_was_cut_off_never_comes_back"),
    ),
    breach("Writes that extend", "EdgesOld", ("threads", "concurrent_extending_writes_all_stay")),
    breach(
        "`fallocate` allocates",
        "unwritten-is-data",
        ("model", "contents_follow_the_model_through_every_kind_of_write"),
    ),
    breach(
        "Writes into allocated space",
        "NoPieces",
        ("fallocate", "writes_into_allocated_space_and_over_data_succeed_on_a_full_image"),
    ),
    breach(
        "Of many that make or remove",
        "NamesTwice",
        ("threads", "of_many_that_create_or_remove_one_name_one_succeeds"),
    ),
    breach(
        "No sequence of renames",
        "LoopsAllowed",
        ("threads", "of_two_directories_moved_into_each_other_one_goes"),
    ),
    breach(
        "An open file outlives",
        "EndsWhileOpen",
        ("threads", "an_unlinked_file_lives_until_its_last_handle_goes"),
    ),
    breach("Link counts", "links-not-counted", ("model", "heddle_does_what_the_model_does")),
    breach("The size follows", "SizeStays", ("threads", "concurrent_extending_writes_all_stay")),
    breach("Mode bits", "ModesUnasked", ("model", "heddle_does_what_the_model_does")),
    breach(
        "`mtime` and `ctime` never",
        "TimesGoBack",
        ("threads", "times_never_go_back_whatever_writes_and_changes_at_once"),
    ),
    breach("`mtime` and `ctime` never", "StatForgotten", ("posix", "writes_after_a_stat_have_a_later_mtime")),
    breach(
        "Setting, replacing and removing",
        "AttributesBlink",
        ("attributes", "an_attribute_that_is_replaced_is_read_whole"),
    ),
    breach(
        "A list decides who may",
        "ModesUnasked",
        ("attributes", "an_access_list_follows_the_mode_and_survives_a_remount"),
    ),
    breach("Cutting a range out", "ReadsOnce", ("attributes", "readers_see_a_shift_whole_or_not_at_all")),
    breach("65,000 links", "LinksUnbounded", ("posix", "an_inode_has_65000_links_at_most")),
    breach(
        "A full image can be read",
        "BlocksLost",
        ("space", "an_image_full_of_data_can_be_read_changed_and_emptied"),
    ),
    breach(
        "Work that leaves as much",
        "BlocksLost",
        ("space", "overwriting_one_file_for_ever_does_not_fill_the_image"),
    ),
    breach(
        "What is no image",
        "ShortImageTaken",
        ("images", "an_image_cut_short_says_what_is_missing_at_every_length"),
    ),
    breach(
        "A flipped bit or garbage",
        "RecordsBelieved",
        ("images", "a_flipped_bit_of_metadata_is_noticed_or_has_no_effect"),
    ),
];

const LIMIT: Duration = Duration::from_secs(600);

/// `cargo xtask breaches [NAME…]`
pub fn chore(root: &Path, args: &[String]) -> Result<bool> {
    if let Some(arg) = args.iter().find(|arg| !BREACHES.iter().any(|breach| breach.name == **arg)) {
        bail!("{arg}: no such breach; they are listed in xtask/src/breaches.rs");
    }
    let mut rows = BTreeSet::new();
    let mut missed = Vec::new();
    for breach in BREACHES.iter().filter(|breach| args.is_empty() || args.iter().any(|a| a == breach.name)) {
        let began = Instant::now();
        let passes = passes(root, breach.test, None)?;
        let seen = passes && !self::passes(root, breach.test, Some(breach.name))?;
        let verdict = match (passes, seen) {
            (false, _) => "FAILS UNBROKEN",
            (_, true) => "seen",
            _ => "MISSED",
        };
        println!(
            "{verdict:<8} {:<24} {} ({:.0} s)",
            breach.name,
            breach.test.1,
            began.elapsed().as_secs_f64()
        );
        if seen {
            rows.insert(breach.row);
        } else {
            missed.push(breach.name);
        }
    }
    println!(
        "{} of the {} rows of SEMANTICS.md: their test sees the promise broken; not seen: {missed:?}",
        rows.len(),
        promises(root)?.len()
    );
    Ok(missed.is_empty())
}

/// Does a test pass? A test that does not end counts as one that does: nothing was seen.
fn passes(root: &Path, (file, test): (&str, &str), broken: Option<&str>) -> Result<bool> {
    let arguments =
        ["test", "--quiet", "-p", "heddle-nvmfs", "--features", "planted", "--test", file, "--", "--exact"];
    let mut command = process::cargo(root, &arguments);
    command.arg(test).stdout(Stdio::null()).stderr(Stdio::null()).env_remove("HEDDLE_BREACH");
    if let Some(name) = broken {
        command.env("HEDDLE_BREACH", name);
    }
    match process::status(&mut command, LIMIT) {
        Ok(status) => Ok(status.success()),
        Err(error) if broken.is_none() => Err(error),
        Err(_) => Ok(true),
    }
}

/// What the rows of SEMANTICS.md promise.
fn promises(root: &Path) -> Result<Vec<String>> {
    let page = std::fs::read_to_string(root.join("SEMANTICS.md")).context("SEMANTICS.md")?;
    let cells =
        |line: &str| line.strip_prefix("| ").map(|rest| rest.split(" | ").map(str::to_string).collect());
    let is_promise = |cells: &Vec<String>| cells.len() == 6 && matches!(cells[1].as_str(), "y" | "u" | "-");
    Ok(page.lines().filter_map(cells).filter(is_promise).map(|cells| cells[0].clone()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_breach_names_a_row_and_a_test_that_the_row_names() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let page = std::fs::read_to_string(root.join("SEMANTICS.md")).unwrap();
        let planted = std::fs::read_to_string(root.join("crates/nvmfs/src/planted.rs")).unwrap();
        let promises = promises(root).unwrap();
        for Breach { row, name, test: (file, test) } in BREACHES {
            assert_eq!(promises.iter().filter(|promise| promise.starts_with(row)).count(), 1, "{row}");
            let line = page.lines().find(|line| line.starts_with(&format!("| {row}"))).unwrap();
            assert!(line.contains(&format!("n/{file}.rs")), "{row}: {file}");
            // Of the variants' tests `heddle`'s stands for all.
            assert!(file == &"model" || line.contains(test), "{row}: {test}");
            assert!(
                planted.contains(&format!("    {name},")) || planted.contains(&format!("\"{name}\",")),
                "{name}"
            );
        }
    }
}
