//! The hash of a name: the TEA cipher over 16 bytes at a time.
//!
//! Source      Linux `fs/f2fs/hash.c` for the facts; the cipher: Wheeler and Needham, "TEA, a Tiny Encryption Algorithm" (1994).

/// Bytes of a round.
const PIECE_BYTES: usize = 16;
const DELTA: u32 = 0x9e37_79b9;
/// Initial state; only these two of four words ever change.
const START: [u32; 2] = [0x6745_2301, 0xefcd_ab89];

/// The hash of a name; 0 for `.` and `..`.
pub(super) fn hash(name: &[u8]) -> u32 {
    if matches!(name, b"." | b"..") {
        return 0;
    }
    let mut state = START;
    let mut rest = name;
    loop {
        mix(&mut state, key_of(rest));
        rest = rest.get(PIECE_BYTES..).unwrap_or_default();
        if rest.is_empty() {
            return state[0];
        }
    }
}

/// The next 16 bytes as four big-endian words; missing bytes are filled with the length of the rest.
fn key_of(rest: &[u8]) -> [u32; 4] {
    let pad = (rest.len() as u32 & 0xff) * 0x0101_0101;
    let mut key = [pad; 4];
    for (word, bytes) in key.iter_mut().zip(rest[..rest.len().min(PIECE_BYTES)].chunks(4)) {
        // A partial word keeps the filling in its high bytes.
        *word = bytes.iter().fold(pad, |word, byte| (word << 8).wrapping_add(u32::from(*byte)));
    }
    key
}

/// Sixteen rounds; their result is added to the state.
fn mix(state: &mut [u32; 2], key: [u32; 4]) {
    let ([mut left, mut right], mut sum) = (*state, 0_u32);
    for _ in 0..16 {
        sum = sum.wrapping_add(DELTA);
        let turn = |half: u32, [first, second]: [u32; 2]| {
            (half << 4).wrapping_add(first) ^ half.wrapping_add(sum) ^ (half >> 5).wrapping_add(second)
        };
        left = left.wrapping_add(turn(right, [key[0], key[1]]));
        right = right.wrapping_add(turn(left, [key[2], key[3]]));
    }
    *state = [state[0].wrapping_add(left), state[1].wrapping_add(right)];
}
