//! An image whose repair, or whose way back, was killed half-way: it says so itself, by whatever name, and nobody writes it.

use super::lost::lose_name;
use super::transaction::{checker, with_file};
use crate::common::{Mounted, Place, Said, command, heddle};
use heddle_f2fs::checksum::{SEED, checksum};
use heddle_f2fs::format::{BLOCK_BYTES, SUPERBLOCK_OFFSET_BYTES, Superblock};
use heddle_f2fs::{F2fs, LogRegion, LogState, OpenError, Variant};
use heddle_pmem::{OpenOptions as RegionOptions, Region};
use heddle_vfs::{Cred, FileSystem, Ino, Name, OpenFlags};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

/// The mark of a repair in both superblocks.
const MARKS: [usize; 2] = [1024 + 3044, 4096 + 1024 + 3044];
const REPAIRED: &str = "case \"$*\" in *-y*) fsck.f2fs \"$@\"; LATER; touch $T/begun; while :; do sleep 0.05; done;; esac\n\
                        exec fsck.f2fs \"$@\"";

fn fsck(args: &[&str], image: &OsStr) -> Said {
    Said::of(command(&["fsck"]).args(args).arg(image).output().unwrap())
}

fn go_back(undo: &Path, image: &OsStr) -> Said {
    Said::of(command(&["fsck", "--undo"]).args([undo.as_os_str(), image]).output().unwrap())
}

/// Kills a repair of the image by this name when fsck.f2fs has written all, and has not ended. A shell runs `later` before that. Returns
/// what the image was.
fn kill_repair(place: &Place, name: &OsStr, later: &str) -> Vec<u8> {
    let before = fs::read(name).unwrap();
    let path = checker(place, &REPAIRED.replace("LATER", later));
    let mut command = command(&["fsck", "-y"]);
    let mut fsck_y = command.arg(name).env("PATH", path).stdout(Stdio::null()).spawn().unwrap();
    let began = Instant::now();
    while !place.path("tools/begun").exists() {
        assert!(began.elapsed() < Duration::from_secs(60) && fsck_y.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(10));
    }
    fsck_y.kill().unwrap();
    fsck_y.wait().unwrap();
    assert!(fs::read(name).unwrap() != before, "it was killed too early");
    // The program that it ran dies, too, and then the lock is free.
    let began = Instant::now();
    while fsck(&["-n"], name).code == 8 && began.elapsed() < Duration::from_secs(20) {}
    before
}

/// The undo files in a directory.
fn undo_files(dir: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let is_undo = |path: &PathBuf| path.as_os_str().as_bytes().windows(6).any(|part| part == b".undo-");
    files.filter(is_undo).collect()
}

/// Each opening for writing is refused, and changes nothing.
fn nobody_writes(place: &Place, image: &OsStr) {
    let before = fs::read(image).unwrap();
    let said =
        Said::of(command(&["mount", "-o", "log=/dev/null"]).arg(image).arg(place.mnt()).output().unwrap());
    said.failed(1, &["half repaired", "heddle fsck"]);
    let refused = |opened: Result<F2fs, OpenError>| matches!(opened, Err(OpenError::HalfRepaired { .. }));
    assert!(refused(F2fs::open_for_writing(Path::new(image))));
    assert!(refused(F2fs::open_without_log(Path::new(image), Variant::F2fs)));
    assert!(fs::read(image).unwrap() == before, "it was written");
}

