//! Every field of every structure that consists of words: its name and its position. Encoders and decoders
//! take positions only from here, so this list is complete. The tests of planted damage go through it
//! (`tests/fsck/fields.rs`).
//!
//! To add a field: add a line here, and use it in encoder and decoder. `no_bit_is_written_outside_a_field`
//! (`format/tests.rs`) finds a missing one, and the planted damage requires an entry for it.

/// Consecutive bits of a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    /// Name, in a word or two.
    pub name: &'static str,
    /// Index of the word in the structure; in a record, the words of its lines one after the other.
    pub word: usize,
    /// First bit.
    pub shift: u32,
    /// Number of bits.
    pub bits: u32,
}

impl Field {
    /// Mask of its bits in the word.
    pub const fn mask(self) -> u64 {
        (u64::MAX >> (64 - self.bits)) << self.shift
    }

    /// Its value in a word.
    #[inline]
    pub const fn of(self, word: u64) -> u64 {
        (word & self.mask()) >> self.shift
    }

    /// Its value in a structure.
    #[inline]
    pub const fn get(self, words: &[u64]) -> u64 {
        self.of(words[self.word])
    }

    /// A value at its position in the word. A value that does not fit is a bug of the caller.
    #[inline]
    pub const fn put(self, value: u64) -> u64 {
        debug_assert!(value <= self.mask() >> self.shift);
        value << self.shift
    }
}

/// A structure and its fields.
#[derive(Clone, Copy, Debug)]
pub struct Structure {
    /// Name of the structure.
    pub name: &'static str,
    /// Its fields.
    pub fields: &'static [Field],
}

macro_rules! structures {
    ($($module:ident $title:literal { $($field:ident $name:literal $word:literal, $from:literal..$to:literal;)* })*) => {
        $(
            #[doc = $title]
            pub mod $module {
                use super::Field;
                $(
                    #[doc = $name]
                    pub const $field: Field = Field { name: $name, word: $word, shift: $from, bits: $to - $from };
                )*
                /// All of them.
                pub const ALL: &[Field] = &[$($field),*];
            }
        )*
        /// All structures that consist of words.
        pub const STRUCTURES: &[Structure] = &[$(Structure { name: $title, fields: $module::ALL }),*];
    };
}

structures! {
    pointer "pointer" {
        BLOCK "block" 0, 0..40;
        CHECK "check" 0, 40..64;
    }
    tail "tail pointer" {
        BLOCK "block" 0, 0..40;
        SLOT "slot" 0, 40..46;
        CHECK "check" 0, 46..64;
    }
    inode "inode slot" {
        CRC "checksum" 0, 0..32;
        KIND "kind" 0, 32..36;
        PERM "permissions" 0, 36..48;
        INO "inode number" 1, 0..62;
        GENERATION "generation" 2, 0..62;
        UID "owner" 3, 0..32;
        GID "group" 4, 0..32;
        RDEV "device number" 5, 0..32;
        CRTIME "time of birth" 6, 0..62;
    }
    page "log page header" {
        CRC "checksum" 0, 0..32;
        KIND "kind" 0, 32..38;
        INO "inode number" 1, 0..62;
        GENERATION "generation" 2, 0..62;
        LANE "lane" 3, 0..14;
        EPOCH "mount epoch" 3, 14..62;
        SERIAL "serial" 4, 0..62;
        CHAIN "chain" 5, 0..32;
        ERA "era" 6, 0..62;
    }
    record "first line of a record" {
        CRC "checksum" 0, 0..32;
        KIND "kind" 0, 32..38;
        FLAGS "flags" 0, 38..44;
        LANE "lane" 0, 44..58;
        SLOTS "lines" 0, 58..62;
        TXN_FIRST "first slot of the transaction" 4, 0..6;
        TXN_SLOTS "slots of the transaction" 4, 6..12;
        MTIME "time of change" 5, 0..62;
        MARK "mark" 7, 0..62;
    }
    later "later line of a record" {
        CRC "checksum" 7, 0..32;
        KIND "kind" 7, 32..38;
        LINE "which line" 7, 38..42;
    }
    write "write record" {
        PAGE "page" 1, 0..36;
        END "end in the last page" 1, 36..49;
        BLOCK "block" 2, 0..40;
        PAGES "pages" 2, 40..60;
        VERSION "version" 3, 0..62;
        CHANGE_COUNT "change count" 6, 0..50;
    }
    punch "punch record" {
        PAGE "page" 1, 0..36;
        PAGES "pages" 2, 0..37;
        VERSION "version" 3, 0..62;
        CHANGE_COUNT "change count" 6, 0..50;
    }
    attributes "attribute record" {
        SIZE "size" 1, 0..49;
        PERM "permissions" 1, 49..61;
        UID "owner" 2, 0..32;
        CHANGE_COUNT "change count" 6, 0..50;
        GID "group" 8, 0..32;
        CTIME "time of change of anything" 9, 0..62;
        ATIME "time of access" 10, 0..62;
    }
    entry "name record" {
        CHILD "inode" 1, 0..40;
        KIND "kind of the inode" 1, 40..44;
        BYTES "bytes of the name" 1, 44..52;
        CHILD_GENERATION "generation of the inode" 2, 0..62;
        VERSION "version" 3, 0..62;
        CHANGE_COUNT "change count of the directory" 4, 12..62;
        NAME "name" 6, 0..56;
    }
    foreign "name record of another directory" {
        DIR "directory" 6, 0..62;
        DIR_GENERATION "generation of the directory" 8, 0..62;
        NAME "name" 9, 0..56;
    }
    xattrs "xattr record" {
        BLOB "blob" 1, 0..40;
        CHANGE_COUNT "change count" 6, 0..50;
    }
    remap "remap record" {
        PAGE "page" 1, 0..36;
        BLOB "blob" 2, 0..40;
        VERSION "version" 3, 0..62;
        CHANGE_COUNT "change count" 6, 0..50;
    }
    list "extent list" {
        CRC "checksum" 0, 0..32;
        COUNT "extents" 0, 32..42;
        NEXT "pointer to the next block" 1, 0..64;
        BLOCK "block" 2, 0..40;
        BLOCKS "blocks" 2, 40..62;
    }
    blob "blob" {
        CRC "checksum" 0, 0..32;
        COUNT "words" 0, 32..42;
        NEXT "pointer to the next block" 1, 0..64;
    }
    xattr "attributes in a blob" {
        NAME_BYTES "bytes of the name" 2, 0..8;
        VALUE_BYTES "bytes of the value" 2, 8..32;
        NAME "name" 2, 32..40;
    }
    run "run of a map in a blob" {
        PAGE "page" 2, 0..36;
        UNWRITTEN "unwritten" 2, 36..37;
        BLOCK "block" 3, 0..40;
        PAGES "pages" 3, 40..62;
    }
}
