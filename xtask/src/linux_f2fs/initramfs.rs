//! A tree of files as the kernel unpacks it at its start: a cpio archive of the `newc` form.
//!
//! Source      Linux `Documentation/driver-api/early-userspace/buffer-format.rst`.

/// An archive that is being made.
#[derive(Default)]
pub struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    pub fn dir(&mut self, name: &str) {
        self.add(name, 0o040_755, &[]);
    }

    /// A file that everybody may execute.
    pub fn program(&mut self, name: &str, content: &[u8]) {
        self.add(name, 0o100_755, content);
    }

    pub fn link(&mut self, name: &str, target: &str) {
        self.add(name, 0o120_777, target.as_bytes());
    }

    /// All of it, with its end.
    pub fn finish(mut self) -> Vec<u8> {
        self.add("TRAILER!!!", 0, &[]);
        self.bytes
    }

    /// Thirteen numbers of eight hexadecimal digits, the name with its NUL, the content; each padded to four bytes.
    fn add(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let numbers =
            [self.entries, mode, 0, 0, 1, 0, content.len() as u32, 0, 0, 0, 0, name.len() as u32 + 1, 0];
        self.bytes.extend(b"070701");
        self.bytes.extend(numbers.iter().flat_map(|number| format!("{number:08x}").into_bytes()));
        self.bytes.extend(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        let len = self.bytes.len().next_multiple_of(4);
        self.bytes.resize(len, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_and_contents_begin_at_words() {
        let mut archive = Archive::default();
        archive.program("init", b"abcde");
        let bytes = archive.finish();
        assert!(bytes.starts_with(b"070701") && bytes.len().is_multiple_of(4));
        // The header has 110 bytes, the name with its NUL five.
        assert_eq!(&bytes[110..115], b"init\0");
        assert_eq!(&bytes[116..121], b"abcde");
        assert_eq!(&bytes[124..130], b"070701");
        assert_eq!(&bytes[54..62], b"00000005", "its length");
    }
}
