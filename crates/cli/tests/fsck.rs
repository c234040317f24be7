//! `heddle fsck`, `explain`, `dump` and the content part of `info`: exit codes of fsck(8), undo, JSON.

mod common;

use common::{Place, heddle};
use heddle_nvmfs::format::superblock::{HALF_REPAIRED, SUPERBLOCK_BYTES, Superblock};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use zerocopy::{FromBytes, IntoBytes};

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// An image whose root directory's slot has a flipped bit.
fn damaged() -> Place {
    let place = Place::with_image("heddle");
    let chunk =
        json(&heddle(&["dump", "--json", &place.image(), "inode", "1"]).ok().out)["dump"]["block"].as_u64();
    place.edit(|bytes| bytes[chunk.unwrap() as usize * 4096 + 128 + 20] ^= 4);
    place
}

#[test]
fn a_clean_image_is_exit_code_0_and_stays_as_it_is() {
    let place = Place::with_image("nova-tree");
    let before = std::fs::read(place.image()).unwrap();
    for how in ["-n", "-y"] {
        let said = heddle(&["fsck", how, &place.image()]).ok();
        let told = format!("{}: clean; 1 inodes, 0 errors, 0 warnings, 0 notes\n", place.image());
        assert_eq!(said.out, told);
    }
    let report = json(&heddle(&["fsck", "--json", &place.image()]).ok().out);
    assert_eq!(
        (&report["result"], &report["exit_code"], &report["output_version"]),
        (&"clean".into(), &0.into(), &1.into())
    );
    assert_eq!(std::fs::read(place.image()).unwrap(), before);
}

#[test]
fn damage_left_is_4_repaired_is_1_undo_restores_every_byte() {
    let place = damaged();
    let before = std::fs::read(place.image()).unwrap();
    // Nobody to ask: as with -n.
    for args in [&["fsck"][..], &["fsck", "-n"]] {
        let said = heddle(&[args, &[&place.image()]].concat());
        assert_eq!(said.code, 4, "{}{}", said.out, said.err);
        assert!(said.out.contains("NV-0020") && said.out.contains("heddle fsck -y"), "{}", said.out);
    }
    assert_eq!(std::fs::read(place.image()).unwrap(), before);
    place.mount().failed(1, &["cannot mount"]);
    // A refused mount counts as one.
    let before = std::fs::read(place.image()).unwrap();
    let undo = place.text("undo");
    let said = heddle(&["fsck", "-y", "--json", "--undo", &undo, &place.image()]);
    assert_eq!(said.code, 1, "{}{}", said.out, said.err);
    let report = json(&said.out);
    assert_eq!((&report["result"], &report["undo_file"]), (&"corrected".into(), &undo.clone().into()));
    assert_eq!(report["issues"][0]["id"], "NV-0020");
    assert_eq!(report["issues"][0]["repairable"], true);
    heddle(&["fsck", &place.image()]).ok();
    let said = heddle(&["fsck", "--undo", &undo, &place.image()]);
    assert_eq!(said.code, 1, "{}{}", said.out, said.err);
    assert_eq!(std::fs::read(place.image()).unwrap(), before);
}

/// The undo file has the first superblock, which lay where the other format is now.
#[test]
fn a_way_back_writes_nothing_over_what_was_made_later() {
    let place = damaged();
    let undo = place.text("undo");
    assert_eq!(heddle(&["fsck", "-y", "--undo", &undo, &place.image()]).code, 1);
    place.edit(|image| image[..8].copy_from_slice(b"LUKS\xba\xbe\x00\x01"));
    let before = std::fs::read(place.image()).unwrap();
    heddle(&["fsck", "--undo", &undo, &place.image()]).failed(8, &["LUKS"]);
    assert!(std::fs::read(place.image()).unwrap() == before);
}

