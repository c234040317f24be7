"""Which set-id bits, and capabilities, a file keeps after each call of each kind of caller: a line a case."""
import ctypes, os, sys

libc = ctypes.CDLL(None, use_errno=True)
KEEP, PUNCH, ZERO = 1, 2, 16
place = sys.argv[1]
source = os.path.join(place, "source")
CAPABILITY = bytes.fromhex("0100000200040000000000000000000000000000")


def fallocate(path, mode):
    fd = os.open(path, os.O_RDWR)
    if libc.fallocate(fd, mode, ctypes.c_long(0), ctypes.c_long(4096)) != 0:
        raise OSError(ctypes.get_errno(), "fallocate")


def copy(path):
    os.copy_file_range(os.open(source, os.O_RDONLY), os.open(path, os.O_RDWR), 100)


def with_open(path, flags, call):
    fd = os.open(path, flags)
    call(fd)


CALLS = {
    "write": lambda path: with_open(path, os.O_RDWR, lambda fd: os.write(fd, b"x")),
    "append": lambda path: with_open(path, os.O_WRONLY | os.O_APPEND, lambda fd: os.write(fd, b"x")),
    "pwritev": lambda path: with_open(path, os.O_RDWR, lambda fd: os.pwritev(fd, [b"x", b"y"], 7)),
    "ftruncate": lambda path: with_open(path, os.O_RDWR, lambda fd: os.ftruncate(fd, 9)),
    "grow": lambda path: os.truncate(path, 100000),
    "truncate": lambda path: os.truncate(path, 0),
    "open": lambda path: os.open(path, os.O_RDWR | os.O_TRUNC),
    "allocate": lambda path: fallocate(path, 0),
    "punch": lambda path: fallocate(path, PUNCH | KEEP),
    # tmpfs has no zeroing: it is as punching.
    "zero": lambda path: fallocate(path, ZERO | KEEP if len(sys.argv) > 2 else PUNCH | KEEP),
    "copy": copy,
    "read": lambda path: with_open(path, os.O_RDONLY, lambda fd: os.read(fd, 9)),
}
CALLERS = {"root": (0, 0, []), "stranger": (65534, 65534, []), "member": (65533, 65533, [54321]), "owner": (1000, 1000, [])}


def as_caller(caller, call, path):
    user, group, groups = CALLERS[caller]
    os.setgroups(groups), os.setegid(group), os.seteuid(user)
    try:
        call(path)
        return 0
    except OSError as error:
        return error.errno
    finally:
        os.seteuid(0), os.setegid(0), os.setgroups([])
        os.closerange(3, 10)


def case(name, caller, perm, capable):
    path = os.path.join(place, "file")
    with open(path, "wb") as file:
        file.write(bytes(5000))
    os.chown(path, 1000, 54321)
    os.chmod(path, perm)
    if capable:
        os.setxattr(path, "security.capability", CAPABILITY)
    done = as_caller(caller, CALLS[name], path)
    now = os.stat(path)
    left = "security.capability" in os.listxattr(path)
    print(f"{name} {caller} {perm:o} {capable}: {done} {now.st_mode & 0o7777:o} {left} {now.st_size}")
    os.unlink(path)


with open(source, "wb") as file:
    file.write(bytes(1000))
for name in CALLS:
    for caller in CALLERS:
        for perm in (0o4777, 0o2777, 0o2767, 0o6766):
            case(name, caller, perm, False)
        case(name, caller, 0o777, True)
