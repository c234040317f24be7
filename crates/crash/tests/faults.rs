//! What runs out, at every point at which it can: a call that fails has done nothing, and the file system goes on.
//!
//! No hooks: the image, or the volatile memory, is left with so much and no more, for one amount after the other; so the N-th
//! request is the first that fails, for every N.

use heddle_crash::ace;
use heddle_crash::judge::without_panic;
use heddle_crash::op::{File, Op};
use heddle_crash::play::Player;
use heddle_crash::rig::model_like;
use heddle_nvmfs::{MountOptions, NvmFs, Variant, Volume, format_region, mount};
use heddle_pmem::Region;
use heddle_vfs::tree::Tree;
use heddle_vfs::{Error, RangeOp};

const MIB: usize = 1 << 20;

fn options(arena_bytes: usize) -> MountOptions<'static> {
    MountOptions { arena_bytes, ..MountOptions::default() }
}

fn fresh(variant: Variant) -> Region {
    let region = Region::anonymous(4 << 20).unwrap();
    format_region(&region, variant).unwrap();
    region
}

fn mounted(region: &Region, arena_bytes: usize) -> Result<Volume, String> {
    mount(region.map_again().unwrap(), &options(arena_bytes)).map_err(|e| e.to_string())
}

/// Plays calls on both sides; those that fail for want of something are not played on the model. What was wanting how often.
fn play_all(fs: &NvmFs, ops: &[Op], before: &[Op]) -> Result<(u64, Tree), String> {
    let model = model_like(fs);
    let (mut engine, mut should) = (Player::new(fs), Player::new(&model));
    for (i, op) in before.iter().enumerate() {
        should.play(i + 1, op).map_err(|e| e.to_string())?;
    }
    let mut wanting = 0;
    for (i, op) in ops.iter().enumerate() {
        let number = before.len() + i + 1;
        let is = without_panic(|| Ok(engine.play(number, op)))?;
        match is {
            Err(Error::NoSpace | Error::NoInodes | Error::NoMemory) => wanting += 1,
            is => {
                let wanted = should.play(number, op);
                if is.as_ref().map_err(Error::errno) != wanted.as_ref().map_err(Error::errno) {
                    return Err(format!("{op}: {is:?}, should be {wanted:?}"));
                }
            }
        }
        // Of files created in a row the last shows them all.
        if let [Op::Create { .. }, Op::Create { .. }, ..] = &ops[i..] {
            continue;
        }
        // Without memory even a look may fail: what is there is seen after the remount.
        let tree = match Tree::of(fs) {
            Err(Error::NoMemory) => continue,
            tree => tree.map_err(|e| format!("{op}: {e}"))?,
        };
        let wanted = Tree::of(&model).map_err(|e| e.to_string())?;
        if let Some(difference) = tree.difference(&wanted) {
            return Err(format!("after {op} (wanting {wanting}): {difference}"));
        }
    }
    engine.close_all();
    should.close_all();
    Tree::of(&model).map(|tree| (wanting, tree)).map_err(|e| e.to_string())
}

/// Calls that each want something: blocks, log pages, inodes, cells, tables, names.
fn ops() -> Vec<Op> {
    ace::operations().into_iter().map(|step| step.op).filter(|op| !matches!(op, Op::Remount)).collect()
}

fn ballast() -> Vec<Op> {
    let file = || File::Path("/ballast".into());
    let mut ops = vec![
        Op::Mkdir { path: "/A".into() },
        Op::Mkdir { path: "/B".into() },
        Op::Create { path: "/foo".into() },
        Op::Write { file: File::Path("/foo".into()), offset: 0, len: 21_180 },
        Op::Create { path: "/A/foo".into() },
        Op::Create { path: "/ballast".into() },
    ];
    ops.extend((0..6).map(|_| Op::Append { file: file(), len: 128 << 10 }));
    ops
}

/// Names and inodes, until even the least arena that mounts has nothing to spare.
fn crowd() -> Vec<Op> {
    (0..300).map(|i| Op::Create { path: format!("/B/{i}-{}", "n".repeat(40)) }).collect()
}

