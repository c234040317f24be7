//! Which nodes behind a checkpoint count, and what they say.

use super::*;
use crate::format::{CheckpointHead, inline_flag};
use crate::node::{inode_of_mut, pointers_of_mut};
use crate::superblock::tests::{small, small_device};
use zerocopy::little_endian::U16;
use zerocopy::{FromZeros, IntoBytes};

const MAIN: u32 = 4096;
/// The chain begins at block 5 of segment 2.
const FIRST: u32 = MAIN + 2 * 512 + 5;
const MARK: u32 = node_flag::FSYNC;
const MADE: u32 = node_flag::FSYNC | node_flag::DENTRY;
const CRC: u32 = 0xabcd_0001;

/// A table of these inodes, by number and owner.
fn nat(entries: &[(u32, u32)]) -> Nat {
    let entry = |(nid, ino): &(u32, u32)| {
        (Nid(*nid), NatEntry { version: *nid as u8, ino: U32::new(*ino), addr: U32::new(MAIN) })
    };
    Nat::new(&small(), vec![0; 64], entries.iter().map(entry).collect())
}

fn checkpoint(version: u64, flags: u32) -> Checkpoint {
    let mut head = CheckpointHead::new_zeroed();
    (head.version, head.flags) = (version.into(), U32::new(flags));
    (head.node_segment[1], head.node_offset[1]) = (U32::new(2), U16::new(5));
    let mut checkpoint = Checkpoint::before_the_first(&small(), head);
    checkpoint.crc = CRC;
    checkpoint
}

/// A node of the chain, `n` blocks behind its first.
fn link(n: u32, nid: u32, ino: u32, flag: u32) -> Link {
    let mut footer = NodeFooter::new_zeroed();
    (footer.nid, footer.ino, footer.flag) = (U32::new(nid), U32::new(ino), U32::new(flag));
    Link { addr: BlockAddr(FIRST + n), footer }
}

/// Writes a node there. `next`: the block that it names.
fn put(device: &Device, link: &Link, version: u64, next: u32, change: impl FnOnce(&mut NodeBlock)) {
    let mut node = NodeBlock::new_zeroed();
    node.footer = link.footer.clone();
    (node.footer.checkpoint_version, node.footer.next) = (version.into(), U32::new(next));
    change(&mut node);
    device.write(link.addr, node.as_bytes()).unwrap();
}

#[test]
fn a_node_is_later_by_the_version_that_its_checkpoint_gives() {
    let (crc_recovery, no_crc) = (checkpoint_flag::CRC_RECOVERY, checkpoint_flag::NO_CRC_RECOVERY);
    let with_crc = u64::from(CRC) << 32;
    for (version, flags, said, is) in [
        (7, crc_recovery, 7 | with_crc, true),
        (7, crc_recovery, 7, false),
        (7, crc_recovery, 8 | with_crc, false),
        (7 | 1 << 32, crc_recovery, 7 | with_crc, true),
        (7, 0, 7, true),
        (7, 0, 7 | with_crc, false),
        (7, no_crc, 7 | with_crc, true),
        (7, no_crc, 7 | 5 << 32, true),
        (7, no_crc, 8, false),
    ] {
        assert_eq!(
            is_later(&checkpoint(version, flags), said),
            is,
            "{said:#x} after {version:#x}, {flags:#x}"
        );
    }
}

#[test]
fn a_chain_ends_at_the_last_mark_of_each_file() {
    let ((_file, device), geometry) = (small_device(), small());
    let nodes = Nodes::new(nat(&[]), Some(1), None);
    let read = |checkpoint: &Checkpoint| -> Vec<u32> {
        let chain = Chain::read(&device, &geometry, checkpoint, &nodes);
        chain.0.iter().map(|link| link.addr.0 - FIRST).collect()
    };
    let links = [
        link(0, 11, 10, 0),
        link(1, 10, 10, MARK),
        link(2, 31, 30, 0),
        link(3, 21, 20, MARK),
        link(4, 12, 10, 0),
        link(5, 40, 40, MARK),
    ];
    let this = checkpoint(7, 0);
    for (n, link) in links.iter().enumerate() {
        put(&device, link, if n < 5 { 7 } else { 6 }, link.addr.0 + 1, |_| ());
    }
    assert_eq!(read(&this), [0, 1, 3], "30 was never marked, and 12 came behind the last mark of 10");
    assert_eq!(read(&checkpoint(8, 0)), []);
    let mut elsewhere = checkpoint(7, 0);
    elsewhere.head.node_segment[1] = U32::new(16);
    assert_eq!(read(&elsewhere), []);
    // The last one names the first, or a block that is none of a node.
    put(&device, &links[5], 7, FIRST, |_| ());
    assert_eq!(read(&this), [0, 1, 3, 5]);
    put(&device, &links[5], 7, MAIN - 1, |_| ());
    put(&device, &Link { addr: BlockAddr(MAIN - 1), ..link(0, 50, 50, MARK) }, 7, 0, |_| ());
    assert_eq!(read(&this), [0, 1, 3, 5]);
    // A torn inode was not acknowledged, nor what is behind it.
    put(&device, &links[1], 7, FIRST + 2, |node| inode_of_mut(node).inline = inline_flag::EXTRA_ATTR);
    assert_eq!(read(&this), []);
}

