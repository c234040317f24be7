//! Images that a power cut leaves are sound to fsck before recovery, after it, and after the unmount that follows.

use crate::common::{Short, each_variant, name, options, root, sound};
use heddle_nvmfs::{NvmFs, Variant, format_region, mount};
use heddle_pmem::{CrashPoint, Region};
use heddle_vfs::{
    Error, FileKind, FileSystem, Ino, NewNode, RangeOp, RenameMode, SetAttr, SetXattr, XattrName,
};
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};

const REGION_BYTES: u64 = 4 << 20;
/// Images looked at for each fence.
const IMAGES: usize = 2;

fn work(fs: &NvmFs) -> Result<(), Error> {
    let (a, b) = (fs.try_dir(Ino::ROOT, "a")?, fs.try_dir(Ino::ROOT, "b")?);
    let file =
        fs.try_file(a, "a name that takes more than one line of the log of its directory, two at least")?;
    fs.write(&file, 0, &[1; 3 * 4096])?;
    fs.append(&file, &[2; 100])?;
    fs.write(&file, 4096, &[3; 4096])?;
    fs.fallocate(&file, RangeOp::Punch, 0, 4096)?;
    fs.fallocate(&file, RangeOp::Allocate { keep_size: true }, 5 * 4096, 4096)?;
    fs.resize(&file, 5000)?;
    let user = XattrName::new(b"user.note")?;
    fs.setxattr(&root(), file.ino, user, &[7; 3000], SetXattr::Any)?;
    fs.setxattr(&root(), file.ino, user, b"short", SetXattr::Any)?;
    fs.setattr(&root(), file.ino, Some(&file), &SetAttr { perm: Some(0o600), ..SetAttr::default() })?;
    fs.link(&root(), file.ino, b, name("link"))?;
    fs.replace((b, "link"), (a, "link"))?;
    fs.rename(&root(), a, name("link"), Ino::ROOT, name("b"), RenameMode::Exchange)?;
    fs.rename(&root(), a, name("link"), Ino::ROOT, name("b"), RenameMode::Exchange)?;
    let node = NewNode { kind: FileKind::Symlink, perm: 0o777, rdev: 0, target: b"a/link" };
    fs.make(&root(), b, name("symlink"), node)?;
    for round in 0..70u8 {
        fs.write(&file, u64::from(round % 3) * 4096, &[round; 4096])?;
        if round % 9 == 0 {
            fs.release(fs.try_file(b, "short-lived")?);
            fs.remove(b, "short-lived")?;
        }
    }
    fs.remove(a, "link")?;
    fs.release(file);
    fs.rmdir(&root(), a, name("nothing")).unwrap_err();
    fs.remove(b, "symlink")?;
    fs.rmdir(&root(), Ino::ROOT, name("b"))
}

fn look(image: &[u8]) -> Result<(), String> {
    let region = Region::simulated_from(image).0;
    sound(&region).map_err(|e| format!("before recovery {e}"))?;
    let (second, third) = (region.map_again().unwrap(), region.map_again().unwrap());
    let volume = mount(region, &options()).map_err(|e| e.to_string())?;
    volume.abandon();
    sound(&second).map_err(|e| format!("after recovery {e}"))?;
    mount(second, &options()).map_err(|e| e.to_string())?.unmount();
    sound(&third).map_err(|e| format!("after the unmount {e}"))
}

/// Most blocks are empty: what they hold is not worth a look.
fn fingerprint(image: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    image
        .chunks(4096)
        .enumerate()
        .filter(|(_, block)| *block != [0; 4096])
        .for_each(|block| block.hash(&mut hasher));
    hasher.finish()
}

fn power_cuts_are_sound(variant: Variant) {
    let (region, simulator) = Region::simulated(REGION_BYTES);
    format_region(&region, variant).unwrap();
    let volume = mount(region, &options()).unwrap();
    let wrong: Arc<Mutex<Vec<(u64, String)>>> = Arc::default();
    let (sink, mut met, mut fence) = (wrong.clone(), HashSet::new(), 0);
    simulator.on_fence(Box::new(move |point: &CrashPoint<'_>| {
        fence += 1;
        for image in point.images(IMAGES, fence) {
            if met.insert(fingerprint(&image)) {
                // Judged at once: images are large.
                if let Err(why) = look(&image) {
                    sink.lock().unwrap().push((fence, why));
                }
            }
        }
    }));
    work(&volume.fs()).unwrap();
    volume.unmount();
    simulator.stop_watching();
    let wrong = wrong.lock().unwrap();
    let shown: Vec<String> =
        wrong.iter().take(3).map(|(fence, why)| format!("fence {fence}: {why}")).collect();
    assert!(wrong.is_empty(), "{variant:?}: {} images:\n{}", wrong.len(), shown.join("\n"));
    assert!(simulator.fences() > 150, "{} fences", simulator.fences());
}

#[test]
fn what_any_power_cut_leaves_is_sound_before_and_after_recovery() {
    each_variant(power_cuts_are_sound);
}
