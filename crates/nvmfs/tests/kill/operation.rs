//! What the call of a number does: both sides know it from the number alone.

/// Pages of the shared file.
pub const PAGES: u64 = 64;
pub const PAGE: u64 = 4096;
pub const THREADS: u64 = 4;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Pages `[first, first + count)` of `/pages` get the number in every word.
    Pages { first: u64, count: u64 },
    /// A record of so many bytes at the end of `/log`.
    Append { len: usize },
    /// `/d/NUMBER` is made.
    Create,
    /// The name of the call `of` goes away.
    Unlink { of: u64 },
    /// `/d/OF` becomes `/e/OF`.
    Rename { of: u64 },
}

pub fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ mixed >> 29
}

/// Numbers count up in steps of a thread each: a thread's calls are those of its remainder, and refer to its own earlier ones.
pub fn operation(number: u64) -> Operation {
    let random = mixed(number);
    let earlier = |back: u64| number.checked_sub(back * THREADS);
    // Every eighth call of a thread creates; the fourth after it renames that one, the sixth removes it, but for some.
    match number / THREADS % 8 {
        0 => Operation::Create,
        2 if random.is_multiple_of(8) => Operation::Append { len: 16 + (random >> 8) as usize % 3000 },
        4 => earlier(4).map_or(Operation::Create, |of| Operation::Rename { of }),
        6 if !random.is_multiple_of(16) => {
            earlier(6).map_or(Operation::Create, |of| Operation::Unlink { of })
        }
        _ => {
            let first = (random >> 16) % PAGES;
            Operation::Pages { first, count: (1 + (random >> 32) % 8).min(PAGES - first) }
        }
    }
}

/// The bytes of an appended record: number, length, filling.
pub fn record(number: u64, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len);
    bytes.extend(number.to_le_bytes());
    bytes.extend((len as u64).to_le_bytes());
    bytes.extend((16..len).map(|at| (number as usize + at) as u8));
    bytes
}
