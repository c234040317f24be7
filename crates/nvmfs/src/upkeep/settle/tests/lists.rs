//! A file with an access list, cut and given another mode at once: the list follows the mode, whoever dies.

use super::super::sweep;
use super::*;
use heddle_vfs::acl::{Acl, Entry, Tag};
use heddle_vfs::{SetXattr, XattrName};

fn list() -> Vec<u8> {
    let entries =
        [(Tag::Owner, 0), (Tag::User, 1000), (Tag::OwningGroup, 0), (Tag::Mask, 0), (Tag::Others, 0)];
    Acl::new(entries.map(|(tag, id)| Entry { tag, perm: 6, id }).to_vec()).unwrap().to_xattr()
}

/// The list in memory stayed as it was until the next mount.
#[test]
fn a_list_follows_the_mode_when_a_cut_dies() {
    let (root, f) = (Cred::root(), Name::new(b"f").unwrap());
    for nth in 1.. {
        let Bench { region, volume, file } = bench();
        let fs = volume.fs();
        let ino = file.ino;
        fs.setxattr(&root, ino, XattrName::ACL_ACCESS, &list(), SetXattr::Any).unwrap();
        let state = |fs: &NvmFs| {
            let attr = fs.getattr(ino).unwrap();
            (attr.size_bytes, attr.perm, fs.getxattr(&root, ino, XattrName::ACL_ACCESS).unwrap())
        };
        let before = state(&fs);
        let cut = |fs: &NvmFs| {
            let set = SetAttr { size_bytes: Some(PAGE), perm: Some(0o600), ..SetAttr::default() };
            fs.setattr(&root, ino, None, &set).unwrap();
        };
        let died = dies(nth, || cut(&fs));
        sweep(&fs.core);
        let found = state(&fs);
        cut(&fs);
        let after = state(&fs);
        assert!(before.2 != after.2 && (found == before || found == after), "step {nth}: {found:?}");
        fs.release(file);
        lease::leave(&fs.core);
        drop(fs);
        volume.abandon();
        let volume = mount_again(&region);
        assert_eq!(volume.fs().lookup(&root, Ino::ROOT, f).unwrap().ino, ino);
        assert!(state(&volume.fs()) == after, "step {nth}: mounted again, it is something else");
        lease::leave(&volume.fs().core);
        volume.unmount();
        if !died {
            assert!(nth > 3, "it has no steps");
            break;
        }
    }
}
