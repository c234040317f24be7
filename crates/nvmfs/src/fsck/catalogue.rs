//! Every issue that fsck knows, by number. A number is never reused. The line of a number that is not in use
//! any more stays, marked so.

/// The severity of an issue.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// Normal, for instance after a power cut: the next mount handles it.
    Note,
    /// Nothing is lost, but the structure is not as it should be.
    Warning,
    /// Damage: mounts are refused, or data is lost.
    Error,
}

impl Severity {
    /// Its name in text and JSON output.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// Number of an issue.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Code(pub u16);

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NV-{:04}", self.0)
    }
}

impl Code {
    /// Parses `NV-0042`, `nv-42` or `42`.
    pub fn parse(text: &str) -> Option<Code> {
        let digits = match text.get(..3) {
            Some(prefix) if prefix.eq_ignore_ascii_case("nv-") => &text[3..],
            _ => text,
        };
        digits.parse().ok().map(Code).filter(|code| CATALOGUE.iter().any(|e| e.code == *code))
    }

    /// Its entry in the catalogue.
    pub fn entry(self) -> &'static Entry {
        // Codes are made from the constants below, and a test checks that the catalogue has each of them.
        CATALOGUE.iter().find(|e| e.code == self).unwrap_or(&CATALOGUE[0])
    }
}

/// A line of the catalogue.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its number.
    pub code: Code,
    /// Its severity.
    pub severity: Severity,
    /// The structure that it concerns.
    pub structure: &'static str,
    /// A short title.
    pub title: &'static str,
    /// Its meaning for the owner of the data.
    pub meaning: &'static str,
    /// What `heddle fsck -y` does about it.
    pub repair: &'static str,
}

