//! Logging anew: cleaning as an ordinary writer.
//!
//! The living records of the oldest page are appended to the lane's own chain; then the page is dead and goes. So the first page of
//! a chain always moves on, tombstones behind it become droppable, and a log stays within a few times what is alive in it. Chains
//! that nobody holds any more are emptied in the same way, page by page, until they are gone.
//!
//! Invariants  I1  a page of data keeps its block and gets a version of its own, under its cell's lock, like any write: two records
//!                 never carry one version (D1). A name keeps its version: the copy says the same.
//!             I2  what cannot be logged anew here (a record that names an extent list, a tombstone that is still needed) keeps
//!                 its page.
//! Where       directories of every variant (their latch is held); files of `heddle`. The papers' variants would need their range
//!             lock here, inside the log lock: their files' logs are cleaned by whole dead pages alone.
//! Source      protocol review 8.3, P8.

use crate::core::Core;
use crate::file::heddle::{lock_pages, look};
use crate::file::resize::restate;
use crate::format::page::{PageHeader, SLOTS};
use crate::format::record::{Blocks, Found, Record, parse};
use crate::ids::{BlockNo, Extent, PageNo, Version};
use crate::inode::InodeRef;
use crate::lease::LaneGuard;
use crate::log::chain::{self, Chain};
use crate::log::clean::{Page, alive, list_of, maps_a_page, settle};
use crate::log::commit;
use heddle_vfs::{FileKind, Result};

/// Slots of one transaction here.
const BATCH_SLOTS: u32 = 24;

/// One page: of a chain that nobody holds, else the first of the lane's own.
pub fn step(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>, own: &Chain) {
    let directory = matches!(inode.vi.kind_perm(), Some((FileKind::Directory, _)));
    if core.locks.is_some() && !directory {
        return;
    }
    let idle = chain::existing(core, inode)
        .find(|c| !std::ptr::eq(*c, own) && c.oldest().is_some() && c.claim(guard.id));
    // What fails (no space) is tried again when the next page is closed.
    let _done = move_page(core, guard, inode, idle.unwrap_or(own), own);
    if let Some(idle) = idle {
        idle.unclaim();
    }
}

/// Logs what is alive in the first page of `from` anew, and drops the page.
fn move_page(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    from: &Chain,
    own: &Chain,
) -> Result<()> {
    let Some(page) = from.head().filter(|p| !std::ptr::eq(from, own) || *p != own.tail().0) else {
        return Ok(());
    };
    let Some(found) = read_page(core, inode, page, from) else { return Ok(()) };
    if !found.movable {
        return Ok(());
    }
    move_names(core, guard, inode, &found.names)?;
    if found.state {
        restate(core, guard, inode)?;
    }
    for write in &found.writes {
        move_write(core, guard, inode, write)?;
    }
    // Cells that were held by others kept their version: then the page is still needed.
    if read_page(core, inode, page, from).is_none_or(|again| again.state || !again.writes.is_empty()) {
        return Ok(());
    }
    chain::unlink_page_unfenced(core, inode, from, None, page)?;
    let mut garbage = found.lists;
    garbage.push(Extent { block: page, count: 1 });
    from.clean_after.store(0, std::sync::atomic::Ordering::Relaxed); // ORDERING: Relaxed, I1 of `chain`.
    settle(core, guard, from, garbage);
    Ok(())
}

/// What is alive in a page.
#[derive(Default)]
struct Alive {
    names: Vec<Record>,
    writes: Vec<Record>,
    lists: Vec<Extent>,
    /// A file's last state.
    state: bool,
    movable: bool,
}

fn read_page(core: &Core, inode: InodeRef<'_>, page: BlockNo, from: &Chain) -> Option<Alive> {
    let mut words = Page::empty();
    words.load(core, page);
    let header = PageHeader::decode(core.seed, &words.line(0))?;
    let seed = header.record_seed(core.seed);
    let mut out = Alive { movable: true, ..Alive::default() };
    let mut slot = 1;
    while slot <= SLOTS {
        match parse(seed, inode.id(), slot, |s| words.line(s)) {
            Found::Blank => slot += 1,
            Found::Whole { record, slots, .. } => {
                slot += slots;
                out.lists.extend(list_of(core, inode, &record)?);
                if alive(core, inode, &record, Some(from)) {
                    out.add(core, inode, record);
                }
            }
            _ => return None,
        }
    }
    Some(out)
}

