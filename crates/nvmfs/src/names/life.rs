//! Birth and death of inodes.
//!
//! Invariants  I1  an inode lives as long as it has a name or an open handle. The call that removes the last of them frees it.
//!             I2  link counts are not on media: recovery counts names (docs/protocol.md D19).
//! Crash order C1  the slot of a new inode is written before the fence that makes its first name durable. It counts only if a
//!                 name carries its generation.
//!             C2  blocks of a dead inode are free only after the removal of its last name is durable. Its slot is zeroed and fenced
//!                 before it is handed out again.

use crate::alloc::itable;
use crate::file::blocks::{data_blocks, log_blocks};
use crate::file::resize::{NewAttributes, set_all};
use crate::format::inode::{FoundInode, INODE_BYTES, InodeBase};
use crate::format::layout::{chunk_of, inode_pos};
use crate::ids::{InodeId, Version};
use crate::log::chain;
use crate::names::table;
use crate::planted::{Breach, Bug, Met, breaks, flushed_unless, met, planted};
use crate::state::core::Core;
use crate::state::inode::{Birth, InodeRef, List};
use crate::state::lane::Freeing;
use crate::state::lease::LaneGuard;
use crate::state::living::lives_on;
use crate::state::{opens, papers, wait};
use crate::xattr;
use heddle_arena::sync::fence_after_locked;
use heddle_vfs::xattr::Xattrs;
use heddle_vfs::{Cred, Error, FileKind, NewNode, Result};
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};

/// Takes a slot and writes the inode into it, without a fence (C1). Its volatile form is complete, but it has
/// no name.
pub fn make<'c>(
    core: &'c Core,
    guard: &mut LaneGuard<'_>,
    cred: &Cred,
    parent: InodeRef<'_>,
    node: &NewNode<'_>,
) -> Result<InodeRef<'c>> {
    let id = itable::take(core, guard)?;
    let inode = core.slot(id.ino).ok_or(Error::NoInodes)?;
    let now = crate::clock::exact();
    // A directory with the set-group bit passes its group to new inodes, and the bit to new directories.
    let (_, parent_perm) = parent.volatile.kind_perm().ok_or(Error::NotFound)?;
    let inherits = parent_perm & 0o2000 != 0;
    let gid = if inherits { parent.volatile.owner().1 } else { cred.gid };
    let default = xattr::list(core, parent, List::Default);
    let (perm, xattrs) = Xattrs::for_new(default.as_ref(), cred, node.kind, node.perm & 0o7777);
    let perm = match node.kind {
        FileKind::Directory if inherits => perm | 0o2000,
        _ if node.perm & 0o2010 == 0o2010 && !cred.is_root() && !cred.in_group(gid) => perm & 0o5777,
        _ => perm,
    };
    let device = matches!(node.kind, FileKind::CharDevice | FileKind::BlockDevice);
    let rdev = if device { node.rdev } else { 0 };
    let base = InodeBase { id, kind: node.kind, perm, uid: cred.uid, gid, rdev, crtime: now };
    let pos = inode_pos(core.chunk_block(id.ino), chunk_of(id.ino).1);
    // Noted first: otherwise a slot on media without a volatile inode would remain when the image is
    // unmounted.
    guard.lane.intent.note_creating(id);
    if planted(Bug::InodeNotFlushed) {
        // PERSIST: part of a planted bug.
        flushed_unless(Bug::InodeNotFlushed, || core.region.store_line(pos, &base.encode(core.seed)));
    } else {
        core.region.nt_line(pos, &base.encode(core.seed));
    }
    let birth = Birth { generation: id.generation, kind: node.kind, perm, uid: cred.uid, gid, rdev, now };
    // The link that its first name will be: a call that tries to free the inode now must find it in use.
    // ORDERING: Release, published by `be_born`: a call that frees an inode claims its generation first, then
    // reads the links.
    inode.volatile.nlink.store(1, Release);
    inode.volatile.be_born(&birth);
    if node.kind == FileKind::Directory
        && let Err(error) = table::make(core, guard.own, inode, 0, Version(0))
    {
        unmake(core, guard, inode);
        return Err(error);
    }
    if !xattrs.is_empty()
        && let Err(error) = set_all(core, guard, inode, &NewAttributes::default(), Some(&xattrs))
    {
        unmake(core, guard, inode);
        return Err(error);
    }
    Ok(inode)
}

