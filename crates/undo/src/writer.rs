//! Writing an undo file, block by block, while a repair is under way.

use crate::{BLOCK_BYTES, Block, ENTRY_BYTES, HEAD_BYTES, Image, UNFINISHED, head, place};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A new undo file. It says that the repair has not ended until [`Writer::finish`].
#[derive(Debug)]
pub struct Writer {
    file: Arc<File>,
    path: PathBuf,
    image: Image,
    /// Numbers of the blocks that are there, and which ones of the file they are.
    places: HashMap<u64, u64>,
    /// Checksum of all blocks that are there.
    sum: u32,
}

impl Writer {
    /// Makes the file, which must not exist, and locks it as long as it is written. Its name is durable when this returns.
    ///
    /// # Errors
    /// Those of the system.
    pub fn create(path: &Path, image: Image) -> io::Result<Writer> {
        // Only the owner may read it: it contains data of the image.
        let mut file = File::options().read(true).write(true).create_new(true).mode(0o600).open(path)?;
        // Where files cannot be locked, nobody takes it for one that is left (`Undo::is_left`).
        let _ = file.try_lock();
        let made =
            file.write_all(&head(&image, UNFINISHED, 0)).and_then(|()| file.sync_all()).and_then(|()| {
                let above = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
                File::open(above)?.sync_all()
            });
        if made.is_err() {
            let _ = std::fs::remove_file(path);
        }
        made.map(|()| Writer {
            file: Arc::new(file),
            path: path.into(),
            image,
            places: HashMap::new(),
            sum: 0,
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The image, as it was at the beginning.
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// Number of blocks.
    pub fn count(&self) -> u64 {
        self.places.len() as u64
    }

    /// True: the old bytes of this block are there.
    pub fn has(&self, block: u64) -> bool {
        self.places.contains_key(&block)
    }

    /// Adds the old bytes of a block, if it is not there.
    ///
    /// # Errors
    /// Those of the system; then the block is not there.
    pub fn keep(&mut self, block: u64, old: &Block) -> io::Result<()> {
        if self.has(block) {
            return Ok(());
        }
        let mut entry = [0; ENTRY_BYTES];
        entry[..8].copy_from_slice(&block.to_le_bytes());
        entry[8..8 + BLOCK_BYTES].copy_from_slice(old);
        let sum = crc32c::crc32c(&entry[..8 + BLOCK_BYTES]);
        entry[8 + BLOCK_BYTES..].copy_from_slice(&u64::from(sum).to_le_bytes());
        let n = self.count();
        self.file.write_all_at(&entry, place(n))?;
        self.places.insert(block, n);
        self.sum = crc32c::crc32c_append(self.sum, &entry);
        Ok(())
    }

    /// All that is there is durable when this returns.
    ///
    /// # Errors
    /// Those of the system.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()?;
        // A file that has fewer was cut.
        let durable = u32::try_from(self.count()).unwrap_or(u32::MAX);
        self.file.write_all_at(&head(&self.image, UNFINISHED, durable), 0)
    }

    /// The image as it was, where its blocks are here.
    pub fn old(&self) -> Old {
        Old::of(&self.file, self.places.clone())
    }

    /// The repair has ended, and the image has these epochs, and its blocks that are here this checksum. Durable when this returns.
    ///
    /// # Errors
    /// Those of the system; or somebody has taken the file away.
    pub fn finish(&mut self, epochs: [u64; 2], left: u32) -> io::Result<()> {
        if !self.is_in_place()? {
            return Err(io::Error::other("somebody has removed or replaced it"));
        }
        let head = head(&Image { epochs, ..self.image }, self.count(), left);
        let behind = place(self.count());
        let sum = crc32c::crc32c_combine(crc32c::crc32c(&head), self.sum, (behind as usize) - HEAD_BYTES);
        // A torn block may lie there.
        self.file.set_len(behind)?;
        self.file.write_all_at(&sum.to_le_bytes(), behind)?;
        self.file.sync_all()?;
        self.file.write_all_at(&head, 0)?;
        self.file.sync_all()
    }

    /// Does its path lead to it?
    fn is_in_place(&self) -> io::Result<bool> {
        let number = |meta: std::fs::Metadata| (meta.dev(), meta.ino());
        let own = number(self.file.metadata()?);
        Ok(self.path.symlink_metadata().is_ok_and(|meta| number(meta) == own))
    }

    /// Removes the file: nothing is to be restored any more. Another file in its place stays.
    ///
    /// # Errors
    /// Those of the system.
    pub fn remove(&self) -> io::Result<()> {
        if self.is_in_place()? { std::fs::remove_file(&self.path) } else { Ok(()) }
    }
}

/// Old bytes of blocks.
#[derive(Clone, Debug)]
pub struct Old {
    file: Arc<File>,
    places: Arc<HashMap<u64, u64>>,
}

impl Old {
    pub(crate) fn of(file: &Arc<File>, places: HashMap<u64, u64>) -> Old {
        Old { file: Arc::clone(file), places: Arc::new(places) }
    }

    /// True: the bytes of this block are there.
    pub fn has(&self, block: u64) -> bool {
        self.places.contains_key(&block)
    }

    /// Numbers of all blocks that are there.
    pub fn blocks(&self) -> impl Iterator<Item = u64> {
        self.places.keys().copied()
    }

    /// Reads a block. Returns false if it is not there.
    ///
    /// # Errors
    /// Those of the system.
    pub fn read(&self, block: u64, into: &mut Block) -> io::Result<bool> {
        let Some(n) = self.places.get(&block) else { return Ok(false) };
        self.file.read_exact_at(into, place(*n) + 8).map(|()| true)
    }
}
