"""Small calls of the C extension used outside the engines, each with its twin in Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hicache_backends import identity
from hicache_backends.deadline import Deadline
from hicache_backends.io import crc32c as python_crc32c
from hicache_backends.io.checksums import whole_records
from hicache_backends.segment.format import RECORD_BYTES

try:
    from hicache_backends import _native
except ImportError:
    HAVE_NATIVE = False
else:
    HAVE_NATIVE = True

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined]  # Python 3.12; only named in hints


def page_digests(fingerprint: bytes, keys: Sequence[str]) -> list[bytes]:
    """As `identity.page_digests`, 0.4 µs a key; the GIL is kept."""
    if HAVE_NATIVE:
        try:
            return _native.page_digests(fingerprint, keys, identity.MAX_KEY_BYTES)
        except (TypeError, ValueError):
            pass  # a key that only Python can encode, or name the fault of
    return identity.page_digests(fingerprint, keys)


def crc32c(data: bytes, seed: int = 0) -> int:
    """CRC-32C of `data`, going on from `seed`."""
    if HAVE_NATIVE:
        return _native.crc32c(data, seed)
    return python_crc32c.crc32c(data, seed)


def valid_records(packed: Buffer) -> NDArray[np.bool_]:
    """For each 64-byte record of a packed array: is it in use, and its CRC right?

    Raises ValueError for a length that is no multiple of 64.
    """
    rows = np.frombuffer(packed, np.uint8)
    if rows.size % RECORD_BYTES:
        raise ValueError(f"{rows.size} bytes are no whole number of records")
    if not HAVE_NATIVE:
        return whole_records(rows)
    address: int = rows.__array_interface__["data"][0]
    return np.frombuffer(_native.valid_records(address, rows.size // RECORD_BYTES), np.bool_)


def exchange(fd: int, request: bytes, deadline: Deadline, replies: int = 1) -> bytes | None:
    """Send `request` over a stream socket and receive exactly so many RESP2 replies, raw.

    Simple strings, errors, integers, bulk strings and null are replies; arrays are not. Gives up
    the GIL once. None without the extension. Raises TimeoutError, or ConnectionError for a
    closed socket, another kind of reply, and bytes after the last one; the stream is out of step
    after either, so close it.
    """
    return _native.exchange(fd, request, deadline.at_ns, replies) if HAVE_NATIVE else None


def try_exchange(fd: int, request: bytes, replies: int) -> tuple[int, bytes, bool]:
    """The part of an exchange that needs no sleep, within 80 µs: how many bytes of the request
    were sent, what was received, and whether that is all. Raises as `exchange`."""
    return _native.try_exchange(fd, request, replies) if HAVE_NATIVE else (0, b"", False)


def skip_replies(raw: bytearray, start: int, wanted: int) -> tuple[int, int] | None:
    """Where the whole replies from `start` on end, at most so many, and how many are missing.

    None without the extension. Raises ConnectionError as `exchange`.
    """
    return _native.skip_replies(raw, start, wanted) if HAVE_NATIVE else None


Route = tuple[bytes, bytes, bytes, bytes, bytes, bytes]
"""`kvmanager.probe.Parts`."""


def lookup(
    fd: int,
    route: Route,
    digests: list[bytes],
    deadline: Deadline,
    *,
    why: bool,
    now: int,
    interval: int,
) -> tuple[list[bytes] | None, bytes, bytes] | None:
    """Look pages up in the registry: by HGETs, and by its script where they do not suffice.

    What the arguments and the result are is said by `kvmanager.probe`. Gives up the GIL once.
    None without the extension. Raises as `exchange`, ValueError for what is no route or digest.
    """
    if not HAVE_NATIVE:
        return None
    return _native.lookup(fd, deadline.at_ns, route, digests, why, now, interval)


def pages_request(route: Route, digests: list[bytes]) -> bytes | None:
    """What `lookup` sends first. Raises ValueError as it does; None without the extension."""
    return _native.pages_request(route, digests) if HAVE_NATIVE else None


def read_pages(
    route: Route, asked: int, raw: bytes, *, why: bool, now: int, interval: int
) -> tuple[list[bytes] | None, bytes] | None:
    """What the whole replies to that say of so many pages, as `Probe.read` has it.

    None without the extension. Raises ConnectionError for fewer replies.
    """
    return _native.read_pages(route, asked, raw, why, now, interval) if HAVE_NATIVE else None
