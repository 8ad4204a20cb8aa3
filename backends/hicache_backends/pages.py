"""The memory of a batch of pages: for each page one or more pieces, addressed, checked once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hicache_backends.errors import InvalidBuffer

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined]  # Python 3.12; only named in hints


@dataclass(frozen=True, slots=True)
class Pages:
    """`len(pages)` pages of `pieces` pieces each; a page on a medium is their concatenation.

    addresses, sizes: uint64, shape (pages, pieces), bytes. `keep` holds whatever owns the
    memory, for as long as this object lives. `writable` is False for memory that only a put
    may use.
    """

    addresses: NDArray[np.uint64]
    sizes: NDArray[np.uint64]
    keep: tuple[Any, ...] = ()
    writable: bool = True

    def __len__(self) -> int:
        return int(self.addresses.shape[0])

    @property
    def pieces(self) -> int:
        """Pieces a page."""
        return int(self.addresses.shape[1])

    @property
    def page_bytes(self) -> int:
        """Bytes of each page; 0 for an empty batch. All pages of a batch have the same size."""
        return int(self.sizes[0].sum()) if len(self) else 0

    def __getitem__(self, which: slice | Sequence[int] | NDArray[np.intp]) -> Pages:
        """The chosen pages, over the same memory."""
        return Pages(self.addresses[which], self.sizes[which], self.keep, self.writable)

    @classmethod
    def from_buffers(cls, buffers: Sequence[Any], *, writable: bool) -> Pages:
        """Pages over Python buffers: an item is one buffer, or a sequence of buffers (pieces).

        With `writable` the memory is a destination: read-only buffers and overlapping ones are
        refused. Raises InvalidBuffer, before anything is read or written.
        """
        rows = [item if isinstance(item, (list, tuple)) else (item,) for item in buffers]
        if len({len(row) for row in rows}) > 1:
            raise InvalidBuffer("the pages of a batch have different numbers of pieces")
        if rows and not rows[0]:
            raise InvalidBuffer("a page has no pieces")
        views = [[_view(piece, writable) for piece in row] for row in rows]
        pieces = len(rows[0]) if rows else 1
        flat = [v for row in views for v in row]
        addresses = np.array([_address(v) for v in flat], dtype=np.uint64).reshape(-1, pieces)
        sizes = np.array([v.nbytes for v in flat], dtype=np.uint64).reshape(-1, pieces)
        pages = cls(addresses, sizes, (views,), writable)
        pages.check()
        return pages

    @classmethod
    def from_pointers(
        cls,
        pointers: Sequence[int] | NDArray[np.uint64],
        sizes: Sequence[int] | NDArray[np.uint64],
        *,
        pieces: int,
        keep: tuple[Any, ...],
        writable: bool = True,
    ) -> Pages:
        """Pages over raw addresses, `pieces` to a page, in page order.

        The caller vouches that the memory is live and that `keep` holds its owner.
        """
        if pieces < 1 or len(pointers) != len(sizes) or len(pointers) % pieces:
            raise InvalidBuffer(
                f"{len(pointers)} pointers, {len(sizes)} sizes, {pieces} pieces a page"
            )
        try:
            addresses = np.asarray(pointers, dtype=np.uint64).reshape(-1, pieces)
            lengths = np.asarray(sizes, dtype=np.uint64).reshape(-1, pieces)
        except (OverflowError, TypeError, ValueError) as error:
            raise InvalidBuffer(f"not addresses and sizes: {error}") from None
        pages = cls(addresses, lengths, keep, writable)
        pages.check()
        return pages

    def check(self) -> None:
        """Raises InvalidBuffer for null or empty pieces, unequal pages, overlapping targets."""
        if not len(self):
            return
        if not self.addresses.all() or not self.sizes.all():
            raise InvalidBuffer("a piece is empty or at address 0")
        totals = self.sizes.sum(axis=1)
        if (totals != totals[0]).any():
            raise InvalidBuffer("the pages of a batch have different sizes")
        starts = self.addresses.ravel()
        ends = starts + self.sizes.ravel()
        if (ends < starts).any():
            raise InvalidBuffer("a piece runs past the end of the address space")
        if self.writable:
            order = np.argsort(starts)
            if (ends[order][:-1] > starts[order][1:]).any():
                raise InvalidBuffer("destination buffers overlap")


def _view(buffer: Buffer, writable: bool) -> memoryview:
    try:
        view = memoryview(buffer)
    except TypeError:
        raise InvalidBuffer(f"{type(buffer).__name__} does not offer the buffer protocol") from None
    if not view.c_contiguous:
        raise InvalidBuffer("a buffer is not contiguous")
    if writable and view.readonly:
        raise InvalidBuffer("a destination buffer is read-only")
    return view


def _address(view: memoryview) -> int:
    array = np.frombuffer(view, dtype=np.uint8) if view.nbytes else np.empty(0, np.uint8)
    address: int = array.__array_interface__["data"][0]
    return address
