//! A repair by fsck.f2fs is a transaction: what it takes from files is saved, and its undo file restores every byte.

use super::lost::{change_inode, content, has_checker, ino, lose_name, tree};
use crate::common::loop_device::Loop;
use crate::common::{Mounted, Place, Said, alone, command, heddle};
use heddle_f2fs::checksum::{SEED, checksum, inode_seed, of_inode};
use heddle_f2fs::format::{
    BLOCK_BYTES, CheckpointHead, InodeBlock, NAT_ENTRIES, NatBlock, NodeBlock, SUPERBLOCK_OFFSET_BYTES,
    Superblock, checkpoint_flag,
};
use rustix::mount::{MountFlags, UnmountFlags};
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

const QUIET: [&str; 2] = ["-o", "log=/dev/null"];

/// What `heddle fsck -y --json` says; then that `--undo` restores the image. The image is as repaired again afterwards.
fn repaired_and_undone(image: &str) -> Value {
    let before = fs::read(image).unwrap();
    let said = heddle(&["fsck", "-y", "--json", image]);
    assert_eq!(said.code, 1, "{}{}", said.out, said.err);
    let report: Value = serde_json::from_str(&said.out).unwrap();
    let after = fs::read(image).unwrap();
    assert!(before != after, "nothing was repaired: {report}");
    heddle(&["fsck", "-n", image]).ok();
    let undo = report["undo_file"].as_str().unwrap();
    assert_eq!(fs::metadata(undo).unwrap().permissions().mode() & 0o777, 0o600);
    let back = heddle(&["fsck", "--undo", undo, image]);
    assert!(back.code == 1 && back.out.contains("blocks are as they were"), "{}{}", back.out, back.err);
    assert!(fs::read(image).unwrap() == before, "not the same bytes");
    fs::write(image, after).unwrap();
    report
}

/// The path of the old content of a file that kept its name.
fn saved_as(report: &Value, path: &str) -> PathBuf {
    let changed = report["changed_files"].as_array().unwrap_or_else(|| panic!("{report}"));
    let changed: Vec<&Value> = changed.iter().filter(|file| file["path"] == path).collect();
    assert_eq!(changed.len(), 1, "{report}");
    changed[0]["saved"].as_str().unwrap().into()
}

/// Each node of a file but its inode.
fn change_nodes(bytes: &mut [u8], ino: u64, change: impl Fn(&mut NodeBlock)) {
    let mut changed = 0;
    for block in bytes.chunks_exact_mut(BLOCK_BYTES) {
        let node = NodeBlock::mut_from_bytes(block).unwrap();
        if u64::from(node.footer.ino.get()) == ino
            && node.footer.nid != node.footer.ino
            && node.footer.nid.get() < 10_000
        {
            change(node);
            changed += 1;
        }
    }
    assert!(changed > 0, "inode {ino} has no other nodes");
}

/// Changes the entries of a node in both copies of the node table.
fn change_table(bytes: &mut [u8], nid: u64, addr: u32) {
    let (superblock, _) = Superblock::read_from_prefix(&bytes[SUPERBLOCK_OFFSET_BYTES..]).unwrap();
    let (block, entry) = (nid as usize / NAT_ENTRIES, nid as usize % NAT_ENTRIES);
    let mut changed = 0;
    for copy in [0, 512] {
        let at = (superblock.nat.get() as usize + copy + block) * BLOCK_BYTES;
        let table = NatBlock::mut_from_bytes(&mut bytes[at..at + BLOCK_BYTES]).unwrap();
        if table.entries[entry].addr.get() != 0 {
            table.entries[entry].addr.set(addr);
            changed += 1;
        }
    }
    assert!(changed > 0, "node {nid} is in no table");
}

/// A file of that many bytes, and its number.
pub fn with_file(bytes: &[u8]) -> Option<(std::sync::MutexGuard<'static, ()>, Place, u64)> {
    let alone = alone()?;
    let place = Place::with_image_of("f2fs", "64M");
    if !has_checker() {
        return None;
    }
    let number = {
        let mounted = Mounted::new(&place, &QUIET);
        fs::write(mounted.path("file"), bytes).unwrap();
        ino(&mounted.path("file"))
    };
    Some((alone, place, number))
}

