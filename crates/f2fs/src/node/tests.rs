//! A node is handed out if table and footer agree; a changed one stays until it is written.

use super::*;
use crate::checksum::checksum;
use crate::format::{NatEntry, node_flag};
use crate::superblock::tests::{small, small_device};
use zerocopy::little_endian::U32;

const MAIN: u32 = 4096;
const MAIN_END: u32 = MAIN + 16 * 512;
const SEED: u32 = 77;

struct Scene {
    device: Device,
    geometry: Geometry,
    nodes: Nodes,
    _file: tempfile::NamedTempFile,
}

/// The table has these entries: number, inode, block.
fn scene(entries: &[(u32, u32, u32)], seed: Option<u32>) -> Scene {
    let ((file, device), geometry) = (small_device(), small());
    let entry = |(nid, ino, addr): &(u32, u32, u32)| {
        (Nid(*nid), NatEntry { version: 0, ino: U32::new(*ino), addr: U32::new(*addr) })
    };
    let nat = Nat::new(&geometry, vec![0; 64], entries.iter().map(entry).collect());
    Scene { device, geometry, nodes: Nodes::new(nat, seed, None), _file: file }
}

impl Scene {
    /// The number in the footer of what is handed out.
    fn any(&self, nid: u32) -> Result<Option<u32>> {
        let found = self.nodes.any(&self.device, &self.geometry, Nid(nid))?;
        Ok(found.map(|node| node.footer.nid.get()))
    }

    fn changed_of(&self, ino: u32) -> Vec<(u32, u32)> {
        self.nodes.changed_of(Nid(ino)).into_iter().map(|(nid, place)| (nid.0, place)).collect()
    }

    fn all_changed(&self) -> Vec<u32> {
        let mut all: Vec<u32> = self.nodes.all_changed().into_iter().map(|nid| nid.0).collect();
        all.sort_unstable();
        all
    }
}

fn node(nid: u32, ino: u32, place: u32) -> NodeBlock {
    let mut node = NodeBlock::new_zeroed();
    (node.footer.nid, node.footer.ino) = (U32::new(nid), U32::new(ino));
    node.footer.flag = U32::new(place << node_flag::BITS);
    node
}

#[test]
fn a_node_is_handed_out_if_table_and_footer_agree() {
    let scene = scene(
        &[
            (10, 10, MAIN),
            (11, 10, MAIN + 1),
            (12, 10, MAIN + 2),
            (14, 10, MAIN + 3),
            (16, 10, MAIN - 1),
            (17, 10, MAIN_END),
            (18, 18, MAIN_END - 1),
        ],
        None,
    );
    for (addr, nid, ino) in [
        (MAIN, 10, 10),
        (MAIN + 1, 11, 10),
        (MAIN + 2, 13, 10),
        (MAIN + 3, 14, 15),
        (MAIN - 1, 16, 10),
        (MAIN_END, 17, 10),
        (MAIN_END - 1, 18, 18),
    ] {
        scene.device.write(BlockAddr(addr), node(nid, ino, 0).as_bytes()).unwrap();
    }
    assert_eq!(
        [10, 11, 18, 20].map(|nid| scene.any(nid)),
        [Ok(Some(10)), Ok(Some(11)), Ok(Some(18)), Ok(None)]
    );
    for nid in [12, 14, 16, 17] {
        assert!(matches!(scene.any(nid), Err(Error::Corrupt(_))), "{nid}");
    }
    let is_of = |nid: u32, ino: u32| match scene.nodes.get(&scene.device, &scene.geometry, Nid(nid), Nid(ino))
    {
        Ok(_) => true,
        Err(Error::Corrupt(_)) => false,
        Err(other) => panic!("{other}"),
    };
    assert!(is_of(11, 10) && !is_of(11, 12) && !is_of(20, 10));
    assert!(!is_of(10, 10) && !is_of(10, 12), "an inode is no node of one");
    let inode = |nid: u32| scene.nodes.inode(&scene.device, &scene.geometry, Nid(nid)).unwrap().is_some();
    assert_eq!([10, 11, 20].map(inode), [true, false, false]);
}

#[test]
fn a_shard_keeps_so_many_unchanged_nodes_and_begins_anew() {
    let scene = scene(&[], None);
    for n in 0..=NODES_PER_SHARD {
        let nid = 5 + (SHARDS * n) as u32;
        scene.nodes.add(Nid(nid), Arc::new(node(nid, nid, 0)));
        assert_eq!((scene.nodes.changed(), scene.changed_of(nid)), (1, vec![(nid, 0)]));
        scene.nodes.logged(Nid(nid));
        let kept = scene.nodes.shards[5].read().unwrap().read.len();
        assert_eq!(kept, if n == NODES_PER_SHARD { 1 } else { n + 1 });
    }
    assert!(scene.nodes.changed() == 0 && scene.all_changed().is_empty());
}

