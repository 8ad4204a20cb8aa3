"""Whether many pages are resident, asked at once.

A Python dict of a million digests costs three cache misses a lookup, one after another. The C
extension's set of digest prefixes costs one, and those of a batch overlap. It may take one digest
in 2^64 / pages for another: fit for `contains`, which promises nothing, and for nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hicache_backends.native_calls import HAVE_NATIVE

if HAVE_NATIVE:
    from hicache_backends import _native

_CELL_BYTES = 8
_LEAST_CELLS = 1024
_MOST_LOAD = 0.7


class Known:
    """Follows `digests`, a set or a dict by digest, to which its owner adds and from which it
    takes; without the C extension it asks that instead."""

    def __init__(self, digests: Collection[bytes]) -> None:
        self._digests = digests
        self._table = bytearray()
        self._room = 0
        self.rebuild()

    def add(self, digest: bytes) -> None:
        """It was just added to the digests."""
        if HAVE_NATIVE:
            if len(self._digests) > self._room:
                self.rebuild()
            else:
                _native.prefixes_add(self._table, digest)

    def remove(self, digest: bytes) -> None:
        """It was just taken from the digests."""
        if HAVE_NATIVE:
            _native.prefixes_remove(self._table, digest)

    def rebuild(self) -> None:
        """The digests have changed in some other way."""
        if HAVE_NATIVE:
            cells = max(_LEAST_CELLS, 1 << (2 * len(self._digests)).bit_length())
            table = bytearray(cells * _CELL_BYTES)
            _native.prefixes_add(table, b"".join(self._digests))
            self._table, self._room = table, int(cells * _MOST_LOAD)

    def find(self, digests: Sequence[bytes]) -> list[bool]:
        """For each digest: is it there?"""
        if HAVE_NATIVE:
            return _native.prefixes_find(self._table, list(digests))
        held = self._digests
        return [digest in held for digest in digests]
