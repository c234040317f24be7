//! Trees of files: one made to be copied, and what a tree is, file by file.

use std::collections::BTreeMap;
use std::fs::{self, File, FileTimes, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};

/// Makes a tree of so many files, the same each time: lengths from nothing to 100 KB, holes, links of both kinds, modes, times, long names.
pub fn make(dir: &Path, files: u64) -> Result<()> {
    fs::create_dir(dir)?;
    for n in 0..files {
        let below = dir.join(format!("d{}/e{}", n % 17, n % 5));
        fs::create_dir_all(&below)?;
        let path = below.join(match n % 50 {
            0 => format!("{}{n}", "long-".repeat(40)),
            _ => format!("file {n}"),
        });
        let file = File::create(&path)?;
        file.write_all_at(&bytes_of(n, (n * n * 31 % 100_000) as usize), 0)?;
        if n % 23 == 0 {
            file.write_all_at(b"behind a hole", 1 << 20)?;
        }
        file.set_times(
            FileTimes::new()
                .set_modified(UNIX_EPOCH + Duration::new(1_000_000_000 + n * 1000, n as u32 * 1001)),
        )?;
        fs::set_permissions(&path, Permissions::from_mode([0o644, 0o600, 0o755, 0o444][n as usize % 4]))?;
        match n % 11 {
            0 => symlink(path.file_name().context("a name")?, below.join(format!("link{n}")))?,
            1 => fs::hard_link(&path, below.join(format!("hard{n}")))?,
            _ => {}
        }
    }
    Ok(())
}

/// Bytes that follow from a number.
pub fn bytes_of(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// A file as a program that copies it sees it. The inode number tells which names are one file, nothing else.
#[derive(PartialEq, Eq, Debug)]
struct Leaf {
    mode: u32,
    owner: (u32, u32),
    links: u64,
    len: u64,
    mtime: (i64, i64),
    content: Vec<u8>,
}

/// Fails with the first difference of two trees: names, modes, owners, times, links, content. How many names there are.
pub fn compare(found: &Path, expected: &Path) -> Result<usize> {
    let (found, expected) = (leaves(found)?, leaves(expected)?);
    for (name, leaf) in &expected {
        let there = found.get(name).with_context(|| format!("{name} is missing"))?;
        let same_but_content =
            Leaf { content: Vec::new(), ..short(there) } == Leaf { content: Vec::new(), ..short(leaf) };
        ensure!(same_but_content, "{name}: {:?} instead of {:?}", short(there), short(leaf));
        ensure!(
            there.content == leaf.content,
            "{name}: its content differs at byte {}",
            first_difference(&there.content, &leaf.content)
        );
    }
    let more = found.keys().find(|name| !expected.contains_key(*name));
    ensure!(more.is_none(), "{more:?} should not be there");
    Ok(expected.len())
}

/// Fails unless every byte of every file of the tree is this one. How many files there are.
pub fn bytes_are(dir: &Path, byte: u8) -> Result<usize> {
    let leaves = leaves(dir)?;
    let files = leaves.iter().filter(|(_, leaf)| leaf.len > 0);
    for (name, leaf) in files.clone() {
        let other = leaf.content.iter().position(|b| *b != byte);
        ensure!(other.is_none(), "{name}: byte {other:?} is not {byte}");
        ensure!(
            leaf.content.len() as u64 == leaf.len,
            "{name}: {} bytes of {} can be read",
            leaf.content.len(),
            leaf.len
        );
    }
    Ok(files.count())
}

fn short(leaf: &Leaf) -> Leaf {
    Leaf { content: Vec::new(), ..*leaf }
}

fn first_difference(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).position(|(a, b)| a != b).unwrap_or(a.len().min(b.len()))
}

fn leaves(dir: &Path) -> Result<BTreeMap<String, Leaf>> {
    let mut all = BTreeMap::new();
    walk(dir, "", &mut all)?;
    Ok(all)
}

fn walk(dir: &Path, prefix: &str, all: &mut BTreeMap<String, Leaf>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))? {
        let entry = entry?;
        let (path, meta) = (entry.path(), entry.metadata()?);
        let name = format!("{prefix}/{}", entry.file_name().to_string_lossy());
        let content = match () {
            () if meta.is_symlink() => fs::read_link(&path)?.as_os_str().as_bytes().to_vec(),
            () if meta.is_dir() => Vec::new(),
            () => fs::read(&path).with_context(|| format!("cannot read {name}"))?,
        };
        if meta.is_dir() {
            walk(&path, &name, all)?;
        }
        // A directory's length and links are its file system's affair.
        let (links, len) = if meta.is_dir() { (0, 0) } else { (meta.nlink(), meta.len()) };
        let leaf = Leaf {
            mode: meta.mode(),
            owner: (meta.uid(), meta.gid()),
            links,
            len,
            mtime: (meta.mtime(), meta.mtime_nsec()),
            content,
        };
        all.insert(name, leaf);
    }
    Ok(())
}
