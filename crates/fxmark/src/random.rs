//! Numbers for choosing a page or a path: a few cycles each, the same in every run.

/// A xorshift generator.
pub(crate) struct Random(u64);

impl Random {
    /// A stream of its own for each worker.
    pub fn of_worker(me: usize) -> Random {
        Random(0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(me as u64 * 2 + 1))
    }

    /// Below `count`, every one as likely.
    #[inline]
    pub fn below(&mut self, count: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((u128::from(self.0) * u128::from(count)) >> 64) as u64
    }
}
