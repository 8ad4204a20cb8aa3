"""Every page that the registry knows on one medium, a few buckets a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgpack

from hicache_backends.errors import RegistryRefused
from hicache_backends.identity import DIGEST_BYTES
from kvmanager import keys
from kvmanager.flow import Flow, answer
from kvmanager.replies import read_done
from kvmanager.scripts import Call

STEP_BUCKETS = 32
"""About five hundred pages, and a millisecond of the server."""
_HEAD_BYTES = 7
_MAX_ENTRY_BYTES = 55
_MARK = 64
_REPORTED = 0


@dataclass(frozen=True, slots=True)
class Foreign:
    """What lies where pages lie and is none. `name`: its field, None where the whole key is no
    hash; `value`: what is there, both up to 64 bytes; `misplaced`: in a bucket where nobody looks
    for such a digest."""

    key: bytes
    name: bytes | None
    value: bytes = b""
    misplaced: bool = False


@dataclass(slots=True)
class Batch:
    """What some buckets hold: digest and location of pages, the same of pages that were reported
    as wrong and only keep their place in their parent's count, and what is neither."""

    pages: list[tuple[bytes, bytes]] = field(default_factory=list)
    reported: list[tuple[bytes, bytes]] = field(default_factory=list)
    foreign: list[Foreign] = field(default_factory=list)


class Walk:
    """One walk, by steps until `done`. `medium`: its 8-letter id. A page that is there from the
    beginning to the end is met at least once, and may be met twice; others may be met or not.

    while not walk.done:
        batch = driver.run(walk.step(), deadline)  # or: await control.run(walk.step(), tag)
    """

    def __init__(
        self, tag: bytes, epoch: int, medium: bytes, step_buckets: int = STEP_BUCKETS
    ) -> None:
        self.done = False
        self.next = 0
        self.buckets = keys.FIRST_BUCKETS
        self._tag, self._epoch, self._medium = tag, epoch, medium
        self._step = b"%d" % step_buckets
        self._cursor = b"0"

    def step(self) -> Flow[Batch]:
        """The next few buckets. Raises EpochMoved where the namespace was cleared, Forgotten where
        the registry does not know it; a step that failed otherwise may be tried again."""
        where = (b"%d" % self._epoch, self._tag, self._medium)
        args = (*where, b"%d" % self.next, self._step, self._cursor)
        reply = yield from answer(Call.of("walk", (b"n" + self._tag,), args))
        try:
            said: dict[bytes, Any] = msgpack.unpackb(read_done(reply), raw=True)
            batch = Batch()
            for bucket, found in said[b"found"]:
                self._sort(bucket, found, said[b"buckets"], batch)
            self.buckets, self.next = int(said[b"buckets"]), int(said[b"next"])
            self._cursor = bytes(said[b"cursor"])
        except (ValueError, TypeError, KeyError) as error:
            raise RegistryRefused(f"a walk's reply is malformed: {error!r}") from error
        self.done = self.next >= self.buckets
        return batch

    def _sort(self, bucket: int, found: Any, buckets: int, batch: Batch) -> None:
        key = keys.page_key(self._tag, self._epoch, self._medium, bucket)
        if not isinstance(found, list):
            batch.foreign.append(Foreign(key, None))
            return
        first = bytes((bucket & 0xFF,))
        for name, value in _pairs(found):
            digest = first + name
            size = len(value)
            if len(digest) != DIGEST_BYTES or not 1 < size <= _MAX_ENTRY_BYTES:
                batch.foreign.append(Foreign(key, name, value))
            elif keys.bucket(digest, buckets) != bucket:
                batch.foreign.append(Foreign(key, name, value, misplaced=True))
            elif size > _HEAD_BYTES and value[0] == size - _HEAD_BYTES + _MARK:
                batch.pages.append((digest, value[_HEAD_BYTES:]))
            elif value[0] == _REPORTED:
                batch.reported.append((digest, value[1:]))
            else:
                batch.foreign.append(Foreign(key, name, value))


def _pairs(flat: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
    return zip(flat[::2], flat[1::2], strict=True)
