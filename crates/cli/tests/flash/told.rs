//! What `heddle fsck` of an F2FS image leaves, runs and says around a repair.

use super::lost::{lose_name, tree};
use super::transaction::{checker, with_file};
use crate::common::traps::{TRAPS, compiled};
use crate::common::{Place, Said, command, heddle};
use heddle_f2fs::checksum::{SEED, checksum};
use heddle_f2fs::format::{BLOCK_BYTES, CheckpointHead, SUPERBLOCK_OFFSET_BYTES, Superblock};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use zerocopy::FromBytes;

fn listed(place: &Place) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(place.path(""))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// A repair that gets a signal as soon as there is an undo file, on a disk that is slow to make that durable.
fn repair_with(place: &Place, slow: &Path, signal: Signal) -> Said {
    let files = listed(place);
    let mut repair = command(&["fsck", "-y", &place.image()]);
    let child = repair.env("LD_PRELOAD", slow).stdout(Stdio::piped()).spawn().unwrap();
    let began = Instant::now();
    while listed(place).len() == files.len() && began.elapsed() < Duration::from_secs(60) {}
    kill_process(Pid::from_child(&child), signal).unwrap();
    Said::of(child.wait_with_output().unwrap())
}

/// They ended the command, and left files.
#[test]
fn a_signal_at_the_begin_of_a_repair_leaves_nothing() {
    let Some((_alone, place, number)) = with_file(b"x") else { return };
    place.edit(|image| lose_name(image, 3, number));
    let Some(slow) = compiled(&place, &format!("{TRAPS}/slow_fsync.c"), &["-shared", "-fPIC"]) else {
        return;
    };
    let (before, files) = (fs::read(place.image()).unwrap(), listed(&place));
    for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
        let said = repair_with(&place, &slow, signal);
        assert!(said.code == 4 && said.out.contains("interrupted"), "{signal:?}: {}{}", said.out, said.err);
        assert_eq!(listed(&place), files, "{signal:?}");
        assert!(fs::read(place.image()).unwrap() == before, "{signal:?}");
    }
}

/// fsck.f2fs was given a path that led elsewhere, and the files that it had not removed were reported as lost.
#[test]
fn a_repair_from_a_directory_that_is_gone_is_right() {
    let Some((_alone, place, number)) = with_file(b"x") else { return };
    place.edit(|image| lose_name(image, 3, number));
    let (before, files) = (fs::read(place.image()).unwrap(), listed(&place));
    let there = place.path("there");
    fs::create_dir(&there).unwrap();
    let gone = "rmdir ../there && exec \"$0\" fsck -y ../image";
    let heddle = command(&[]).get_program().to_owned();
    let said =
        Said::of(Command::new("sh").arg("-c").arg(gone).arg(heddle).current_dir(&there).output().unwrap());
    // Some file systems know no directory above it any more.
    if said.code == 1 {
        assert_eq!(tree(&place.path("image.lost/lost_found")).len(), 1);
        let undo = listed(&place).into_iter().find(|name| name.contains(".undo-")).unwrap();
        let undo = place.path("").join(undo);
        assert_eq!(
            crate::common::heddle(&["fsck", "--undo", undo.to_str().unwrap(), &place.image()]).code,
            1
        );
    } else {
        assert_eq!(said.code, 8, "{}{}", said.out, said.err);
        assert!(!said.out.contains("lost their names") && listed(&place) == files, "{}", said.out);
    }
    assert!(fs::read(place.image()).unwrap() == before);
}