/// fsck.f2fs frees the pages under such a node, and the file keeps its name.
#[test]
fn pages_under_a_damaged_node_are_saved() {
    let bytes = content(8 << 20, 5);
    let Some((_alone, place, number)) = with_file(&bytes) else { return };
    place.edit(|image| {
        change_nodes(image, number, |node| node.footer.nid.set(node.footer.nid.get() + 10_000))
    });
    let report = repaired_and_undone(&place.image());
    assert!(fs::read(saved_as(&report, "/file")).unwrap() == bytes, "{report}");
}

/// The checker looks at no device that somebody else has open exclusively, and so said that all had failed.
#[test]
fn a_repaired_device_is_reported_as_repaired() {
    let bytes = content(8 << 20, 15);
    let Some((_alone, place, number)) = with_file(&bytes) else { return };
    place.edit(|image| {
        change_nodes(image, number, |node| node.footer.nid.set(node.footer.nid.get() + 10_000))
    });
    let before = fs::read(place.image()).unwrap();
    let Some(device) = Loop::over(Path::new(&place.image())) else { return };
    // Undo file and lost files of a device lie in the working directory.
    let here = place.path("here");
    fs::create_dir(&here).unwrap();
    let run = |args: &[&str]| Said::of(command(args).current_dir(&here).output().unwrap());
    let said = run(&["fsck", "-y", "--json", &device.0]);
    let report: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!((said.code, report["result"].as_str()), (1, Some("corrected")), "{report}");
    assert!(fs::read(here.join(saved_as(&report, "/file"))).unwrap() == bytes, "{report}");
    let undo = report["undo_file"].as_str().unwrap();
    assert_eq!(run(&["fsck", "--undo", undo, &device.0]).code, 1);
    drop(device);
    assert!(fs::read(place.image()).unwrap() == before, "not the same bytes");
}

/// On a full disk a hole has no room for the zeros that it was.
#[test]
fn what_is_as_it_was_is_not_written_to_go_back() {
    let Some((_alone, place, number)) = with_file(&content(8 << 20, 16)) else { return };
    place.edit(|image| {
        change_nodes(image, number, |node| node.footer.nid.set(node.footer.nid.get() + 10_000))
    });
    let (image, kept) = (place.image(), place.path("kept"));
    let copy = |from: &Path, to: &Path| {
        let copied = Command::new("cp").arg("--sparse=always").args([from, to]).status().unwrap();
        assert!(copied.success());
    };
    copy(Path::new(&image), &kept);
    let report = repaired_and_undone(&image);
    // As if a way back had stopped behind its last write but one.
    let mut superblocks = fs::read(&image).unwrap();
    superblocks.truncate(2 * BLOCK_BYTES);
    super::half_repaired::set_mark(&mut superblocks, b"HEDDLERU");
    fs::remove_file(&image).unwrap();
    copy(&kept, Path::new(&image));
    File::options().write(true).open(&image).unwrap().write_all_at(&superblocks, 0).unwrap();
    let taken = fs::metadata(&image).unwrap().blocks();
    assert_eq!(heddle(&["fsck", "--undo", report["undo_file"].as_str().unwrap(), &image]).code, 1);
    assert_eq!(fs::metadata(&image).unwrap().blocks(), taken, "holes were filled");
    assert!(fs::read(&image).unwrap() == fs::read(&kept).unwrap());
}

/// As `pages_under_a_damaged_node_are_saved`, without the node's entry in the table.
#[test]
fn pages_under_a_node_without_an_entry_are_saved() {
    let bytes = content(6 << 20, 6);
    let Some((_alone, place, number)) = with_file(&bytes) else { return };
    let mut nodes = Vec::new();
    place.edit(|image| {
        let found = std::cell::RefCell::new(Vec::new());
        change_nodes(image, number, |node| found.borrow_mut().push(u64::from(node.footer.nid.get())));
        nodes = found.into_inner();
        nodes.sort_unstable();
        nodes.dedup();
        change_table(image, nodes[0], u32::MAX - 9);
    });
    let report = repaired_and_undone(&place.image());
    assert!(fs::read(saved_as(&report, "/file")).unwrap() == bytes, "{report}");
}

