//! Resource limits of this process: raised as far as the system allows.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limits that matter to a mount: open files, and file size, whose soft limit a shell may have
/// lowered.
pub fn raise() {
    raise_one(Resource::Nofile);
    raise_one(Resource::Fsize);
}

fn raise_one(resource: Resource) {
    let Rlimit { maximum, .. } = getrlimit(resource);
    // A limit that cannot be raised stays; a call that exceeds it fails.
    let _ = setrlimit(resource, Rlimit { current: maximum, maximum });
}

/// The largest file that this process and its children may write, in bytes; `None` for no limit.
pub fn file_bytes_max() -> Option<u64> {
    raise_one(Resource::Fsize);
    getrlimit(Resource::Fsize).current
}
