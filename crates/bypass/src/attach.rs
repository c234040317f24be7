//! Which mounts are ours, and the engine of each.
//!
//! State       a list that only grows, one entry a mount that a descriptor was seen of: ours with its engine, or not ours.
//! Invariants  A1  an entry is never changed or freed: who has found one may use it for ever.
//!
//! A mount is known by its device and its unique number, so that another file system that gets the same device later is another.

use crate::file::process;
use crate::tell::Told;
use heddle_nvmfs::{NvmFs, client, place};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// A mount whose engine this process has attached to.
pub struct Attachment {
    /// The engine.
    pub fs: NvmFs,
    /// Device number of the mount, as `st_dev`.
    pub dev: u64,
    /// The process that has mapped all of the image: a forked one has none of its parent's pages.
    mapped_by: AtomicU32,
}

impl Attachment {
    /// With `HEDDLE_PREFAULT=1` maps all of the image, once a process: its first stores to each part then cost what later ones do.
    pub fn prefault(&self) {
        static ASKED: OnceLock<bool> = OnceLock::new();
        let asked =
            *ASKED.get_or_init(|| std::env::var_os("HEDDLE_PREFAULT").is_some_and(|said| said == "1"));
        if asked && self.mapped_by.swap(process(), Ordering::SeqCst) != process() {
            self.fs.map_all();
        }
    }
}

/// What is known of a mount.
#[derive(Clone, Copy)]
pub enum Found {
    /// It is ours.
    Ours(&'static Attachment),
    /// It is another file system's.
    Foreign,
    /// It is ours, but its engine is out of reach: the text says why.
    Refused(&'static str),
}

struct Entry {
    dev: u64,
    mount: u64,
    found: Found,
    next: *const Entry,
}

/// All mounts seen so far.
pub struct Attachments {
    first: AtomicPtr<Entry>,
}

impl Default for Attachments {
    fn default() -> Attachments {
        Attachments::new()
    }
}

impl Attachments {
    /// None yet.
    pub const fn new() -> Attachments {
        Attachments { first: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// The mount of a descriptor, if one of it was seen before. Takes no lock and allocates nothing.
    pub fn known(&self, told: &Told) -> Option<Found> {
        self.entries().find(|e| (e.dev, e.mount) == (told.dev, told.mount)).map(|e| e.found)
    }

    /// The mount of a descriptor; attaches to it if it is ours and new. Two threads that do so at once attach twice, to no harm.
    pub fn find(&self, told: &Told) -> Found {
        if let Some(found) = self.known(told) {
            return found;
        }
        let found = look(told);
        // ORDERING: Acquire, pairs with the Release below.
        let mut next = self.first.load(Ordering::Acquire);
        let entry = Box::into_raw(Box::new(Entry { dev: told.dev, mount: told.mount, found, next }));
        // ORDERING: Release, pairs with the Acquire in `entries`: who sees the entry sees what is in it.
        while let Err(now) = self.first.compare_exchange(next, entry, Ordering::Release, Ordering::Acquire) {
            next = now;
            // SAFETY: not in the list yet, so it is ours alone.
            unsafe { (*entry).next = next };
        }
        found
    }

    /// What was refused, and why.
    pub fn refusals(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.entries().filter_map(|e| match e.found {
            Found::Refused(why) => Some(why),
            _ => None,
        })
    }

    fn entries(&self) -> impl Iterator<Item = &Entry> {
        // ORDERING: Acquire, pairs with the Release in `find`.
        let mut at = self.first.load(Ordering::Acquire).cast_const();
        std::iter::from_fn(move || {
            // SAFETY: A1: null or an entry that is never freed.
            let entry = unsafe { at.as_ref() }?;
            at = entry.next;
            Some(entry)
        })
    }
}

fn look(told: &Told) -> Found {
    let Some(dir) = heddle_mount_of(told.dev) else { return Found::Foreign };
    let attached = place::socket_for_mount(&dir)
        .map_err(|error| error.to_string())
        .and_then(|place| client::attach(place).map_err(|error| error.to_string()));
    match attached {
        Ok(fs) => {
            Found::Ours(Box::leak(Box::new(Attachment { fs, dev: told.dev, mapped_by: AtomicU32::new(0) })))
        }
        Err(why) => Found::Refused(Box::leak(why.into_boxed_str())),
    }
}

/// Where the heddle file system of this device is mounted.
fn heddle_mount_of(dev: u64) -> Option<PathBuf> {
    let table = std::fs::read("/proc/self/mountinfo").ok()?;
    table.split(|b| *b == b'\n').find_map(|line| parse(line).filter(|(of, _)| *of == dev).map(|(_, dir)| dir))
}

/// `id parent major:minor root dir options [optional fields…] - type source super-options`, of ours: device and directory.
fn parse(line: &[u8]) -> Option<(u64, PathBuf)> {
    let mut fields = line.split(|b| *b == b' ');
    let dev = std::str::from_utf8(fields.nth(2)?).ok()?;
    let (major, minor) = dev.split_once(':')?;
    let dev = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
    let dir = OsString::from_vec(unescaped(fields.nth(1)?)).into();
    let mut after = fields.skip_while(|field| *field != b"-").skip(1);
    (after.next()? == b"fuse.heddle").then_some((dev, dir))
}

/// Space, tab, newline and backslash are written as `\` and three octal digits.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let code = (*first == b'\\').then(|| after.first_chunk::<3>()).flatten();
        let code = code.and_then(|octal| u8::from_str_radix(std::str::from_utf8(octal).ok()?, 8).ok());
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_heddle_mounts_are_ours_and_names_with_blanks_are_whole() {
        let line = br"70 30 0:52 / /mnt/a\040b rw,nosuid shared:9 - fuse.heddle /dev/shm/i rw,user_id=0";
        assert_eq!(parse(line), Some((rustix::fs::makedev(0, 52), "/mnt/a b".into())));
        assert_eq!(parse(b"70 30 0:52 / /mnt rw - tmpfs none rw"), None);
        assert_eq!(parse(b""), None);
    }
}