/// Its name is dropped with it.
#[test]
fn an_inode_without_an_entry_is_saved() {
    let bytes = content(3 << 20, 7);
    let Some((_alone, place, number)) = with_file(&bytes) else { return };
    place.edit(|image| change_table(image, number, u32::MAX - 9));
    repaired_and_undone(&place.image());
    let found = tree(&place.path("image.lost/lost_found"));
    assert!(found[Path::new(&format!("{number}-file"))] == bytes, "{:?}", found.keys());
}

/// fsck.f2fs frees the blocks of a file whose content is said to be inline.
#[test]
fn blocks_of_a_file_that_says_to_be_inline_are_saved() {
    for size in [2000, 200_000] {
        let bytes = content(5000 + size, 8);
        let Some((_alone, place, number)) = with_file(&bytes) else { return };
        place.edit(|image| change_inode(image, number, |inode| inode.inline |= 0x02 | 0x08));
        let report = repaired_and_undone(&place.image());
        let saved = saved_as(&report, "/file");
        let blocks = saved.with_file_name(format!("{number}-file.blocks"));
        assert!(fs::read(blocks).unwrap() == bytes, "{report}");
    }
}

/// A file that says to be a directory was saved as an empty one, and a device without its content.
#[test]
fn lost_inodes_of_a_wrong_kind_are_saved_with_their_bytes() {
    let bytes = content(100_000, 9);
    for mode in [0o040_755, 0o020_644] {
        let Some((_alone, place, number)) = with_file(&bytes) else { return };
        place.edit(|image| change_inode(image, number, |inode| inode.mode.set(mode)));
        repaired_and_undone(&place.image());
        let found = tree(&place.path("image.lost/lost_found"));
        assert!(found[Path::new(&format!("{number}-file.blocks"))] == bytes, "{mode:o}: {:?}", found.keys());
    }
}

/// Fsyncs behind the checkpoint. fsck.f2fs drops them from some images; here its caller does.
#[test]
fn fsynced_content_behind_the_checkpoint_is_saved() {
    let Some(_alone) = alone() else { return };
    for is_table_damaged in [false, true] {
        let place = Place::with_image_of("f2fs", "64M");
        if !has_checker() {
            return;
        }
        let (old, new, made) = (content(50_000, 1), content(70_000, 2), content(30_000, 3));
        let [lost, file] = {
            let mounted = Mounted::new(&place, &QUIET);
            fs::write(mounted.path("file"), &old).unwrap();
            fs::write(mounted.path("lost"), "lost").unwrap();
            ["lost", "file"].map(|name| ino(&mounted.path(name)))
        };
        // A machine that loses its power after two fsyncs.
        let fs_of = heddle_f2fs::F2fs::open_for_writing(Path::new(&place.image())).unwrap();
        let made_ino = fsync_two(&fs_of, &new, &made);
        drop(fs_of);
        let mut script = "for I; do :; done\ncase \"$*\" in *-y*) fsck.f2fs \"$@\"; R=$?\n".to_owned();
        place.edit(|image| {
            lose_name(image, 3, lost);
            if is_table_damaged {
                change_table(image, file, u32::MAX - 9);
            }
            for addr in ask_for_check(image) {
                script += &format!("dd if=/dev/zero of=\"$I\" bs=4096 count=1 seek={addr} conv=notrunc\n");
            }
        });
        let before = fs::read(place.image()).unwrap();
        let path = checker(&place, &(script + "exit $R;; esac\nexec fsck.f2fs \"$@\""));
        let args = ["fsck", "-y", "--json", &place.image()];
        let said = Said::of(command(&args).env("PATH", path).output().unwrap());
        assert_eq!(said.code, 1, "{}{}", said.out, said.err);
        let report: Value = serde_json::from_str(&said.out).unwrap();
        let found = tree(&place.path("image.lost/lost_found"));
        let saved = &found[Path::new(&format!("{file}-file"))];
        assert!(*saved == new, "{is_table_damaged}: {report}");
        if !is_table_damaged {
            assert!(fs::read(saved_as(&report, "/file")).unwrap() == new, "{report}");
        }
        assert!(found[Path::new(&format!("{made_ino}-made"))] == made, "{:?}", found.keys());
        let undo = report["undo_file"].as_str().unwrap();
        assert_eq!(heddle(&["fsck", "--undo", undo, &place.image()]).code, 1);
        assert!(fs::read(place.image()).unwrap() == before);
    }
}