#[test]
fn each_node_has_the_form_of_the_inode_of_its_fsync() {
    let chain = Chain(vec![
        link(0, 11, 10, 0),
        link(1, 21, 20, 0),
        link(2, 10, 10, MARK),
        link(3, 20, 20, MADE),
        link(4, 12, 10, MARK),
        link(5, 13, 10, 0),
        link(6, 10, 10, MARK),
    ]);
    let (_file, device) = small_device();
    assert_eq!(chain.forms(&device), [Some(2), Some(3), Some(2), Some(3), None, Some(6), Some(6)]);
    let is_made = [(10, 10, MADE), (10, 10, MARK), (11, 10, MADE), (10, 10, node_flag::DENTRY)]
        .map(|(nid, ino, flag)| link(0, nid, ino, flag).is_made());
    assert_eq!(is_made, [true, false, false, true]);
    let place = 77 << node_flag::BITS;
    let it = link(0, 11, 10, place | node_flag::COLD);
    assert_eq!((it.nid(), it.ino(), it.place(), it.is_marked()), (Nid(11), Nid(10), 77, false));
}

/// As Linux marks them, by ascending number.
#[test]
fn a_marked_node_belongs_to_the_next_inode_that_leads_to_it() {
    let (_file, device) = small_device();
    let at = |n: u32, nid: u32, place: u32| link(n, nid, 10, place << node_flag::BITS | MARK);
    let forms = |links: Vec<Link>| {
        let inodes = links.iter().filter(|link| link.nid() == link.ino());
        inodes.for_each(|inode| {
            put(&device, inode, 7, 0, |node| {
                let block = inode_of_mut(node);
                (block.nid[0], block.nid[1]) = (U32::new(5), U32::new(6));
                (block.nid[2], block.xattr_nid) = (U32::new(7), U32::new(9));
            });
        });
        Chain(links).forms(&device)
    };
    let xattrs = node_flag::XATTR_PLACE;
    let inode = |n: u32| at(n, 10, 0);
    assert_eq!(forms(vec![at(0, 5, 1), inode(1), at(2, 12, 2)]), [Some(1), Some(1), None]);
    assert_eq!(forms(vec![at(0, 6, 2), at(1, 9, xattrs), inode(2)]), [Some(2); 3]);
    let two = vec![at(0, 5, 1), inode(1), at(2, 6, 2), inode(3)];
    assert_eq!(forms(two), [Some(1), Some(1), Some(3), Some(3)]);
    // It has another number now: an earlier fsync wrote this one, and those before it.
    assert_eq!(forms(vec![at(0, 5, 1), at(1, 4, 2), inode(2)]), [None, None, Some(2)]);
    assert_eq!(forms(vec![at(0, 5, 2), inode(1)]), [None, Some(1)]);
    assert_eq!(forms(vec![at(0, 8, xattrs), inode(1)]), [None, Some(1)]);
    // The inode leads to an indirect node.
    assert_eq!(forms(vec![at(0, 7, 4), inode(1)]), [None, Some(1)]);
}

/// An inode of a regular file with this name in directory 3.
fn inode(node: &mut NodeBlock, links: u32, name: &[u8], name_bytes: u32) {
    let block = inode_of_mut(node);
    (block.mode, block.links, block.parent) = (U16::new(libc::S_IFREG as u16), U32::new(links), U32::new(3));
    block.name_bytes.set(name_bytes);
    block.name[..name.len()].copy_from_slice(name);
}

