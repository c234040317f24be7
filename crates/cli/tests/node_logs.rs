//! Node logs that are lost, cut short or of the wrong size, and images that need one and cannot be folded: the message names the way out,
//! and that way works.

mod common;
#[path = "common/killed.rs"]
mod left;

use common::loop_device::Loop;
use common::{Place, heddle, own_namespace};
use heddle_f2fs::checksum::{SEED, checksum};
use left::{LOG_BYTES, killed};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

const BLOCK: usize = 4096;
const SEGMENT: usize = 512 * BLOCK;

fn mount(place: &Place, nvm: &str, image: &str, options: &str) -> common::Said {
    let options = format!("log=/dev/null,wait=0,{options}");
    heddle(&["mount", "--variant", "f2fs-nl", "--nvm", nvm, "-o", &options, image, &place.mnt()])
}

fn unmount(place: &Place) {
    heddle(&["umount", &place.mnt()]).ok();
}

#[test]
fn a_log_of_the_wrong_size_names_a_way_out_that_works() {
    if !own_namespace() {
        return;
    }
    let place = Place::new();
    let [image, nvm] = ["flash.img", "nvm"].map(|name| place.text(name));
    let least = heddle_f2fs::LOG_BYTES_MIN;
    for bytes in [0, 17, 4096, least - 1, least, LOG_BYTES / 2 + 17] {
        killed(&image, &nvm);
        File::options().write(true).open(&nvm).unwrap().set_len(bytes).unwrap();
        let before = [&image, &nvm].map(|path| fs::read(path).unwrap());
        let way = if bytes == 0 { "discard-nvm" } else { "-o force-nvm,discard-nvm" };
        mount(&place, &nvm, &image, "rw").failed(1, &[way]);
        let fold = heddle(&["fold", "--nvm", &nvm, &image]);
        assert!(bytes == 0 || fold.err.contains("cut short"), "{bytes} bytes: {}", fold.err);
        fold.failed(1, &[way]);
        assert!(before == [&image, &nvm].map(|path| fs::read(path).unwrap()), "{bytes} bytes");
        // A mount that is refused leaves the size, too.
        mount(&place, &nvm, &image, "force-nvm").failed(1, &["-o force-nvm,discard-nvm"]);
        assert_eq!(fs::metadata(&nvm).unwrap().len(), bytes);
        mount(&place, &nvm, &image, "force-nvm,discard-nvm").ok();
        assert!(!place.path("mnt/file").exists());
        unmount(&place);
        mount(&place, &nvm, &image, "rw").ok();
        unmount(&place);
    }
    killed(&image, &nvm);
    fs::remove_file(&nvm).unwrap();
    heddle(&["fold", "--nvm", &nvm, &image]).failed(2, &["no such file", "heddle mount -o discard-nvm"]);
    heddle(&["mount", "-o", "discard-nvm,log=/dev/null", &image, &place.mnt()]).ok();
    unmount(&place);
}

/// The options that a message names, as it has them.
fn options_in(message: &str) -> &str {
    let (_, behind) = message.rsplit_once("-o ").unwrap_or_else(|| panic!("it names no option: {message}"));
    behind.split(|c: char| !c.is_ascii_lowercase() && !"-,".contains(c)).next().unwrap()
}

