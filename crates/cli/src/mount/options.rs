//! The options of `-o`.

use super::metrics::MetricsAddress;
use anyhow::Result;
use heddle_console::failure::usage;
use heddle_console::size::Size;
use heddle_console::variant::{self, System};
use heddle_fuse::Remount;
use heddle_nvmfs::LockMode;
use heddle_pmem::Durability;
use heddle_range_lock::LockKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Options that can change only by a new mount.
const CHANGED_BY_A_MOUNT_ALONE: [&str; 22] = [
    "sync",
    "async",
    "dirsync",
    "discard",
    "nodiscard",
    "nvm",
    "nvm-size",
    "discard-nvm",
    "force-nvm",
    "uid",
    "gid",
    "log",
    "variant",
    "durability",
    "lock-mode",
    "segment",
    "no_attach",
    "attach-group",
    "patience",
    "metrics",
    "metrics-group",
    "wait",
];

/// Options that fstab may have and that need no action: reading never changes access times, and the rest is
/// for mount(8) and systemd.
const WITHOUT_EFFECT: [&str; 19] = [
    "defaults",
    "noatime",
    "nodiratime",
    "relatime",
    "norelatime",
    "nostrictatime",
    "lazytime",
    "nolazytime",
    "auto",
    "noauto",
    "nofail",
    "_netdev",
    "user",
    "nouser",
    "users",
    "nousers",
    "owner",
    "group",
    "silent",
];

const NO_SUCH: &str = "no such option; there are ro, rw, remount, noatime, allow_other, no_allow_other, uid=USER, gid=GROUP, exec, noexec, \
                       suid, nosuid, dev, nodev, sync, async, dirsync, log=FILE, variant=V, durability=process|power, \
                       lock-mode=paper|fair, segment=SIZE, discard, nodiscard, \
                       nvm=FILE, nvm-size=SIZE, discard-nvm, force-nvm, \
                       no_attach, attach-group=GROUP, patience=SECONDS, wait=SECONDS, metrics=PORT|PATH, \
                       metrics-group=GROUP, and what fstab(5) has for everyone";

/// All options of a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub variant: Option<System>,
    pub read_only: bool,
    pub allow_other: bool,
    /// All files show this owner.
    pub uid: Option<u32>,
    /// All files show this group.
    pub gid: Option<u32>,
    pub exec: bool,
    pub suid: bool,
    pub dev: bool,
    /// The options to change of an existing mount; with `Some`, nothing is mounted.
    pub remount: Option<Remount>,
    /// Further options of the command, which `remount` does not change.
    pub unchanged: Vec<String>,
    /// Each call is durable when it returns; on an NVM image it always is.
    pub sync: bool,
    /// The same for changes of names only.
    pub dirsync: bool,
    /// The log file of a mount in the background.
    pub log: Option<PathBuf>,
    /// What a write that returned survives; `None`: the default for the image's media.
    pub durability: Option<Durability>,
    /// How the papers' range locks wait, and the range that they lock; `None`: the default.
    pub lock_mode: Option<LockMode>,
    pub segment_bytes: Option<u64>,
    /// Whether an F2FS image's device is told of free segments; `None`: the default for its kind.
    pub discard: Option<bool>,
    /// The NVM of a node log.
    pub nvm: Option<PathBuf>,
    /// Size of a new node log in bytes, if given.
    pub nvm_bytes: Option<u64>,
    /// Changes that only the node log has are lost.
    pub discard_nvm: bool,
    /// A node log is made over any content.
    pub force_nvm: bool,
    /// Other processes may attach.
    pub attach: bool,
    /// Members of this group may attach, too.
    pub attach_group: Option<u32>,
    pub patience: Option<Duration>,
    /// How long to wait for an image that another process is about to release.
    pub wait: Duration,
    /// The address of the metrics server.
    pub metrics: Option<MetricsAddress>,
    /// Members of this group may read metrics, too.
    pub metrics_group: Option<u32>,
}

