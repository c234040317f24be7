//! Statistics for engines without counters: calls by kind, their bytes, and the time of one call in 64.
//!
//! State       words in shards, one shard per thread for the first sixteen threads: few threads share no cache line here.

use heddle_nvmfs::counters::{
    Counters, Gauges, KINDS, Kind, SAMPLED_EVERY, SPANS, Spans, Totals, WORDS, span_of,
};
use heddle_vfs::{
    Attr, Cookie, Cred, DirEntry, FileKind, FileSystem, Handle, Ino, Listing, Name, NewNode, OpenFlags,
    Permission, RangeOp, RenameMode, Result, SeekTarget, SetAttr, SetXattr, StatFs, XattrName,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

const SHARDS: usize = 16;
const TALLY_WORDS: usize = 4;

#[repr(align(128))]
struct Shard {
    words: [AtomicU64; WORDS],
    spans: [[AtomicU64; SPANS]; KINDS],
}

impl Default for Shard {
    fn default() -> Shard {
        Shard {
            words: [const { AtomicU64::new(0) }; WORDS],
            spans: [const { [const { AtomicU64::new(0) }; SPANS] }; KINDS],
        }
    }
}

/// An engine whose calls are counted.
pub struct Counted {
    fs: Arc<dyn FileSystem>,
    /// True once the engine refuses all changes.
    has_failed: Box<dyn Fn() -> bool + Send + Sync>,
    shards: Box<[Shard]>,
}

/// Adds to a word of a shard.
fn add(word: &AtomicU64, n: u64) -> u64 {
    // ORDERING: Relaxed, each word is read independently.
    word.fetch_add(n, Relaxed)
}

impl Counted {
    pub fn new(fs: Arc<dyn FileSystem>, has_failed: impl Fn() -> bool + Send + Sync + 'static) -> Counted {
        let shards = (0..SHARDS).map(|_| Shard::default()).collect();
        Counted { fs, has_failed: Box::new(has_failed), shards }
    }

    fn shard(&self) -> &Shard {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            // ORDERING: Relaxed, any unique number does.
            static MINE: usize = NEXT.fetch_add(1, Relaxed) % SHARDS;
        }
        &self.shards[MINE.with(|mine| *mine)]
    }

    fn count<T>(&self, kind: Kind, call: impl FnOnce() -> T) -> T {
        let shard = self.shard();
        let tally = &shard.words[kind as usize * TALLY_WORDS..][..TALLY_WORDS];
        let timed = add(&tally[0], 1).is_multiple_of(SAMPLED_EVERY).then(Instant::now);
        let done = call();
        if let Some(began) = timed {
            let ns = began.elapsed().as_nanos() as u64;
            add(&tally[2], 1);
            add(&tally[3], ns);
            add(&shard.spans[kind as usize][span_of(ns)], 1);
        }
        done
    }

    /// A call that returns the number of bytes moved.
    fn moved(&self, kind: Kind, call: impl FnOnce() -> Result<usize>) -> Result<usize> {
        let done = self.count(kind, call);
        if let Ok(bytes) = &done {
            add(&self.shard().words[kind as usize * TALLY_WORDS + 1], *bytes as u64);
        }
        done
    }

    /// Takes a sample.
    pub fn reading(&self) -> Counters {
        let mut totals = Totals::default();
        let mut spans: Box<Spans> = Box::new([[0; SPANS]; KINDS]);
        for shard in &self.shards {
            let sums = totals.0.iter_mut().chain(spans.iter_mut().flatten());
            let words = shard.words.iter().chain(shard.spans.iter().flatten());
            // ORDERING: Relaxed, as in `add`.
            sums.zip(words).for_each(|(sum, word)| *sum += word.load(Relaxed));
        }
        let space = self.fs.statfs().ok();
        let of = |what: fn(&StatFs) -> u64| space.as_ref().map_or(0, what);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let pid = std::process::id();
        let gauges = Gauges {
            now_ns: now.as_nanos() as u64,
            daemon_pid: pid.into(),
            blocks_total: of(|space| space.blocks_total),
            blocks_free: of(|space| space.blocks_free),
            inodes_total: of(|space| space.inodes_total),
            inodes_free: of(|space| space.inodes_free),
            attached: 0,
            settled: 0,
            damaged: (self.has_failed)().into(),
            // Writes promise nothing: an fsync does.
            durability: 0,
            huge_bytes: u64::MAX,
        };
        let client = heddle_nvmfs::counters::Client { pid, threads: 1, totals };
        Counters { totals, spans, clients: vec![client], gauges }
    }
}

impl FileSystem for Counted {
    fn statfs(&self) -> Result<StatFs> {
        self.fs.statfs()
    }

    fn lookup(&self, cred: &Cred, parent: Ino, name: Name<'_>) -> Result<Attr> {
        self.count(Kind::Look, || self.fs.lookup(cred, parent, name))
    }

    fn step(&self, cred: &Cred, parent: Ino, name: Name<'_>) -> Result<(Ino, FileKind)> {
        self.count(Kind::Look, || self.fs.step(cred, parent, name))
    }

    fn parent(&self, dir: Ino) -> Result<Ino> {
        self.fs.parent(dir)
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.count(Kind::Look, || self.fs.getattr(ino))
    }

    fn access(&self, cred: &Cred, ino: Ino, want: Permission) -> Result<()> {
        self.fs.access(cred, ino, want)
    }

    fn setattr(&self, cred: &Cred, ino: Ino, handle: Option<&Handle>, set: &SetAttr) -> Result<Attr> {
        self.count(Kind::Change, || self.fs.setattr(cred, ino, handle, set))
    }

