//! Where the socket of a mounted image is.
//!
//! `DIR/UUID.sock`: UUID are the 32 hexadecimal digits of the image's identity, so that a client finds it without asking anybody.
//! DIR is `$HEDDLE_RUNTIME_DIR` if that is set; else, for root, `/run/heddle`, for others `$XDG_RUNTIME_DIR/heddle`, or
//! `/tmp/heddle-UID` where that is not set. A client looks in its own DIR first, then in `/run/heddle`.
//!
//! Who may attach but not read the image goes by its path: `DIR/UUID.image` is a symbolic link to it.
//!
//! **Who may answer.** A client maps what the daemon hands it, and a daemon that means harm could spoil the client's memory by way of
//! it. So a client takes it only from a daemon of root or of its own user, by the kernel's word (SO_PEERCRED), whatever the directory
//! says. Only where `$HEDDLE_RUNTIME_DIR` has named a place where others' daemons listen, it also takes it from the user who owns the
//! image: who attaches to that image trusts him with its content already. By default that would let a stranger lay a socket into a
//! `/tmp/heddle-UID` whose user has not made it yet, and lead him to a file system of his own.

use crate::format::layout::REGION_BYTES_MIN;
use crate::volume::inspect;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Where root's daemons listen.
const OF_ROOT: &str = "/run/heddle";

/// Why no socket was found.
#[derive(thiserror::Error, Debug)]
pub enum PlaceError {
    /// The image.
    #[error("cannot look at {}: {source}. Check the path, and that you may read it", path.display())]
    Image {
        /// Image.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is no image.
    #[error(transparent)]
    NotAnImage(#[from] crate::volume::VolumeError),
    /// Nothing of ours is mounted there.
    #[error("{}: no heddle file system is mounted there. Mount one with: heddle mount IMAGE {}", dir.display(), dir.display())]
    NotMounted {
        /// The directory.
        dir: PathBuf,
    },
}

/// Where to knock, and who may answer.
#[derive(Clone, Debug)]
pub struct Place {
    /// The socket.
    pub socket: PathBuf,
    /// A user who may answer there besides root and one's own (see the module).
    pub owner: Option<u32>,
}

impl From<&Path> for Place {
    fn from(socket: &Path) -> Place {
        Place { socket: socket.to_path_buf(), owner: None }
    }
}

impl From<&PathBuf> for Place {
    fn from(socket: &PathBuf) -> Place {
        Place::from(socket.as_path())
    }
}

impl Place {
    /// May a daemon of this user answer?
    pub fn trusts(&self, uid: u32) -> bool {
        uid == 0 || uid == rustix::process::geteuid().as_raw() || self.owner == Some(uid)
    }
}

/// The directory that was named, if one was.
fn named_dir() -> Option<PathBuf> {
    std::env::var_os("HEDDLE_RUNTIME_DIR").filter(|dir| !dir.is_empty()).map(PathBuf::from)
}

/// The directory in which this user's daemons listen.
pub fn runtime_dir() -> PathBuf {
    if let Some(dir) = named_dir() {
        return dir;
    }
    let uid = rustix::process::geteuid();
    if uid.is_root() {
        return OF_ROOT.into();
    }
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty()) {
        Some(dir) => Path::new(&dir).join("heddle"),
        None => format!("/tmp/heddle-{}", uid.as_raw()).into(),
    }
}

/// Name of the socket of an image.
pub fn socket_name(uuid: [u8; 16]) -> String {
    format!("{}.sock", hex(uuid))
}

/// The identity as 32 hexadecimal digits.
pub(crate) fn hex(uuid: [u8; 16]) -> String {
    uuid.iter().map(|b| format!("{b:02x}")).collect()
}

/// The socket of an image: one that exists, or else where it would be.
///
/// # Errors
/// [`PlaceError::Image`], [`PlaceError::NotAnImage`].
pub fn socket_for(image: &Path) -> Result<Place, PlaceError> {
    let socket = match uuid_of(image) {
        Err(PlaceError::Image { path, source }) if source.kind() == io::ErrorKind::PermissionDenied => {
            let signed = [runtime_dir(), OF_ROOT.into()].iter().find_map(|dir| signed_in(dir, image));
            signed.ok_or(PlaceError::Image { path, source })?
        }
        uuid => {
            let name = socket_name(uuid?);
            let own = runtime_dir().join(&name);
            let roots = Path::new(OF_ROOT).join(&name);
            if !own.exists() && roots.exists() { roots } else { own }
        }
    };
    let owner = named_dir().and_then(|_| image.metadata().ok()).map(|meta| meta.uid());
    Ok(Place { socket, owner })
}

/// The link beside a socket that names the image.
pub(crate) fn sign_of(socket: &Path) -> PathBuf {
    socket.with_extension("image")
}

/// The socket in `dir` whose sign names this image.
fn signed_in(dir: &Path, image: &Path) -> Option<PathBuf> {
    let image = image.canonicalize().unwrap_or_else(|_| image.to_path_buf());
    let signs = fs::read_dir(dir).ok()?.flatten().map(|entry| entry.path());
    let mut signs = signs.filter(|path| path.extension().is_some_and(|extension| extension == "image"));
    let sign = signs.find(|sign| fs::read_link(sign).is_ok_and(|named| named == image))?;
    Some(sign.with_extension("sock"))
}

/// The socket of the image that is mounted at `dir` (or above it).
///
/// # Errors
/// As [`socket_for`], and [`PlaceError::NotMounted`].
pub fn socket_for_mount(dir: &Path) -> Result<Place, PlaceError> {
    let table = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_path_buf());
    match source_of(&table, &dir) {
        Some(image) => socket_for(&image),
        None => Err(PlaceError::NotMounted { dir }),
    }
}