#[test]
fn a_call_without_space_changes_nothing_whichever_block_is_lacking() {
    for variant in [Variant::Heddle, Variant::NovaTree, Variant::Nova] {
        let mut failed = 0;
        for free in 0..24u64 {
            let region = fresh(variant);
            let volume = mounted(&region, 64 * MIB).unwrap();
            let fs = volume.fs();
            let mut player = Player::new(&fs);
            let before = ballast();
            before.iter().enumerate().for_each(|(i, op)| player.play(i + 1, op).unwrap());
            // Filled to the last block, by a file of its own; then so many of them are given back.
            let filler = File::Path("/filler".into());
            let mut filled = vec![Op::Create { path: "/filler".into() }];
            player.play(before.len() + 1, &filled[0]).unwrap();
            for len in [64 << 10, 4096] {
                let fill = Op::Append { file: filler.clone(), len };
                while player.play(before.len() + filled.len() + 1, &fill).is_ok() {
                    filled.push(fill.clone());
                }
            }
            let punch =
                Op::Fallocate { file: filler.clone(), mode: RangeOp::Punch, offset: 0, len: free * 4096 };
            if free > 0 {
                player.play(before.len() + filled.len() + 1, &punch).unwrap();
                filled.push(punch);
            }
            let before: Vec<Op> = before.into_iter().chain(filled).collect();
            let played = play_all(&fs, &ops(), &before);
            let (wanting, tree) = played.unwrap_or_else(|e| panic!("{}, {free} blocks: {e}", variant.name()));
            failed += wanting;
            volume.unmount();
            let volume = mounted(&region, 64 * MIB).unwrap();
            let again = Tree::of(&volume.fs()).unwrap();
            assert_eq!(again.difference(&tree), None, "{}, {free} blocks, after a remount", variant.name());
            volume.unmount();
        }
        assert!(failed > 8, "{}: only {failed} calls found no space", variant.name());
    }
}

#[test]
fn a_call_without_memory_changes_nothing_whichever_request_fails() {
    for variant in [Variant::Heddle, Variant::NovaTree, Variant::NovaInterval] {
        let region = fresh(variant);
        // The least that mounts an empty image, to a page.
        let (mut no, mut yes) = (4096, 64 * MIB);
        while yes - no > 4096 {
            let middle = ((no + yes) / 2) & !4095;
            match mounted(&region, middle) {
                Ok(volume) => {
                    volume.unmount();
                    yes = middle;
                }
                Err(_) => no = middle,
            }
        }
        let mut failed = 0;
        let mut clean = 0;
        for arena_bytes in (yes..yes + MIB).step_by(8192) {
            let region = fresh(variant);
            let Ok(volume) = mounted(&region, arena_bytes) else { continue };
            let fs = volume.fs();
            let played = play_all(&fs, &[ballast(), crowd(), ops()].concat(), &[]);
            let (wanting, tree) =
                played.unwrap_or_else(|e| panic!("{}, arena of {arena_bytes}: {e}", variant.name()));
            volume.unmount();
            let volume = mounted(&region, 64 * MIB).unwrap();
            let again = Tree::of(&volume.fs()).unwrap();
            assert_eq!(
                again.difference(&tree),
                None,
                "{}, arena of {arena_bytes}, after a remount",
                variant.name()
            );
            volume.unmount();
            failed += wanting;
            clean = if wanting == 0 { clean + 1 } else { 0 };
            if clean == 8 {
                break;
            }
        }
        assert!(failed > 20, "{}: only {failed} calls found no memory", variant.name());
    }
}

/// The file behind a mounted image is cut short: what lay there is lost, calls say so, and nobody ends.
#[test]
fn truncating_a_mounted_image_fails_only_calls_that_need_the_rest() {
    heddle_pmem::install_fault_handler();
    for variant in Variant::ALL {
        let path = std::env::temp_dir().join(format!("heddle-cut-{}-{}", variant.name(), std::process::id()));
        let region = Region::create(&path, 4 << 20, &heddle_pmem::OpenOptions::default()).unwrap();
        format_region(&region, variant).unwrap();
        let volume = mount(region, &options(64 * MIB)).unwrap();
        let fs = volume.fs();
        let mut player = Player::new(&fs);
        let ops: Vec<Op> = ballast();
        ops.iter().enumerate().for_each(|(i, op)| player.play(i + 1, op).unwrap());
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(512 << 10).unwrap();
        let read = Tree::of(&fs);
        assert!(
            matches!(read, Err(Error::Io(_) | Error::Corrupt(_))),
            "{}: {:?}",
            variant.name(),
            read.err()
        );
        let append = Op::Append { file: File::Path("/ballast".into()), len: 4096 };
        let appended = (0..50).find_map(|i| player.play(100 + i, &append).err());
        assert!(matches!(appended, Some(Error::Io(_))), "{}: {appended:?}", variant.name());
        player.close_all();
        volume.unmount();
        std::fs::remove_file(&path).unwrap();
    }
}