/// Two messages named two options by turns, and neither of them worked alone.
#[test]
fn what_a_message_about_a_node_log_advises_works_at_once() {
    if !own_namespace() {
        return;
    }
    let place = Place::new();
    let [image, own, other, nvm] = ["flash.img", "own", "other.img", "nvm"].map(|name| place.text(name));
    let noise = || fs::write(&nvm, vec![0x5a; 1 << 20]).unwrap();
    let cut = || {
        fs::copy(&own, &nvm).unwrap();
        File::options().write(true).open(&nvm).unwrap().set_len(LOG_BYTES / 2).unwrap();
    };
    let blank = || fs::write(&nvm, vec![0; 1 << 20]).unwrap();
    let missing = || _ = fs::remove_file(&nvm);
    let of_another = || killed(&other, &nvm);
    let unmounted = || {
        heddle(&["mkfs", "--variant", "f2fs", "--size", "64M", "--force", &other]).ok();
        missing();
        mount(&place, &nvm, &other, "rw").ok();
        unmount(&place);
    };
    let wrong: [&dyn Fn(); 6] = [&noise, &cut, &blank, &missing, &of_another, &unmounted];
    for (n, make) in wrong.into_iter().enumerate() {
        for options in ["rw", "force-nvm", "discard-nvm", "fold"] {
            killed(&image, &own);
            make();
            let said = match options {
                "fold" => heddle(&["fold", "--nvm", &nvm, &image]),
                _ => mount(&place, &nvm, &image, options),
            };
            if said.code == 0 {
                // A place without anything becomes a log, and so does that of an image that needs it no more.
                assert!(options == "discard-nvm" && [2, 3, 5].contains(&n), "case {n}, {options}");
                unmount(&place);
                continue;
            }
            // Nothing is written, so nothing says that it will be.
            let [lost, made] = ["overwrites it", ": node log, "].map(|words| said.err.contains(words));
            assert!(options == "fold" || !lost && !made, "case {n}, {options}: {}", said.err);
            let way = options_in(&said.err);
            let followed = match said.err.contains("without --nvm") {
                true => heddle(&["mount", "-o", &format!("log=/dev/null,{way}"), &image, &place.mnt()]),
                false => mount(&place, &nvm, &image, way),
            };
            assert_eq!(followed.code, 0, "case {n}, {options}: {} Followed: {}", said.err, followed.err);
            unmount(&place);
        }
    }
}

#[test]
fn a_write_protected_node_log_is_called_that() {
    if !own_namespace() {
        return;
    }
    let place = Place::with_image_of("f2fs", "64M");
    let (image, nvm) = (place.image(), place.text("nvm"));
    // Nothing in it, and a log that has records.
    for is_used in [false, true] {
        match is_used {
            false => fs::write(&nvm, vec![0; LOG_BYTES as usize]).unwrap(),
            true => killed(&image, &nvm),
        }
        let before = fs::read(&nvm).unwrap();
        let Some(device) = Loop::protected_over(Path::new(&nvm)) else { return };
        let way = "heddle mount -o ro, without --nvm";
        mount(&place, &device.0, &image, "rw")
            .failed(1, &[&device.0, "is write-protected", "a node log is written to", way]);
        drop(device);
        assert!(fs::read(&nvm).unwrap() == before);
        heddle(&["mount", "-o", "ro,log=/dev/null", &image, &place.mnt()]).ok();
        unmount(&place);
    }
}

#[test]
fn a_size_that_no_log_has_is_wrong_usage() {
    if !own_namespace() {
        return;
    }
    let place = Place::with_image_of("f2fs", "64M");
    let nvm = place.text("nvm");
    for size in ["0", "17", "64K", "519K", "1T"] {
        mount(&place, &nvm, &place.image(), &format!("nvm-size={size}"))
            .failed(2, &["nvm-size", "at least 520 KiB and at most 256 GiB"]);
        assert!(!Path::new(&nvm).exists(), "{size}");
    }
    // What is no multiple of a page loses the rest.
    for (size, bytes) in [("520K", 520 << 10), ("1000001", 999_424)] {
        mount(&place, &nvm, &place.image(), &format!("nvm-size={size}")).ok();
        unmount(&place);
        assert_eq!(fs::metadata(&nvm).unwrap().len(), bytes);
        let said = mount(&place, &nvm, &place.image(), "nvm-size=8M").ok();
        assert!(
            said.err.contains("is there already") && said.err.contains("nvm-size=8 MiB is not used"),
            "{}",
            said.err
        );
        unmount(&place);
        mount(&place, &nvm, &place.image(), "force-nvm,nvm-size=1M").ok();
        unmount(&place);
        assert_eq!(fs::metadata(&nvm).unwrap().len(), 1 << 20);
        fs::remove_file(&nvm).unwrap();
    }
}

