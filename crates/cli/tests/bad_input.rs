//! Every wrong image and every wrong word is answered with the cause and the way out.

mod common;

use common::{Place, command, heddle};
use heddle_nvmfs::Variant;
use heddle_nvmfs::format::superblock::{FoundSuperblock, SUPERBLOCK_BYTES, Superblock};
use std::os::unix::process::CommandExt;
use zerocopy::IntoBytes;

#[test]
fn a_truncated_image_is_named_with_what_lacks() {
    let place = Place::with_image("heddle");
    place.edit(|bytes| bytes.truncate(5 << 20));
    place.mount().failed(1, &["truncated", "8388608", "5242880", "Restore"]);
    heddle(&["info", &place.image()]).failed(1, &["truncated", "Restore"]);
    place.edit(|bytes| bytes.truncate(100));
    place.mount().failed(1, &["100 bytes", "rest of one"]);
    place.edit(Vec::clear);
    place.mount().failed(1, &["0 bytes", "heddle mkfs"]);
}

#[test]
fn numbers_at_their_limits_are_answered_without_a_panic() {
    let place = Place::with_image("heddle");
    let limits = ["0", "2047", "4294967296", "9223372036854775807", "9223372036854775808"];
    let largest = u64::MAX.to_string();
    for number in limits.into_iter().chain([&*largest, "18446744073709551614", "18446744073709551616", "-1"])
    {
        let record = |slot: &str| format!("{number}:{slot}");
        let mut asked: Vec<Vec<String>> =
            ["inode", "log", "page", "record"].map(|what| vec![what.into(), number.into()]).into();
        asked
            .extend(["0", "1", "63", "4294967295", &largest].map(|slot| vec!["record".into(), record(slot)]));
        for words in &asked {
            let image = place.image();
            let all: Vec<&str> =
                ["dump", "--", &image].into_iter().chain(words.iter().map(String::as_str)).collect();
            let said = heddle(&all);
            assert!([1, 2].contains(&said.code), "{words:?}: {} {}{}", said.code, said.out, said.err);
            assert!(said.err.starts_with("heddle: "), "{words:?}: {}", said.err);
        }
    }
}

#[test]
fn dump_refuses_the_superblock_of_foreign_bytes_as_info_does() {
    let place = Place::with_image("heddle");
    let mut ext4 = vec![0; 1 << 20];
    ext4[1024 + 56..][..2].copy_from_slice(&[0x53, 0xef]);
    let mut elf = vec![0; 8192];
    elf[..4].copy_from_slice(b"\x7fELF");
    let noise: Vec<u8> = (0..1u32 << 16).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for (name, bytes) in [("ext4", ext4), ("elf", elf), ("noise", noise)] {
        let path = place.text(name);
        std::fs::write(&path, bytes).unwrap();
        let info = heddle(&["info", &path]);
        assert_eq!(info.code, 1, "{name}");
        for dump in [&["dump", &path, "superblock"][..], &["dump", "--json", &path, "superblock"]] {
            let said = heddle(dump);
            assert_eq!((said.code, &*said.out, &said.err), (1, "", &info.err), "{name}");
        }
    }
    // A damaged superblock is what the command is for.
    let mut bytes = std::fs::read(place.image()).unwrap();
    let last = bytes.len() - 4096;
    [0, last].into_iter().for_each(|at| bytes[at + 20] ^= 3);
    std::fs::write(place.image(), bytes).unwrap();
    assert!(heddle(&["dump", &place.image(), "superblock"]).ok().out.contains("damaged"));
}

/// Runs a command without these of the three descriptors that a program begins with: its code, and its errors.
fn without(closed: &'static [i32], args: &[&str]) -> (Option<i32>, String) {
    let mut command = command(args);
    // SAFETY: close takes no pointers, and may be called between fork and exec.
    unsafe {
        command.pre_exec(move || {
            for fd in closed {
                libc::close(*fd);
            }
            Ok(())
        })
    };
    let said = command.output().unwrap();
    (said.status.code(), String::from_utf8_lossy(&said.stderr).into_owned())
}

#[test]
fn commands_without_standard_streams_end_by_their_exit_codes() {
    let place = Place::with_image("heddle");
    let (image, made) = (place.image(), place.text("made"));
    let commands: &[(i32, i32, &[&str])] = &[
        (0, 1, &["--version"]),
        (0, 1, &["explain", "NV-0008"]),
        (0, 1, &["info", &image]),
        (0, 1, &["info", "--json", &image]),
        (1, 1, &["info", "/nowhere/image"]),
        (0, 1, &["dump", &image, "superblock"]),
        (0, 8, &["fsck", "-n", &image]),
        (0, 8, &["fsck", &image]),
        (8, 8, &["fsck", "-n", "/nowhere/image"]),
        (0, 1, &["mkfs", "--size", "8M", &made]),
        (2, 2, &["mkfs", "--size", "1", &made]),
        (1, 1, &["umount", "/nowhere"]),
        (2, 2, &["nothing"]),
    ];
    for (code, unheard, args) in commands {
        for (closed, right) in [(&[0][..], code), (&[1], unheard), (&[2], code), (&[0, 1, 2], unheard)] {
            let _made_before = std::fs::remove_file(&made);
            let (ended, said) = without(closed, args);
            assert_eq!(ended, Some(*right), "{args:?} without {closed:?}: {said}");
            assert!(!said.contains("panicked"), "{args:?} without {closed:?}: {said}");
        }
        let _made_before = std::fs::remove_file(&made);
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let ended = command(args).stdout(std::process::Stdio::null()).stderr(full).status().unwrap().code();
        assert_eq!(ended, Some(*code), "{args:?} with errors to a full device");
    }
}