/// It was found by the undo file beside it, and only by the name that the repair was asked for: under others it was mounted, or "clean".
#[test]
fn a_half_repaired_image_is_written_by_nobody_under_any_name() {
    for way in ["plain", "symbolic link", "hard link", "other bytes"] {
        let Some((_alone, place, number)) = with_file(b"x") else { return };
        place.edit(|image| lose_name(image, 3, number));
        fs::create_dir(place.path("x")).unwrap();
        let (link, mut image) = (place.path("x/link"), OsString::from(place.image()));
        let asked = match way {
            "plain" => image.clone(),
            "symbolic link" => std::os::unix::fs::symlink("../image", &link).map(|()| link.into()).unwrap(),
            "hard link" => fs::hard_link(&image, &link).map(|()| link.into()).unwrap(),
            _ => {
                let other = place.path("").join(OsStr::from_bytes(b"a\xffb"));
                fs::rename(&image, &other).unwrap();
                image = other.clone().into();
                other.into()
            }
        };
        let before = kill_repair(&place, &asked, ":");
        // By a symbolic link, too, it lies beside the image.
        let beside = if way == "symbolic link" { &image } else { &asked };
        let undo = undo_files(Path::new(beside).parent().unwrap());
        assert_eq!(undo.len(), 1, "{way}: {undo:?}");
        let info = Said::of(command(&["info"]).arg(&image).output().unwrap());
        assert!(info.code == 0 && info.out.contains("half repaired"), "{way}: {}{}", info.out, info.err);
        for name in [&asked, &image] {
            for how in [&[][..], &["-n"], &["-y"], &["-y", "--json"]] {
                let said = fsck(how, name);
                assert!(said.code == 4 && said.out.contains("half-way"), "{way}: {}{}", said.out, said.err);
            }
            nobody_writes(&place, name);
        }
        let said = fsck(&["-y"], &asked);
        assert!(said.out.contains(&heddle_undo::shell_word(&undo[0])), "{way}: {}", said.out);
        // Another user's file may have the number, too, and any bytes.
        std::os::unix::fs::chown(&undo[0], Some(65534), None).unwrap();
        let said = fsck(&["-y"], &asked);
        assert!(said.out.contains("Its undo file is not here"), "{way}: {}", said.out);
        std::os::unix::fs::chown(&undo[0], Some(0), None).unwrap();
        // To read is allowed, with a warning.
        let mut mount = command(&["mount", "-o", "ro"]);
        let log = File::create(place.path("log")).unwrap();
        assert!(mount.arg(&image).arg(place.mnt()).stderr(log).status().unwrap().success());
        heddle(&["umount", &place.mnt()]).ok();
        assert!(fs::read_to_string(place.path("log")).unwrap().contains("half repaired"));
        assert_eq!(go_back(&undo[0], &image).code, 1, "{way}");
        assert!(fs::read(&image).unwrap() == before, "{way}");
        // What is as it was is no success of a repair's way back.
        let again = go_back(&undo[0], &image);
        assert!(
            again.code == 0 && again.out.contains("nothing was changed"),
            "{way}: {}{}",
            again.out,
            again.err
        );
        assert!(!place.path("image.lost").exists(), "{way}: of the repair that was killed");
        assert_eq!(fsck(&["-y"], &image).code, 1, "{way}");
    }
}

#[test]
fn a_half_repaired_image_without_undo_file_is_repaired_if_told_so() {
    let Some((_alone, place, number)) = with_file(b"x") else { return };
    place.edit(|image| lose_name(image, 3, number));
    let image = OsString::from(place.image());
    kill_repair(&place, &image, ":");
    let half = fs::read(&image).unwrap();
    let old = undo_files(&place.path("")).remove(0);
    let away = place.path("x");
    fs::create_dir(&away).unwrap();
    fs::rename(&old, away.join("kept")).unwrap();
    let said = fsck(&["-y"], &image);
    assert!(said.code == 4 && said.out.contains("--discard-undo"), "{}{}", said.out, said.err);
    fsck(&["--discard-undo"], &image).failed(16, &["-y"]);
    let said = fsck(&["-y", "--discard-undo"], &image);
    assert!(said.code != 8 && said.out.contains("is lost"), "{}: {}{}", said.code, said.out, said.err);
    fsck(&["-n"], &image).ok();
    // The old file does not fit any more; the new one leads to the half repaired image.
    let new = undo_files(&place.path("")).remove(0);
    fsck(&["--undo", away.join("kept").to_str().unwrap()], &image).failed(8, &["repaired since"]);
    assert_eq!(fsck(&["--undo", new.to_str().unwrap()], &image).code, 1);
    assert!(fs::read(&image).unwrap() == half);
    assert_eq!(fsck(&["-n"], &image).code, 4);
    assert_eq!(fsck(&["--undo", away.join("kept").to_str().unwrap()], &image).code, 1);
    assert_eq!(fsck(&["-y"], &image).code, 1);
    drop(Mounted::new(&place, &["-o", "log=/dev/null"]));
}

