"""Opening files that anybody may have replaced by something else on the medium."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_OTHER_KINDS = frozenset((errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.ENODEV, errno.ENOTDIR))


class NotPlain(OSError):
    """A symbolic link, a directory, a pipe or a device lies where a file should."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.EUCLEAN, "it is no regular file", path)


def open_plain(path: str, flags: int, mode: int = 0o666) -> int:
    """A descriptor of a regular file; never waits for a writer at a pipe. Raises OSError, for
    anything but a regular file NotPlain."""
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno in _OTHER_KINDS:
            raise NotPlain(path) from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise NotPlain(path)
        os.set_blocking(fd, True)
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_plain(path: str, most_bytes: int) -> bytes:
    """What the file begins with, at most so many bytes. Raises OSError as `open_plain`."""
    with open(open_plain(path, os.O_RDONLY), "rb") as file:
        return file.read(min(most_bytes, os.fstat(file.fileno()).st_size))


def plain_size(path: str) -> int:
    """Bytes of a regular file. Raises OSError, for anything else NotPlain."""
    status = Path(path).lstat()
    if not stat.S_ISREG(status.st_mode):
        raise NotPlain(path)
    return status.st_size
