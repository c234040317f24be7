//! One file system through two mappings: nothing of it lives outside the arena and the region.

use super::{MountOptions, format, mount};
use crate::core::{Core, Parts};
use crate::fs::NvmFs;
use crate::region::Region;
use crate::variant::Variant;
use heddle_range_lock::{Geometry, Mode};
use heddle_vfs::{Cookie, Cred, FileSystem, Ino, Name, OpenFlags};
use std::sync::Arc;

/// The same arena and region at other addresses, as another process would map them.
fn second_view(first: &Core) -> NvmFs {
    let locks = first.variant.lock().map(|kind| {
        let geometry = Geometry { file_bytes_max: first.region.len_bytes(), ..Geometry::default() };
        heddle_range_lock::make(kind, Mode::Default, &geometry).unwrap()
    });
    let parts = Parts {
        region: first.region.map_again().unwrap(),
        arena: Arc::new(first.arena.map_again().unwrap()),
        variant: first.variant,
        locks,
        on_lock: None,
        read_only: false,
    };
    NvmFs { core: Arc::new(Core::join(parts, &first.identity()).unwrap()) }
}

#[test]
fn two_mappings_of_one_arena_are_one_file_system() {
    for variant in [Variant::Heddle, Variant::NovaArray] {
        let region = Region::anonymous(64 << 20).unwrap();
        format(&region, variant).unwrap();
        let volume = mount(region, &MountOptions::default()).unwrap();
        let views = [volume.fs(), second_view(&volume.fs.core)];
        let cred = Cred::root();
        let name = |n: &str| n.as_bytes().to_vec();
        let (attr, first) = views[0]
            .create(&cred, Ino::ROOT, Name::new(&name("f")).unwrap(), 0o644, OpenFlags::READ_WRITE)
            .unwrap();
        let second = views[1].open(&cred, attr.ino, OpenFlags::READ_WRITE).unwrap();
        std::thread::scope(|scope| {
            for (worker, (fs, handle)) in views.iter().zip([&first, &second]).enumerate() {
                scope.spawn(move || {
                    for round in 0..2000u64 {
                        let page = [worker as u8 + 1; 4096];
                        fs.write(handle, (round % 16 * 2 + worker as u64) * 4096, &page).unwrap();
                        fs.append(handle, &[worker as u8 + 1; 8]).unwrap();
                        let file = format!("w{worker}-{round}");
                        let file = Name::new(file.as_bytes()).unwrap();
                        let (_, made) =
                            fs.create(&Cred::root(), Ino::ROOT, file, 0o600, OpenFlags::WRITE).unwrap();
                        fs.release(made);
                        if round % 2 == 0 {
                            fs.unlink(&Cred::root(), Ino::ROOT, file).unwrap();
                        }
                    }
                });
            }
        });
        for (fs, handle) in views.iter().zip([&first, &second]) {
            for page in 0..32u64 {
                let mut seen = [0; 4096];
                assert_eq!(fs.read(handle, page * 4096, &mut seen).unwrap(), 4096);
                assert!(seen.iter().all(|b| *b == (page % 2) as u8 + 1), "{} page {page}", variant.name());
            }
            let root = fs.open(&cred, Ino::ROOT, OpenFlags::READ).unwrap();
            let mut names = 0;
            fs.each_entry(&root, Cookie(0), &mut |_| {
                names += 1;
                true
            })
            .unwrap();
            assert_eq!(names, 1 + 2 * 1000);
            fs.release(root);
        }
        views[0].release(first);
        views[1].release(second);
        crate::lease::leave(&views[1].core);
        drop(views);
        volume.unmount();
    }
}
