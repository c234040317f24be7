//! Does an image hold what the journal says, and nothing by half?

use super::history::History;
use super::operation::{Operation, PAGE, PAGES, operation, record};
use crate::common::{Short, root};
use heddle_nvmfs::NvmFs;
use heddle_vfs::{Cookie, Error, FileSystem, Handle, Ino, OpenFlags};
use std::collections::BTreeSet;

type Finding = Result<(), String>;

pub fn verify(fs: &NvmFs, history: &History) -> Finding {
    verify_data(fs, history)?;
    names(fs, history)
}

/// As `verify`, without the names.
pub fn verify_data(fs: &NvmFs, history: &History) -> Finding {
    pages(fs, history)?;
    log(fs, history)
}

fn open(fs: &NvmFs, text: &str) -> Result<Option<Handle>, String> {
    match fs.find(Ino::ROOT, text) {
        Ok(attr) => fs.open(&root(), attr.ino, OpenFlags::READ).map(Some).map_err(|e| e.to_string()),
        Err(Error::NotFound) => Ok(None),
        Err(error) => Err(format!("looking for {text}: {error}")),
    }
}

fn content(fs: &NvmFs, text: &str) -> Result<Vec<u8>, String> {
    let Some(handle) = open(fs, text)? else { return Ok(Vec::new()) };
    let bytes = fs.read_vec(&handle, 0, fs.size(&handle) as usize);
    fs.release(handle);
    Ok(bytes)
}

/// The number in every word of each page; 0 if it was never written.
fn stamps(bytes: &[u8]) -> Result<Vec<u64>, String> {
    let mut stamps = vec![0; PAGES as usize];
    if !bytes.len().is_multiple_of(PAGE as usize) {
        return Err(format!("/pages has {} bytes: half a page", bytes.len()));
    }
    for (page, bytes) in bytes.chunks(PAGE as usize).enumerate() {
        if bytes.chunks(8).any(|word| word != &bytes[..8]) {
            return Err(format!("page {page} of /pages is not from one write"));
        }
        stamps[page] = u64::from_le_bytes(*bytes.first_chunk().unwrap());
    }
    Ok(stamps)
}

fn pages(fs: &NvmFs, history: &History) -> Finding {
    let stamps = stamps(&content(fs, "pages")?)?;
    let range = |number: u64| match operation(number) {
        Operation::Pages { first, count } => first..first + count,
        _ => 0..0,
    };
    for (page, stamp) in stamps.iter().copied().enumerate() {
        if stamp != 0 && !(history.calls.contains_key(&stamp) && range(stamp).contains(&(page as u64))) {
            return Err(format!("page {page} shows {stamp}, which never wrote it"));
        }
    }
    // A page is older than a write if it shows nothing, or a write that was over before that one began.
    let older = |page: u64, number: u64| {
        let shown = stamps[page as usize];
        shown != number && (shown == 0 || history.before(shown, number))
    };
    for (number, call) in &history.calls {
        let seen = range(*number).any(|page| stamps[page as usize] == *number);
        if !(call.acknowledged || seen) {
            continue;
        }
        if let Some(page) = range(*number).find(|page| older(*page, *number)) {
            let (shown, why) =
                (stamps[page as usize], if call.acknowledged { "had returned" } else { "is seen elsewhere" });
            return Err(format!(
                "page {page} shows {shown}, but write {number} of pages {:?} {why}",
                range(*number)
            ));
        }
    }
    Ok(())
}

fn log(fs: &NvmFs, history: &History) -> Finding {
    let bytes = content(fs, "log")?;
    let (mut at, mut seen, mut previous) = (0, BTreeSet::new(), None);
    while at < bytes.len() {
        let number = bytes[at..].first_chunk().map_or(u64::MAX, |word| u64::from_le_bytes(*word));
        let Operation::Append { len } = operation(number) else {
            return Err(format!("byte {at} of /log begins no record"));
        };
        if !bytes[at..].starts_with(&record(number, len)) || !seen.insert(number) {
            return Err(format!("record {number} at byte {at} of /log is damaged, or there twice"));
        }
        if previous.is_some_and(|previous| history.before(number, previous)) {
            return Err(format!("record {number} follows {previous:?}, which began after it had ended"));
        }
        previous = Some(number);
        at += len;
    }
    let lost = history.calls.iter().find(|(number, call)| {
        call.acknowledged && matches!(operation(**number), Operation::Append { .. }) && !seen.contains(number)
    });
    lost.map_or(Ok(()), |(number, _)| {
        Err(format!("record {number}, whose append had returned, is not in /log"))
    })
}

fn list(fs: &NvmFs, text: &str) -> Result<BTreeSet<u64>, String> {
    let Some(handle) = open(fs, text)? else { return Ok(BTreeSet::new()) };
    let mut numbers = BTreeSet::new();
    let mut wrong = None;
    let read = fs.each_entry(&handle, Cookie::default(), &mut |entry| {
        let name = String::from_utf8_lossy(entry.name.bytes()).into_owned();
        match name.parse() {
            Ok(number) if numbers.insert(number) => {}
            _ => wrong = Some(name),
        }
        true
    });
    fs.release(handle);
    read.map_err(|e| format!("listing {text}: {e}"))?;
    wrong.map_or(Ok(numbers), |name| Err(format!("the name {name} in {text} is nobody's, or there twice")))
}

fn names(fs: &NvmFs, history: &History) -> Finding {
    let (old, new) = (list(fs, "d")?, list(fs, "e")?);
    if let Some(number) = old.union(&new).find(|n| !history.calls.contains_key(n)) {
        return Err(format!("file {number} was never made"));
    }
    for (number, call) in &history.calls {
        match operation(*number) {
            Operation::Create => {
                let later = |back| history.calls.get(&(number + back * super::operation::THREADS));
                let touched = later(4).is_some() || later(6).is_some();
                let there = old.contains(number) || new.contains(number);
                if call.acknowledged && !touched && !old.contains(number) {
                    return Err(format!(
                        "file {number}, whose creation had returned, is not in /d (in /e: {there})"
                    ));
                }
                if old.contains(number) && new.contains(number) {
                    return Err(format!("file {number} is in two directories: half a rename"));
                }
            }
            Operation::Rename { of } if call.acknowledged && history.acknowledged(of) => {
                let removal = number + 2 * super::operation::THREADS;
                let removed =
                    history.calls.contains_key(&removal) && operation(removal) == Operation::Unlink { of };
                if old.contains(&of) || !(new.contains(&of) || removed) {
                    return Err(format!("file {of}, whose rename had returned, is not in /e"));
                }
            }
            Operation::Unlink { of } if call.acknowledged && (old.contains(&of) || new.contains(&of)) => {
                return Err(format!("file {of} is there, but its removal had returned"));
            }
            _ => {}
        }
    }
    Ok(())
}
