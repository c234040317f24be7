//! What fsck can know of each field whose value was changed together with the checksums that cover it: a program that is wrong, not a
//! medium, does that. (A flipped bit is found in every field but what no one reads.)

/// What becomes of a lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// fsck finds every one.
    Found,
    /// Some are as likely as the truth, for this reason; they harm nobody but the inode they speak of.
    Believed(&'static str),
}

/// A field.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub structure: &'static str,
    pub field: &'static str,
    pub verdict: Verdict,
}

/// Name of the structure whose fields are in `superblock::FIELDS`.
pub const SUPERBLOCK: &str = "superblock";

use Verdict::{Believed, Found};

const fn row(structure: &'static str, field: &'static str, verdict: Verdict) -> Row {
    Row { structure, field, verdict }
}

const OWN: Verdict = Believed("any value is a good one, and nothing else says it");

const SEED: Verdict = Believed("it seeds the records' checksums, which agree");
const ORDER: Verdict = Believed("it orders records, and nothing else tells their order");
const DATA: Verdict =
    Believed("what lies in a block that nobody else has may be the file's: data has no checksum");
const LENGTH: Verdict = Believed("nothing else says where names and values end");
const COPY: Verdict = Believed("the directory itself has a copy, and a later attribute record than this");
const FIRST: &str = "first line of a record";
const FOREIGN: &str = "name record of another directory";

/// All fields.
pub const ROWS: &[Row] = &[
    row(SUPERBLOCK, "magic", Found),
    row(SUPERBLOCK, "version", Found),
    row(SUPERBLOCK, "crc", Found),
    row(SUPERBLOCK, "uuid", Believed("it is a name, and both copies bear it")),
    row(SUPERBLOCK, "sequence", Believed("it orders the two copies, which are alike")),
    row(SUPERBLOCK, "blocks_total", Found),
    row(SUPERBLOCK, "epoch", Believed("a larger one was counted by mounts that wrote nothing")),
    row(SUPERBLOCK, "inode_dir_block", Found),
    row(SUPERBLOCK, "inode_dir_pointers", Found),
    row(SUPERBLOCK, "data_block", Found),
    row(SUPERBLOCK, "created_ns", OWN),
    row(SUPERBLOCK, "variant", Believed("variants with one kind of log have one format")),
    row(SUPERBLOCK, "clean", Believed("an image that was not unmounted may be in perfect order")),
    row(SUPERBLOCK, "mounted_ns", OWN),
    row(SUPERBLOCK, "seed", Found),
    row(SUPERBLOCK, "repair", Believed("only the undo file of a repair is compared with it")),
    row(SUPERBLOCK, "unused", Believed("nobody reads it")),
    row("pointer", "block", Found),
    row("pointer", "check", Found),
    row("tail pointer", "block", Found),
    row("tail pointer", "slot", Found),
    row("tail pointer", "check", Found),
    row("inode slot", "checksum", Found),
    row("inode slot", "kind", Found),
    row("inode slot", "permissions", OWN),
    row("inode slot", "inode number", Found),
    row("inode slot", "generation", Found),
    row("inode slot", "owner", OWN),
    row("inode slot", "group", OWN),
    row("inode slot", "device number", OWN),
    row("inode slot", "time of birth", OWN),
    row("log page header", "checksum", Found),
    row("log page header", "kind", Found),
    row("log page header", "inode number", Found),
    row("log page header", "generation", Found),
    row("log page header", "lane", SEED),
    row("log page header", "mount epoch", SEED),
    row("log page header", "serial", SEED),
    row("log page header", "chain", Found),
    row("log page header", "era", Believed("it decides only when tombstones go")),
    row(FIRST, "checksum", Found),
    row(FIRST, "kind", Believed("a name and the removal of a name look the same")),
    row(FIRST, "flags", Believed("written and unwritten pages look the same")),
    row(FIRST, "lane", Believed("nobody acts on it")),
    row(FIRST, "lines", Found),
    row(FIRST, "first slot of the transaction", Found),
    row(FIRST, "slots of the transaction", Found),
    row(FIRST, "time of change", OWN),
    row(FIRST, "mark", Found),
    row("later line of a record", "checksum", Found),
    row("later line of a record", "kind", Found),
    row("later line of a record", "which line", Found),
    row("write record", "page", OWN),
    row("write record", "end in the last page", OWN),
    row("write record", "block", DATA),
    row("write record", "pages", OWN),
    row("write record", "version", ORDER),
    row("write record", "change count", ORDER),
    row("punch record", "page", OWN),
    row("punch record", "pages", OWN),
    row("punch record", "version", ORDER),
    row("punch record", "change count", ORDER),
    row("attribute record", "size", OWN),
    row("attribute record", "permissions", OWN),
    row("attribute record", "owner", OWN),
    row("attribute record", "change count", ORDER),
    row("attribute record", "group", OWN),
    row("attribute record", "time of change of anything", OWN),
    row("attribute record", "time of access", OWN),
    row("name record", "inode", Believed("removals name inodes that are gone")),
    row("name record", "kind of the inode", Believed("removals name inodes that are gone")),
    row("name record", "bytes of the name", Believed("removals may be of any name")),
    row("name record", "generation of the inode", Believed("removals name inodes that are gone")),
    row("name record", "version", ORDER),
    row("name record", "change count of the directory", ORDER),
    row("name record", "name", OWN),
    row(FOREIGN, "directory", COPY),
    row(FOREIGN, "generation of the directory", COPY),
    row(FOREIGN, "name", COPY),
    row("xattr record", "blob", Found),
    row("xattr record", "change count", ORDER),
    row("remap record", "page", OWN),
    row("remap record", "blob", Believed("a map may be empty")),
    row("remap record", "version", ORDER),
    row("remap record", "change count", ORDER),
    row("extent list", "checksum", Found),
    row("extent list", "extents", Found),
    row("extent list", "pointer to the next block", Found),
    row("extent list", "block", DATA),
    row("extent list", "blocks", Found),
    row("blob", "checksum", Found),
    row("blob", "words", Believed("zeros behind the last attribute are padding")),
    row("blob", "pointer to the next block", Found),
    row("attributes in a blob", "bytes of the name", LENGTH),
    row("attributes in a blob", "bytes of the value", LENGTH),
    row("attributes in a blob", "name", OWN),
    row("run of a map in a blob", "page", OWN),
    row("run of a map in a blob", "unwritten", OWN),
    row("run of a map in a blob", "block", DATA),
    row("run of a map in a blob", "pages", Found),
];