/// A cut file was a success that had changed nothing, and both led to each other for ever.
#[test]
fn a_cut_or_damaged_undo_file_names_the_way_without_it() {
    let Some((_alone, place, number)) = with_file(b"x") else { return };
    place.edit(|image| lose_name(image, 3, number));
    let image = OsString::from(place.image());
    kill_repair(&place, &image, ":");
    let (half, file) = (fs::read(&image).unwrap(), undo_files(&place.path("")).remove(0));
    let whole = fs::read(&file).unwrap();
    let mut damaged = whole.clone();
    damaged[80 + 4112 + 100] ^= 1;
    let cut = |blocks: usize| &whole[..80 + blocks * 4112];
    assert!(whole.len() > 80 + 20 * 4112, "{}", whole.len());
    for (undo, why) in
        [(cut(0), "cut short"), (cut(1), "cut short"), (cut(3), "cut short"), (&damaged[..], "damaged")]
    {
        fs::write(&file, undo).unwrap();
        go_back(&file, &image).failed(8, &[why, "heddle fsck -y --discard-undo"]);
        assert!(fs::read(&image).unwrap() == half, "{why}: it was changed");
        let said = fsck(&["-y"], &image);
        assert!(said.code == 4 && said.out.contains("--discard-undo"), "{why}: {}{}", said.out, said.err);
        // One that was named by mistake does not count against the right one.
        fs::write(&file, &whole).unwrap();
        let said = go_back(&place.path("tools/fsck.f2fs"), &image);
        assert!(said.code == 8 && !said.err.contains("--discard-undo"), "{}", said.err);
        assert!(said.err.contains(&heddle_undo::shell_word(&file)), "{}", said.err);
        // A damaged copy hides no whole one.
        fs::write(place.path("a-copy"), undo).unwrap();
        let said = fsck(&["-y"], &image);
        assert!(said.out.contains(&heddle_undo::shell_word(&file)), "{why}: {}", said.out);
        go_back(&place.path("a-copy"), &image).failed(8, &[why, &heddle_undo::shell_word(&file)]);
        fs::remove_file(place.path("a-copy")).unwrap();
        fs::write(&file, undo).unwrap();
    }
    let said = fsck(&["-y", "--discard-undo"], &image);
    assert!(said.code == 1 || said.code == 0, "{}: {}{}", said.code, said.out, said.err);
    fsck(&["-n"], &image).ok();
}

/// Whatever fsck.f2fs does to the superblocks, the image stays marked while it is repaired.
#[test]
fn the_mark_of_a_repair_outlives_what_the_checker_writes() {
    for damaged in [None, Some(0), Some(1)] {
        let Some((_alone, place, number)) = with_file(b"x") else { return };
        place.edit(|image| {
            lose_name(image, 3, number);
            // It repairs one copy from the other.
            damaged.iter().for_each(|copy| image[copy * BLOCK_BYTES + 1024..][..64].fill(0));
        });
        let image = OsString::from(place.image());
        let before = kill_repair(&place, &image, ":");
        let bytes = fs::read(&image).unwrap();
        for (copy, at) in MARKS.into_iter().enumerate() {
            assert!(bytes[at..at + 8] == *b"HEDDLERB" || damaged == Some(copy), "{damaged:?} {copy}");
        }
        nobody_writes(&place, &image);
        let undo = undo_files(&place.path("")).remove(0);
        assert_eq!(go_back(&undo, &image).code, 1, "{damaged:?}");
        assert!(fs::read(&image).unwrap() == before, "{damaged:?}");
    }
    // One that overwrites it gets it back before it goes on.
    let Some((_alone, place, number)) = with_file(b"x") else { return };
    place.edit(|image| lose_name(image, 3, number));
    let old = place.path("old");
    fs::write(&old, &fs::read(place.image()).unwrap()[..2 * BLOCK_BYTES]).unwrap();
    let image = OsString::from(place.image());
    kill_repair(&place, &image, &format!("dd if={} of={} conv=notrunc", old.display(), place.image()));
    nobody_writes(&place, &image);
}

/// Both say "clean" of an image that the other was repairing.
#[test]
fn nobody_repairs_an_image_while_it_is_checked() {
    let Some((_alone, place, number)) = with_file(b"x") else { return };
    place.edit(|image| lose_name(image, 3, number));
    let path = checker(
        &place,
        "touch $T/begun; n=0; until [ -e $T/go ] || [ $n = 600 ]; do sleep 0.1; n=$((n+1)); done\nexec fsck.f2fs \"$@\"",
    );
    let slow =
        command(&["fsck", "-y", &place.image()]).env("PATH", path).stdout(Stdio::piped()).spawn().unwrap();
    let began = Instant::now();
    while !place.path("tools/begun").exists() && began.elapsed() < Duration::from_secs(60) {}
    let said = heddle(&["fsck", "-y", &place.image()]);
    fs::write(place.path("tools/go"), "").unwrap();
    let slow = Said::of(slow.wait_with_output().unwrap());
    said.failed(8, &["in use"]);
    assert_eq!(slow.code, 1, "{}{}", slow.out, slow.err);
}

