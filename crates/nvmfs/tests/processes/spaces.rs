//! Clients in namespaces of their own: numbers of processes mean other things there, and nobody may be taken for dead because of that.

use super::children::{SharedMount, image, start};
use crate::common::{Short, sound};
use heddle_vfs::{FileSystem, Ino};

/// Four children of a client that had called `unshare(CLONE_NEWPID)` wrote 400 to 700 wrong pages; blocks had two owners.
#[test]
fn crash_children_in_another_number_space_were_taken_for_dead() {
    for way in 0..3 {
        let mut shared = SharedMount::new(64 << 20);
        start(&shared, &format!("forks-into-namespaces {way}")).succeeds();
        let found = (0..4)
            .map(|child| shared.fs().size(&shared.fs().open_file(Ino::ROOT, &format!("child-{child}"))));
        assert!(found.into_iter().all(|size| size == 64 << 12), "{way}: a child has not written");
        shared.sweeps();
        assert!(shared.fs().statfs().is_ok());
        shared.unmount();
        let image = image(shared.place());
        sound(&image).unwrap_or_else(|finding| panic!("{way}: {finding}"));
    }
}
