//! Stores through a mapping to a hole of a full image: who makes them is told, by a signal or by the call that makes them durable.

mod common;

use common::{Mounted, Place, alone, build_preload, command};
use std::process::Command;

/// Maps holes, reads the first page, fills the image. Of the page that it has then nobody is asked.
const PROGRAM: &str = "
import errno, mmap, os, signal, sys
path = sys.argv[1]
file = os.open(path, os.O_RDWR | os.O_CREAT)
os.ftruncate(file, 1024 * 4096)
mapped = mmap.mmap(file, 1024 * 4096)
HAD, LATE = 0, 900 * 4096
assert mapped[HAD] == 0 and os.fstat(file).st_blocks == 0, 'holes stay holes while there is space'
full = os.open(path + '.full', os.O_WRONLY | os.O_CREAT)
for size in (1 << 16, 4096):
    try:
        while True: os.write(full, b'f' * size)
    except OSError as e: assert e.errno == errno.ENOSPC, e
def store(at): mapped[at] = 7
def signalled(call):
    child = os.fork()
    if child == 0: call(), os._exit(0)
    return os.WTERMSIG(os.waitpid(child, 0)[1])
def refused(call):
    try: call()
    except OSError as e: return e.errno == errno.ENOSPC
assert signalled(lambda: store(LATE)) == signal.SIGBUS, 'a store'
assert signalled(lambda: mapped[LATE]) == signal.SIGBUS, 'a load, as on tmpfs'
for name, call in [
    ('msync', mapped.flush), ('fsync', lambda: os.fsync(file)), ('close', lambda: os.close(os.dup(file))),
]:
    store(HAD)
    assert refused(call), name
# What a close was told this descriptor is told once more.
refused(mapped.flush)
os.ftruncate(full, 0), os.fsync(full)
store(HAD), store(LATE), mapped.flush()
";

#[test]
fn a_store_to_a_hole_of_a_full_image_is_told() {
    let Some(_alone) = alone() else { return };
    build_preload();
    let others = ["heddle", "nova", "nova-interval", "nova-array", "nova-tree", "f2fs", "f2fs-rl"];
    for (variant, bypass) in others.map(|variant| (variant, false)).into_iter().chain([("heddle", true)]) {
        let place = Place::with_image_of(variant, if variant.starts_with("f2fs") { "64M" } else { "4M" });
        let mounted = Mounted::new(&place, &["-o", "log=/dev/null", "--variant", variant]);
        let mut python = if bypass { command(&["run", "--", "python3"]) } else { Command::new("python3") };
        let out = python.args(["-c", PROGRAM]).arg(mounted.path("file")).output();
        let said = String::from_utf8_lossy(&out.as_ref().unwrap().stderr).into_owned();
        assert!(out.unwrap().status.success(), "{variant}, bypass: {bypass}: {said}");
    }
}