/// Changes both superblocks, and puts their checksums right.
pub fn change_superblocks(image: &mut [u8], change: impl Fn(&mut Superblock)) {
    for copy in [0, BLOCK_BYTES] {
        let bytes = &mut image[copy + SUPERBLOCK_OFFSET_BYTES..][..size_of::<Superblock>()];
        let found = Superblock::mut_from_bytes(bytes).unwrap();
        change(found);
        let crc = checksum(SEED, &found.as_bytes()[..std::mem::offset_of!(Superblock, crc)]);
        found.crc.set(crc);
    }
}

/// Sets the mark of a repair.
pub fn set_mark(image: &mut [u8], mark: &[u8; 8]) {
    change_superblocks(image, |found| found.repair_mark = *mark);
}

/// Killed when the undo file says that the repair has ended, and the image not yet; and killed on the way back.
#[test]
fn an_end_is_noted_later_and_a_way_back_goes_on() {
    let Some((_alone, place, number)) = with_file(b"x") else { return };
    place.edit(|image| lose_name(image, 3, number));
    let (image, before) = (OsString::from(place.image()), fs::read(place.image()).unwrap());
    let undo = place.text("kept");
    assert_eq!(fsck(&["-y", "--undo", &undo], &image).code, 1);
    let repaired = fs::read(&image).unwrap();
    place.edit(|image| set_mark(image, b"HEDDLERB"));
    let said = fsck(&["-n"], &image);
    assert!(said.code == 4 && said.out.contains("heddle fsck -y"), "{}", said.out);
    nobody_writes(&place, &image);
    fsck(&["-y"], &image).ok();
    assert!(fs::read(&image).unwrap() == repaired);
    // The first of the blocks that differ has its old bytes again.
    place.edit(|image| set_mark(image, b"HEDDLERU"));
    let differs =
        |n: &usize| before[n * BLOCK_BYTES..][..BLOCK_BYTES] != repaired[n * BLOCK_BYTES..][..BLOCK_BYTES];
    let first = (2..before.len() / BLOCK_BYTES).find(differs).unwrap() * BLOCK_BYTES;
    place.edit(|image| image[first..][..BLOCK_BYTES].copy_from_slice(&before[first..][..BLOCK_BYTES]));
    let said = fsck(&["-y"], &image);
    assert!(said.code == 4 && said.out.contains(&format!("--undo {undo}")), "{}", said.out);
    nobody_writes(&place, &image);
    assert_eq!(fsck(&["--undo", &undo], &image).code, 1);
    assert!(fs::read(&image).unwrap() == before);
}

/// The checkpoint's version is the same before and after a repair.
#[test]
fn an_undo_file_is_refused_after_another_repair_and_after_a_mount() {
    let Some((_alone, place, number)) = with_file(b"x") else { return };
    let other = {
        let mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
        fs::write(mounted.path("other"), "y").unwrap();
        super::lost::ino(&mounted.path("other"))
    };
    place.edit(|image| lose_name(image, 3, number));
    let image = OsString::from(place.image());
    let [first, second] = ["one", "two"].map(|name| place.text(name));
    assert_eq!(fsck(&["-y", "--undo", &first], &image).code, 1);
    let repaired = fs::read(&image).unwrap();
    place.edit(|image| lose_name(image, 3, other));
    let between = fs::read(&image).unwrap();
    let mut by_hand = std::process::Command::new("sh");
    by_hand.args(["-c", "yes n | fsck.f2fs -f -y \"$0\""]).arg(&image).output().unwrap();
    assert!(fs::read(&image).unwrap() != between, "nothing was repaired");
    fsck(&["--undo", &first], &image).failed(8, &["repaired since"]);
    fs::write(&image, &between).unwrap();
    assert_eq!(fsck(&["-y", "--undo", &second], &image).code, 1);
    fsck(&["--undo", &first], &image).failed(8, &["repaired since"]);
    assert_eq!(fsck(&["--undo", &second], &image).code, 1);
    assert!(fs::read(&image).unwrap() == between);
    // A mount that is killed before its first checkpoint.
    fs::write(&image, &repaired).unwrap();
    let mounted = F2fs::open_for_writing(Path::new(&image)).unwrap();
    write_at_once(&mounted);
    drop(mounted);
    fsck(&["--undo", &first], &image).failed(8, &["repaired since"]);
}

