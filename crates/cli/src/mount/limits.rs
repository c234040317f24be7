//! What this process may have at most: as much as the system lets it.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limits that a mount meets: open files, and the length of files, of which a shell sets the first that a process may raise.
pub fn raise() {
    for resource in [Resource::Nofile, Resource::Fsize] {
        let Rlimit { maximum, .. } = getrlimit(resource);
        // What cannot be raised stays, and is met where it is.
        let _ = setrlimit(resource, Rlimit { current: maximum, maximum });
    }
}

/// Bytes that a file of this process may have; `None`: no limit.
pub fn file_bytes_max() -> Option<u64> {
    getrlimit(Resource::Fsize).current
}
