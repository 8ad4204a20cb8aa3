"""Open files on a mount that may hang, and that goes on denying for a while what is new."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Sequence
from pathlib import Path

from hicache_backends.deadline import Deadline
from hicache_backends.segment.descriptors import Descriptors
from hicache_backends.segment.plain import open_plain
from hicache_backends.threefs.aside import Aside
from hicache_backends.usrbio.mount import check_mounted

_DENIAL_S = 5.0
"""How long another node may believe that a name is not there."""
_RETRY_S = 0.1


class AsideDescriptors(Descriptors):
    """Opens and closes without waiting longer than a call may.

    A file to be read that the mount says is not there, though its directory lists it, is looked
    for again for five seconds: a location may be told sooner than the mount of another host knows
    the name.
    """

    def __init__(self, aside: Aside, limit: int | None = None) -> None:
        super().__init__(limit)
        self._aside = aside

    def open(self, path: str, flags: int, deadline: Deadline) -> int:
        return self._aside.run(lambda: self._open(path, flags, deadline), deadline, late=os.close)

    def shut(self, fds: Sequence[int]) -> None:
        if fds:
            self._aside.later(lambda: super(AsideDescriptors, self).shut(fds))

    def is_deleted(self, fd: int) -> bool:
        """Never: the mount's attributes are old. What is deleted reads as zeros, or not at all."""
        return False

    def _open(self, path: str, flags: int, deadline: Deadline) -> int:
        half_s = deadline.remaining_ms() / 2000  # the rest is for the pages that are there
        begin_s, first = time.monotonic(), True
        while True:
            try:
                return open_plain(path, flags)
            except FileNotFoundError:
                check_mounted(path)
                if first:  # it may have been mounted again just now
                    first = False
                    continue
                waited_s = time.monotonic() - begin_s
                if flags & os.O_RDWR or waited_s > _DENIAL_S or not _is_listed(path):
                    raise
                if waited_s > half_s:
                    raise TimeoutError(errno.ETIMEDOUT, "the mount denies it yet", path) from None
                time.sleep(min(_RETRY_S, max(0.0, half_s - waited_s) + 0.001))


def _is_listed(path: str) -> bool:
    """Whether the file has its name, though the mount denies it: listings are never cached."""
    file = Path(path)
    try:
        return file in file.parent.iterdir()
    except FileNotFoundError:
        with contextlib.suppress(FileNotFoundError):
            return file.parent in file.parent.parent.iterdir()
        return False