#[test]
fn a_repair_is_told_on_stderr_if_stdout_does_not_take_it() {
    let Some((_alone, place, number)) = with_file(b"x") else { return };
    place.edit(|image| lose_name(image, 3, number));
    let before = fs::read(place.image()).unwrap();
    let undo = place.text("kept");
    for json in [&[][..], &["--json"]] {
        let full = || File::options().write(true).open("/dev/full").unwrap();
        let mut run = command(&["fsck", "-y", "--undo", &undo, &place.image()]);
        let said = Said::of(run.args(json).stdout(full()).stderr(Stdio::piped()).output().unwrap());
        assert_eq!(said.code, 1 | 8, "{}", said.err);
        ["cannot write to stdout", "repaired", &undo, "lost_found"]
            .iter()
            .for_each(|told| assert!(said.err.contains(told), "{told}: {}", said.err));
        let mut run = command(&["fsck", "--undo", &undo, &place.image()]);
        let said = Said::of(run.args(json).stdout(full()).stderr(Stdio::piped()).output().unwrap());
        assert!(said.code == 1 | 8 && said.err.contains("blocks are as they were"), "{}", said.err);
        assert!(fs::read(place.image()).unwrap() == before);
        fs::remove_file(&undo).unwrap();
    }
    assert_eq!(heddle(&["fsck", "-y", "--undo", &undo, &place.image()]).code, 1);
    let said = heddle(&["fsck", "--json", "--undo", &undo, &place.image()]);
    let report: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!((&report["result"], &report["exit_code"]), (&"restored".into(), &1.into()));
}

