//! What POSIX and Linux say of names, modes, access lists, times and counts: one rule a function, for any file system.
//!
//! [`posix_rules!`](crate::posix_rules) makes a test of each.

mod attributes;
mod lists;
mod names;

pub use attributes::*;
pub use lists::*;
pub use names::*;

use super::{name, root};
use crate::{Attr, Cred, FileKind, FileSystem, Ino, NewNode, RenameMode, Result, SetAttr};

/// An image that can be mounted again and again.
pub trait Mounts {
    /// Works on the file system, mounted. What was done is there the next time; nothing is unmounted in between where a crash would not.
    fn on(&self, work: &dyn Fn(&dyn FileSystem));
}

/// A test for each rule: `$on` gets it, and calls it with an empty image of each kind.
#[macro_export]
macro_rules! posix_rules {
    ($on:path) => {
        $crate::posix_rules! { $on:
            in_a_sticky_directory_owners_alone_remove_and_rename,
            set_id_bits_go_with_a_truncation_or_a_new_owner,
            supplementary_groups_count_and_directories_hand_their_group_down,
            the_umask_clears_bits_of_what_is_made_alone,
            chown_to_nobody_changes_ctime,
            holes_are_found_after_every_kind_of_range_call,
            a_write_across_the_largest_size_is_short_the_next_refused,
            writes_after_a_stat_have_a_later_mtime,
            times_are_kept_to_the_nanosecond_before_1970_too,
            renames_refuse_to_replace_exchange_and_never_make_loops,
            pipes_sockets_and_devices_are_made_named_and_linked,
            names_are_any_255_bytes_but_nul_and_slash,
            a_path_goes_through_40_links_but_not_41_nor_loops,
            an_access_list_decides_and_follows_chmod,
            a_default_list_stands_in_the_umasks_place,
        }
    };
    ($on:path: $($rule:ident,)*) => {
        $(#[test]
        fn $rule() {
            $on($crate::testkit::posix::$rule);
        })*
    };
}

fn user(uid: u32) -> Cred {
    Cred { uid, gid: uid, groups: vec![], umask: 0 }
}

fn make(fs: &dyn FileSystem, cred: &Cred, dir: Ino, text: &str, kind: FileKind, perm: u16) -> Result<Attr> {
    fs.make(cred, dir, name(text), NewNode { kind, perm, rdev: 0, target: &[] })
}

fn chmod(fs: &dyn FileSystem, cred: &Cred, ino: Ino, perm: u16) -> Result<u16> {
    fs.setattr(cred, ino, None, &SetAttr { perm: Some(perm), ..SetAttr::default() }).map(|attr| attr.perm)
}

fn chown(fs: &dyn FileSystem, cred: &Cred, ino: Ino, uid: Option<u32>, gid: Option<u32>) -> Result<u16> {
    fs.setattr(cred, ino, None, &SetAttr { uid, gid, ..SetAttr::default() }).map(|attr| attr.perm)
}

fn rename(fs: &dyn FileSystem, from: (Ino, &str), to: (Ino, &str), mode: RenameMode) -> Result<()> {
    fs.rename(&root(), from.0, name(from.1), to.0, name(to.1), mode)
}

/// What `set_up` has made `check` finds at once, and after a remount.
fn before_and_after_a_remount(
    mounts: &dyn Mounts,
    set_up: impl Fn(&dyn FileSystem),
    check: impl Fn(&dyn FileSystem),
) {
    mounts.on(&|fs| {
        set_up(fs);
        check(fs);
    });
    mounts.on(&check);
}
