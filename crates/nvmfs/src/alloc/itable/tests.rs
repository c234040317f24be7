use super::*;
use crate::state::lease;
use crate::variant::Variant;
use crate::volume::{MountOptions, format, mount};
use heddle_pmem::{CrashPoint, Region};
use heddle_vfs::FileSystem;
use heddle_vfs::short::Short;
use std::sync::{Arc, Mutex};

/// If it is free earlier, a power cut can leave both its pointer and another lane's data in it.
#[test]
fn a_chunks_block_is_free_only_when_its_pointer_is_durably_gone() {
    for variant in Variant::ALL {
        let (region, power) = Region::simulated(8 << 20);
        format(&region, variant).unwrap();
        let options = MountOptions { arena_bytes: 64 << 20, ..MountOptions::default() };
        let volume = mount(region, &options).unwrap();
        let fs = volume.fs();
        for n in 0..4 * CHUNK_INODES {
            fs.release(fs.new_file(Ino::ROOT, &format!("{n}")));
        }
        (0..4 * CHUNK_INODES).for_each(|n| fs.remove(Ino::ROOT, &format!("{n}")).unwrap());
        let core = fs.core.clone();
        let guard = lease::enter(&core).unwrap();
        let free = core.free_map().count();
        let at_fences = Arc::new(Mutex::new(Vec::new()));
        let (seen, at) = (at_fences.clone(), core.clone());
        power.on_fence(Box::new(move |_: &CrashPoint<'_>| seen.lock().unwrap().push(at.free_map().count())));
        assert!(give_chunks_back(&core, guard.own), "{}: no chunk is empty", variant.name());
        power.stop_watching();
        let at_fences = at_fences.lock().unwrap();
        assert!(core.free_map().count() > free && at_fences.len() > 1, "{}", variant.name());
        assert!(at_fences.iter().all(|count| *count == free), "{}: free before a fence", variant.name());
        drop(guard);
        lease::leave(&core);
        drop((fs, core));
        volume.unmount();
    }
}