/// The message called them the rest of an image, and had a command that destroys them.
#[test]
fn a_file_of_another_format_alone_is_named_as_what_it_is() {
    let place = damaged();
    let mut other = vec![0; 16 << 20];
    other[..8].copy_from_slice(b"LUKS\xba\xbe\x00\x01");
    std::fs::write(place.image(), &other).unwrap();
    for how in ["-n", "-y"] {
        let said = heddle(&["fsck", how, &place.image()]);
        assert!(!said.err.contains("wipefs"), "{}", said.err);
        said.failed(8, &["no heddle file system", "LUKS"]);
    }
    assert!(std::fs::read(place.image()).unwrap() == other);
}

#[test]
fn an_undo_file_is_kept_beside_the_image_without_being_asked_for() {
    let place = damaged();
    let said = heddle(&["fsck", "-y", &place.image()]);
    assert_eq!(said.code, 1, "{}{}", said.out, said.err);
    let kept =
        std::fs::read_dir(place.path("")).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let kept: Vec<String> = kept.filter(|name| name.starts_with("image.undo-")).collect();
    assert_eq!(kept.len(), 1, "{kept:?}");
    assert!(said.out.contains(&kept[0]), "{}", said.out);
    let perm = std::fs::metadata(place.path(&kept[0])).unwrap().permissions().mode();
    assert_eq!(perm & 0o777, 0o600, "it holds bytes of an image, whose owner alone may read that");
}

/// The refusals named no undo file.
#[test]
fn a_half_repaired_image_names_its_undo_file() {
    let place = damaged();
    let before = std::fs::read(place.image()).unwrap();
    let undo = place.text("image.undo-20260101T000000");
    // One of another repair.
    assert_eq!(heddle(&["fsck", "-y", "--undo", &place.text("a"), &place.image()]).code, 1);
    std::fs::write(place.image(), &before).unwrap();
    assert_eq!(heddle(&["fsck", "-y", "--undo", &undo, &place.image()]).code, 1);
    halve(&place);
    let way = format!("heddle fsck --undo {undo} {}", place.image());
    for how in ["-n", "-y"] {
        heddle(&["fsck", how, &place.image()]).failed(4, &["half repaired", &way]);
    }
    place.mount().failed(1, &["half repaired", &way]);
    let report = json(&heddle(&["fsck", "--json", &place.image()]).out);
    assert!(report["not_repaired"].as_str().unwrap().contains("half repaired"), "{report}");
    // Another identity would make the undo file useless.
    heddle(&["tune", "--uuid", "random", &place.image()]).failed(1, &["half repaired", &way]);
    let info = heddle(&["info", &place.image()]).ok().out;
    assert!(info.contains("half repaired"), "{info}");
    assert_eq!(json(&heddle(&["info", "--json", &place.image()]).ok().out)["half_repaired"], true);
    heddle(&["fsck", "--undo", &place.text("a"), &place.image()]).failed(8, &["another repair"]);
    std::fs::write(place.text("cut"), &std::fs::read(&undo).unwrap()[..80]).unwrap();
    // Of no use, and the whole one is there.
    heddle(&["fsck", "--undo", &place.text("cut"), &place.image()]).failed(8, &["cut short", &way]);
    std::fs::remove_file(place.text("cut")).unwrap();
    std::fs::create_dir(place.path("away")).unwrap();
    std::fs::rename(&undo, place.path("away/undo")).unwrap();
    let way = ["not here", "--discard-undo"];
    heddle(&["fsck", "-y", &place.image()]).failed(4, &way);
    place.mount().failed(1, &way);
    assert_eq!(heddle(&["fsck", "--undo", &place.text("away/undo"), &place.image()]).code, 1);
    assert!(std::fs::read(place.image()).unwrap() == before);
}

/// The superblocks say that a repair was stopped half-way.
fn halve(place: &Place) {
    place.edit(|bytes| {
        for at in [0, bytes.len() - 4096] {
            let bytes = &mut bytes[at..at + SUPERBLOCK_BYTES];
            let half =
                Superblock { clean: HALF_REPAIRED.into(), ..Superblock::read_from_bytes(bytes).unwrap() };
            bytes.copy_from_slice(half.sealed().as_bytes());
        }
    });
}