fn uuid_of(image: &Path) -> Result<[u8; 16], PlaceError> {
    let fail = |source| PlaceError::Image { path: image.to_path_buf(), source };
    let file = File::open(image).map_err(fail)?;
    let len = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0)).map_err(|e| fail(e.into()))?;
    if len < REGION_BYTES_MIN {
        return Err(fail(io::Error::other("it is too small for a file system")));
    }
    let read = |at: heddle_pmem::Pos, into: &mut [u8]| {
        // What cannot be read stays zero, which is no superblock.
        let _ = file.read_exact_at(into, at.0);
    };
    Ok(inspect(image, len, &read)?.uuid)
}

/// Source of the topmost heddle mount that holds `dir`, from a table like `/proc/self/mountinfo`.
fn source_of(table: &[u8], dir: &Path) -> Option<PathBuf> {
    let mounts = table.split(|b| *b == b'\n').filter_map(parse);
    let inside = mounts.filter(|(at, ..)| dir.starts_with(at));
    let nearest = inside.fold(None, |best: Option<(PathBuf, bool, PathBuf)>, next| match &best {
        Some(b) if b.0.components().count() > next.0.components().count() => best,
        _ => Some(next),
    });
    nearest.filter(|(_, ours, _)| *ours).map(|(_, _, source)| source)
}

/// `id parent major:minor root dir options [optional fields…] - type source super-options`: the directory, is it ours, the source.
fn parse(line: &[u8]) -> Option<(PathBuf, bool, PathBuf)> {
    let mut fields = line.split(|b| *b == b' ');
    let dir = unescaped(fields.nth(4)?);
    let mut after = fields.skip_while(|field| *field != b"-").skip(1);
    let ours = after.next()? == b"fuse.heddle";
    Some((dir, ours, unescaped(after.next()?)))
}

/// Space, tab, newline and backslash are written as `\` and three octal digits.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let code = (*first == b'\\').then(|| after.first_chunk::<3>()).flatten();
        let code = code.and_then(|octal| u8::from_str_radix(std::str::from_utf8(octal).ok()?, 8).ok());
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_cannot_read_an_image_finds_its_socket_by_its_path() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("0123.sock");
        std::os::unix::fs::symlink("/no/such/image", sign_of(&socket)).unwrap();
        assert_eq!(signed_in(dir.path(), Path::new("/no/such/image")), Some(socket));
        assert_eq!(signed_in(dir.path(), Path::new("/no/such/other")), None);
        assert_eq!(signed_in(Path::new("/no/such/dir"), Path::new("/no/such/image")), None);
    }

    #[test]
    fn a_stranger_may_not_answer_unless_he_owns_the_image_and_his_place_was_named() {
        let own = rustix::process::geteuid().as_raw();
        let place = Place::from(Path::new("/tmp/heddle-1/0123.sock"));
        assert!(place.trusts(0) && place.trusts(own) && !place.trusts(own + 4242));
        let named = Place { owner: Some(own + 4242), ..place };
        assert!(named.trusts(own + 4242) && !named.trusts(own + 4243));
    }

    #[test]
    fn the_mount_that_holds_a_directory_names_its_image() {
        let table = br"22 1 0:21 / / rw - ext4 /dev/vda rw
40 22 0:40 / /mnt/h rw,nosuid - fuse.heddle /dev/shm/my\040img rw
41 40 0:41 / /mnt/h/tmp rw - tmpfs tmpfs rw";
        assert_eq!(source_of(table, Path::new("/mnt/h/a/b")), Some("/dev/shm/my img".into()));
        assert_eq!(source_of(table, Path::new("/mnt/h/tmp/x")), None, "another file system above it");
        assert_eq!(source_of(table, Path::new("/mnt/hx")), None, "a name that only begins alike");
    }
}