/// Makes a regular file without a name. Its slot is durable, for any thread that names the file later. The
/// file counts one link until the caller has counted a handle and removed that link.
pub fn make_unnamed<'c>(
    core: &'c Core,
    guard: &mut LaneGuard<'_>,
    cred: &Cred,
    dir: InodeRef<'_>,
    perm: u16,
    linkable: bool,
) -> Result<InodeRef<'c>> {
    if dir.volatile.nlink.load(SeqCst) == 0 {
        return Err(Error::NotFound);
    }
    let node = NewNode { kind: FileKind::Regular, perm, rdev: 0, target: &[] };
    let mut made = Err(Error::NoInodes);
    flushed_unless(Bug::UnnamedNotFlushed, || made = make(core, guard, cred, dir, &node));
    let inode = made?;
    // PERSIST: C1: another thread may name the file, and this thread's slot is not ordered by that thread's
    // fence.
    core.region.fence();
    inode.volatile.set_linkable(linkable);
    met(Met::Unnamed);
    Ok(inode)
}

/// Removes an inode that never got a name.
pub fn unmake(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>) {
    inode.volatile.nlink.store(0, SeqCst);
    // Before the note goes, and that before the end: the slot may be another inode's then.
    guard.lane.intent.note_freeing(inode.ino.0, Freeing::Asked);
    guard.lane.intent.created();
    end_once(core, guard, inode);
}

/// Frees an inode that has neither name nor handle. Damage on the way stops further changes to the file
/// system; no block is freed twice.
pub fn end(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>) {
    guard.lane.intent.note_freeing(inode.ino.0, Freeing::Begun);
    // A settler ends other inodes, too.
    if guard.lane.intent.creating().is_some_and(|(creating, _)| creating == inode.id()) {
        guard.lane.intent.created();
    }
    end_begun(core, guard, inode);
    guard.lane.intent.note_freeing(0, Freeing::None);
}

fn end_begun(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>) {
    let mut blocks = data_blocks(core, inode);
    match log_blocks(core, inode) {
        Ok(log) => blocks.extend(log),
        // The rest of the log stays allocated until fsck; the damage has been noted.
        Err(_) => blocks.clear(),
    }
    let (ino, generation) = (inode.ino, inode.volatile.generation());
    free_volatile(core, guard, inode);
    dies(core, guard.id, inode);
    forget_chain(guard, InodeId { ino, generation });
    if blocks.is_empty() && itable::give_later(core, guard.own, ino) {
        return;
    }
    // PERSIST: C2: the slot is zero before it can be taken again; D15 for the blocks.
    core.region.fence();
    // After the fence above any lane may use them at once (D15).
    for extent in blocks {
        core.free_map().give(extent);
    }
    itable::settle(core, guard.own);
    itable::give(core, guard.own, ino);
}

/// Removes the inode from memory and from media. The claim goes last: as long as it stands, the settler of
/// this lane repeats these steps.
pub fn dies(core: &Core, lane: u16, inode: InodeRef<'_>) {
    zero_slot(core, inode);
    inode.volatile.die();
    inode.volatile.forget_claim(opens::claims_as(core, lane));
}

/// Returns true if the slot on media has this generation of the inode, or was being written.
pub fn slot_has(core: &Core, inode: InodeRef<'_>, generation: u64) -> bool {
    let line = core.region.line(inode_pos(core.chunk_block(inode.ino), chunk_of(inode.ino).1));
    match InodeBase::decode(core.seed, inode.ino, &line) {
        FoundInode::Blank => false,
        FoundInode::Torn | FoundInode::Damaged => true,
        FoundInode::Whole(base) => base.id.generation == generation,
    }
}

/// Zeroes the inode's slot on media.
pub fn zero_slot(core: &Core, inode: InodeRef<'_>) {
    if !planted(Bug::SlotNotZeroed) {
        core.region.nt_zero(inode_pos(core.chunk_block(inode.ino), chunk_of(inode.ino).1), INODE_BYTES);
    }
}

fn forget_chain(guard: &mut LaneGuard<'_>, id: InodeId) {
    for (way, held) in guard.own.chains.iter_mut().enumerate() {
        if held.ino == id.ino.0 && held.generation == id.generation {
            *held = crate::state::lane::HeldChain::default();
            guard.own.chains_busy &= !(1 << way);
        }
    }
}

fn free_volatile(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>) {
    match inode.volatile.kind_perm() {
        Some((FileKind::Directory, _)) => table::free(core, inode),
        _ => papers::free_locks(core, guard.own, inode),
    }
    inode.volatile.index().clear(&core.arena);
    xattr::forget(core, guard.own, inode);
    chain::retire_chains(core, inode);
}