/// The checkpoint says that a check is needed, and the nodes behind it know its checksum: their blocks.
fn ask_for_check(bytes: &mut [u8]) -> Vec<usize> {
    let (superblock, _) = Superblock::read_from_prefix(&bytes[SUPERBLOCK_OFFSET_BYTES..]).unwrap();
    let mut versions = Vec::new();
    for pack in [0, 512] {
        let start = superblock.checkpoint.get() as usize + pack;
        let blocks =
            CheckpointHead::ref_from_prefix(&bytes[start * BLOCK_BYTES..]).unwrap().0.pack_blocks.get();
        for addr in [start + blocks as usize - 1, start] {
            let block = &mut bytes[addr * BLOCK_BYTES..][..BLOCK_BYTES];
            let head = CheckpointHead::mut_from_prefix(block).unwrap().0;
            head.flags.set(head.flags.get() | checkpoint_flag::FSCK);
            let (version, at) = (head.version.get(), head.checksum_offset.get() as usize);
            let was = u32::from_le_bytes(block[at..at + 4].try_into().unwrap());
            let is = checksum(SEED, &block[..at]);
            block[at..at + 4].copy_from_slice(&is.to_le_bytes());
            versions.push([was, is].map(|crc| version | u64::from(crc) << 32));
        }
    }
    // Nodes behind the older one are what the newer one leads to.
    let newest = versions.iter().map(|[was, _]| *was as u32).max();
    versions.retain(|[was, _]| Some(*was as u32) == newest);
    let mut changed = Vec::new();
    for (addr, block) in bytes.chunks_exact_mut(BLOCK_BYTES).enumerate() {
        let node = NodeBlock::mut_from_bytes(block).unwrap();
        let said = node.footer.checkpoint_version.get();
        if let Some([_, is]) = versions.iter().find(|[was, _]| *was == said) {
            node.footer.checkpoint_version.set(*is);
            let inode = InodeBlock::mut_from_bytes(block).unwrap();
            if inode.footer.nid == inode.footer.ino {
                let crc = of_inode(inode_seed(&superblock.uuid), inode);
                inode.addr[2] = U32::new(crc);
            }
            changed.push(addr);
        }
    }
    assert!(changed.len() > 1, "no nodes behind the checkpoint");
    changed
}

/// Overwrites `file`, and makes `made`; both are fsynced.
fn fsync_two(fs: &heddle_f2fs::F2fs, new: &[u8], made: &[u8]) -> u64 {
    use heddle_vfs::{Cred, FileSystem, Ino, Name, OpenFlags};
    let cred = Cred::root();
    // Before it, each fsync makes a checkpoint.
    fs.sync().unwrap();
    let attr = fs.lookup(&cred, Ino::ROOT, Name::new(b"file").unwrap()).unwrap();
    let file = fs.open(&cred, attr.ino, OpenFlags::READ_WRITE).unwrap();
    fs.write(&file, 0, new).unwrap();
    fs.fsync(&file, false).unwrap();
    let (attr, file) =
        fs.create(&cred, Ino::ROOT, Name::new(b"made").unwrap(), 0o644, OpenFlags::READ_WRITE).unwrap();
    fs.write(&file, 0, made).unwrap();
    fs.fsync(&file, false).unwrap();
    attr.ino.0
}

/// A small file system with a copy of an image in it, and this much space.
struct Small {
    dir: PathBuf,
}