    fn make(&self, cred: &Cred, parent: Ino, name: Name<'_>, node: NewNode<'_>) -> Result<Attr> {
        self.count(Kind::Create, || self.fs.make(cred, parent, name, node))
    }

    fn create(
        &self,
        cred: &Cred,
        parent: Ino,
        name: Name<'_>,
        perm: u16,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        self.count(Kind::Create, || self.fs.create(cred, parent, name, perm, flags))
    }

    fn tmpfile(
        &self,
        cred: &Cred,
        dir: Ino,
        perm: u16,
        flags: OpenFlags,
        linkable: bool,
    ) -> Result<(Attr, Handle)> {
        self.count(Kind::Create, || self.fs.tmpfile(cred, dir, perm, flags, linkable))
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.count(Kind::Read, || self.fs.readlink(ino))
    }

    fn link(&self, cred: &Cred, ino: Ino, parent: Ino, name: Name<'_>) -> Result<Attr> {
        self.count(Kind::Create, || self.fs.link(cred, ino, parent, name))
    }

    fn unlink(&self, cred: &Cred, parent: Ino, name: Name<'_>) -> Result<()> {
        self.count(Kind::Remove, || self.fs.unlink(cred, parent, name))
    }

    fn rmdir(&self, cred: &Cred, parent: Ino, name: Name<'_>) -> Result<()> {
        self.count(Kind::Remove, || self.fs.rmdir(cred, parent, name))
    }

    fn rename(
        &self,
        cred: &Cred,
        parent: Ino,
        name: Name<'_>,
        new_parent: Ino,
        new_name: Name<'_>,
        mode: RenameMode,
    ) -> Result<()> {
        self.count(Kind::Rename, || self.fs.rename(cred, parent, name, new_parent, new_name, mode))
    }

    fn open(&self, cred: &Cred, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        self.count(Kind::Open, || self.fs.open(cred, ino, flags))
    }

    fn hold(&self, parent: Ino, name: Name<'_>) -> Result<Handle> {
        self.fs.hold(parent, name)
    }

    fn release(&self, handle: Handle) {
        self.count(Kind::Close, || self.fs.release(handle));
    }

    fn read(&self, handle: &Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.moved(Kind::Read, || self.fs.read(handle, offset, buf))
    }

    fn write(&self, handle: &Handle, offset: u64, buf: &[u8]) -> Result<usize> {
        self.moved(Kind::Write, || self.fs.write(handle, offset, buf))
    }

    fn append(&self, handle: &Handle, buf: &[u8]) -> Result<u64> {
        let mut at = 0;
        self.moved(Kind::Write, || {
            at = self.fs.append(handle, buf)?;
            Ok(buf.len())
        })?;
        Ok(at)
    }

    fn size_max_bytes(&self, ino: Ino) -> Result<u64> {
        self.fs.size_max_bytes(ino)
    }

    fn fsync(&self, handle: &Handle, data_only: bool) -> Result<()> {
        self.count(Kind::Sync, || self.fs.fsync(handle, data_only))
    }

    fn note_kernel_pages(&self, handle: &Handle, keeps: bool) {
        self.fs.note_kernel_pages(handle, keeps);
    }

    fn expect_stores(&self, handle: &Handle, offset: u64, len_bytes: u64) -> Result<()> {
        self.fs.expect_stores(handle, offset, len_bytes)
    }

    fn sync(&self) -> Result<()> {
        self.count(Kind::Sync, || self.fs.sync())
    }

    fn fallocate(&self, handle: &Handle, op: RangeOp, offset: u64, len_bytes: u64) -> Result<()> {
        self.count(Kind::Allocate, || self.fs.fallocate(handle, op, offset, len_bytes))
    }

    fn copy_range(
        &self,
        from: &Handle,
        offset_from: u64,
        to: &Handle,
        offset_to: u64,
        len_bytes: u64,
    ) -> Result<u64> {
        let copy = || self.fs.copy_range(from, offset_from, to, offset_to, len_bytes).map(|n| n as usize);
        self.moved(Kind::Write, copy).map(|n| n as u64)
    }

    fn getxattr(&self, cred: &Cred, ino: Ino, name: XattrName<'_>) -> Result<Vec<u8>> {
        self.count(Kind::Look, || self.fs.getxattr(cred, ino, name))
    }

    fn setxattr(
        &self,
        cred: &Cred,
        ino: Ino,
        name: XattrName<'_>,
        value: &[u8],
        how: SetXattr,
    ) -> Result<()> {
        self.count(Kind::Change, || self.fs.setxattr(cred, ino, name, value, how))
    }

    fn listxattr(&self, cred: &Cred, ino: Ino) -> Result<Vec<u8>> {
        self.count(Kind::Look, || self.fs.listxattr(cred, ino))
    }

    fn removexattr(&self, cred: &Cred, ino: Ino, name: XattrName<'_>) -> Result<()> {
        self.count(Kind::Change, || self.fs.removexattr(cred, ino, name))
    }

    fn seek(&self, handle: &Handle, target: SeekTarget, offset: u64) -> Result<u64> {
        self.fs.seek(handle, target, offset)
    }

    fn readdir(&self, handle: &Handle, from: Cookie, listing: &mut Listing) -> Result<()> {
        self.count(Kind::List, || self.fs.readdir(handle, from, listing))
    }

    fn each_entry(
        &self,
        handle: &Handle,
        from: Cookie,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.count(Kind::List, || self.fs.each_entry(handle, from, each))
    }
}
