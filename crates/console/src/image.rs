//! Opening and making images.

use crate::open_error::explain;
use crate::overwrite::Target;
use anyhow::{Context, Result, bail};
use heddle_fuse::Mount;
use heddle_nvmfs::{ImageInfo, VolumeError, inspect};
use heddle_pmem::{OpenOptions, Region};
use std::fs::{self, File};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;

/// Opens an image.
pub fn open(image: &Path, options: &OpenOptions<'_>) -> Result<Region> {
    Region::open(image, options).map_err(|error| explain(image, error))
}

/// Makes an image. A device is not changed before it is mapped in the requested size.
pub fn create(image: &Path, mut target: Target, len_bytes: u64, options: &OpenOptions<'_>) -> Result<Region> {
    let made =
        target.locked_file.create_unnamed(len_bytes, options).map_err(|error| explain(image, error))?;
    target.clear()?;
    target.locked_file.keep().map_err(|error| explain(image, error))?;
    Ok(made)
}

/// Refuses F2FS images, for commands that read only the NVM format.
pub fn refuse_flash(image: &Path, instead: &str) -> Result<()> {
    let image = match heddle_f2fs::is_f2fs(image) {
        true => image.display(),
        false => return Ok(()),
    };
    bail!("{image} is an F2FS image, which this command does not accept. {instead}")
}

/// Size of a file or device in bytes.
pub fn len_bytes(image: &Path) -> Result<u64> {
    let measured = File::open(image).and_then(|mut file| file.seek(SeekFrom::End(0)));
    measured.with_context(|| format!("cannot read {}", image.display()))
}

/// An identity as text.
pub fn hex(uuid: [u8; 16]) -> String {
    uuid.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Refuses an image whose copy is mounted. By the uuid, which both have, a process under the bypass verifies to which image it has
/// attached.
pub fn refuse_mounted_copy(image: &Path) -> Result<()> {
    let Some(own) = Seen::of(image) else { return Ok(()) };
    // A foreign user's mount may show any source: a device that reacts to an open, a file that never answers,
    // this image's uuid.
    for Mount { source, dir, .. } in
        heddle_fuse::heddle_mounts(None).into_iter().filter(Mount::has_trusted_user)
    {
        if let Some(other) = Seen::of(&source)
            && other.uuid == own.uuid
            && other.place != own.place
        {
            let (image, source, dir) =
                (image.display(), heddle_fuse::shown(&source), heddle_fuse::shown(&dir));
            bail!(
                "cannot mount {image}: it is a copy of {source}, which is mounted at {dir}: both have the uuid {}. \
                 Give this one another: heddle tune --uuid random {image}",
                hex(own.uuid)
            );
        }
    }
    Ok(())
}

/// A heddle image, as far as it can be read.
struct Seen {
    uuid: [u8; 16],
    /// The device number of a device, or the inode of a file.
    place: (u64, u64),
}

impl Seen {
    fn of(image: &Path) -> Option<Seen> {
        let meta = image.metadata().ok()?;
        let kind = meta.file_type();
        let is_device = kind.is_block_device() || kind.is_char_device();
        if !is_device && !kind.is_file() {
            return None;
        }
        let len = len_bytes(image).ok()?;
        let place = if is_device { (meta.rdev(), 0) } else { (meta.dev(), meta.ino()) };
        Some(Seen { uuid: of_file(image, len).ok()?.uuid, place })
    }
}

/// Returns true if the image was unmounted cleanly, and `None` if it cannot be read.
pub fn is_clean(image: &Path) -> Option<bool> {
    if heddle_f2fs::is_f2fs(image) {
        return Some(heddle_f2fs::F2fs::open(image).ok()?.info().clean);
    }
    // The inode of a device has no size.
    let bytes = rustix::fs::seek(fs::File::open(image).ok()?, rustix::fs::SeekFrom::End(0)).ok()?;
    of_file(image, bytes).ok().map(|found| found.clean)
}

/// Reads the superblock of a file without taking its lock.
pub fn of_file(image: &Path, len_bytes: u64) -> Result<ImageInfo, VolumeError> {
    let file = File::open(image).ok();
    inspect(image, len_bytes, &|at, into| {
        // After an error the buffer stays zero, and zeros are no superblock.
        let _ = file.as_ref().map(|file| file.read_exact_at(into, at.0));
    })
}
