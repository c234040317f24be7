# What has lost its name and is held without being open: by a descriptor of O_PATH, or as a working directory. Each line says what a call gave.
import ctypes, os, sys

top = sys.argv[1]
os.chdir(top)


def say(what, call):
    try:
        print(what, call())
    except OSError as error:
        print(what, error.strerror)


def path_of(name):
    return os.open(name, os.O_PATH | os.O_NOFOLLOW)


def kind(fd):
    said = os.fstat(fd)
    return oct(said.st_mode), said.st_nlink if said.st_mode & 0o040000 == 0 else 'dir', said.st_uid


def through(fd):
    return '/proc/self/fd/%d' % fd


def write(name, text):
    with open(name, 'w') as file:
        file.write(text)


def link(fd, name):
    AT_FDCWD, AT_EMPTY_PATH = -100, 0x1000
    if ctypes.CDLL(None, use_errno=True).linkat(fd, b'', AT_FDCWD, name.encode(), AT_EMPTY_PATH) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    os.unlink(name)


def read(name):
    with open(name) as file:
        return file.read()


def held(what, name, take_away):
    fd = path_of(name)
    take_away()
    say(what + ' fstat', lambda: kind(fd))
    say(what + ' size', lambda: os.fstat(fd).st_size if what != 'directory' else 0)
    say(what + ' twice', lambda: kind(fd))
    if what not in ('pipe', 'link'):
        say(what + ' read', lambda: read(through(fd)))
        say(what + ' write', lambda: write(through(fd), 'more'))
        say(what + ' read again', lambda: read(through(fd)))
        say(what + ' attributes', lambda: os.listxattr(through(fd)))
        say(what + ' chmod', lambda: (os.chmod(through(fd), 0o640), kind(fd)))
    if what == 'link':
        say(what + ' target', lambda: os.readlink('', dir_fd=fd))
    say(what + ' link', lambda: link(fd, 'again'))
    os.close(fd)


write('file', 'text')
held('file', 'file', lambda: os.unlink('file'))
write('old', 'text')
write('new', 'newer')
held('replaced', 'old', lambda: os.rename('new', 'old'))
write('two', 'names')
os.link('two', 'names')
held('one of two', 'two', lambda: os.unlink('two'))
held('two of two', 'names', lambda: os.unlink('names'))
os.symlink('target', 'link')
held('link', 'link', lambda: os.unlink('link'))
os.mkfifo('pipe')
held('pipe', 'pipe', lambda: os.unlink('pipe'))
os.mkdir('directory')
held('directory', 'directory', lambda: os.rmdir('directory'))

os.mkdir('here')
os.chdir('here')
os.rmdir(top + '/here')
say('here', lambda: oct(os.stat('.').st_mode))
say('here list', lambda: os.listdir('.'))
say('here make', lambda: os.mkdir('more'))
say('here above', lambda: sorted(os.listdir('..')))
os.chdir(top)

# What nobody holds is free when the call that removes it returns, and what was held when it is let go.
size = int(os.statvfs('.').f_bavail * os.statvfs('.').f_bsize * 0.9)
piece = b'x' * (1 << 16)


def fill(name):
    with open(name, 'wb', buffering=0) as file:
        for at in range(0, size, len(piece)):
            file.write(piece)


for i in range(int(sys.argv[2])):
    fill('large')
    fd = path_of('large')
    if i % 2 == 0:
        os.unlink('large')
        os.close(fd)
    else:
        os.close(fd)
        os.unlink('large')
    if i % 4 > 1:
        continue
    said = os.statvfs('.')
    assert said.f_bavail * said.f_bsize > size, 'space is missing'
fill('large')
fd = path_of('large')
os.unlink('large')
say('full', lambda: fill('more'))
os.close(fd)
fill('more')
os.unlink('more')
