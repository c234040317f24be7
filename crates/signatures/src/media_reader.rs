//! A file or device, read on demand.

use crate::ReadAt;

/// Most bytes of a label that are read.
const LABEL_BYTES_MAX: usize = 1024;

/// A file or device, read on demand.
pub struct MediaReader<'a> {
    pub len_bytes: u64,
    pub read: ReadAt<'a>,
}

impl MediaReader<'_> {
    /// Reads `N` bytes at `at`; bytes beyond the end are zeros.
    pub fn at<const N: usize>(&self, at: u64) -> [u8; N] {
        let mut into = [0; N];
        self.fill(at, &mut into);
        into
    }

    fn fill(&self, at: u64, into: &mut [u8]) {
        let inside = self.len_bytes.saturating_sub(at).min(into.len() as u64) as usize;
        if inside > 0 {
            (self.read)(at, &mut into[..inside]);
        }
    }

    /// Returns true if the bytes at `at` are these.
    pub fn has(&self, at: u64, wanted: &[u8]) -> bool {
        let mut found = vec![0; wanted.len()];
        self.fill(at, &mut found);
        found == wanted
    }

    pub fn u32(&self, at: u64) -> u32 {
        u32::from_le_bytes(self.at(at))
    }

    pub fn u64(&self, at: u64) -> u64 {
        u64::from_le_bytes(self.at(at))
    }

    /// The position `bytes` before the end; `u64::MAX` if the media is shorter.
    pub fn before_end(&self, bytes: u64) -> u64 {
        self.len_bytes.checked_sub(bytes).unwrap_or(u64::MAX)
    }

    /// Escaped text up to the first NUL, trailing blanks removed; `None` if empty.
    pub fn text(&self, at: u64, len: usize) -> Option<String> {
        let mut bytes = vec![0; len.min(LABEL_BYTES_MAX)];
        self.fill(at, &mut bytes);
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        shown(&String::from_utf8_lossy(&bytes[..end]))
    }

    /// As [`MediaReader::text`], from UTF-16LE.
    pub fn text_utf16(&self, at: u64, units: usize) -> Option<String> {
        let mut bytes = vec![0; (units * 2).min(LABEL_BYTES_MAX)];
        self.fill(at, &mut bytes);
        let units: Vec<u16> = bytes
            .chunks_exact(2)
            .map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
            .take_while(|unit| *unit != 0)
            .collect();
        shown(&String::from_utf16_lossy(&units))
    }

    pub fn is_zero(&self, at: u64, len_bytes: u64) -> bool {
        const PIECE_BYTES: u64 = 64 << 10;
        let end = at + len_bytes;
        (at..end).step_by(PIECE_BYTES as usize).all(|from| {
            let mut piece = vec![0; PIECE_BYTES.min(end - from) as usize];
            self.fill(from, &mut piece);
            piece.iter().all(|byte| *byte == 0)
        })
    }
}

/// A label as a terminal may show it.
fn shown(text: &str) -> Option<String> {
    let text = text.trim_end();
    (!text.is_empty()).then(|| text.escape_debug().to_string())
}