impl Options {
    /// Parses `--variant` and every `-o`; of contradicting options the last one wins. `sloppy` ignores
    /// unknown options.
    pub fn parse(variant: Option<System>, lists: &[String], sloppy: bool) -> Result<Options> {
        let mut options = Options {
            variant,
            read_only: false,
            allow_other: rustix::process::geteuid().is_root(),
            uid: None,
            gid: None,
            exec: true,
            suid: false,
            dev: false,
            remount: None,
            sync: false,
            dirsync: false,
            log: None,
            unchanged: Vec::new(),
            durability: None,
            lock_mode: None,
            segment_bytes: None,
            discard: None,
            nvm: None,
            nvm_bytes: None,
            discard_nvm: false,
            force_nvm: false,
            attach: true,
            attach_group: None,
            patience: None,
            wait: Duration::from_secs(10),
            metrics: None,
            metrics_group: None,
        };
        let all = || lists.iter().flat_map(|list| list.split(',')).filter(|option| !option.is_empty());
        if all().any(|option| option == "remount") {
            options.remount = Some(Remount::default());
        }
        // mount(8) repeats the options that the kernel shows of the mount.
        let sloppy = sloppy || options.remount.is_some();
        for option in all() {
            match options.take(option) {
                Err(_) if sloppy && !is_known(option) => {}
                done => done.map_err(|why| usage(format!("-o {option}: {why}")))?,
            }
        }
        let at_socket = matches!(options.metrics, Some(MetricsAddress::Path(_)));
        if options.metrics_group.is_some() && !at_socket && options.remount.is_none() {
            // Every user of this machine may read from a port: the caller would think that only this group
            // may.
            return Err(usage(
                "-o metrics-group: a group may ask at a socket alone: add metrics=PATH, with a slash in it. A port answers every user",
            ));
        }
        Ok(options)
    }

    fn take(&mut self, option: &str) -> Result<(), String> {
        let (name, value) =
            option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
        if let Some(change) = &mut self.remount
            && !note(change, name)
            && CHANGED_BY_A_MOUNT_ALONE.contains(&name)
        {
            self.unchanged.push(option.to_owned());
        }
        match (name, value) {
            ("remount", None) => {}
            ("ro", None) => self.read_only = true,
            ("rw", None) => self.read_only = false,
            ("allow_other", None) => self.allow_other = true,
            ("no_allow_other", None) => self.allow_other = false,
            ("exec" | "noexec", None) => self.exec = name == "exec",
            ("suid" | "nosuid", None) => self.suid = name == "suid",
            ("dev" | "nodev", None) => self.dev = name == "dev",
            ("sync" | "async", None) => self.sync = name == "sync",
            ("dirsync", None) => self.dirsync = true,
            ("discard" | "nodiscard", None) => self.discard = Some(name == "discard"),
            ("nvm", Some(file)) if !file.is_empty() => self.nvm = Some(file.into()),
            ("nvm-size", Some(size)) => self.nvm_bytes = Some(size.parse::<Size>()?.0),
            ("discard-nvm", None) => self.discard_nvm = true,
            ("force-nvm", None) => self.force_nvm = true,
            ("uid", Some(user)) => self.uid = Some(id_of(user, "/etc/passwd")?),
            ("gid", Some(group)) => self.gid = Some(id_of(group, "/etc/group")?),
            ("log", Some(file)) if !file.is_empty() => self.log = Some(file.into()),
            _ if value.is_none() && WITHOUT_EFFECT.contains(&name) => {}
            _ if name.starts_with("x-") || name.starts_with("X-") || name == "comment" => {}
            ("variant", Some(name)) => {
                let known = || System::all().map(System::name).collect::<Vec<_>>().join(", ");
                self.variant = Some(System::from_name(name).ok_or_else(|| format!("there are {}", known()))?);
            }
            ("durability", Some(what)) => self.durability = Some(what.parse()?),
            ("lock-mode", Some(mode)) => self.lock_mode = Some(variant::lock_mode(mode)?),
            ("no_attach", None) => self.attach = false,
            ("attach-group", Some(group)) => self.attach_group = Some(id_of(group, "/etc/group")?),
            ("patience", Some(seconds)) => self.patience = Some(seconds_of(seconds)?),
            ("wait", Some(seconds)) => self.wait = seconds_of(seconds)?,
            ("metrics-group", Some(group)) => self.metrics_group = Some(id_of(group, "/etc/group")?),
            ("metrics", Some(address)) => self.metrics = Some(MetricsAddress::parse(address)?),
            ("segment", Some(size)) => self.segment_bytes = Some(segment_of(size)?),
            _ => {
                return Err(NO_SUCH.to_owned());
            }
        }
        Ok(())
    }
}

/// Records an option that remount changes. Returns false if `name` is not one.
fn note(change: &mut Remount, name: &str) -> bool {
    let (of, is) = match name {
        "ro" | "rw" => (&mut change.read_only, name == "ro"),
        "exec" | "noexec" => (&mut change.exec, name == "exec"),
        "suid" | "nosuid" => (&mut change.suid, name == "suid"),
        "dev" | "nodev" => (&mut change.dev, name == "dev"),
        _ => return false,
    };
    *of = Some(is);
    true
}

