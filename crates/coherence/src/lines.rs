//! The lines: which workers have an up-to-date copy of each.
//!
//! State       a line that was written in a turn: the workers whose copy is up to date, and the code that wrote it last. A line
//!             without an entry is up to date everywhere (I2 of the crate).
//! Invariants  I1  after a write only its worker has a copy; after a touch the toucher has one too. So a worker without one is
//!                 a worker that has not touched the line since another one wrote it.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

#[derive(Clone, Copy, Debug)]
struct Line {
    /// A bit a worker.
    copies: u64,
    writer: u64,
}

/// See the module.
#[derive(Default)]
pub struct Lines {
    written: HashMap<u64, Line, BuildHasherDefault<Mix>>,
}

impl Lines {
    /// Worker `me` touches line `number` (address / 64) from the code at `site`. If that is a transfer: the code that wrote the line
    /// last.
    pub fn touch(&mut self, number: u64, me: u32, writes: bool, site: u64) -> Option<u64> {
        let mine = 1_u64 << me;
        if !writes {
            let line = self.written.get_mut(&number)?;
            let transfer = (line.copies & mine == 0).then_some(line.writer);
            line.copies |= mine;
            return transfer;
        }
        let before = self.written.insert(number, Line { copies: mine, writer: site });
        before.filter(|line| line.copies & mine == 0).map(|line| line.writer)
    }
}

/// Line numbers spread well by one multiplication.
#[derive(Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(5) ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Transfers of these touches: (line, worker, writes).
    fn transfers(touches: &[(u64, u32, bool)]) -> Vec<bool> {
        let mut lines = Lines::default();
        touches.iter().map(|&(line, me, writes)| lines.touch(line, me, writes, 7).is_some()).collect()
    }

    #[test]
    fn a_line_that_nobody_writes_is_never_transferred() {
        assert_eq!(transfers(&[(1, 0, false), (1, 1, false), (1, 0, false), (1, 63, false)]), [false; 4]);
    }

    #[test]
    fn a_private_counter_is_never_transferred() {
        let own: Vec<_> = (0..1000).map(|n| (u64::from(n % 64), n % 64, true)).collect();
        assert_eq!(transfers(&own), [false; 1000]);
    }

    #[test]
    fn false_sharing_is_a_transfer_a_turn() {
        // Counters of two workers on one line: each turn finds the other's write.
        let turns: Vec<_> = (0..100).map(|turn| (9, turn % 2, true)).collect();
        assert_eq!(transfers(&turns).iter().filter(|t| **t).count(), 99);
    }

    #[test]
    fn a_reader_pays_once_for_each_write_of_another() {
        let touches =
            [(3, 0, true), (3, 1, false), (3, 1, false), (3, 0, true), (3, 1, false), (3, 2, false)];
        assert_eq!(transfers(&touches), [false, true, false, false, true, true]);
    }

    #[test]
    fn what_i_wrote_is_mine_until_another_writes() {
        assert_eq!(
            transfers(&[(5, 0, true), (5, 1, false), (5, 0, false), (5, 1, true), (5, 0, false)]),
            [false, true, false, false, true]
        );
    }

    #[test]
    fn the_writer_is_told() {
        let mut lines = Lines::default();
        lines.touch(1, 0, true, 100);
        lines.touch(1, 0, true, 200);
        assert_eq!(lines.touch(1, 1, true, 300), Some(200));
        assert_eq!(lines.touch(1, 0, false, 400), Some(300));
    }
}
