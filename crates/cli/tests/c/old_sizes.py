"""This program works through the mount, others past it: calls that the kernel serves by its own size of the file find what they wrote.

python3 old_sizes.py FILE heddle run --
"""
import array, fcntl, mmap, os, socket, subprocess, sys, termios

FILE, RUN = sys.argv[1], sys.argv[2:]

# Opens the file; runs each line of its input, and prints what the line has left in `said`.
TOLD = r"""
import array, os, resource, socket, sys
path, said = sys.argv[1], 0
f = os.open(path, os.O_RDWR | os.O_CREAT | int(sys.argv[2]))
print(said, flush=True)
for line in sys.stdin:
    exec(line)
    print(said, flush=True)
"""

# Appends to a descriptor that it has inherited, after each line of its input.
INHERITS = r"import os, sys; [print(os.pwritev(%d, [b'MINE'], 0, os.RWF_APPEND), flush=True) for line in sys.stdin]"


class Past:
    """A program past the kernel."""

    def __init__(self, path, flags=os.O_APPEND, fds=()):
        command = RUN + [sys.executable, '-c', TOLD, path, str(flags)]
        pipe = subprocess.PIPE
        self.runs = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1, pass_fds=fds)
        self.runs.stdout.readline()

    def does(self, line):
        self.runs.stdin.write(line + '\n')
        return int(self.runs.stdout.readline())

    def ends(self):
        self.runs.stdin.close()
        assert self.runs.wait() == 0


def same(what, found, wanted):
    if found != wanted:
        sys.exit(f'{what}: {found!r}, not {wanted!r}')


def content(path):
    with open(path, 'rb') as file:
        return file.read()


def through(path, flags=0):
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | flags)


def appends_at_the_end(path):
    f, past, wanted = through(path), Past(path), b''
    for n in range(10):
        past.does("os.write(f, b'record')")
        os.pwritev(f, [b'MINE'], 0, os.RWF_APPEND)
        wanted += b'recordMINE'
        same(f'{n} appends', content(path), wanted)
    for line, size in [('os.ftruncate(f, 3)', 3), ('os.posix_fallocate(f, 0, 5000)', 5000)]:
        past.does(line)
        os.pwritev(f, [b'MINE'], 0, os.RWF_APPEND)
        same(line, (content(path)[size:], os.fstat(f).st_size), (b'MINE', size + 4))
    past.ends()
    os.close(f)


def is_where_it_appended(path):
    f, past = through(path, os.O_APPEND), Past(path)
    for _ in range(3):
        past.does("os.write(f, b'x' * 90)")
        os.write(f, b'MINE')
        at = os.lseek(f, 0, os.SEEK_CUR)
        same('the offset', (at, os.pread(f, 4, at - 4)), (os.fstat(f).st_size, b'MINE'))
    past.ends()
    os.close(f)


def copies_all(path):
    for flags in [os.O_RDWR, os.O_RDONLY]:
        os.close(through(path))
        f, past, to = os.open(path, flags), Past(path), through(path + '.copy')
        past.does("os.write(f, b'x' * 1000)")
        same('copy_file_range', os.copy_file_range(f, to, 5000, offset_src=10, offset_dst=0), 990)
        past.does("os.write(f, b'x' * 1000)")
        same('sendfile', os.sendfile(to, f, 0, 5000), 2000)
        past.does("os.write(f, b'x' * 1000)")
        same('splice', os.splice(f, os.pipe()[1], 5000, offset_src=0), 3000)
        past.ends()
        os.close(f)


def counts_from_the_end(path):
    f, past = through(path), Past(path, 0)
    past.does("os.pwrite(f, b'x' * 5000, 0)")
    room = array.array('i', [0])
    fcntl.ioctl(f, termios.FIONREAD, room)
    same('FIONREAD', room[0], 5000)
    past.does("os.pwrite(f, b'x' * 5000, 5000)")
    with mmap.mmap(f, 10000) as mapped:
        same('the mapping', mapped[9999:], b'x')
    past.ends()
    os.close(f)


def a_descriptor_that_was_sent(path):
    ours, theirs = socket.socketpair()
    first, second = Past(path, 0, [theirs.fileno()]), Past(path)
    for past in [first, second, first]:
        past.does("os.pwrite(f, b'x' * 10, os.fstat(f).st_size)")
    first.does(
        f"s = socket.socket(fileno={theirs.fileno()});"
        "s.sendmsg([b'.'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [f]))])"
    )
    _, [(_, _, sent)], _, _ = ours.recvmsg(1, socket.CMSG_LEN(4))
    [f] = array.array('i', sent)
    second.does("os.write(f, b'y' * 10)")
    os.pwritev(f, [b'MINE'], 0, os.RWF_APPEND)
    same('sent', content(path), b'x' * 30 + b'y' * 10 + b'MINE')
    first.ends()
    second.ends()


def a_descriptor_that_was_inherited(path):
    # A child that waits, from before the parent announced the descriptor, executes another program.
    first, second = Past(path, 0), Past(path)
    first.does(
        "begin, begun = os.pipe(); come, told = os.pipe(); out, said_by = os.pipe();"
        "os.set_inheritable(f, True); child = os.fork();"
        "child == 0 and (os.read(begin, 1), os.dup2(come, 0), os.dup2(said_by, 1), [os.close(e) for e in (begun, told)],"
        f" os.execv(sys.executable, [sys.executable, '-c', {INHERITS!r} % f]))"
    )
    for past in [first, second, first]:
        past.does("os.pwrite(f, b'x' * 10, os.fstat(f).st_size)")
    first.does("os.write(begun, b'.'); os.write(told, b'1\\n'); os.read(out, 1)")
    second.does("os.write(f, b'y' * 10)")
    first.does("os.write(told, b'2\\n'); os.read(out, 2); os.close(told); os.wait()")
    same('inherited', content(path), b'x' * 30 + b'MINE' + b'y' * 10 + b'MINE')
    first.ends()
    second.ends()


def costs_nothing_without_others(path):
    many = 5000
    switches = "resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw"
    appends = f"said = {switches}; [os.write(f, b'x') for n in range({many})]; said = {switches} - said"
    alone = Past(path)
    if alone.does(appends) > many / 10:
        sys.exit('a writer alone asks the mount')
    reads, idle = Past(path, 0), Past(path)
    for past in [alone, idle, reads]:
        past.does("os.pwrite(f, b'x', 0)" if past is not reads else "os.pread(f, 1, 0)")
    if alone.does(appends) > many / 10:
        sys.exit('a writer beside others past the mount asks it')
    f = os.open(path, os.O_RDONLY)
    if alone.does(appends) < many / 2:
        sys.exit('the switches count nothing')
    os.close(f)
    if alone.does(appends) > many / 10:
        sys.exit('a writer asks the mount when the other has closed')
    for past in [alone, reads, idle]:
        past.ends()


for n, check in enumerate(
    [
        appends_at_the_end,
        is_where_it_appended,
        copies_all,
        counts_from_the_end,
        a_descriptor_that_was_sent,
        a_descriptor_that_was_inherited,
        costs_nothing_without_others,
    ]
):
    check(f'{FILE}{n}')
    print(check.__name__, 'holds', flush=True)
