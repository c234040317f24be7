//! Nodes of lost inodes: found by the table, or without it, and walked through once each.

use super::*;
use crate::device::Faults;
use crate::format::{NatEntry, PointerNode};

/// Pages under the inode, both direct nodes, both indirect ones and the double indirect one.
const PAGES: [u64; 9] = [
    0,
    863,
    864,
    864 + 1018,
    864 + 2 * 1018,
    864 + 2 * 1018 + 3 * 1018 + 5,
    864 + 2 * 1018 + 1018 * 1018 + 7,
    864 + 2 * 1018 + 2 * 1018 * 1018,
    864 + 2 * 1018 + 2 * 1018 * 1018 + 2 * 1018 * 1018 + 3 * 1018 + 9,
];

/// An image with a file of these pages, each filled with its number among them; its number.
fn far_pages() -> (Scene, u32) {
    let mut ino = 0;
    let scene = Scene::of(|fs| {
        let file = create(fs, Ino::ROOT, "far");
        for (n, page) in (1..).zip(PAGES) {
            fs.write(&file, page * BLOCK, &[n; PAGE]).unwrap();
        }
        ino = file.ino.0 as u32;
        fs.release(file);
    });
    (scene, ino)
}

/// The pages that are read with what stands in them, and the pointers that lead nowhere.
fn pages_read(lost: &Lost, ino: u32) -> io::Result<(Vec<(u64, u8)>, u64)> {
    let mut pages = Vec::new();
    let read = lost.read(ino, LostForm::AsSaid, &mut |at, bytes| {
        let here = (at / BLOCK..).zip(bytes.chunks(PAGE));
        pages.extend(here.map(|(page, bytes)| (page, bytes[0])));
        Ok(())
    })?;
    Ok((pages, read.missing))
}

#[test]
fn pages_under_every_kind_of_node_are_read_in_their_places() {
    let (scene, ino) = far_pages();
    let all: Vec<(u64, u8)> = PAGES.into_iter().zip(1..).collect();
    assert_eq!(pages_read(&scene.open(), ino).unwrap(), (all.clone(), 0));
    let addr = scene.place_of(ino);
    let block = scene.block(addr);
    let [first, _, indirect, ..] = InodeBlock::ref_from_bytes(&block).unwrap().nid.map(|nid| nid.get());
    let inner = scene.block(scene.place_of(indirect));
    let direct = PointerNode::ref_from_bytes(&inner).unwrap().pointers[3].get();
    let but = |gone: &[u64]| all.iter().copied().filter(|(page, _)| !gone.contains(page)).collect::<Vec<_>>();
    // One direct node under the indirect one is gone.
    let place = scene.place_of(direct);
    let was = scene.block(place);
    scene.set_block(place, &[0; PAGE]);
    assert_eq!(pages_read(&scene.open(), ino).unwrap(), (but(&PAGES[5..6]), 1));
    scene.set_block(place, &was);
    // Each node counts once, and an inode is no node of itself.
    let circles: [fn(&mut InodeBlock); 2] = [|i| i.nid[1] = i.nid[0], |i| i.nid[1] = i.footer.ino];
    for circle in circles {
        let read = scene.with(ino, circle, |lost| pages_read(&lost, ino).unwrap());
        assert_eq!(read, (but(&PAGES[3..4]), 1));
    }
    // A node that cannot be read may be there still.
    let lost = scene.open();
    let place = scene.place_of(first);
    *lost.media.device.faults.lock().unwrap() =
        Faults { unreadable: [place, place + 1], ..Faults::default() };
    assert!(pages_read(&lost, ino).is_err());
}

#[test]
fn an_inode_is_found_unless_its_block_is_anothers_or_empty() {
    let mut inos = [0; 2];
    let scene = Scene::of(|fs| {
        inos = ["one", "other"].map(|text| {
            let file = create(fs, Ino::ROOT, text);
            let ino = file.ino.0 as u32;
            fs.release(file);
            ino
        });
    });
    let [one, other] = inos;
    let [here, there] = inos.map(|ino| scene.place_of(ino));
    let found = |entry: Option<(u32, u32)>| {
        let lost = scene.open();
        if let Some((ino, addr)) = entry {
            let entry = NatEntry { version: 0, ino: U32::new(ino), addr: U32::new(addr) };
            lost.media.nodes.nat.change(vec![(Nid(one), entry)]);
        }
        lost.find_inode(Nid(one)).unwrap().map(|found| found.inode.block().name[..5].to_vec())
    };
    let own = Some(b"one\0\0".to_vec());
    assert_eq!(found(None), own);
    assert_eq!(found(Some((one, 0))), own, "no entry leads to it");
    assert_eq!(found(Some((one, there))), own, "the entry leads to another's");
    let whole = scene.block(here);
    let mut block = whole;
    let node = NodeBlock::mut_from_bytes(&mut block).unwrap();
    (node.footer.nid, node.footer.ino) = (U32::new(77), U32::new(77));
    scene.set_block(here, &block);
    assert_eq!(found(None), own, "its footer is another's");
    assert_eq!(found(Some((other, here))), None, "and so is the entry");
    scene.set_block(here, &[0; PAGE]);
    assert_eq!(found(None), None, "there is nothing in it");
    assert_eq!(found(Some((one, there))), None, "the other file is not taken for it");
}

/// A node whose checksum is wrong ends the chain, where inodes have checksums.
#[test]
fn a_torn_inode_behind_the_checkpoint_does_not_count() {
    let mut ino = 0;
    let scene = Scene::killed(|fs| {
        let file = create(fs, Ino::ROOT, "file");
        fs.sync().unwrap();
        fs.write(&file, 0, &[5; 3 * PAGE]).unwrap();
        fs.fsync(&file, false).unwrap();
        ino = file.ino.0 as u32;
    });
    let found = || {
        let inode = scene.open().find_inode(Nid(ino)).unwrap().unwrap().inode;
        (inode.size_bytes, inode.block().uid.get())
    };
    assert_eq!(found(), (3 * BLOCK, 0));
    let place = scene.place_of(ino);
    let mut block = scene.block(place);
    InodeBlock::mut_from_bytes(&mut block).unwrap().uid.set(4242);
    scene.set_block(place, &block);
    assert_eq!(found(), (0, 0));
    let device = Device::open(&scene.path(), Access::Repair).unwrap();
    superblock::rewrite(&device, [0, 1], |superblock| {
        superblock.feature.set(superblock.feature.get() & !feature::INODE_CHECKSUM);
    })
    .unwrap();
    drop(device);
    assert_eq!(found(), (3 * BLOCK, 4242));
}