macro_rules! catalogue {
    ($($number:literal $name:ident $severity:ident $structure:literal $title:literal $meaning:literal $repair:literal;)*) => {
        impl Code {
            $(#[doc = $title] pub const $name: Code = Code($number);)*
        }
        /// All issues, by number.
        pub const CATALOGUE: &[Entry] = &[$(Entry {
            code: Code::$name,
            severity: Severity::$severity,
            structure: $structure,
            title: $title,
            meaning: $meaning,
            repair: $repair,
        }),*];
    };
}

catalogue! {
    1 SUPERBLOCK_COPY Warning "superblock" "one copy of the superblock is damaged"
        "The image has two copies; the other one is whole and says all there is to know."
        "Writes the damaged copy anew from the whole one.";
    2 SUPERBLOCK_BIT Error "superblock" "both copies are damaged, one by a single flipped bit"
        "The image does not mount. One copy becomes whole when one bit is turned back, which its checksum proves."
        "Turns the bit back and writes both copies anew.";
    3 SUPERBLOCK_LOST Error "superblock" "both copies of the superblock are damaged"
        "Identity and geometry of the image are lost, and with them the seed of every checksum."
        "None: restore the image from a backup.";
    4 TRUNCATED Error "superblock" "the file is shorter than the file system"
        "Blocks at the end are missing."
        "None: bring the missing part back.";
    5 SUPERBLOCK_NONSENSE Error "superblock" "the superblock contradicts itself"
        "Its checksum is right, its numbers do not fit together: a program wrote nonsense."
        "None: restore the image from a backup.";
    6 SUPERBLOCK_BEHIND Note "superblock" "the two copies are of different mounts"
        "A power cut came between the two; the newer one counts."
        "Nothing: the next mount writes both.";
    7 EPOCH_BEHIND Error "superblock" "a log page is of a mount that the superblock does not know yet"
        "The count of mounts went back. Pages that are written next could be taken for older ones."
        "Sets the count beyond the largest one found.";
    8 NOT_UNMOUNTED Note "superblock" "the image was not unmounted"
        "A power cut or a kill. The next mount recovers it; what every finished call wrote is there."
        "Nothing.";
    9 UNUSED_SPACE Warning "superblock" "the block of a superblock holds something behind it"
        "Nobody reads it, and nobody should have written it."
        "Writes zeros there.";
    10 CHUNK_POINTER Error "inode directory" "the pointer to an inode chunk is damaged"
        "32 inodes cannot be found. One flipped bit, or the chunk itself (its slots say their numbers), tells where it was."
        "Stores the pointer again.";
    11 CHUNK_LOST Error "inode directory" "an inode chunk cannot be found"
        "The pointer is damaged and no block looks like the chunk: its 32 inodes are lost."
        "Clears the pointer; names of its inodes go.";
    12 CHUNK_OUTSIDE Error "inode directory" "the pointer to an inode chunk leads out of the data area"
        "Its check is right: a program wrote nonsense."
        "Looks for the chunk, as for NV-0010.";
    13 DIRECTORY_REST Warning "inode directory" "something stands behind the last pointer of the inode directory"
        "Nobody reads it, and nobody should have written it."
        "Writes zeros there.";
    14 SUPERBLOCK_TORN Note "superblock" "one copy of the superblock is half written"
        "A power cut came in a mount or an unmount; the other copy is whole and counts."
        "Nothing: the next mount writes both.";
    15 WORN_OUT Error "superblock" "the image has no mount left"
        "Its numbers count 4,194,303 mounts, and a repair counts as one: it mounts read-only."
        "None: mount it read-only and copy what it holds to a new image.";
    20 SLOT_BIT Error "inode slot" "a flipped bit in an inode slot"
        "The checksum tells which bit."
        "Turns the bit back.";
    21 SLOT_LOST Error "inode slot" "the slot of a named inode is damaged"
        "Kind and identity are known from the name, the rest of the slot is not."
        "Makes the slot anew: owner root, mode 0600 (0700 for a directory) unless the log says otherwise. The content stays.";
    22 SLOT_GARBAGE Warning "inode slot" "a slot that no name means is damaged"
        "The slot is free; the next mount clears it."
        "Writes zeros there.";
    23 SLOT_TORN Note "inode slot" "a slot is half written or half cleared"
        "A power cut came in the making or the end of an inode without a name. The next mount clears it."
        "Nothing.";
    24 SLOT_TORN_CLEAN Error "inode slot" "a slot is half written, and the image was unmounted cleanly"
        "Words were lost after the unmount. If a name meant the inode, see NV-0062."
        "Writes zeros there.";
    25 ROOT_LOST Error "inode slot" "the root directory's slot is missing"
        "No path leads anywhere."
        "Makes the slot anew: owner root, mode 0755. Its names are in its log.";
    26 SLOT_OF_NOBODY Warning "inode slot" "the slot of inode 0 or of no possible inode is in use"
        "Inode 0 never exists."
        "Writes zeros there.";
    27 ORPHAN Note "inode slot" "an inode without a name"
        "It was deleted while it was open, or just before a power cut, or its log is damaged. The next mount frees it."
        "Nothing.";
    28 ORPHAN_CLEAN Error "inode slot" "an inode without a name, and the image was unmounted cleanly"
        "An unmount ends inodes without a name: this one's name was lost after it."
        "Gives it a name in lost+found, if its log is whole.";
    30 HEAD Error "log" "the pointer to a chain of an inode's log is damaged"
        "One flipped bit, or the page's header, tells where the chain begins; if neither does, the chain is lost."
        "Stores the pointer again, or writes the log anew from what is left.";
    31 HEAD_BLOCK Error "log" "the pointer to the block of further heads is damaged"
        "The chains from the seventh on hang from that block."
        "Stores the pointer again if one bit explains it, or writes the log anew from what is left.";
    32 LOG_OUTSIDE Error "log" "a pointer of a log leads out of the data area"
        "Its check is right: a program wrote nonsense."
        "Writes the log anew from what is left.";
    33 CHAIN_TOO_MANY Error "log" "a log has a chain that its kind does not have"
        "Images of the papers' variants have one chain an inode."
        "Writes the log anew in one chain.";
    34 HEADER Error "log page" "the header of a log page is damaged"
        "Header and place seed the checksums of the page's records: without it they cannot be read."
        "Turns one flipped bit back; else writes the log anew without this page.";
    35 HEADER_FOREIGN Error "log page" "a log leads to a page of another log"
        "The page is whole and belongs to another inode or chain."
        "Writes the log anew without this page.";
    36 NEXT Error "log page" "the pointer to the next log page is damaged"
        "One flipped bit, or the next page's header, tells where the chain goes on; if neither does, its rest is lost."
        "Stores the pointer again, or writes the log anew from what is left.";
    37 CIRCLE Error "log page" "a chain leads back to a page it has passed"
        "The pointer's check is right: a program wrote nonsense."
        "Writes the log anew, each page read once.";
    38 TAIL Error "log" "the tail pointer is damaged"
        "In nova all records before the tail count."
        "Stores the tail that lies behind the last whole record.";
    39 TAIL_OUTSIDE Error "log" "the tail pointer leads out of the log, or into the middle of a record"
        "In nova all records before the tail count."
        "Stores the tail that lies behind the last whole record.";
    40 RECORD_BIT Error "record" "a flipped bit in a record"
        "The checksum tells which bit."
        "Turns the bit back.";
    41 MARK Error "record" "the mark of a record is damaged"
        "The record is whole; a mark follows from its place."
        "Stores the mark again.";
    42 RECORD Error "record" "a record is damaged"
        "More than one bit is wrong: what it said is lost. A change of the file or directory is missing or undone."
        "Writes the log anew from whole records. Pages that it changed are as before it. Of a file only the owner keeps permissions.";
    43 RECORD_GONE Error "record" "records follow a gap in a log page"
        "A power cut leaves nothing behind a gap but the rest of one change: a record that counted is gone."
        "Writes the log anew from the records that are whole.";
    44 RECORD_TORN Note "record" "a change was cut by a power cut"
        "It had not returned to its caller. The next mount drops it."
        "Nothing.";
    45 RECORD_TORN_CLEAN Error "record" "a record is half there, and the image was unmounted cleanly"
        "Words were lost after the unmount: what the record said is lost."
        "Writes the log anew from the records that are whole.";
    46 RECORD_MISPLACED Error "record" "a record in the log of an inode of another kind"
        "File data in a directory's log, or names in a file's: a program wrote nonsense."
        "Writes the log anew without it.";
    47 VERSIONS_CLASH Error "record" "two records of one version disagree"
        "Both claim to be the latest word on a page or name."
        "Keeps one and writes the log anew.";
    48 VERSION_RANGE Error "record" "a version, mount epoch or change count is beyond what can be"
        "No file lives long enough to reach it: a program wrote nonsense."
        "Writes the log anew: a page's records stay, such a record goes.";
    50 LIST_BIT Error "extent list" "a flipped bit in an extent list"
        "The checksum tells which bit."
        "Turns the bit back.";
    51 LIST Error "extent list" "an extent list is damaged"
        "Where the pages of one large write lie is lost."
        "Those pages become a hole; the file's log is written anew.";
    52 LIST_LENGTH Error "extent list" "an extent list and its record disagree"
        "The list has more or fewer blocks than the record has pages."
        "Those pages become a hole; the file's log is written anew.";
    53 EXTENT_OUTSIDE Error "extent" "pages of a file lie outside the data area"
        "The checksum is right: a program wrote nonsense."
        "Those pages become a hole; the file's log is written anew.";
    55 XATTRS_BIT Error "attributes" "a flipped bit in a block of extended attributes"
        "The checksum tells which bit."
        "Turns the bit back.";
    56 XATTRS Error "attributes" "the extended attributes of an inode are damaged"
        "Their block is not whole, or says nothing that makes sense; a mount is refused."
        "Drops them, access lists among them: permission bits hold then. The log is written anew; the content stays.";
    57 MAP_BIT Error "map" "a flipped bit in a map of pages"
        "Cutting a range out of a file, or inserting one, writes a map of where its pages went. The checksum tells which bit."
        "Turns the bit back.";
    58 MAP Error "map" "a map of pages is damaged"
        "Where the pages of a file lie, from a page on where a range was cut out or inserted, is lost; a mount is refused."
        "Those pages become a hole, but for what was written since; the file's log is written anew.";
    61 DANGLING Note "name" "a name of an inode that never came to be"
        "A power cut came in the making of the inode, or of one that an older rename still mentions. It is not shown."
        "Nothing.";
    62 DANGLING_CLEAN Error "name" "a name of an inode that is gone"
        "The name was made during the last mount, which ended cleanly, or says to be of a later one: the inode was lost, or never was."
        "Removes the name.";
    63 KIND Error "name" "a name and its inode disagree about what it is"
        "The slot's word counts; such a name would not be shown."
        "Changes the kind in the name.";
    64 DIRECTORY_TWICE Error "name" "a directory has two names"
        "A directory has exactly one."
        "Keeps the name met first from the root, and removes the other.";
    65 CUT_OFF Error "name" "a directory with content that no path leads to"
        "Only empty directories are ever removed: a name was lost."
        "Gives it a name in lost+found.";
    66 NAME_LOST Error "name" "an inode without a name, after names were lost"
        "A directory lost records in this check: this may be what they named."
        "Gives it a name in lost+found, if its log is whole.";
    67 RENAME_DEBT Note "name" "a rename across directories was cut after it had happened"
        "The new directory's log says so for both. The next mount writes the copy that the old one is owed."
        "Nothing.";
    68 INODE_NUMBER Error "name" "a name of an inode number that cannot be"
        "Beyond the inode directory."
        "Removes the name.";
    80 SIZE Error "file" "a size beyond what a file can have"
        "Larger than 256 TiB."
        "Cuts the size to the end of the last page.";
    81 SYMLINK Error "file" "a symbolic link without a target, or with one that is too long"
        "Targets have 1 to 4095 bytes."
        "Cuts it where its text ends; a link of which nothing is left loses its name.";
    90 CLAIMED_TWICE Error "block" "a block belongs to two"
        "Two files, or a file and a log: the content of one of them is wrong. A log or inode chunk proves its block its own."
        "Each file gets a copy of its own; against a log or chunk, the file's page becomes a hole.";
    91 NO_SPACE Error "repair" "there is no room for the repair"
        "Logs are written anew, and blocks copied, into free blocks."
        "None: mount read-only, if that is possible, and copy what is there to another image.";
    92 UNSETTLED Error "repair" "the repair does not come to an end"
        "Each reading of what was mended found something new: a fault of this program. Nothing was changed."
        "None: report it, with heddle dump of the image. What a read-only mount shows can be copied to another image.";
}
