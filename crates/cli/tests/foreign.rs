//! What another system left on media is named, and mkfs of no variant writes over it unasked.

mod common;

use common::{Place, heddle};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};

const LEN: usize = 64 << 20;
const VARIANTS: [&str; 9] = [
    "heddle",
    "nova",
    "nova-interval",
    "nova-array",
    "nova-tree",
    "f2fs",
    "f2fs-rl",
    "f2fs-nl",
    "f2fs-integrated",
];
const RAID: [u8; 4] = 0xa92b_4efc_u32.to_le_bytes();

/// Bytes, and where; then what mkfs must call it.
type Kind = (&'static [(usize, &'static [u8])], &'static str);

/// As the formats' documents place them. What their own tools make: `crates/signatures/tests/planted.rs`.
const KINDS: [Kind; 15] = [
    (&[(1024, &[16]), (1080, &[0x53, 0xef]), (1024 + 76, &[1]), (1024 + 96, &[0x40])], "ext4"),
    (&[(0, b"XFSB")], "xfs"),
    (&[(0x1_0040, b"_BHRfS_M")], "btrfs"),
    (&[(1024, &[0x10, 0x20, 0xf5, 0xf2])], "f2fs"),
    (&[(512, b"LABELONE"), (536, b"LVM2 001")], "an LVM physical volume"),
    (&[(LEN - 0x1_0000, &RAID)], "a member of a Linux RAID (0.90)"),
    (&[(LEN - 8192, &RAID), (LEN - 8188, &[1])], "a member of a Linux RAID (1.x)"),
    (&[(0, &RAID), (4, &[1])], "a member of a Linux RAID (1.x)"),
    (&[(4096, &RAID), (4100, &[1])], "a member of a Linux RAID (1.x)"),
    (&[(512, b"EFI PART")], "a partition table (GPT)"),
    (&[(LEN - 512, b"EFI PART")], "a partition table (GPT)"),
    (&[(4086, b"SWAPSPACE2")], "swap"),
    (&[(0, b"LUKS\xba\xbe"), (7, &[2])], "LUKS"),
    (&[(32769, b"CD001")], "ISO 9660"),
    (&[(4096, b"HEDDLENL")], "a heddle node log"),
];

/// Holes and the marks. All of it, before and after: what is in the marks' pages, and how many pages there are.
fn plant(place: &Place, marks: &[(usize, &[u8])]) {
    let file = File::create(place.image()).unwrap();
    file.set_len(LEN as u64).unwrap();
    marks.iter().for_each(|(at, mark)| file.write_all_at(mark, *at as u64).unwrap());
}

fn all_of(place: &Place, marks: &[(usize, &[u8])]) -> (u64, Vec<Vec<u8>>) {
    let file = File::open(place.image()).unwrap();
    let page = |at: usize| {
        let mut bytes = vec![0; 4096];
        file.read_exact_at(&mut bytes, at as u64 / 4096 * 4096).unwrap();
        bytes
    };
    (file.metadata().unwrap().blocks(), marks.iter().map(|(at, _)| page(*at)).collect())
}

#[test]
fn mkfs_refuses_every_foreign_format_by_name_and_changes_nothing() {
    let place = Place::new();
    for (marks, name) in KINDS {
        plant(&place, marks);
        let before = all_of(&place, marks);
        for variant in ["heddle", "f2fs"] {
            println!("{name}, {variant}");
            heddle(&["mkfs", "--variant", variant, &place.image()]).failed(1, &[name, "--force"]);
            assert!(all_of(&place, marks) == before, "{name}: mkfs of {variant} wrote");
        }
    }
}

#[test]
fn mkfs_of_every_variant_refuses_foreign_media_unless_forced() {
    let place = Place::new();
    let marks: [(usize, &[u8]); 1] = [(LEN - 512, b"EFI PART")];
    for variant in VARIANTS {
        println!("{variant}");
        plant(&place, &marks);
        let before = all_of(&place, &marks);
        heddle(&["mkfs", "--variant", variant, &place.image()]).failed(1, &["GPT", "--force"]);
        assert!(all_of(&place, &marks) == before, "mkfs of {variant} wrote");
        heddle(&["mkfs", "--force", "--variant", variant, &place.image()]).ok();
        let (_, last) = all_of(&place, &marks);
        assert_ne!(&last[0][4096 - 512..][..8], b"EFI PART", "{variant}: the old mark is left");
    }
}