/// Writes a page to the device, without a checkpoint.
fn write_at_once(fs: &F2fs) {
    let (name, cred) = (Name::new(b"new").unwrap(), Cred::root());
    let flags = OpenFlags { direct: true, ..OpenFlags::READ_WRITE };
    let (_, file) = fs.create(&cred, Ino::ROOT, name, 0o644, flags).unwrap();
    assert_eq!(fs.write(&file, 0, &[7; BLOCK_BYTES]).unwrap(), BLOCK_BYTES);
}

/// A mount that was refused after all took the undo file's worth away, though it had changed nothing.
#[test]
fn an_undo_file_is_of_use_after_a_mount_that_wrote_nothing() {
    let Some((_alone, place, number)) = with_file(b"x") else { return };
    place.edit(|image| lose_name(image, 3, number));
    let (image, undo) = (OsString::from(place.image()), place.text("kept"));
    let before = fs::read(&image).unwrap();
    assert_eq!(fsck(&["-y", "--undo", &undo], &image).code, 1);
    let repaired = fs::read(&image).unwrap();
    let region = Region::create(place.path("nvm"), 8 << 20, &RegionOptions::default()).unwrap();
    let log = LogRegion { region, state: LogState::Free, discard: false };
    let refused = &mut || Err("no room for the log".to_owned());
    assert!(F2fs::open_with_log_in(Path::new(&image), Variant::NodeLog, log, refused).is_err());
    drop(F2fs::open_for_writing(Path::new(&image)).unwrap());
    let metrics = format!("metrics={}", place.text(""));
    heddle(&["mount", "-o", &metrics, &place.image(), &place.mnt()]).failed(1, &["metrics"]);
    assert!(fs::read(&image).unwrap() == repaired, "a mount has written");
    let said = fsck(&["--undo", &undo], &image);
    assert_eq!(said.code, 1, "{}{}", said.out, said.err);
    assert!(fs::read(&image).unwrap() == before);
}

/// It stayed for ever, and `--undo` of it was a success whatever the image had become.
#[test]
fn an_undo_file_of_a_repair_that_never_began_is_removed() {
    let Some((_alone, place, number)) = with_file(b"x") else { return };
    place.edit(|image| lose_name(image, 3, number));
    let image = OsString::from(place.image());
    let before = kill_repair(&place, &image, ":");
    let file = undo_files(&place.path("")).remove(0);
    let (half, mut whole) = (fs::read(&image).unwrap(), fs::read(&file).unwrap());
    // Before it says that blocks are durable.
    whole[72..80].fill(0);
    let begun = |blocks: usize| &whole[..80 + blocks * 4112];
    let is_told = |how: &str| fsck(&[how], &image).out.contains("before it changed anything");
    let (json, shown) = (["-n", "--json"], file.display().to_string());
    for blocks in 0..3 {
        fs::write(&image, &before).unwrap();
        fs::write(&file, begun(blocks)).unwrap();
        let said = fsck(&["-n"], &image);
        let told =
            format!("{shown}: its repair was stopped before it changed anything; heddle fsck -y removes it");
        assert!(said.code == 4 && said.out.contains(&told), "{blocks}: {}{}", said.out, said.err);
        let report: serde_json::Value = serde_json::from_str(&fsck(&json, &image).out).unwrap();
        assert_eq!(report["needless_undo_files"], serde_json::json!([shown]), "{blocks}");
        go_back(&file, &image).failed(8, &["nothing to restore"]);
        assert!(fs::read(&image).unwrap() == before, "{blocks}");
        // Another process writes it.
        let other = File::open(&file).unwrap();
        other.lock().unwrap();
        assert!(!is_told("-n"), "{blocks}");
        drop(other);
        let said = fsck(&["-y", "--undo", &place.text("kept")], &image);
        assert!(said.code == 1 && said.out.contains("it is removed"), "{blocks}: {}{}", said.out, said.err);
        assert!(!file.exists(), "{blocks}");
        // Behind another repair, too, which has left its mark.
        fs::write(&file, begun(blocks)).unwrap();
        go_back(&file, &image).failed(8, &["nothing to restore"]);
        assert!(is_told("-y") && !file.exists(), "{blocks}");
        fs::remove_file(place.path("kept")).unwrap();
    }
    // One that has more, or that the image needs, stays.
    for (bytes, undo) in [(&before, begun(3)), (&half, begun(2))] {
        fs::write(&image, bytes).unwrap();
        fs::write(&file, undo).unwrap();
        assert!(!is_told("-y") && file.exists());
    }
}