#[test]
fn under_a_dead_mount_errors_name_the_way_out() {
    if !own_namespace() {
        return;
    }
    let place = Place::with_image_of("f2fs", "64M");
    let (image, mnt) = (place.image(), place.mnt());
    let mut served = common::command(&["mount", "--foreground", &image, &mnt]).spawn().unwrap();
    let device = |path: &Path| fs::metadata(path).unwrap().dev();
    while device(Path::new(&mnt)) == device(&place.path("")) {
        assert!(served.try_wait().unwrap().is_none(), "never mounted");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    served.kill().unwrap();
    served.wait().unwrap();
    let under = place.text("mnt/under");
    for command in [
        &["info", &under][..],
        &["fsck", &under],
        &["stat", &mnt],
        &["mount", "-o", "remount,ro", &image, &mnt],
        &["mount", &image, &under],
        &["fold", "--nvm", &under, &image],
        &["fold", "--nvm", &image, &under],
        &["mkfs", "--variant", "f2fs", &under],
    ] {
        let said = heddle(command);
        assert!(said.code == if command[0] == "fsck" { 8 } else { 1 }, "{command:?}: {}", said.code);
        let way = "has died: heddle umount";
        assert!(said.err.contains(way), "{command:?}: {}", said.err);
    }
    heddle(&["umount", &mnt]).failed(1, &["had died"]);
}

/// Has the checkpoint say that a check is needed, as Linux does.
fn ask_for_a_check(image: &str) {
    let file = File::options().read(true).write(true).open(image).unwrap();
    for pack in [SEGMENT, 2 * SEGMENT] {
        let mut block = [0; BLOCK];
        file.read_exact_at(&mut block, pack as u64).unwrap();
        let word = |block: &[u8], at: usize| u32::from_le_bytes(block[at..at + 4].try_into().unwrap());
        let (blocks, at) = (word(&block, 136), word(&block, 164) as usize);
        if !(3..=512).contains(&blocks) {
            continue;
        }
        for n in [0, blocks as usize - 1] {
            file.read_exact_at(&mut block, (pack + n * BLOCK) as u64).unwrap();
            let flags = word(&block, 132) | 0x10;
            block[132..136].copy_from_slice(&flags.to_le_bytes());
            let crc = checksum(SEED, &block[..at]);
            let crc = if at < BLOCK - 4 { checksum(crc, &block[at + 4..]) } else { crc };
            block[at..at + 4].copy_from_slice(&crc.to_le_bytes());
            file.write_all_at(&block, (pack + n * BLOCK) as u64).unwrap();
        }
    }
}

fn has_checker() -> bool {
    let is_there = ["/usr/sbin/fsck.f2fs", "/sbin/fsck.f2fs"].iter().any(|path| Path::new(path).exists());
    if !is_there {
        eprintln!("SKIPPED, NOT TESTED: there is no fsck.f2fs");
    }
    is_there
}

fn asks_for_a_check(image: &str) -> bool {
    let said: serde_json::Value = serde_json::from_str(&heddle(&["info", "--json", image]).ok().out).unwrap();
    said["needs_fsck"] == true
}

#[test]
fn an_image_that_asks_for_a_check_is_mounted_after_one() {
    if !own_namespace() || !has_checker() {
        return;
    }
    let place = Place::with_image_of("f2fs", "64M");
    ask_for_a_check(&place.image());
    assert!(asks_for_a_check(&place.image()));
    place.mount().failed(1, &["a check is needed", "heddle fsck -y"]);
    assert!(heddle(&["fsck", "-n", &place.image()]).out.contains("a check is needed"));
    assert_eq!(heddle(&["fsck", "-y", &place.image()]).code, 1);
    assert!(!asks_for_a_check(&place.image()));
    heddle(&["fsck", "-n", &place.image()]).ok();
    heddle(&["mount", "-o", "log=/dev/null", &place.image(), &place.mnt()]).ok();
    unmount(&place);
}

#[test]
fn an_image_that_cannot_be_folded_is_repaired_without_its_log() {
    if !own_namespace() || !has_checker() {
        return;
    }
    let place = Place::new();
    let [image, nvm] = ["flash.img", "nvm"].map(|name| place.text(name));
    heddle(&["fsck", "--discard-nvm", &image]).failed(16, &["add -y"]);
    heddle(&["mkfs", "--size", "8M", &place.image()]).ok();
    heddle(&["fsck", "-y", "--discard-nvm", &place.image()]).failed(16, &["F2FS"]);
    let damaged_sit = |image: &str| {
        let file = File::options().write(true).open(image).unwrap();
        // Segments 3 and 4 are the two copies.
        file.write_all_at(&vec![0x5a; 2 * BLOCK], 3 * SEGMENT as u64).unwrap();
        file.write_all_at(&vec![0x5a; 2 * BLOCK], 4 * SEGMENT as u64).unwrap();
    };
    for damage in [&ask_for_a_check as &dyn Fn(&str), &damaged_sit] {
        killed(&image, &nvm);
        damage(&image);
        assert_ne!(heddle(&["fold", "--nvm", &nvm, &image]).code, 0);
        let before = fs::read(&image).unwrap();
        heddle(&["fsck", "-y", &image]).failed(8, &["heddle fold", "heddle fsck -y --discard-nvm"]);
        if let Some(device) = Loop::protected_over(Path::new(&image)) {
            let said = heddle(&["fsck", "-y", "--discard-nvm", &device.0]);
            assert!(said.code == 4 && said.out.contains("write-protected"), "{}{}", said.out, said.err);
        }
        assert!(before == fs::read(&image).unwrap(), "it was changed");
        let said = heddle(&["fsck", "-y", "--discard-nvm", &image]);
        assert!(said.code == 1 && said.out.contains("are lost"), "{}{}", said.out, said.err);
        heddle(&["fsck", "-n", &image]).ok();
        assert!(!asks_for_a_check(&image));
        mount(&place, &nvm, &image, "rw").failed(1, &["-o discard-nvm"]);
        heddle(&["mount", "-o", "log=/dev/null", &image, &place.mnt()]).ok();
        unmount(&place);
        mount(&place, &nvm, &image, "discard-nvm").ok();
        unmount(&place);
    }
    killed(&image, &nvm);
    rustix::mount::mount("none", "/usr/sbin", "tmpfs", rustix::mount::MountFlags::empty(), None).unwrap();
    heddle(&["fsck", "-y", "--discard-nvm", &image]).failed(8, &["nothing was discarded", "f2fs-tools"]);
    rustix::mount::unmount("/usr/sbin", rustix::mount::UnmountFlags::DETACH).unwrap();
    // Nothing is to be repaired, and the log is given up.
    let said = heddle(&["fsck", "-y", "--discard-nvm", "--json", &image]);
    assert_eq!(said.code, 1, "{}{}", said.out, said.err);
    let said: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!((&said["result"], &said["node_log_given_up"]), (&"corrected".into(), &true.into()));
    heddle(&["fsck", "-y", &image]).ok();
}

#[test]
fn fsck_repairs_nothing_that_is_mounted_read_only() {
    if !own_namespace() {
        return;
    }
    let place = Place::with_image_of("f2fs", "64M");
    let image = place.image();
    heddle(&["mount", "-o", "ro,log=/dev/null", &image, &place.mnt()]).ok();
    let other = place.text("other");
    fs::create_dir(&other).unwrap();
    let again = ["mount", "-o", "wait=0", &image, &other];
    let said = [&["fsck", "-y", &image][..], &["fsck", "-n", &image], &again].map(heddle);
    unmount(&place);
    let [repair, look, again] = said;
    let remedy = format!("Unmount it with: heddle umount {}", place.mnt());
    repair.failed(8, &["in use", &remedy]);
    again.failed(1, &["in use", &remedy]);
    look.ok();
    // A mount of the system holds its loop device as this does.
    let Some(device) = Loop::over(Path::new(&image)) else { return };
    let exclusive = libc::O_EXCL;
    let held = File::options().read(true).custom_flags(exclusive).open(&device.0).unwrap();
    for path in [&image, &device.0] {
        heddle(&["fsck", "-y", path]).failed(8, &["in use"]);
    }
    heddle(&["fsck", "-n", &image]).ok();
    drop(held);
    heddle(&["fsck", "-y", &image]).ok();
}
