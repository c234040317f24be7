//! What `-o` says.

use crate::failure::usage;
use crate::size::Size;
use crate::variant;
use anyhow::Result;
use heddle_nvmfs::{LockMode, Variant};
use std::time::Duration;

/// All options of a mount.
#[derive(Debug, PartialEq, Eq)]
pub struct Options {
    pub variant: Option<Variant>,
    pub read_only: bool,
    pub allow_other: bool,
    pub lock_mode: LockMode,
    pub segment_bytes: u64,
    /// Other processes may attach.
    pub attach: bool,
    /// Members of this group too.
    pub attach_group: Option<u32>,
    pub patience: Option<Duration>,
}

impl Options {
    /// From `--variant` and every `-o`; the last word on a thing counts.
    pub fn parse(variant: Option<Variant>, lists: &[String]) -> Result<Options> {
        let mut options = Options {
            variant,
            read_only: false,
            allow_other: rustix::process::geteuid().is_root(),
            lock_mode: LockMode::Default,
            segment_bytes: 4096,
            attach: true,
            attach_group: None,
            patience: None,
        };
        for option in lists.iter().flat_map(|list| list.split(',')).filter(|option| !option.is_empty()) {
            options.take(option).map_err(|why| usage(format!("-o {option}: {why}")))?;
        }
        Ok(options)
    }

    fn take(&mut self, option: &str) -> Result<(), String> {
        let (name, value) =
            option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
        match (name, value) {
            ("ro", None) => self.read_only = true,
            ("rw", None) => self.read_only = false,
            ("allow_other", None) => self.allow_other = true,
            ("no_allow_other", None) => self.allow_other = false,
            ("noatime" | "defaults", None) => {}
            ("variant", Some(name)) => {
                let known = || Variant::ALL.map(Variant::name).join(", ");
                self.variant =
                    Some(Variant::from_name(name).ok_or_else(|| format!("there are {}", known()))?);
            }
            ("lock-mode", Some(mode)) => self.lock_mode = variant::lock_mode(mode)?,
            ("no_attach", None) => self.attach = false,
            ("attach-group", Some(group)) => self.attach_group = Some(group_id(group)?),
            ("patience", Some(seconds)) => {
                let seconds =
                    seconds.parse::<u32>().map_err(|_| "a number of seconds is wanted".to_owned())?;
                self.patience = Some(Duration::from_secs(seconds.into()));
            }
            ("segment", Some(size)) => self.segment_bytes = size.parse::<Size>()?.0,
            _ => {
                return Err(
                    "no such option; there are ro, rw, noatime, allow_other, no_allow_other, variant=V, \
                            lock-mode=paper|default, segment=SIZE, no_attach, attach-group=GROUP, patience=SECONDS"
                        .to_owned(),
                );
            }
        }
        Ok(())
    }
}

/// Number of a group, given by name or number.
fn group_id(group: &str) -> Result<u32, String> {
    if let Ok(number) = group.parse() {
        return Ok(number);
    }
    let table = std::fs::read_to_string("/etc/group").unwrap_or_default();
    let mut rows = table.lines().map(|row| row.split(':'));
    rows.find_map(|mut row| (row.next() == Some(group)).then(|| row.nth(1)?.parse().ok()).flatten())
        .ok_or_else(|| "no group of that name in /etc/group; its number works too".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(lists: &[&str]) -> Result<Options> {
        Options::parse(None, &lists.iter().map(|list| list.to_string()).collect::<Vec<_>>())
    }

    #[test]
    fn the_last_word_counts_and_lists_add_up() {
        let options = parse(&["ro,noatime,rw", "variant=nova-tree,lock-mode=paper,segment=64K,ro"]).unwrap();
        assert!(options.read_only);
        assert_eq!(options.variant, Some(Variant::NovaTree));
        assert_eq!((options.lock_mode, options.segment_bytes), (LockMode::Paper, 65536));
    }

    #[test]
    fn what_is_not_known_is_refused_with_what_there_is() {
        for (option, says) in [
            ("sync", "noatime"),
            ("ro=1", "noatime"),
            ("variant=ext4", "nova-tree"),
            ("lock-mode=x", "paper"),
        ] {
            let error = parse(&[option]).unwrap_err().to_string();
            assert!(error.contains(option) && error.contains(says), "{error}");
        }
    }
}