/// It was done without a word, and also over what was made later.
#[test]
fn a_discarded_undo_file_is_told_and_nothing_made_later_is_written() {
    let place = Place::with_image("heddle");
    halve(&place);
    let half = std::fs::read(place.image()).unwrap();
    let give_up = ["fsck", "-y", "--discard-undo", &place.image()];
    let said = heddle(&give_up);
    assert_eq!((said.code, said.out.contains("is lost to the image")), (1, true), "{}", said.out);
    std::fs::write(place.image(), &half).unwrap();
    let said = heddle(&["fsck", "-y", "--discard-undo", "--json", &place.image()]);
    let report = json(&said.out);
    assert_eq!(
        (said.code, &report["undo_given_up"], &report["result"]),
        (1, &true.into(), &"corrected".into())
    );
    let said = heddle(&give_up).ok();
    assert!(!said.out.contains("is lost"), "nothing is given up: {}", said.out);
    std::fs::write(place.image(), &half).unwrap();
    place.edit(|image| image[..8].copy_from_slice(b"LUKS\xba\xbe\x00\x01"));
    let before = std::fs::read(place.image()).unwrap();
    for how in [&give_up[..], &["fsck", "-n", &place.image()]] {
        heddle(how).failed(8, &["LUKS"]);
    }
    assert!(std::fs::read(place.image()).unwrap() == before);
}

#[test]
fn an_undo_file_that_was_never_whole_is_removed() {
    let place = damaged();
    let before = std::fs::read(place.image()).unwrap();
    let undo = place.text("image.undo-20260101T000000");
    assert_eq!(heddle(&["fsck", "-y", "--undo", &undo, &place.image()]).code, 1);
    std::fs::write(place.image(), &before).unwrap();
    let mut bytes = std::fs::read(&undo).unwrap();
    // How many blocks it has is not said yet.
    bytes[56..64].fill(0xff);
    std::fs::write(&undo, &bytes[..bytes.len() - 4]).unwrap();
    heddle(&["fsck", "--undo", &undo, &place.image()]).failed(8, &["nothing to restore"]);
    let said = heddle(&["fsck", "-n", &place.image()]);
    assert!(said.out.contains(&format!("{undo}: its repair was stopped before")), "{}", said.out);
    let said = heddle(&["fsck", "-y", "--json", "--undo", &place.text("kept"), &place.image()]);
    let report = json(&said.out);
    assert_eq!((said.code, &report["needless_undo_files"][0]), (1, &undo.as_str().into()));
    assert!(!std::path::Path::new(&undo).exists());
}

#[test]
fn what_cannot_be_checked_is_8_and_a_wrong_command_16() {
    let place = Place::new();
    heddle(&["fsck", &place.text("nowhere")]).failed(8, &["No such file"]);
    std::fs::write(place.image(), vec![0x5a; 8 << 20]).unwrap();
    heddle(&["fsck", &place.image()]).failed(8, &["no heddle file system"]);
    heddle(&["fsck", "-n", "-y", &place.image()]).failed(16, &["-n"]);
    heddle(&["fsck", "--nope", &place.image()]).failed(16, &["--nope"]);
    heddle(&["fsck"]).failed(16, &["IMAGE"]);
    heddle(&["fsck", "-n", "--undo", "x", &place.image()]).failed(16, &["--undo"]);
    let flash = Place::with_image_of("f2fs", "64M");
    let image = flash.image();
    heddle(&["fsck", "--undo", "/nowhere", &image]).failed(8, &["cannot use the undo file /nowhere"]);
    heddle(&["fsck", "--help"]).ok();
}

#[test]
fn a_mounted_image_is_refused_with_the_command_that_unmounts_it() {
    if !common::own_namespace() {
        return;
    }
    let place = Place::with_image("heddle");
    let _mounted = common::Mounted::new(&place, &[]);
    heddle(&["fsck", "-n", &place.image()]).failed(8, &["mounted at", "heddle umount"]);
    heddle(&["fsck", "-y", &place.image()]).failed(8, &["mounted at", "heddle umount"]);
}

