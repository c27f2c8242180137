"""The descriptors of user code in a copy of its process.

A copy shares every open file description with the original. Left alone, it would keep pipes from
reaching their end, ports bound and locks held, and would move the original's file positions.
"""

import _socket  # the C half, which user code cannot break
import fcntl
import io
import posix  # not `os`, whose functions user code may replace
import stat

_fcntl = fcntl.fcntl
_socketpair = _socket.socketpair

_LISTING = "/proc/self/fd"
# The flags of a file that can be passed when it is opened again. Not `O_TMPFILE`, which would make a
# new file.
_FLAGS = (
    posix.O_ACCMODE
    | posix.O_APPEND
    | posix.O_NONBLOCK
    | posix.O_DSYNC
    | posix.O_SYNC
    | posix.O_DIRECT
    | posix.O_DIRECTORY
    | posix.O_NOATIME
    | posix.O_PATH
)
_FILES = (stat.S_IFREG, stat.S_IFDIR)


def part_with_original(own_descriptors):
    """Give up what only the original may hold; `own_descriptors` are the kernel's own descriptors.

    Regular files and directories are opened anew, at the same position: the position is then the copy's
    own, and locks stay with the original. Devices are shared. All else (pipes, sockets, epoll sets and
    their kind) becomes a dead descriptor of the same number: reading gives the end, writing EPIPE.
    """
    dead, peer = _socketpair()
    peer.close()
    ours = {*own_descriptors, dead.fileno()}
    for name in posix.listdir(_LISTING):
        descriptor = int(name)
        if descriptor in ours:
            continue
        try:
            kind = stat.S_IFMT(posix.fstat(descriptor).st_mode)
        except OSError:
            continue  # the descriptor of the listing itself
        if kind in (stat.S_IFCHR, stat.S_IFBLK):
            continue
        if kind in _FILES and _open_anew(descriptor):
            continue
        _put(dead.fileno(), descriptor)
    dead.close()


def lead_nowhere(kept):
    """Give up all descriptors but these: no file or peer hears of what is written to the others. What could be read from a file
    still can be, from the same position: code of the session may need what it holds. The result is whether one of these could
    be written as well, and fails from now on when it is.

    Writing to a copy would not fail, but a database that can write to its file makes a journal beside the session's own.
    """
    nowhere, is_refused = posix.open("/dev/null", posix.O_RDWR | posix.O_CLOEXEC), False
    for name in posix.listdir(_LISTING):
        if int(name) not in kept:
            try:
                was_writable = _fcntl(int(name), fcntl.F_GETFL) & posix.O_ACCMODE == posix.O_RDWR
                if _open_to_read(int(name)):
                    is_refused |= was_writable
                else:
                    _put(nowhere, int(name))
            except OSError:
                pass  # the descriptor of the listing itself
    posix.close(nowhere)
    return is_refused


def _open_to_read(descriptor):
    """True if it leads to a file that can be read, and now only that."""
    if stat.S_IFMT(posix.fstat(descriptor).st_mode) not in _FILES:
        return False
    flags = _fcntl(descriptor, fcntl.F_GETFL) & _FLAGS
    if flags & posix.O_ACCMODE == posix.O_WRONLY:
        return False
    try:
        _replace(descriptor, flags & ~posix.O_ACCMODE | posix.O_RDONLY)
    except OSError:
        return False  # its permissions were removed since, for example
    return True


def _open_anew(descriptor):
    """True if the descriptor can stay: it was opened anew, or at least holds no lock."""
    try:
        _replace(descriptor, _fcntl(descriptor, fcntl.F_GETFL) & _FLAGS)
    except OSError:
        # The file cannot be opened anew, for example because its permissions were removed since. The descriptor stays
        # shared, so its position is the original's, too.
        return not _holds_lock(descriptor)
    return True


def _replace(descriptor, flags):
    """Open what it leads to with these flags, at the same position."""
    anew = posix.open(f"{_LISTING}/{descriptor}", flags | posix.O_CLOEXEC)
    if not flags & posix.O_PATH:
        _same_position(descriptor, anew)
    _put(anew, descriptor)
    posix.close(anew)


def _same_position(descriptor, anew):
    try:
        posix.lseek(anew, posix.lseek(descriptor, 0, io.SEEK_CUR), io.SEEK_SET)
    except OSError:
        pass  # some files of /proc have none


def _holds_lock(descriptor):
    try:
        with open(f"/proc/self/fdinfo/{descriptor}", "rb") as file:
            return b"\nlock:" in file.read()
    except OSError:
        return True


def _put(descriptor, number):
    """Replace the descriptor of that number; whether started programs inherit it stays unchanged."""
    posix.dup2(descriptor, number, inheritable=posix.get_inheritable(number))
