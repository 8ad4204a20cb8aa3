"""A network of one's own with a loopback alone: Mooncake's clients listen on every address."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NEW_NETWORK = 0x40000000
_SET_FLAGS = 0x8914
_UP = 1
_OWN = Path("/proc/thread-self/ns/net")
_CONGESTION = Path("/proc/sys/net/ipv4/tcp_congestion_control")
_libc = ctypes.CDLL(None, use_errno=True)
_made: list[int] = []
"""The namespace of this process, once it has one: threads of Mooncake's stay in it for good."""


@contextmanager
def lonely_network(congestion: str | None = None) -> Iterator[None]:
    """This thread, and the threads and processes that it starts, live in a network namespace of
    their own, the same one each time. `congestion`: the TCP congestion control in there, if not
    the host's. Raises PermissionError for all but root."""
    home = os.open(_OWN, os.O_RDONLY)
    try:
        if _made:
            _check(_libc.setns(_made[0], _NEW_NETWORK))
        else:
            _make()
        if congestion:
            _CONGESTION.write_text(congestion)
        yield
    finally:
        _libc.setns(home, _NEW_NETWORK)
        os.close(home)


def _make() -> None:
    _check(_libc.unshare(_NEW_NETWORK))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SET_FLAGS, struct.pack("16sh", b"lo", _UP))
    _made.append(os.open(_OWN, os.O_RDONLY))


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise PermissionError(number, os.strerror(number))