impl Options {
    /// Refuses an option without a meaning for this system: the user would think that it has effect.
    pub fn refuse_what_is_not_for(&self, image: &Path, system: System) -> Result<()> {
        let (f2fs, lock) = match system {
            System::Nvm(variant) => (false, variant.lock()),
            System::F2fs(_) => (true, None),
        };
        let segments = lock.is_some_and(|kind| kind != LockKind::Inode);
        let useless = [
            // Memory takes no discards anyway.
            ("discard", !f2fs && self.discard == Some(true), "for F2FS images"),
            ("nvm-size", !f2fs && self.nvm_bytes.is_some(), "for F2FS images"),
            (
                "nvm-size",
                self.nvm.is_none() && self.nvm_bytes.is_some(),
                "for mounts with a node log (--nvm FILE)",
            ),
            (
                "force-nvm",
                f2fs && self.nvm.is_none() && self.force_nvm,
                "for mounts with a node log (--nvm FILE)",
            ),
            ("discard-nvm", !f2fs && self.discard_nvm, "for F2FS images"),
            ("force-nvm", !f2fs && self.force_nvm, "for F2FS images"),
            (
                "lock-mode",
                lock.is_none() && self.lock_mode.is_some(),
                "for nova and its variants with range locks",
            ),
            (
                "segment",
                !segments && self.segment_bytes.is_some(),
                "for nova-interval, nova-array and nova-tree",
            ),
        ];
        if lock == Some(LockKind::Tree)
            && self.segment_bytes.is_some_and(|bytes| bytes > TREE_SEGMENT_BYTES_MAX)
        {
            return Err(usage(format!(
                "-o segment: {} is mounted as {}, whose tree of locks divides a file into 32 segments or more: 8T at most",
                image.display(),
                system.name()
            )));
        }
        match useless.iter().find(|(_, given, _)| *given) {
            Some((option, _, what)) => Err(usage(format!(
                "-o {option}: {} is mounted as {}, where this option has no effect; it is {what}",
                image.display(),
                system.name()
            ))),
            None => Ok(()),
        }
    }
}

/// Returns true if there is such an option, whatever its value.
fn is_known(option: &str) -> bool {
    let name = option.split_once('=').map_or(option, |(name, _)| name);
    NO_SUCH.split([' ', ',']).any(|word| word.split('=').next() == Some(name))
}

/// Each of the tree's five levels takes at least one bit of a segment's number, and offsets have 48 bits.
const TREE_SEGMENT_BYTES_MAX: u64 = 1 << 43;

fn segment_of(text: &str) -> Result<u64, String> {
    let bytes = text.parse::<Size>()?.0;
    match bytes.is_power_of_two() && (4096..heddle_vfs::OFFSET_MAX_BYTES).contains(&bytes) {
        true => Ok(bytes),
        false => Err("write a power of two from 4K to 128T".to_owned()),
    }
}

fn seconds_of(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<u32>().map_err(|_| "write a number of seconds".to_owned())?;
    Ok(Duration::from_secs(seconds.into()))
}

