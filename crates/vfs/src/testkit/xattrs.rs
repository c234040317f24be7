//! Random extended attributes and access control lists: few names, so that they meet.

use proptest::prelude::*;

use super::generate::{Choice, path};
use super::steps::{Act, Calls};
use crate::SetXattr;
use crate::acl::{Acl, Entry, Tag};

pub(super) fn choices(calls: Calls) -> Vec<Choice> {
    let mut choices = Vec::new();
    if calls.has(Calls::XATTR) {
        choices.extend(of_names(calls, 1, plain_name().boxed(), value(calls).boxed()));
        choices.push((2, path(calls).prop_map(|path| Act::ListXattrs { path }).boxed()));
    }
    if calls.has(Calls::ACL) {
        let name = prop::sample::select(vec!["system.posix_acl_access", "system.posix_acl_default"]);
        let name = name.prop_map(String::from).boxed();
        choices.extend(of_names(calls, 2, name, list().boxed()));
    }
    choices
}

fn of_names(
    calls: Calls,
    weight: u32,
    name: BoxedStrategy<String>,
    value: BoxedStrategy<Vec<u8>>,
) -> Vec<Choice> {
    let how = prop_oneof![
        4 => Just(SetXattr::Any),
        1 => Just(SetXattr::Create),
        1 => Just(SetXattr::Replace),
        1 => Just(SetXattr::Never)
    ];
    let path = || path(calls);
    let set = (path(), name.clone(), value, how);
    vec![
        (
            3 * weight,
            set.prop_map(|(path, name, value, how)| Act::SetXattr { path, name, value, how }).boxed(),
        ),
        (2, (path(), name.clone()).prop_map(|(path, name)| Act::GetXattr { path, name }).boxed()),
        (2, (path(), name).prop_map(|(path, name)| Act::RemoveXattr { path, name }).boxed()),
    ]
}

fn plain_name() -> impl Strategy<Value = String> {
    let often = vec!["user.a", "user.b", "user.c", "trusted.t", "security.s"];
    let odd = vec!["", "user.", "user", "odd.x", "system.x"];
    prop_oneof![
        12 => prop::sample::select(often).prop_map(String::from),
        1 => prop::sample::select(odd).prop_map(String::from),
        1 => Just(format!("user.{}", "n".repeat(250))),
        1 => Just(format!("user.{}", "n".repeat(251))),
    ]
}

fn value(calls: Calls) -> impl Strategy<Value = Vec<u8>> {
    let lengths = if calls.has(Calls::LARGE_XATTR) {
        prop_oneof![6 => 0_usize..60, 1 => 4000_usize..4200, 1 => Just(65_536), 1 => Just(65_537)].boxed()
    } else {
        (0_usize..60).boxed()
    };
    (any::<u8>(), lengths).prop_map(|(fill, len)| super::steps::pattern(fill, len))
}

/// Lists that are in order, and a few that are none.
fn list() -> impl Strategy<Value = Vec<u8>> {
    let perm = || 0_u8..8;
    let user = prop::option::of((perm(), prop::sample::select(vec![1000_u32, 1001])));
    let group = prop::option::of((perm(), prop::sample::select(vec![0_u32, 1000, 1001])));
    let whole = (perm(), user, perm(), group, prop::option::of(perm()), perm()).prop_map(
        |(owner, user, owning, group, mask, others)| {
            let entry = |tag, perm, id| Entry { tag, perm, id };
            let mask = mask.or((user.is_some() || group.is_some()).then_some(7));
            let entries = [
                Some(entry(Tag::Owner, owner, 0)),
                user.map(|(perm, id)| entry(Tag::User, perm, id)),
                Some(entry(Tag::OwningGroup, owning, 0)),
                group.map(|(perm, id)| entry(Tag::Group, perm, id)),
                mask.map(|perm| entry(Tag::Mask, perm, 0)),
                Some(entry(Tag::Others, others, 0)),
            ];
            Acl::new(entries.into_iter().flatten().collect()).map_or(Vec::new(), |acl| acl.to_xattr())
        },
    );
    prop_oneof![
        10 => whole,
        1 => Just(Vec::new()),
        1 => Just(vec![2, 0, 0, 0]),
        1 => Just(vec![1, 0, 0, 0]),
        1 => Just(vec![2, 0, 0, 0, 9]),
    ]
}