/// A directory named as that of a repair under way was removed, with all that the user had sorted into it.
#[test]
fn directories_of_the_user_beside_saved_files_stay() {
    let Some((_alone, place, number)) = with_file(b"x") else { return };
    place.edit(|image| lose_name(image, 3, number));
    for dir in ["image.lost/saving", "image.lost/d/d", "image.lost.1"] {
        fs::create_dir_all(place.path(dir)).unwrap();
    }
    fs::set_permissions(place.path("image.lost"), fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(place.path("image.lost/saving/mine"), "mine").unwrap();
    assert_eq!(heddle(&["fsck", "-y", &place.image()]).code, 1);
    assert_eq!(fs::read(place.path("image.lost/saving/mine")).unwrap(), b"mine");
    assert!(place.path("image.lost/d/d").is_dir() && place.path("image.lost.1").is_dir());
    assert_eq!(tree(&place.path("image.lost.2")).len(), 2, "lost_found and its file");
}

#[test]
fn no_program_of_the_working_directory_is_run() {
    let Some((_alone, place, number)) = with_file(b"x") else { return };
    place.edit(|image| lose_name(image, 3, number));
    checker(&place, "touch $T/run; exec fsck.f2fs \"$@\"");
    let tools = place.path("tools");
    for path in [None, Some(""), Some("."), Some(":/usr/bin"), Some("tools:../tools")] {
        let mut run = command(&["fsck", "-n", &place.image()]);
        let run = run.current_dir(&tools).env_remove("PATH").envs(path.map(|path| ("PATH", path)));
        let said = Said::of(run.output().unwrap());
        assert!(!place.path("tools/run").exists(), "{path:?}");
        assert!(said.code == 4 && said.out.contains("fsck.f2fs"), "{path:?}: {}{}", said.out, said.err);
    }
}

/// A wrapper such as timeout(1) puts it into a process group of its own.
#[test]
fn a_checker_that_leaves_the_process_group_is_followed() {
    let Some((_alone, place, number)) = with_file(b"x") else { return };
    place.edit(|image| lose_name(image, 3, number));
    for way in ["exec setsid -w fsck.f2fs \"$@\"", "exec timeout 60 fsck.f2fs \"$@\""] {
        let path = checker(&place, way);
        let undo = place.text("kept");
        let mut run = command(&["fsck", "-y", "--undo", &undo, &place.image()]);
        let mut child = run.env("PATH", path).stdout(Stdio::null()).spawn().unwrap();
        let began = Instant::now();
        let ended = loop {
            match child.try_wait().unwrap() {
                None if began.elapsed() < Duration::from_secs(90) => {
                    std::thread::sleep(Duration::from_millis(20))
                }
                ended => break ended,
            }
        };
        if ended.is_none() {
            kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
            child.wait().unwrap();
        }
        assert_eq!(ended.and_then(|status| status.code()), Some(1), "{way}");
        assert_eq!(heddle(&["fsck", "--undo", &undo, &place.image()]).code, 1);
        fs::remove_file(undo).unwrap();
    }
}

/// fsck.f2fs saved one file of each name, and none of the empty ones, of an image that heddle calls damaged.
#[test]
fn an_image_that_heddle_cannot_read_is_not_repaired() {
    let Some((_alone, place, number)) = with_file(b"x") else { return };
    place.edit(|image| {
        lose_name(image, 3, number);
        let (superblock, _) = Superblock::read_from_prefix(&image[SUPERBLOCK_OFFSET_BYTES..]).unwrap();
        for pack in [0, 512] {
            let start = superblock.checkpoint.get() as usize + pack;
            let head = CheckpointHead::ref_from_prefix(&image[start * BLOCK_BYTES..]).unwrap().0;
            let last = start + head.pack_blocks.get() as usize - 1;
            for addr in [start, last] {
                let block = &mut image[addr * BLOCK_BYTES..][..BLOCK_BYTES];
                let head = CheckpointHead::mut_from_prefix(block).unwrap().0;
                // CP_LARGE_NAT_BITMAP: its bitmap would lie elsewhere.
                head.flags.set(head.flags.get() | 0x400);
                let at = head.checksum_offset.get() as usize;
                let crc = checksum(SEED, &block[..at]);
                block[at..at + 4].copy_from_slice(&crc.to_le_bytes());
            }
        }
    });
    let (before, files) = (fs::read(place.image()).unwrap(), listed(&place));
    let said = heddle(&["fsck", "-y", &place.image()]);
    assert!(
        said.code == 4 && said.out.contains("nothing was changed"),
        "{}: {}{}",
        said.code,
        said.out,
        said.err
    );
    assert!(said.out.contains("cannot read it"), "{}", said.out);
    assert!(fs::read(place.image()).unwrap() == before && listed(&place) == files, "{}", said.out);
}

/// The second superblock survives a swap area and the like, and a partition table leaves both: the image was mounted, and overwritten.
#[test]
fn what_was_made_over_an_image_later_is_not_overwritten() {
    let Some((_alone, place, _)) = with_file(b"x") else { return };
    let over = |at: usize, mark: &[u8], image: &mut [u8]| {
        image[..BLOCK_BYTES].fill(0);
        image[at..][..mark.len()].copy_from_slice(mark);
    };
    let table = |image: &mut [u8]| {
        (image[450], image[458], image[510], image[511]) = (0x83, 8, 0x55, 0xaa);
    };
    type Other<'a> = (&'a str, &'a dyn Fn(&mut [u8]));
    let others: [Other<'_>; 4] = [
        ("swap", &|image| over(4086, b"SWAPSPACE2", image)),
        ("LUKS", &|image| over(0, b"LUKS\xba\xbe", image)),
        ("btrfs", &|image| over(0x10040, b"_BHRfS_M", image)),
        ("MBR", &table),
    ];
    let ours = fs::read(place.image()).unwrap();
    for (name, made) in others {
        fs::write(place.image(), &ours).unwrap();
        place.edit(|image| made(image));
        let before = fs::read(place.image()).unwrap();
        heddle(&["mount", "-o", "log=/dev/null", &place.image(), &place.mnt()]).failed(1, &[name, "-o ro"]);
        for how in ["-n", "-y"] {
            heddle(&["fsck", how, &place.image()]).failed(8, &[name]);
        }
        heddle(&["mount", "-o", "ro,log=/dev/null", &place.image(), &place.mnt()]).ok();
        heddle(&["umount", &place.mnt()]).ok();
        assert!(fs::read(place.image()).unwrap() == before, "{name}");
    }
    // What is older than the image hinders nothing.
    fs::write(place.image(), &ours).unwrap();
    place.edit(|image| image[0x10040..][..8].copy_from_slice(b"_BHRfS_M"));
    heddle(&["fsck", "-n", &place.image()]).ok();
    heddle(&["mount", "-o", "log=/dev/null", &place.image(), &place.mnt()]).ok();
    heddle(&["umount", &place.mnt()]).ok();
}