/// Removes one name from the count. Frees the inode if that was the last (I1).
pub fn drop_name(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>) {
    // A count of zero rises again only for a file that was made without a name and never had one. Of any other
    // file a settler can tell whether the last name was taken from the count. With other names it cannot tell. The count
    // then stays one too high until the next mount; one too low would free a living file.
    // ORDERING: Relaxed, a guess that the CAS checks.
    let mut now = inode.volatile.nlink.load(Relaxed);
    loop {
        let last = now == 1 && !inode.volatile.linkable();
        guard.lane.intent.note_lowering(last.then(|| inode.id()));
        // ORDERING: Relaxed on failure: a guess again.
        match inode.volatile.nlink.compare_exchange(now, now.wrapping_sub(1), SeqCst, Relaxed) {
            Ok(_) => break,
            Err(other) => now = other,
        }
    }
    if now == 1 {
        guard.lane.intent.note_freeing(inode.ino.0, Freeing::Asked);
        guard.lane.intent.note_lowering(None);
        if breaks(Breach::EndsWhileOpen) {
            return end(core, guard, inode);
        }
        return end_once(core, guard, inode);
    }
    guard.lane.intent.note_lowering(None);
}

/// Counts a handle of the inode of this generation.
///
/// # Errors
/// [`Error::Stale`] if it is dead, [`Error::NoMemory`] if the lane has no room for one more file.
pub fn open(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>, generation: u64) -> Result<()> {
    // An inode that died before this call has generation 0.
    if generation == 0 {
        return Err(Error::Stale);
    }
    let mut turns = wait::Retries::default();
    while !opens::open(core, guard.id, inode, generation)? {
        drop_open(core, guard, inode, generation);
        if !lives_on(core, inode, generation) {
            return Err(Error::Stale);
        }
        turns.again(core, || format!("whether inode {} lives", inode.ino.0))?;
    }
    Ok(())
}

/// Removes one handle from the count. Frees the inode if that was the last reference (I1).
pub fn drop_open(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>, generation: u64) {
    opens::lower(core, guard.id, inode, generation);
    // O2 of `opens`.
    fence_after_locked();
    // Also if the slot belonged to another inode for a moment: the count may have kept that one from being
    // freed.
    let stays = breaks(Breach::NamelessStays) && inode.volatile.linkable();
    if inode.volatile.nlink.load(SeqCst) == 0 && !stays {
        end_once(core, guard, inode);
    }
}

/// Frees an inode without names and handles once. The last name and the last handle may be removed at the
/// same time, and a late `open` may be about to fail; exactly one of these calls frees the inode.
pub fn end_once(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>) {
    if opens::claim_end(core, guard.id, inode) {
        end(core, guard, inode);
    }
    guard.lane.intent.note_freeing(0, Freeing::None);
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::state::lane::HeldChain;
    use crate::state::lease::enter;
    use crate::variant::Variant;
    use crate::volume::{MountOptions, Volume, format, mount};
    use heddle_pmem::Region;
    use heddle_vfs::Ino;
    use heddle_vfs::short::Short;

    fn volume() -> Volume {
        let region = Region::anonymous(8 << 20).unwrap();
        format(&region, Variant::Heddle).unwrap();
        mount(region, &MountOptions { arena_bytes: 64 << 20, ..MountOptions::default() }).unwrap()
    }

    #[test]
    fn a_slot_holds_its_inode_until_it_is_zeroed() {
        let volume = volume();
        let fs = volume.fs();
        let file = fs.new_file(Ino::ROOT, "f");
        let core = &fs.core;
        let inode = core.inode(file.ino).unwrap();
        let has = |generation| slot_has(core, inode, generation);
        assert_eq!((has(file.token), has(file.token + 1), has(0)), (true, false, false));
        let at = inode_pos(core.chunk_block(inode.ino), chunk_of(inode.ino).1);
        core.region.store_u64(at, core.region.load_u64(at) ^ 1);
        assert!(has(file.token + 1), "half written, of whatever inode");
        zero_slot(core, inode);
        assert_eq!((core.region.line(at), has(file.token)), ([0; 8], false));
        volume.abandon();
    }

    #[test]
    fn a_lane_forgets_the_chains_of_a_dead_inode_alone() {
        let volume = volume();
        let core = volume.fs().core;
        let mut guard = enter(&core).unwrap();
        let held = |ino, generation| HeldChain { ino, generation, chain: 64 };
        let before = [held(5, 2), held(5, 3), held(6, 2), held(5, 2), held(7, 9)];
        guard.own.chains[..5].copy_from_slice(&before);
        guard.own.chains_busy = 0b11011;
        forget_chain(&mut guard, InodeId { ino: Ino(5), generation: 2 });
        let left = guard.own.chains[..6].iter().map(|held| (held.ino, held.generation));
        assert!(left.eq([(0, 0), (5, 3), (6, 2), (0, 0), (7, 9), (0, 0)]));
        assert_eq!(guard.own.chains_busy, 0b10010);
        guard.own.chains[..5].fill(HeldChain::default());
        guard.own.chains_busy = 0;
        drop(guard);
        volume.abandon();
    }
}