impl Alive {
    fn add(&mut self, core: &Core, inode: InodeRef<'_>, record: Record) {
        match record {
            // A copy says the same, wherever it stands.
            Record::Name { removed: false, .. } | Record::Xattrs { .. } => self.names.push(record),
            Record::State(_) if matches!(inode.vi.kind_perm(), Some((FileKind::Directory, _))) => {
                self.names.push(record)
            }
            Record::Write { page, pages, blocks, version, .. } => {
                let lists = matches!(blocks, Blocks::List(_));
                // One that stays for the size alone cannot be moved as a write.
                let maps = maps_a_page(core, inode, page, PageNo(page.0 + pages), version);
                self.movable &= maps && !lists;
                self.writes.push(record);
            }
            Record::State(_) => self.state = true,
            Record::Name { .. } | Record::Punch { .. } | Record::Remap { .. } => self.movable = false,
        }
    }
}

/// Names and states of a directory, whose latch is held: the same records once more.
fn move_names(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>, names: &[Record]) -> Result<()> {
    let mut rest = names;
    while !rest.is_empty() {
        let mut slots = 0;
        let fits = rest.iter().take_while(|r| {
            slots += r.slots_max();
            slots <= BATCH_SLOTS
        });
        let n = fits.count();
        let (batch, later) = rest.split_at(n);
        if commit::prepare(core, guard, inode, BATCH_SLOTS)? {
            // PERSIST: a fresh log page is empty before it is linked.
            core.region.fence();
        }
        commit::commit(core, guard, inode, batch)?;
        rest = later;
    }
    Ok(())
}

/// The pages that a write record still maps, run by run, at versions of their own (I1).
fn move_write(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>, record: &Record) -> Result<()> {
    let Record::Write { page, pages, version, .. } = *record else { return Ok(()) };
    let end = PageNo(page.0 + pages);
    let current = |p: PageNo| look(core, inode, p).1 == version;
    let mut at = page;
    while at < end {
        if !current(at) {
            at = PageNo(at.0 + 1);
            continue;
        }
        let mut stop = at;
        while stop < end && current(stop) {
            stop = PageNo(stop.0 + 1);
        }
        move_run(core, guard, inode, record, at, stop)?;
        at = stop;
    }
    Ok(())
}

fn move_run(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    record: &Record,
    first: PageNo,
    stop: PageNo,
) -> Result<()> {
    let Record::Write { page, pages, blocks, end_in_last_page, version, .. } = *record else { return Ok(()) };
    let skip = first.0 - page.0;
    let blocks = match blocks {
        Blocks::At(block) => Blocks::At(block.plus(skip)),
        Blocks::Unwritten(block) => Blocks::Unwritten(block.plus(skip)),
        Blocks::List(_) => return Ok(()),
    };
    if commit::prepare(core, guard, inode, 1)? {
        // PERSIST: a fresh log page is empty before it is linked.
        core.region.fence();
    }
    guard.lane.begin();
    let locked = match lock_pages(core, guard, inode, first, stop) {
        Ok(locked) => locked,
        Err(error) => {
            guard.lane.end();
            return Err(error);
        }
    };
    let unchanged = (first.0..stop.0).all(|p| look(core, inode, PageNo(p)).1 == version);
    let last = stop.0 == page.0 + pages;
    let again = Record::Write {
        page: first,
        pages: stop.0 - first.0,
        blocks,
        end_in_last_page: if last || end_in_last_page == 0 {
            end_in_last_page
        } else {
            heddle_pmem::BLOCK_BYTES as u32
        },
        version: version.max(inode.vi.floor()).next(),
        mtime: inode.vi.times()[0],
        generation: inode.vi.change(),
    };
    let done = if unchanged {
        commit::commit(core, guard, inode, std::slice::from_ref(&again)).map(|_| ())
    } else {
        Ok(())
    };
    if done.is_err() || !unchanged {
        locked.unlock(core);
        guard.lane.end();
        return done;
    }
    guard.lane.commit();
    publish_again(core, inode, locked, &again);
    guard.lane.end();
    Ok(())
}

fn publish_again(core: &Core, inode: InodeRef<'_>, locked: crate::file::heddle::Locked<'_>, again: &Record) {
    let Record::Write { page, version, .. } = *again else { return };
    let map = |n: u64| look(core, inode, PageNo(page.0 + n)).0;
    let mut replaced = Vec::new();
    locked.publish(core, inode, Version(version.0), map, &mut replaced);
    debug_assert!(replaced.is_empty());
}