impl Small {
    fn with(place: &Place, keep: u64) -> Small {
        let dir = place.path("small");
        fs::create_dir(&dir).unwrap();
        rustix::mount::mount("none", &dir, "tmpfs", MountFlags::empty(), c"size=80m").unwrap();
        fs::copy(place.image(), dir.join("image")).unwrap();
        // Holes take space when they are written.
        let image = File::options().write(true).open(dir.join("image")).unwrap();
        image.write_all_at(&fs::read(place.image()).unwrap(), 0).unwrap();
        let stat = rustix::fs::statvfs(&dir).unwrap();
        let filler = vec![1; (stat.f_bfree * stat.f_frsize - keep) as usize];
        fs::write(dir.join("filler"), filler).unwrap();
        Small { dir }
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.dir, UnmountFlags::DETACH);
    }
}

#[test]
fn a_repair_without_space_for_its_undo_file_changes_nothing() {
    let Some((_alone, place, number)) = with_file(b"x") else { return };
    place.edit(|image| lose_name(image, 3, number));
    // From no block for it on.
    for keep in [0, 8 << 10, 20 << 10, 32 << 10] {
        let small = Small::with(&place, keep);
        let image = small.dir.join("image");
        let before = fs::read(&image).unwrap();
        let said = heddle(&["fsck", "-y", image.to_str().unwrap()]);
        let listed = fs::read_dir(&small.dir).unwrap().count();
        assert_eq!(said.code, 4, "{keep}: {}{}", said.out, said.err);
        assert!(said.out.contains("nothing was changed") && said.out.contains("space"), "{}", said.out);
        assert!(fs::read(&image).unwrap() == before && listed == 2, "{keep}: {}", said.out);
        drop(small);
        fs::remove_dir(place.path("small")).unwrap();
    }
}

/// A checker of this script, which calls the real one.
pub fn checker(place: &Place, script: &str) -> String {
    let tools = place.path("tools");
    fs::create_dir_all(&tools).unwrap();
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let script = format!("#!/bin/sh\nPATH={path}\nT={}\n{script}\n", tools.display());
    fs::write(tools.join("fsck.f2fs"), script).unwrap();
    fs::set_permissions(tools.join("fsck.f2fs"), fs::Permissions::from_mode(0o755)).unwrap();
    format!("{}:{path}", tools.display())
}

/// Where nothing tells which file a descriptor leads to, no change is known.
#[test]
fn a_repair_without_proc_changes_nothing() {
    let Some((_alone, place, number)) = with_file(b"x") else { return };
    place.edit(|image| lose_name(image, 3, number));
    let before = fs::read(place.image()).unwrap();
    let script = "mount -t tmpfs none /proc && exec \"$@\"";
    let heddle = command(&["fsck", "-y", &place.image()]);
    let mut hidden = std::process::Command::new("unshare");
    hidden.args(["-m", "sh", "-c", script, "sh"]).arg(heddle.get_program()).args(heddle.get_args());
    let said = Said::of(hidden.output().unwrap());
    assert!(said.out.contains("nothing was changed"), "{}: {}{}", said.code, said.out, said.err);
    assert!(fs::read(place.image()).unwrap() == before && said.code == 4, "{}", said.out);
}