/// Killed when the undo file says that the repair has ended, and the saved files have not their names yet.
#[test]
fn files_of_a_repair_killed_at_its_end_get_their_names() {
    let Some((_alone, place, number)) = with_file(b"x") else { return };
    place.edit(|image| lose_name(image, 3, number));
    let (image, undo) = (OsString::from(place.image()), place.text("kept"));
    let before = fs::read(&image).unwrap();
    for goes_back in [false, true] {
        fs::write(&image, &before).unwrap();
        assert_eq!(fsck(&["-y", "--undo", &undo], &image).code, 1);
        let lost = place.path("image.lost");
        let id = u64::from_le_bytes(fs::read(&undo).unwrap()[64..72].try_into().unwrap());
        let staging = lost.join(format!(".heddle-{id:016x}-saving"));
        fs::rename(lost.join("lost_found"), &staging).unwrap();
        place.edit(|image| set_mark(image, b"HEDDLERB"));
        if goes_back {
            assert_eq!(go_back(Path::new(&undo), &image).code, 1);
            assert!(fs::read(&image).unwrap() == before && !lost.exists());
            continue;
        }
        let said = fsck(&["-y", "--json"], &image).ok();
        let report: serde_json::Value = serde_json::from_str(&said.out).unwrap();
        assert_eq!(report["saved_earlier"], lost.join("lost_found").to_str().unwrap());
        assert_eq!(fs::read_dir(lost.join("lost_found")).unwrap().count(), 1);
        assert!(!staging.exists());
        fs::remove_dir_all(lost).unwrap();
        fs::remove_file(&undo).unwrap();
    }
}

/// The other engine read the undo file then.
#[test]
fn an_undo_file_restores_an_image_without_superblocks() {
    let Some((_alone, place, number)) = with_file(b"x") else { return };
    place.edit(|image| lose_name(image, 3, number));
    let image = OsString::from(place.image());
    let before = kill_repair(&place, &image, ":");
    let (half, undo) = (fs::read(&image).unwrap(), undo_files(&place.path("")).remove(0));
    // Nothing tells that it is the image.
    fs::write(&image, vec![0; before.len()]).unwrap();
    go_back(&undo, &image).failed(8, &["cannot be told"]);
    fs::write(&image, &before).unwrap();
    let whole = place.path("whole");
    assert_eq!(fsck(&["-y", "--undo", whole.to_str().unwrap()], &image).code, 1);
    let repaired = fs::read(&image).unwrap();
    for (bytes, undo) in [(&half, &undo), (&repaired, &whole)] {
        fs::write(&image, bytes).unwrap();
        place.edit(|image| image[..2 * BLOCK_BYTES].fill(0));
        let said = go_back(undo, &image);
        assert!(said.code == 1 && fs::read(&image).unwrap() == before, "{}{}", said.out, said.err);
    }
}

/// A limit ended it in the midst, and the message did not say so.
#[test]
fn a_way_back_that_cannot_end_does_not_begin() {
    let Some((_alone, place, number)) = with_file(b"x") else { return };
    place.edit(|image| lose_name(image, 3, number));
    let (image, undo) = (OsString::from(place.image()), place.text("kept"));
    assert_eq!(fsck(&["-y", "--undo", &undo], &image).code, 1);
    let repaired = fs::read(&image).unwrap();
    let line =
        format!("ulimit -f 2000; exec {} fsck --undo {undo} {}", env!("CARGO_BIN_EXE_heddle"), place.image());
    let said = Said::of(std::process::Command::new("sh").args(["-c", &line]).output().unwrap());
    said.failed(8, &["nothing was restored", "ulimit -f"]);
    assert!(fs::read(&image).unwrap() == repaired);
}