#[test]
fn lost_superblocks_are_said_to_be_beyond_repair() {
    let place = Place::with_image("heddle");
    place.edit(|bytes| {
        let last = bytes.len() - 4096;
        bytes[40..56].fill(7);
        bytes[last + 40..last + 56].fill(9);
    });
    let said = heddle(&["fsck", "-y", &place.image()]);
    assert_eq!(said.code, 4, "{}{}", said.out, said.err);
    assert!(said.out.contains("NV-0003") && said.out.contains("backup"), "{}", said.out);
}

#[test]
fn every_issue_is_explained() {
    let all = json(&heddle(&["explain", "--json"]).ok().out);
    let all = all["issues"].as_array().unwrap().clone();
    assert!(all.len() > 50, "{}", all.len());
    for issue in all {
        let said = heddle(&["explain", issue["id"].as_str().unwrap()]).ok().out;
        assert!(said.contains(issue["meaning"].as_str().unwrap()), "{said}");
        assert!(said.contains("Repair: "), "{said}");
    }
    heddle(&["explain", "NV-0042"]).ok();
    heddle(&["explain", "NV-9999"]).failed(2, &["NV-9999", "heddle explain"]);
}

#[test]
fn dump_prints_every_structure_as_text_and_as_json() {
    if !common::own_namespace() {
        return;
    }
    let place = Place::with_image("heddle");
    {
        let mounted = common::Mounted::new(&place, &[]);
        std::fs::create_dir(mounted.path("a")).unwrap();
        std::fs::write(mounted.path("a/b"), vec![1; 10_000]).unwrap();
    }
    let image = place.image();
    let dump = |what: &[&str]| {
        let text = heddle(&[&["dump", &image], what].concat()).ok().out;
        assert!(!text.is_empty());
        json(&heddle(&[&["dump", "--json", &image], what].concat()).ok().out)["dump"].clone()
    };
    assert_eq!(dump(&["superblock"])[0]["variant"], "heddle");
    let file = dump(&["/a/b"]);
    assert_eq!((&file["kind"], &file["size_bytes"]), (&"regular".into(), &10_000.into()));
    let number = file["inode"].to_string();
    assert_eq!(dump(&["inode", &number]), file);
    let log = dump(&["log", &number]);
    assert_eq!(log["records"][0]["kind"], "write");
    let page = log["pages"][0].to_string();
    assert_eq!(dump(&["page", &page])["inode"].to_string(), number);
    assert_eq!(dump(&["record", &format!("{page}:1")])["version"], 1);
    let tree = dump(&["tree"]);
    assert!(tree.as_array().unwrap().iter().any(|e| e["path"] == "/a/b"), "{tree}");
    heddle(&["dump", &image, "/a/c"]).failed(1, &["/a/c"]);
    heddle(&["dump", &image, "page", "0"]).failed(1, &["data area"]);
    heddle(&["dump", &image, "nonsense"]).failed(2, &["nonsense", "superblock"]);
    heddle(&["dump", &image, "inode", "x"]).failed(2, &["x", "number"]);
}

#[test]
fn info_tells_space_inodes_logs_and_fragmentation() {
    if !common::own_namespace() {
        return;
    }
    let place = Place::with_image("heddle");
    {
        let mounted = common::Mounted::new(&place, &[]);
        std::fs::write(mounted.path("file"), vec![1; 40_000]).unwrap();
        let info = json(&heddle(&["info", "--json", &place.image()]).ok().out);
        assert_eq!((&info["in_use"], &info["content"]), (&true.into(), &Value::Null));
    }
    let info = json(&heddle(&["info", "--json", "--files", &place.image()]).ok().out);
    let content = &info["content"];
    assert_eq!(content["inodes"]["named"], 2);
    assert_eq!(content["space"]["data_bytes"], 40_960);
    assert_eq!(content["files"].as_array().unwrap().len(), 2);
    let space = &content["space"];
    let parts = ["data_bytes", "log_bytes", "inode_bytes", "fixed_bytes", "free_bytes"];
    let sum: u64 = parts.iter().map(|part| space[part].as_u64().unwrap()).sum();
    assert_eq!(sum, 8 << 20);
    let text = heddle(&["info", "--files", &place.image()]).ok().out;
    assert!(text.contains("1 files, 1 directories") && text.contains("regular"), "{text}");
}