/// What a checker must not do, or that ends it: nothing is changed, and the reason is told.
#[test]
fn a_checker_that_fails_or_hides_its_changes_changes_nothing() {
    let Some((_alone, place, number)) = with_file(b"x") else { return };
    place.edit(|image| lose_name(image, 3, number));
    let before = fs::read(place.image()).unwrap();
    let ways = [
        ("kill -SEGV $$", "signal 11"),
        ("kill -INT $PPID; sleep 1", "interrupted"),
        ("setsid -w sh -c 'kill -SEGV $$'; kill -SEGV $$", "signal 11"),
        (": > \"$I\"", "O_TRUNC"),
        ("truncate -s 1M \"$I\"", "ftruncate"),
        ("fallocate -p -o 0 -l 1M \"$I\"", "fallocate"),
        ("echo behind >> \"$I\"", "appends"),
        ("dd if=/dev/zero of=\"$I\" bs=1M count=1 seek=64 conv=notrunc", "behind the end"),
    ];
    for (way, told) in ways {
        let script = format!(
            "for I; do :; done\ncase \"$*\" in *-y*) fsck.f2fs \"$@\" > /dev/null; {way}; exit 0;; esac\nexec fsck.f2fs \"$@\""
        );
        let path = checker(&place, &script);
        let said = Said::of(command(&["fsck", "-y", &place.image()]).env("PATH", path).output().unwrap());
        assert_eq!(said.code, 4, "{way}: {}{}", said.out, said.err);
        assert!(said.out.contains("nothing was changed") && said.out.contains(told), "{way}: {}", said.out);
        assert!(fs::read(place.image()).unwrap() == before, "{way}");
        let listed: Vec<_> = fs::read_dir(place.path("")).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(listed.len(), 4, "{way}: {listed:?}");
    }
}

#[test]
fn an_undo_file_is_refused_by_other_images_and_after_a_mount() {
    let Some((_alone, place, number)) = with_file(b"x") else { return };
    place.edit(|image| lose_name(image, 3, number));
    let undo = place.text("kept");
    let said = heddle(&["fsck", "-y", "--undo", &undo, &place.image()]);
    assert!(said.code == 1 && said.out.contains(&format!("--undo {undo}")), "{}{}", said.out, said.err);
    let other = Place::with_image_of("f2fs", "64M");
    heddle(&["fsck", "--undo", &undo, &other.image()]).failed(8, &["another image"]);
    let short = Place::with_image_of("f2fs", "100M");
    heddle(&["fsck", "--undo", &undo, &short.image()]).failed(8, &["blocks, this one has"]);
    {
        let mounted = Mounted::new(&place, &QUIET);
        fs::write(mounted.path("since"), "x").unwrap();
        heddle(&["fsck", "--undo", &undo, &place.image()]).failed(8, &["in use", "heddle umount"]);
    }
    heddle(&["fsck", "--undo", &undo, &place.image()]).failed(8, &["mounted or repaired since"]);
    let _taken = heddle(&["fsck", "-y", "--undo", &undo, &place.image()]).ok();
}

/// Fifteen of one name hindered each repair.
#[test]
fn a_lost_directory_of_equal_names_is_saved() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image_of("f2fs", "64M");
    if !has_checker() {
        return;
    }
    let dir = {
        let mounted = Mounted::new(&place, &QUIET);
        fs::create_dir(mounted.path("dir")).unwrap();
        (0..40).for_each(|n| fs::write(mounted.path(&format!("dir/f{n:02}")), format!("{n}")).unwrap());
        ino(&mounted.path("dir"))
    };
    place.edit(|image| {
        lose_name(image, 3, dir);
        super::damaged::change_entries(image, dir, |block| {
            block.names.iter_mut().filter(|name| name[0] == b'f').for_each(|name| *name = *b"one\0\0\0\0\0");
        });
    });
    repaired_and_undone(&place.image());
    let found = tree(&place.path("image.lost/lost_found"));
    let mut numbers: Vec<u32> = found
        .values()
        .filter(|bytes| !bytes.is_empty())
        .map(|bytes| String::from_utf8_lossy(bytes).parse().unwrap())
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..40).collect::<Vec<_>>(), "{:?}", found.keys());
}

/// Heddle's own findings were not shown then.
#[test]
fn what_heddle_finds_is_shown_where_the_checker_fails() {
    let Some((_alone, place, number)) = with_file(b"x") else { return };
    let path = checker(&place, "exit 255");
    let run =
        |how: &str| Said::of(command(&["fsck", how, &place.image()]).env("PATH", &path).output().unwrap());
    run("-n").failed(8, &["ended with 255"]);
    place.edit(|image| change_inode(image, number, |inode| inode.links.set(5)));
    let before = fs::read(place.image()).unwrap();
    for how in ["-n", "-y"] {
        let said = run(how);
        assert_eq!(said.code, 4, "{}{}", said.out, said.err);
        ["ended with 255", "counts 5 links", "nothing was changed"]
            .iter()
            .for_each(|told| assert!(said.out.contains(told), "'{told}' is not in: {}", said.out));
    }
    assert!(fs::read(place.image()).unwrap() == before);
}

