//! The names under which mount(8) and umount(8) start this program: `mount.heddle` and `umount.heddle`, with
//! arguments of their own.
//!
//! `mount.heddle IMAGE DIR [-sfnv] [-N NAMESPACE] [-t TYPE] [-o OPTIONS]`, from mount(8), "External helpers";
//! `umount.heddle DIR [-nlfvr] [-N NAMESPACE] [-t TYPE]`. If `mount.fuse.heddle` is missing, mount.fuse(8)
//! starts `heddle IMAGE DIR -o OPTIONS`: so does `mount -o remount,ro DIR`.

use anyhow::Result;
use heddle_console::failure::usage;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The heddle command that such a name and its arguments mean. Returns `None` for any other name.
pub fn from_name(args: Vec<OsString>) -> Result<Option<Vec<OsString>>> {
    let name =
        args.first().and_then(|arg| Path::new(arg).file_name()).map(OsStr::to_owned).unwrap_or_default();
    let rest = args.get(1..).unwrap_or_default();
    match name.as_bytes() {
        b"mount.heddle" | b"mount.fuse.heddle" => mount(rest, rustix::process::geteuid().is_root()).map(Some),
        b"umount.heddle" | b"umount.fuse.heddle" => umount(rest).map(Some),
        // No heddle command begins with a slash.
        _ if matches!(rest, [image, dir, o, _] if image.as_bytes().starts_with(b"/") && dir.as_bytes().starts_with(b"/") && o == "-o") => {
            mount(rest, false).map(Some)
        }
        _ => Ok(None),
    }
}

fn mount(args: &[OsString], by_root: bool) -> Result<Vec<OsString>> {
    let (mut places, mut command) = (Vec::new(), words(&["heddle", "mount"]));
    if by_root {
        // mount(8) passes `nosuid` and `nodev` on, but not their opposites, which are its defaults. Later
        // options win, so the defaults come first.
        command.extend(words(&["-o", "suid,dev"]));
    }
    let mut args = args.iter();
    let mut only_pretend = false;
    while let Some(arg) = args.next() {
        match arg.as_bytes() {
            b"-o" => match args.next() {
                Some(list) => command.extend([arg.clone(), list.clone()]),
                None => return Err(usage("mount.heddle: -o needs options")),
            },
            b"-t" | b"-N" => drop(args.next()),
            [b'-', flags @ ..] if !flags.is_empty() => {
                for flag in flags {
                    match flag {
                        b's' => command.push("--sloppy".into()),
                        b'f' => only_pretend = true,
                        b'n' | b'v' => {}
                        b'r' => command.extend(words(&["-o", "ro"])),
                        b'w' => command.extend(words(&["-o", "rw"])),
                        _ => return Err(usage(format!("mount.heddle: unknown flag -{}", char::from(*flag)))),
                    }
                }
            }
            _ => places.push(arg.clone()),
        }
    }
    let [image, dir] = places.as_slice() else {
        return Err(usage("mount.heddle: IMAGE and DIR are needed: mount -t heddle [-o OPTIONS] IMAGE DIR"));
    };
    if only_pretend {
        return Ok(vec!["heddle".into(), "info".into(), "--".into(), image.clone()]);
    }
    command.extend(["--".into(), image.clone(), dir.clone()]);
    Ok(command)
}

fn umount(args: &[OsString]) -> Result<Vec<OsString>> {
    let mut command = words(&["heddle", "umount", "--"]);
    let mut args = args.iter();
    let before = command.len();
    while let Some(arg) = args.next() {
        match arg.as_bytes() {
            b"-t" | b"-N" | b"-o" => drop(args.next()),
            // A lazy or forced umount would not wait for the image, and here the wait would be in vain.
            [b'-', flags @ ..] if flags.contains(&b'l') || flags.contains(&b'f') => {
                return Err(usage("umount.heddle: for a lazy or forced umount use: umount -i -l DIR"));
            }
            [b'-', ..] => {}
            _ => command.push(arg.clone()),
        }
    }
    if command.len() == before + 1 {
        Ok(command)
    } else {
        Err(usage("umount.heddle: one DIR is needed: umount DIR"))
    }
}

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meant(line: &str) -> Option<String> {
        let args = line.split(' ').map(OsString::from).collect();
        let words = from_name(args).unwrap()?;
        Some(words.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn the_helpers_names_and_arguments_mean_our_commands() {
        let means = |line: &str, command: &str| assert_eq!(meant(line).as_deref(), Some(command), "{line}");
        let root = if rustix::process::geteuid().is_root() { " -o suid,dev" } else { "" };
        let means_mount = |line: &str, rest: &str| means(line, &format!("heddle mount{root} {rest}"));
        means_mount("/sbin/mount.heddle a.img /mnt -o rw,noatime", "-o rw,noatime -- a.img /mnt");
        means_mount("mount.heddle a.img /mnt -sn -o ro -t heddle", "--sloppy -o ro -- a.img /mnt");
        means_mount("mount.fuse.heddle a.img /mnt", "-- a.img /mnt");
        means("umount.fuse.heddle /mnt -n", "heddle umount -- /mnt");
        means("heddle /a.img /mnt -o rw,remount", "heddle mount -o rw,remount -- /a.img /mnt");
        assert_eq!(meant("/usr/bin/heddle mount a.img /mnt"), None);
    }

    #[test]
    fn what_is_missing_is_named() {
        for (line, names) in
            [("mount.heddle a.img", "DIR"), ("mount.heddle a b -o", "-o"), ("umount.heddle", "DIR")]
        {
            let error = from_name(line.split(' ').map(OsString::from).collect()).unwrap_err().to_string();
            assert!(error.contains(names), "{error}");
        }
    }
}