/// Number of a user or group, given by name or number.
fn id_of(name: &str, table: &str) -> Result<u32, String> {
    match name.parse() {
        // The number that stands for "no user": chown(2) ignores it.
        Ok(u32::MAX) => return Err("no user or group has this number".to_owned()),
        Ok(number) => return Ok(number),
        Err(_) => {}
    }
    let rows = std::fs::read_to_string(table).unwrap_or_default();
    let mut rows = rows.lines().map(|row| row.split(':'));
    rows.find_map(|mut row| (row.next() == Some(name)).then(|| row.nth(1)?.parse().ok()).flatten())
        .ok_or_else(|| format!("{table} has no such name; a number works too"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_nvmfs::Variant;

    fn parse(lists: &[&str]) -> Result<Options> {
        Options::parse(None, &lists.iter().map(|list| list.to_string()).collect::<Vec<_>>(), false)
    }

    #[test]
    fn the_last_word_counts_and_lists_add_up() {
        let options = parse(&["ro,noatime,rw", "variant=nova-tree,lock-mode=paper,segment=64K,ro"]).unwrap();
        assert!(options.read_only && options.discard.is_none());
        assert!(options.nvm.is_none() && options.nvm_bytes.is_none() && !options.discard_nvm);
        let logged = parse(&["nvm=/dev/pmem0,nvm-size=1G", "discard-nvm"]).unwrap();
        assert_eq!((logged.nvm, logged.nvm_bytes), (Some("/dev/pmem0".into()), Some(1 << 30)));
        assert!(logged.discard_nvm);
        assert_eq!(parse(&["discard,nodiscard"]).unwrap().discard, Some(false));
        assert_eq!(options.variant, Some(System::Nvm(Variant::NovaTree)));
        assert_eq!((options.lock_mode, options.segment_bytes), (Some(LockMode::Paper), Some(65536)));
    }

    #[test]
    fn what_is_not_known_is_refused_with_what_there_is() {
        for (option, says) in [
            ("journal", "noatime"),
            ("uid=nobody-of-that-name", "/etc/passwd"),
            ("uid=4294967295", "no user"),
            ("wait=soon", "seconds"),
            ("strictatime", "noatime"),
            ("ro=1", "noatime"),
            ("variant=ext4", "nova-tree"),
            ("lock-mode=x", "paper"),
            ("durability=always", "process"),
            ("segment=5000", "power of two"),
            ("segment=1K", "power of two"),
            ("segment=256T", "power of two"),
            ("metrics=0", "no client could know"),
            ("metrics=127.0.0.1:0", "no client could know"),
            ("metrics=65536", "a port of this machine"),
            ("metrics=-1", "a port of this machine"),
            ("metrics=192.0.2.1:9100", "other machines"),
            ("patience=-1", "seconds"),
            ("patience=4294967296", "seconds"),
            ("nvm-size=-1", "no size"),
            ("nvm-size=16E", "no size"),
        ] {
            let error = parse(&[option]).unwrap_err().to_string();
            assert!(error.contains(option) && error.contains(says), "{error}");
        }
    }

    #[test]
    fn options_without_effect_on_an_image_are_refused() {
        let refused = |option: &str, system| {
            let options = parse(&[option]).unwrap();
            let error = options.refuse_what_is_not_for(Path::new("my.img"), system).err()?.to_string();
            assert!(error.contains(option.split('=').next().unwrap()) && error.contains("my.img"), "{error}");
            Some(error)
        };
        for system in System::all() {
            let f2fs = matches!(system, System::F2fs(_));
            for option in ["discard", "discard-nvm"] {
                assert_eq!(refused(option, system).is_some(), !f2fs, "{option} of {}", system.name());
            }
            for option in ["nvm-size=1M", "force-nvm"] {
                let way = if f2fs { "--nvm FILE" } else { "F2FS images" };
                assert!(refused(option, system).unwrap().contains(way), "{option} of {}", system.name());
                let with_log = refused(&format!("nvm=log,{option}"), system);
                assert_eq!(with_log.is_some(), !f2fs, "{option} of {}", system.name());
            }
            let range_lock = matches!(system.name(), "nova-interval" | "nova-array" | "nova-tree");
            assert_eq!(refused("lock-mode=paper", system).is_some(), !range_lock && system.name() != "nova");
            assert_eq!(refused("segment=64K", system).is_some(), !range_lock);
            assert_eq!(refused("nodiscard,noatime,sync,ro", system), None);
        }
    }

    #[test]
    fn a_group_for_metrics_is_refused_without_a_socket() {
        for options in
            ["metrics-group=0", "metrics=9100,metrics-group=0", "metrics-group=0,metrics=[::1]:9100"]
        {
            let error = parse(&[options]).unwrap_err().to_string();
            assert!(
                error.contains("-o metrics-group") && error.contains("metrics=PATH"),
                "{options}: {error}"
            );
        }
        assert_eq!(parse(&["metrics-group=7,metrics=/run/h.prom"]).unwrap().metrics_group, Some(7));
        assert!(parse(&["remount,ro,metrics-group=7"]).is_ok(), "what is mounted has its group");
    }

    #[test]
    fn what_fstab_holds_for_everyone_is_taken() {
        let options =
            parse(&["defaults,nofail,_netdev,x-systemd.automount,comment=mine,noexec,suid,uid=0,gid=7"])
                .unwrap();
        assert!(!options.exec && options.suid && !options.dev);
        assert_eq!((options.uid, options.gid), (Some(0), Some(7)));
    }

    #[test]
    fn remount_changes_given_options_and_ignores_those_the_kernel_lists() {
        let options = parse(&["suid,dev", "rw,nosuid,noatime,user_id=0,allow_other,remount,ro"]).unwrap();
        let change = Remount { read_only: Some(true), exec: None, suid: Some(false), dev: Some(true) };
        assert_eq!(options.remount, Some(change));
        assert!(parse(&["rw,user_id=0"]).is_err() && parse(&["ro"]).unwrap().remount.is_none());
    }

    #[test]
    fn sloppy_ignores_unknown_options_but_not_wrong_values() {
        let sloppy = |list: &str| Options::parse(None, &[list.to_owned()], true);
        assert!(sloppy("journal=yes,ro").unwrap().read_only);
        assert!(sloppy("variant=ext4").is_err());
    }
}
