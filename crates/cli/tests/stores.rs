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

/// Loads from holes, through a descriptor that may write and one that may not, with this many bytes available.
const LOADS: &str = "
import mmap, os, sys
path, available = sys.argv[1], int(sys.argv[2])
def blocks_after_a_load(name, flags, prot):
    with open(path + name, 'wb') as made: made.truncate(256 * 4096)
    file = os.open(path + name, flags)
    assert mmap.mmap(file, 256 * 4096, prot=prot)[0] == 0
    return os.fstat(file).st_blocks
full = os.open(path + '.full', os.O_WRONLY | os.O_CREAT)
for name in ('a', 'b', 'c'): open(path + name, 'wb').close()
while (free := os.statvfs(path + 'a')).f_bavail * free.f_frsize > available: os.write(full, b'f' * 4096)
written = blocks_after_a_load('a', os.O_RDWR, mmap.PROT_READ | mmap.PROT_WRITE)
read = blocks_after_a_load('b', os.O_RDONLY, mmap.PROT_READ)
print(written > 0, read > 0)
";

#[test]
fn a_load_gives_a_hole_blocks_only_while_space_is_short() {
    let Some(_alone) = alone() else { return };
    for variant in ["heddle", "nova", "nova-interval", "nova-array", "nova-tree"] {
        let place = Place::with_image_of(variant, "16M");
        let mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
        for (available, said) in [(12 << 20, "False False"), (900 << 10, "True False")] {
            let mut python = Command::new("python3");
            python.args(["-c", LOADS]).arg(mounted.path("file")).arg(format!("{available}"));
            let out = python.output().unwrap();
            let (got, error) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
            assert_eq!(got.trim(), said, "{variant}, {available} bytes available: {error}");
        }
    }
}

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
