//! Who asks: credentials of a request.

use fuser::Request;
use heddle_vfs::{Cred, Error, Result};

/// Carries out `work` as the caller of `request`. His supplementary groups are not in the request and are dear to find
/// (a read of `/proc`), so `work` first runs without them and again with them if it was refused: the kernel has allowed
/// the call already, and a refused call has changed nothing. With `groups_matter` they are found first: for calls
/// that succeed either way but do less for a stranger to the group (the set-group-id bit).
pub(crate) fn as_caller<T>(
    request: &Request,
    groups_matter: bool,
    work: impl Fn(&Cred) -> Result<T>,
) -> Result<T> {
    let mut cred = Cred { uid: request.uid(), gid: request.gid(), groups: Vec::new(), umask: 0 };
    if groups_matter && !cred.is_root() {
        cred.groups = groups_of(request.pid());
        return work(&cred);
    }
    match work(&cred) {
        Err(Error::AccessDenied | Error::NotPermitted) if !cred.is_root() => {
            cred.groups = groups_of(request.pid());
            work(&cred)
        }
        result => result,
    }
}

/// Empty if the process is gone or in a PID namespace we do not see.
fn groups_of(pid: u32) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    parse_groups(&status)
}

fn parse_groups(status: &str) -> Vec<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    line.unwrap_or_default().split_ascii_whitespace().filter_map(|group| group.parse().ok()).collect()
}

#[cfg(test)]
mod tests;
