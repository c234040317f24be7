//! A thread that asks through the mount while it is inside a call of the engine.
//!
//! A program under the bypass has installed a signal handler without the C library, so the handler was not delayed. It has
//! interrupted a call, which may hold cells or the EOF latch of a file, and now asks the daemon for a change of that file. If
//! the daemon waited for these locks, it would wait for ever: the call goes on only after the daemon's answer.

use crate::state::core::Core;
use crate::state::inode::InodeRef;
use crate::state::lane::Lane;
use crate::state::lease::lanes;
use crate::state::papers::one_process;
use crate::state::wait::holders;
use heddle_arena::{Holder, LaneId};
use heddle_vfs::Ino;
use std::sync::atomic::Ordering::SeqCst;

/// Returns true if this thread, in this process's numbering, is inside a call that may hold locks of this inode. The thread
/// waits for the answer, so the result stays true. A thread of another PID namespace is not recognised.
pub fn has_interrupted_itself(core: &Core, task: u32, ino: Ino) -> bool {
    // Most mounts have no other processes: then no lane is looked at.
    if task == 0 || one_process(core) || core.root().attached.load(SeqCst) == 0 {
        return false;
    }
    let Some(inode) = core.slot(ino) else { return false };
    let is_inside = |lane: u16| {
        let holder = core.lane_table().holder(&core.arena, LaneId(lane));
        // In this order: the first check is one word, and the last one reads `/proc`.
        holder.is_some_and(|holder| {
            holder.thread() == task
                && may_hold_locks_of(core, core.lane(lane), inode)
                && is_its_holder(core, holder, task)
        })
    };
    lanes(core).any(is_inside)
}

fn may_hold_locks_of(core: &Core, lane: &Lane, inode: InodeRef<'_>) -> bool {
    let eof = core.arena.offset_of(&inode.volatile.eof).raw();
    !lane.state().idle() && lane.intent.cells().0 == inode.ino.0 || lane.intent.latches().any(|at| at == eof)
}

/// Returns true if the thread is the holder, and not one of another PID namespace with the same number.
fn is_its_holder(core: &Core, holder: Holder, task: u32) -> bool {
    let processes = holders::of(core, holder.process()).unwrap_or_default();
    processes.iter().any(|process| process.task(holder.thread()) == Some(task))
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::ids::PageNo;
    use crate::state::lease;
    use crate::variant::Variant;
    use crate::volume::{MountOptions, format, mount};
    use heddle_pmem::Region;
    use heddle_vfs::FileSystem;
    use heddle_vfs::short::Short;

    #[test]
    fn a_thread_is_recognised_while_its_call_may_hold_the_files_locks() {
        for variant in [Variant::Heddle, Variant::NovaArray] {
            let region = Region::anonymous(8 << 20).unwrap();
            format(&region, variant).unwrap();
            let options = MountOptions { arena_bytes: 64 << 20, ..MountOptions::default() };
            let volume = mount(region, &options).unwrap();
            let fs = volume.fs();
            let [file, other] = ["f", "g"].map(|name| fs.new_file(Ino::ROOT, name));
            let core = &fs.core;
            let inode = core.inode(file.ino).unwrap();
            let me = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            let guard = lease::enter(core).unwrap();
            let (lane, asks) = (guard.lane, |task, ino| has_interrupted_itself(core, task, ino));
            lane.begin(file.ino, PageNo(0), PageNo(1));
            assert!(!asks(me, file.ino), "no other process has come");
            core.root().attached.store(1, SeqCst);
            // The papers' variants have no other processes.
            let is = variant == Variant::Heddle;
            assert_eq!(asks(me, file.ino), is);
            assert!(!asks(0, file.ino) && !asks(me + 1, file.ino) && !asks(me, other.ino));
            assert!(!asks(me, Ino(1 << 40)), "no such file");
            lane.end();
            assert!(!asks(me, file.ino), "it holds no cell any more");
            lane.intent.note_latch(core.arena.offset_of(&inode.volatile.eof).raw()).unwrap();
            assert_eq!(asks(me, file.ino), is);
            assert!(!asks(me, other.ino));
            lane.intent.forget_latches();
            assert!(!asks(me, file.ino));
            core.root().attached.store(0, SeqCst);
            drop(guard);
            fs.release(file);
            fs.release(other);
            lease::leave(core);
            drop(fs);
            volume.unmount();
        }
    }
}