#[test]
fn nodes_count_of_files_that_are_known_or_made_again() {
    let (_file, device) = small_device();
    // 60 is a node of inode 61.
    let nat = nat(&[(10, 10), (11, 10), (60, 61)]);
    let chain = Chain(vec![
        link(0, 11, 10, 0),
        link(1, 10, 10, MARK),
        link(2, 41, 40, 0),
        link(3, 40, 40, MADE),
        link(4, 51, 50, 0),
        link(5, 50, 50, MARK),
        link(6, 60, 60, MARK),
        link(7, 70, 70, MADE),
        link(8, 80, 80, MADE),
    ]);
    put(&device, &chain.0[3], 0, 0, |node| inode(node, 1, b"made", 4));
    put(&device, &chain.0[7], 0, 0, |node| inode(node, 1, b"a/b", 3));
    let long = [b'n'; 255];
    put(&device, &chain.0[8], 0, 0, |node| inode(node, 1, &long, 1000));
    let nids = |found: &Fsynced| found.nodes.iter().map(|(nid, _)| nid.0).collect::<Vec<_>>();
    let found = Fsynced::of(&chain, &device, &nat, 0);
    assert_eq!((nids(&found), found.inodes), (vec![11, 10, 41, 40, 70, 80], 4));
    let (nid, entry) = found.nodes[0];
    assert_eq!((nid, entry.version, entry.ino.get(), entry.addr.get()), (Nid(11), 11, 10, FIRST));
    assert_eq!(found.nodes[3].1.version, 0, "a new number");
    let names = BTreeMap::from([
        (b"made".to_vec(), (Nid(40), FileKind::Regular)),
        (long.to_vec(), (Nid(80), FileKind::Regular)),
    ]);
    assert_eq!(found.names, HashMap::from([(Nid(3), names)]), "no name has a slash");
    let all = Fsynced::of_known(&chain, &device, &nat, 0, &|ino| ino == Nid(50));
    assert_eq!((nids(&all), all.inodes), (vec![11, 10, 41, 40, 51, 50, 70, 80], 5));
}

#[test]
fn inodes_with_links_are_named_ones() {
    let (_file, device) = small_device();
    let chain = Chain(vec![link(0, 10, 10, MARK), link(1, 20, 20, MARK), link(2, 31, 30, MARK)]);
    for (link, links) in chain.0.iter().zip([0, 1, 1]) {
        put(&device, link, 0, 0, |node| inode(node, links, b"name", 4));
    }
    assert_eq!(chain.named_inodes(&device).into_iter().collect::<Vec<_>>(), [Nid(20)]);
}

#[test]
fn direct_nodes_behind_the_last_inode_say_how_long_their_file_is() {
    let (_file, device) = small_device();
    // Node 11 is where the checkpoint has it, and leads to two blocks.
    let at = FIRST + 40;
    let nat = Nat::new(
        &small(),
        vec![0; 64],
        vec![(Nid(11), NatEntry { version: 0, ino: U32::new(10), addr: U32::new(at) })],
    );
    let place = |place: u32| place << node_flag::BITS | MARK;
    let chain = Chain(vec![
        link(0, 11, 10, place(1)),
        link(1, 21, 20, place(1)),
        link(2, 20, 20, MARK),
        link(3, 31, 30, place(2)),
        link(4, 31, 30, place(2)),
        link(5, 12, 10, place(3)),
        link(6, 13, 10, place(4)),
    ]);
    let leads = |link: &Link, blocks: &[u32]| {
        put(&device, link, 7, 0, |node| {
            for (slot, block) in blocks.iter().enumerate() {
                pointers_of_mut(node).pointers[slot].set(*block);
            }
        });
    };
    let (reserved, block) = (BlockAddr::NEW.0, MAIN + 9);
    leads(&Link { addr: BlockAddr(at), ..link(0, 11, 10, 0) }, &[block, 0, 0, block + 3]);
    let grown = || chain.grown(&device, &nat);
    let of = |ino: u32, place: u32, pointers: u64| Grown { ino: Nid(ino), place, pointers };
    // 10 got its second page. 20 has a later inode. 30 got a page, and then a later fsync an earlier page.
    leads(&chain.0[0], &[block, block + 1, reserved, block + 3]);
    leads(&chain.0[1], &[block; 5]);
    leads(&chain.0[3], &[0, 0, 0, block + 4]);
    leads(&chain.0[4], &[0, block + 5, 0, block + 4]);
    leads(&chain.0[5], &[block; 5]);
    leads(&chain.0[6], &[reserved; 5]);
    assert_eq!(grown(), [of(10, 1, 2), of(30, 2, 4), of(30, 2, 2)]);
    // Nothing new; and what lies where the checkpoint has the node is another one.
    leads(&chain.0[0], &[block, 0, 0, block + 3]);
    assert_eq!(grown(), [of(30, 2, 4), of(30, 2, 2)]);
    leads(&Link { addr: BlockAddr(at), ..link(0, 12, 10, 0) }, &[block, 0, 0, block + 3]);
    assert_eq!(grown(), [of(10, 1, 4), of(30, 2, 4), of(30, 2, 2)]);
}
