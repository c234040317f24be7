//! The fields of every structure: where each is in its structure, and how many bytes each of its elements has.

use heddle_f2fs::format::*;

/// A field, or an array of them.
#[derive(Clone, Copy)]
pub struct Field {
    pub name: &'static str,
    pub at: usize,
    pub bytes: usize,
    pub unit: usize,
}

const fn width<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

/// `Type: field element-bytes, …`
macro_rules! fields {
    ($type:ty: $($field:ident $unit:expr),* $(,)?) => {
        &[$(Field {
            name: concat!(stringify!($type), ".", stringify!($field)),
            at: std::mem::offset_of!($type, $field),
            bytes: width::<$type, _>(|it| &it.$field),
            unit: $unit,
        }),*]
    };
}

pub const SUPERBLOCK: &[Field] = fields!(Superblock:
    magic 4, major 2, minor 2, log_sector_bytes 4, log_sectors_per_block 4, log_block_bytes 4, log_blocks_per_segment 4,
    segments_per_section 4, sections_per_zone 4, checksum_offset 4, blocks 8, sections 4, segments 4, segments_checkpoint 4,
    segments_sit 4, segments_nat 4, segments_ssa 4, segments_main 4, segment0 4, checkpoint 4, sit 4, nat 4, ssa 4, main 4,
    root_ino 4, node_ino 4, meta_ino 4, uuid 1, volume_name 2, extensions 4, extension 1, checkpoint_payload 4, version 1,
    init_version 1, feature 4, encryption_level 1, encryption_salt 1, quota_ino 4, hot_extensions 1, encoding 2,
    encoding_flags 2, reserved 1, repair_id 8, repair_mark 8, node_log_pairing 8, node_log_mark 8, crc 4);

pub const CHECKPOINT: &[Field] = fields!(CheckpointHead:
    version 8, blocks_user 8, blocks_valid 8, segments_reserved 4, segments_overprovision 4, segments_free 4, node_segment 4,
    node_offset 2, data_segment 4, data_offset 2, flags 4, pack_blocks 4, summaries_start 4, nodes_valid 4, inodes_valid 4,
    next_free_nid 4, sit_bitmap_bytes 4, nat_bitmap_bytes 4, checksum_offset 4, elapsed_secs 8, alloc_type 1);

/// Behind the fixed part, up to the checksum.
pub const CHECKPOINT_BITMAPS: &[Field] =
    &[Field { name: "version bitmaps", at: size_of::<CheckpointHead>(), bytes: 256, unit: 1 }];

pub const ORPHANS: &[Field] = fields!(OrphanBlock: ino 4, reserved 4, index 2, blocks 2, entries 4, crc 4);

pub const NAT_ENTRY: &[Field] = fields!(NatEntry: version 1, ino 4, addr 4);
pub const NAT_COUNT: &[Field] = fields!(NatJournal: count 2);
pub const NAT_CHANGE: &[Field] = &[
    Field { name: "NatChange.nid", at: 0, bytes: 4, unit: 4 },
    Field { name: "NatChange.version", at: 4, bytes: 1, unit: 1 },
    Field { name: "NatChange.ino", at: 5, bytes: 4, unit: 4 },
    Field { name: "NatChange.addr", at: 9, bytes: 4, unit: 4 },
];

pub const SIT_ENTRY: &[Field] = fields!(SitEntry: blocks 2, valid 1, mtime 8);
pub const SIT_COUNT: &[Field] = fields!(SitJournal: count 2);
pub const SIT_CHANGE: &[Field] = &[
    Field { name: "SitChange.segno", at: 0, bytes: 4, unit: 4 },
    Field { name: "SitChange.blocks", at: 4, bytes: 2, unit: 2 },
    Field { name: "SitChange.valid", at: 6, bytes: 64, unit: 1 },
    Field { name: "SitChange.mtime", at: 70, bytes: 8, unit: 8 },
];

pub const SUMMARY: &[Field] = fields!(SummaryEntry: nid 4, version 1, slot 2);
pub const SUMMARY_FOOT: &[Field] = fields!(SummaryBlock: kind 1, crc 4);

pub const INODE: &[Field] = fields!(InodeBlock:
    mode 2, advise 1, inline 1, uid 4, gid 4, links 4, size_bytes 8, blocks 8, atime 8, ctime 8, mtime 8, atime_ns 4, ctime_ns 4,
    mtime_ns 4, generation 4, depth 4, xattr_nid 4, flags 4, parent 4, name_bytes 4, name 1, dir_level 1, extent 4, nid 4);
/// Pointers, what stands inline, attributes.
pub const INODE_SLOTS: &[Field] = &[
    Field { name: "InodeBlock.addr, the first", at: SLOTS_OFFSET_BYTES, bytes: 64, unit: 4 },
    Field { name: "InodeBlock.addr", at: SLOTS_OFFSET_BYTES, bytes: 4 * INODE_POINTERS, unit: 4 },
    Field {
        name: "InodeBlock.addr, the last",
        at: SLOTS_OFFSET_BYTES + 4 * (INODE_POINTERS - 50),
        bytes: 200,
        unit: 4,
    },
    Field { name: "InodeBlock.addr, by byte", at: SLOTS_OFFSET_BYTES, bytes: 4 * INODE_POINTERS, unit: 1 },
];
pub const EXTRA: &[Field] = fields!(ExtraAttr:
    extra_bytes 2, inline_xattr_slots 2, project 4, checksum 4, crtime 8, crtime_ns 4, compressed_blocks 8, compress_algorithm 1,
    log_cluster 1, compress_flag 2);
pub const FOOTER: &[Field] = fields!(NodeFooter: nid 4, ino 4, flag 4, checkpoint_version 8, next 4);
pub const POINTERS: &[Field] = &[
    Field { name: "PointerNode.pointers, the first", at: 0, bytes: 64, unit: 4 },
    Field { name: "PointerNode.pointers", at: 0, bytes: 4 * NODE_POINTERS, unit: 4 },
];
pub const XATTRS: &[Field] = &[
    Field { name: "attributes, header", at: 0, bytes: size_of::<XattrHeader>(), unit: 4 },
    Field { name: "attributes, the first", at: size_of::<XattrHeader>(), bytes: 64, unit: 1 },
    Field { name: "attributes", at: 0, bytes: NODE_BODY_BYTES, unit: 2 },
];
pub const DENTRY: &[Field] = fields!(Dentry: hash 4, ino 4, name_bytes 2, kind 1);
pub const DENTRY_BLOCK: &[Field] = fields!(DentryBlock: bitmap 1, reserved 1, names 1);

pub const LOG_HEAD: &[Field] = fields!(LogHead:
    magic 8, format 4, generation 4, seq 8, uuid 1, len_bytes 8, base_version 8, next_version 8, base_crc 4, next_crc 4, state 4);
pub const RECORD: &[Field] = fields!(RecordHead:
    generation 4, group 8, members 4, nid 4, ino 4, before 4, payload_bytes 2, flags 1, version 1, depth 1, rest 1);
pub const RUN: &[Field] = fields!(RunHead: first 2, words 2);