#[test]
fn a_foreign_or_empty_file_is_no_image() {
    let place = Place::new();
    std::fs::write(place.image(), vec![0x5a; 8 << 20]).unwrap();
    place.mount().failed(1, &["no heddle file system", "does not know"]);
    std::fs::write(place.image(), vec![0; 8 << 20]).unwrap();
    place.mount().failed(1, &["no heddle file system", "zeros", "heddle mkfs"]);
    heddle(&["info", &place.image()]).failed(1, &["no heddle file system", "heddle mkfs"]);
    heddle(&["mount", &place.text("nowhere"), &place.mnt()]).failed(1, &["No such file", "heddle mkfs"]);
    heddle(&["mount", &place.mnt(), &place.mnt()]).failed(1, &["directory", "file or a device"]);
}

#[test]
fn a_damaged_superblock_is_named_and_its_copy_serves() {
    let place = Place::with_image("nova-tree");
    place.edit(|bytes| bytes[52] ^= 0x10);
    let info = heddle(&["info", &place.image()]).ok();
    assert!(info.out.contains("nova-tree"), "{}", info.out);
    place.edit(|bytes| {
        let copy = bytes.len() - 4096 + 60;
        bytes[copy] ^= 1;
    });
    place.mount().failed(1, &["both copies of the superblock are damaged", "backup"]);
}

#[test]
fn another_version_of_the_format_is_named() {
    let place = Place::with_image("heddle");
    place.edit(|bytes| {
        let head: [u8; SUPERBLOCK_BYTES] = *bytes.first_chunk().unwrap();
        let FoundSuperblock::Whole(mut superblock) = Superblock::decode(&head) else {
            panic!("no superblock")
        };
        superblock.version.set(99);
        let sealed = superblock.sealed();
        let last = bytes.len() - 4096;
        bytes[..SUPERBLOCK_BYTES].copy_from_slice(sealed.as_bytes());
        bytes[last..last + SUPERBLOCK_BYTES].copy_from_slice(sealed.as_bytes());
    });
    place.mount().failed(1, &["version 99", "Use the heddle that made it"]);
}