/// fsck.f2fs writes all devices of an image. The undo file had the blocks of one, and `--undo` made a mixture of both states.
#[test]
fn an_image_on_several_devices_is_not_repaired() {
    let Some(_alone) = alone() else { return };
    if !has_checker() {
        return;
    }
    let place = Place::new();
    let (image, other) = (place.image(), place.text("other"));
    for device in [&image, &other] {
        File::create(device).unwrap().set_len(64 << 20).unwrap();
    }
    let made = Command::new("mkfs.f2fs").args(["-q", "-f", "-c", &other, &image]).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    // The root says another count of links.
    let root = |bytes: &mut [u8]| {
        let nodes = bytes.chunks_exact_mut(BLOCK_BYTES);
        let nodes = nodes.map(|block| InodeBlock::mut_from_bytes(block).unwrap());
        let roots = nodes.filter(|node| [node.footer.nid.get(), node.footer.ino.get()] == [3, 3]);
        roots.map(|root| root.links.set(77)).count()
    };
    let damaged = [&image, &other].map(|device| {
        let mut bytes = fs::read(device).unwrap();
        let roots = root(&mut bytes);
        fs::write(device, bytes).unwrap();
        roots
    });
    assert!(damaged.iter().sum::<usize>() > 0);
    let before = [&image, &other].map(|device| fs::read(device).unwrap());
    let said = heddle(&["fsck", "-y", &image]);
    assert_eq!(said.code, 4, "{}{}", said.out, said.err);
    assert!(said.out.contains("several devices") && said.out.contains("nothing was changed"), "{}", said.out);
    assert!([&image, &other].map(|device| fs::read(device).unwrap()) == before);
    assert_eq!(
        fs::read_dir(place.path("")).unwrap().count(),
        3,
        "nothing is left but devices and mount point"
    );
}

/// The report named a file that was not there any more.
#[test]
fn a_repair_whose_undo_file_is_removed_meanwhile_is_taken_back() {
    let Some((_alone, place, number)) = with_file(b"x") else { return };
    place.edit(|image| lose_name(image, 3, number));
    let (before, undo) = (fs::read(place.image()).unwrap(), place.text("kept"));
    let path = checker(
        &place,
        "case \"$*\" in *-y*) rm $T/../kept; echo mine > $T/../kept;; esac\nexec fsck.f2fs \"$@\"",
    );
    let mut fsck = command(&["fsck", "-y", "--undo", &undo, &place.image()]);
    let said = Said::of(fsck.env("PATH", path).output().unwrap());
    assert!(said.code == 4 && said.out.contains("removed or replaced"), "{}{}", said.out, said.err);
    assert!(fs::read(place.image()).unwrap() == before);
    assert_eq!(fs::read_to_string(&undo).unwrap(), "mine\n");
    assert!(!place.path("image.lost").exists());
}

#[test]
fn the_printed_way_back_is_a_command_for_any_name() {
    let Some((_alone, place, number)) = with_file(b"x") else { return };
    place.edit(|image| lose_name(image, 3, number));
    let (image, before) = (place.text("my 'disk'.img"), fs::read(place.image()).unwrap());
    fs::rename(place.image(), &image).unwrap();
    let said = heddle(&["fsck", "-y", &image]);
    let (_, way) = said.out.split_once("To go back: ").unwrap_or_else(|| panic!("{}", said.out));
    let (way, _) = way.split_once(". Checked by").unwrap();
    let line = way.replacen("heddle", env!("CARGO_BIN_EXE_heddle"), 1);
    let back = Said::of(Command::new("sh").args(["-c", &line]).output().unwrap());
    assert!(back.code == 1 && fs::read(&image).unwrap() == before, "{line}: {}{}", back.out, back.err);
}