#[test]
fn changed_nodes_are_counted_with_their_inode_until_they_are_written() {
    let scene = scene(&[(4100, 4100, MAIN)], None);
    let (nodes, device, geometry) = (&scene.nodes, &scene.device, &scene.geometry);
    device.write(BlockAddr(MAIN), node(4100, 4100, 0).as_bytes()).unwrap();
    for (nid, ino, place) in [(5, 5, 0), (6, 5, 2), (7, 7, 0)] {
        nodes.add(Nid(nid), Arc::new(node(nid, ino, place)));
    }
    nodes.change(device, geometry, Nid(4100), |node| node.body[0] = 9).unwrap();
    assert_eq!((nodes.changed(), scene.all_changed()), (4, vec![5, 6, 7, 4100]));
    assert_eq!((scene.changed_of(5), scene.changed_of(4100)), (vec![(5, 0), (6, 2)], vec![(4100, 0)]));
    assert_eq!(scene.changed_of(6), []);
    // One that takes the place of another is counted once.
    nodes.add(Nid(6), Arc::new(node(6, 5, 1)));
    assert_eq!((nodes.changed(), scene.changed_of(5)), (4, vec![(5, 0), (6, 1)]));
    let fails = |_: &mut NodeBlock| Err(Error::Io("as a test told it".into()));
    assert!(nodes.write_one(Nid(6), fails).is_err() && nodes.changed_node(Nid(6)).is_some());
    let put = |node: &mut NodeBlock| {
        node.body[1] = 3;
        Ok(())
    };
    nodes.write_one(Nid(6), put).unwrap();
    assert!(nodes.changed_node(Nid(6)).is_none() && nodes.changed() == 3);
    assert_eq!((scene.any(6), scene.changed_of(5)), (Ok(Some(6)), vec![(5, 0)]));
    nodes.forget(Nid(7));
    assert_eq!((nodes.changed(), scene.any(7)), (2, Ok(None)));
    let mut written = Vec::new();
    let write = |node: &mut NodeBlock| {
        written.push(node.footer.nid.get());
        Ok(())
    };
    nodes.write(write).unwrap();
    written.sort_unstable();
    assert_eq!((written, nodes.changed(), scene.changed_of(5)), (vec![5, 4100], 0, vec![]));
    let free = nodes.change(device, geometry, Nid(40), |_| ());
    assert!(matches!(free, Err(Error::Corrupt(_))) && nodes.changed() == 0);
}

#[test]
fn inodes_with_extra_attributes_have_a_checksum_of_all_their_bytes() {
    let scene = scene(&[], Some(SEED));
    let inode = |nid: u32, inline: u8| {
        let mut node = node(nid, 10, 0);
        let block = inode_of_mut(&mut node);
        (block.generation, block.inline) = (U32::new(0x1234), inline);
        node.body[2000] = 7;
        node
    };
    let mut node = inode(10, inline_flag::EXTRA_ATTR);
    assert!(scene.nodes.check(&node).unwrap_err().contains("checksum"));
    let zero_there = node.as_bytes().to_vec();
    assert_eq!(zero_there[368..372], [0; 4]);
    let right = checksum(SEED, &[&10_u32.to_le_bytes()[..], &0x1234_u32.to_le_bytes(), &zero_there].concat());
    scene.nodes.seal(&mut node);
    assert_eq!(node.body[368..372], right.to_le_bytes());
    assert_eq!(scene.nodes.check(&node), Ok(()));
    for at in [0, 367, 372, 4070] {
        node.body[at] ^= 1;
        assert!(scene.nodes.check(&node).is_err(), "byte {at}");
        node.body[at] ^= 1;
    }
    let of_no_checksums = self::scene(&[], None);
    for (nodes, nid, inline) in [
        (&scene.nodes, 10, 0),
        (&scene.nodes, 10, !inline_flag::EXTRA_ATTR),
        (&scene.nodes, 11, inline_flag::EXTRA_ATTR),
        (&of_no_checksums.nodes, 10, inline_flag::EXTRA_ATTR),
    ] {
        let mut node = inode(nid, inline);
        nodes.seal(&mut node);
        assert!(node.as_bytes() == inode(nid, inline).as_bytes(), "node {nid} with {inline:#x}");
        assert_eq!(nodes.check(&node), Ok(()));
    }
}