/// Another test's child has this process's descriptors until it becomes its program, and with them the last mount's lock.
fn opened(place: &Place) -> heddle_pmem::Region {
    let began = std::time::Instant::now();
    loop {
        match heddle_pmem::Region::open(place.image(), &heddle_pmem::OpenOptions::default()) {
            Err(heddle_pmem::Error::InUse { .. }) if began.elapsed().as_secs() < 10 => {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            region => return region.unwrap(),
        }
    }
}

#[test]
fn flipped_bits_never_make_a_panic() {
    let place = Place::with_image("heddle");
    let whole = std::fs::read(place.image()).unwrap();
    // Superblock, inode directory, inode chunks and first log pages: where an empty image has its metadata.
    for flip in 0..64usize {
        let at = flip * 769 % (48 << 10);
        place.edit(|bytes| bytes[at] ^= 1 << (flip % 8));
        let region = opened(&place);
        match heddle_nvmfs::mount(region, &heddle_nvmfs::MountOptions::default()) {
            Ok(volume) => volume.unmount(),
            Err(error) => assert!(error.to_string().starts_with("cannot mount"), "{error}"),
        }
        std::fs::write(place.image(), &whole).unwrap();
    }
}

#[test]
fn sizes_too_small_or_too_large_are_refused_before_any_change() {
    let place = Place::with_image("heddle");
    let before = std::fs::read(place.image()).unwrap();
    heddle(&["mkfs", "--force", "--size", "1M", &place.image()]).failed(2, &["too few", "4M"]);
    heddle(&["mkfs", "--force", "--size", "900T", &place.image()])
        .failed(1, &["does not fit", "ask for less"]);
    heddle(&["mkfs", "--size", "4X", &place.text("new")]).failed(2, &["4X", "4KiB"]);
    for size in ["32M", "16T"] {
        heddle(&["mkfs", "--variant", "f2fs", "--size", size, &place.text("new")])
            .failed(2, &["between 64 MiB and 15 TiB"]);
    }
    assert_eq!(std::fs::read(place.image()).unwrap(), before);
    assert!(!place.path("new").exists());
}

#[test]
fn mkfs_overwrites_only_when_told_to() {
    let place = Place::with_image("nova");
    heddle(&["mkfs", "--size", "8M", &place.image()])
        .failed(1, &["holds a heddle file system already", "--force"]);
    std::fs::write(place.text("letter"), "dear").unwrap();
    heddle(&["mkfs", "--size", "8M", &place.text("letter")]).failed(1, &["a file of 4 B", "--force"]);
    assert_eq!(std::fs::read(place.text("letter")).unwrap(), b"dear");
    heddle(&["mkfs", "--size", "8M", "--force", &place.text("letter")]).ok();
    std::fs::write(place.text("empty"), "").unwrap();
    heddle(&["mkfs", "--size", "8M", &place.text("empty")]).ok();
}

#[test]
fn a_variant_is_refused_only_if_its_log_format_differs() {
    let place = Place::with_image("nova-array");
    // A socket that cannot be made is found out after the variant, and before anything is mounted.
    let metrics = format!("metrics={}", place.image());
    let mount = |variant: &str| {
        heddle(&["mount", "-f", "-o", &metrics, "--variant", variant, &place.image(), &place.mnt()])
    };
    mount("heddle").failed(1, &["made as nova-array", "Leave --variant out"]);
    mount("nova-tree").failed(1, &["no socket"]);
    mount("ext4").failed(2, &["ext4", Variant::NovaTree.name()]);
}

#[test]
fn a_directory_that_may_not_be_written_is_said() {
    let place = Place::new();
    if !rustix::process::geteuid().is_root() {
        let image = place.path("mnt").join("image");
        std::fs::set_permissions(place.path("mnt"), std::os::unix::fs::PermissionsExt::from_mode(0o500))
            .unwrap();
        return heddle(&["mkfs", "--size", "8M", image.to_str().unwrap()])
            .failed(1, &["Permission denied", "Choose a place"]);
    }
    // Root may write everywhere: be someone else, with a copy of the program that anyone may reach.
    let (program, dir) = (place.path("heddle"), place.path("mnt"));
    // Not by this process: a sibling test that forks meanwhile would hold the copy open for writing.
    let copied = std::process::Command::new("cp").arg(env!("CARGO_BIN_EXE_heddle")).arg(&program).status();
    assert!(copied.unwrap().success());
    std::fs::set_permissions(place.path(""), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let said = std::process::Command::new(program)
        .args(["mkfs", "--size", "8M"])
        .arg(dir.join("image"))
        .uid(65534)
        .gid(65534)
        .output();
    let said = said.unwrap();
    let text = String::from_utf8_lossy(&said.stderr);
    assert_eq!(said.status.code(), Some(1), "{text}");
    assert!(text.contains("Permission denied") && text.contains("Choose a place"), "{text}");
}

#[test]
fn wrong_words_are_answered_with_the_right_ones_and_exit_code_2() {
    let cases: [(&[&str], &[&str]); 15] = [
        (&["mount", "--nope", "a", "b"], &["--nope"]),
        (&["mount", "-o", "nope", "a", "b"], &["nope", "lock-mode"]),
        (&["mount", "-o", "lock-mode=default", "a", "b"], &["paper", "fair"]),
        (&["mount", "a"], &["DIR"]),
        (&["nope"], &["nope"]),
        (&["mkfs", "--variant", "ext4", "a"], &["ext4", "nova-interval"]),
        (&["fxmark", "DWOX"], &["DWOX", "DWOM"]),
        (&["fxmark", "--target", "zfs"], &["zfs", "heddle", "tmpfs", "LABEL=PATH"]),
        (&["fxmark", "--target", "x=/nonexistent"], &["/nonexistent", "mkdir"]),
        (&["fxmark", "--cores", "9999"], &["9999", "--cores"]),
        (&["fxmark", "--secs", "0"], &["--secs"]),
        (&["fxmark", "--workers-as", "fibres"], &["fibres", "threads", "processes"]),
        (
            &["fxmark", "--target", "heddle,nova", "--workers-as", "processes"],
            &["nova works in one process only", "--workers-as threads"],
        ),
        (&["fxmark", "--json", "-", "--csv", "-"], &["stdout"]),
        (&["locks", "-d", "0", "--secs", "0.01"], &["levels"]),
    ];
    for (args, names) in cases {
        heddle(args).failed(2, names);
    }
}

#[test]
fn the_program_that_coherence_watches_refuses_to_run_unwatched() {
    heddle(&["coherence-worker", "DWOM", "--target", "heddle", "--workers", "2"])
        .failed(1, &["cargo xtask coherence"]);
    heddle(&["coherence-worker", "DWOM", "--target", "heddle", "--workers", "65"]).failed(2, &["1 to 64"]);
    heddle(&["coherence-worker", "DWOX", "--target", "heddle", "--workers", "2"]).failed(2, &["DWOM"]);
}
