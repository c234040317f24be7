//! The caller of a request: its credentials.

use fuser::Request;
use heddle_vfs::unmapped::is_one_group;
use heddle_vfs::{Attr, Cred, Error, Result, SetAttr};

use crate::adapter::Adapter;
use crate::planted::{Breach, breaks};

impl Adapter {
    /// As [`as_caller`]. If all files show one owner, only the kernel checks permissions, by that owner.
    pub(crate) fn as_caller<T>(
        &self,
        request: &Request,
        groups_matter: bool,
        work: impl Fn(&Cred) -> Result<T>,
    ) -> Result<T> {
        self.as_maker(request, 0, groups_matter, work)
    }

    /// As [`Adapter::as_caller`], for a call that creates something: the kernel leaves the umask to us.
    pub(crate) fn as_maker<T>(
        &self,
        request: &Request,
        umask: u32,
        groups_matter: bool,
        work: impl Fn(&Cred) -> Result<T>,
    ) -> Result<T> {
        let umask = if breaks(Breach::UmaskForgotten) { 0 } else { (umask & 0o777) as u16 };
        let as_umask = |cred: &Cred| work(&Cred { umask, ..cred.clone() });
        self.orphans.with_space(|| match self.owner.is_set() {
            true => as_umask(&Cred::root()),
            false => as_caller(request, groups_matter, as_umask),
        })
    }

    /// Stores a new file with the owner that all files show.
    pub(crate) fn owned_as_shown(&self, made: Attr) -> Result<Attr> {
        if !self.owner.is_set() {
            return Ok(made);
        }
        let set = SetAttr { uid: self.owner.uid, gid: self.owner.gid, ..SetAttr::default() };
        self.fs.setattr(&Cred::root(), made.ino, None, &set)
    }
}

/// Carries out `work` as the caller of `request`. The request lacks the caller's supplementary groups, and
/// finding them costs a read of `/proc`. So `work` runs without them first, and again with them if it was
/// refused. That is safe: the kernel has allowed the call already, and a refused call has changed nothing.
/// With `groups_matter` the groups are read first: for calls that succeed either way but do less for a caller
/// outside the group (the set-group-id bit).
fn as_caller<T>(request: &Request, groups_matter: bool, work: impl Fn(&Cred) -> Result<T>) -> Result<T> {
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

/// Supplementary groups of a process. Empty if the process has ended, or is in a PID namespace that we do not
/// see.
pub(crate) fn groups_of(pid: u32) -> Vec<u32> {
    if breaks(Breach::GroupsForgotten) {
        return Vec::new();
    }
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    parse_groups(&status)
}

fn parse_groups(status: &str) -> Vec<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    let groups = line.unwrap_or_default().split_ascii_whitespace().filter_map(|group| group.parse().ok());
    groups.filter(|group| is_one_group(*group)).collect()
}

#[cfg(test)]
mod tests;
