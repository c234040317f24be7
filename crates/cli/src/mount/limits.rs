//! What this process may have at most: as much as the system lets it.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limits that a mount meets: open files, and the length of files, of which a shell sets the first that a process may raise.
pub fn raise() {
    raise_one(Resource::Nofile);
    raise_one(Resource::Fsize);
}

fn raise_one(resource: Resource) {
    let Rlimit { maximum, .. } = getrlimit(resource);
    // What cannot be raised stays, and is met where it is.
    let _ = setrlimit(resource, Rlimit { current: maximum, maximum });
}

/// Bytes that a file of this process, and of those that it starts, may have; `None`: no limit.
pub fn file_bytes_max() -> Option<u64> {
    raise_one(Resource::Fsize);
    getrlimit(Resource::Fsize).current
}
