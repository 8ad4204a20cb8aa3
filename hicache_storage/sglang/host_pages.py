"""Where the pages of a host pool lie in memory: its pages as `Pages`, without a copy.

`get_page_buffer_meta` builds a Python list entry by entry, thousands for a layer-first batch,
beside a busy scheduler. In every layout an address rises evenly from page to page, so that is
learned when the pool is registered, checked against other pages, and then computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hicache_backends.errors import InvalidBuffer
from hicache_backends.outcomes import Outcome
from hicache_backends.pages import Pages

Numbers = NDArray[np.int64]
"""Which pages of a host pool: slot index over slots a page."""
_PROBES = 7


@dataclass(frozen=True)
class AddressMap:
    """Piece j of page i lies at `slopes[0, j] + i * slopes[1, j]` and has `sizes[j]` bytes."""

    slopes: NDArray[np.uint64]
    sizes: NDArray[np.uint64]

    def pages(self, numbers: Numbers, keep: Any, *, writable: bool) -> Pages:
        """These pages; `keep` owns the memory."""
        # one step over thousands of addresses, where base + number * stride would take three
        ones = np.ones(len(numbers), np.uint64)
        addresses = np.stack([ones, numbers.astype(np.uint64)], axis=1) @ self.slopes
        return Pages(addresses, np.broadcast_to(self.sizes, addresses.shape), (keep,), writable)


class HostPages:
    """The pages of one host pool. Build one with `of`."""

    def __init__(self, pool: Any, pointers: Sequence[int], sizes: Sequence[int]) -> None:
        self._pool = pool
        self.page_slots = page_slots(pool)
        self.pieces = len(pointers)
        self.page_bytes = int(sum(map(int, sizes)))
        self._map = self._learn(pointers, sizes)

    @classmethod
    def of(cls, pool: Any) -> HostPages | None:
        """The pages of `pool`; None where it can't say where they lie."""
        try:
            pointers, sizes = pool.get_page_buffer_meta(_indices([0], page_slots(pool)))
        except (AttributeError, NotImplementedError, TypeError, ValueError):
            return None
        return cls(pool, pointers, sizes) if pointers else None

    def __call__(self, host_indices: Any, count: int, *, writable: bool) -> Pages:
        """The `count` pages at these indices. Raises InvalidBuffer where they don't fit."""
        numbers = page_numbers(self._pool, host_indices, count)
        if writable and len(np.unique(numbers)) != count:
            raise InvalidBuffer("one host page is the target of two keys")
        if self._map is not None:
            return self._map.pages(numbers, self._pool, writable=writable)
        pointers, sizes = self._ask(numbers)
        return Pages.from_pointers(
            pointers, sizes, pieces=self.pieces, keep=(self._pool,), writable=writable
        )

    def _ask(self, numbers: Sequence[int] | Numbers) -> tuple[Sequence[int], Sequence[int]]:
        pointers, sizes = self._pool.get_page_buffer_meta(_indices(numbers, self.page_slots))
        return pointers, sizes

    def _learn(self, pointers: Sequence[int], sizes: Sequence[int]) -> AddressMap | None:
        """The map, if the pool's own answers for pages far apart bear it out."""
        pages = int(self._pool.size) // self.page_slots
        if pages < 2:
            return None
        first = np.array(pointers, np.uint64)
        second = np.array(self._ask([1])[0], np.uint64)
        # modulo 2**64, as addresses are: a stride may go down
        found = AddressMap(np.stack([first, second - first]), np.array(sizes, np.uint64))
        probes = np.unique(np.linspace(0, pages - 1, _PROBES, dtype=np.int64))
        said, said_sizes = self._ask(probes)
        computed = found.pages(probes, None, writable=False)
        same = np.array_equal(computed.addresses.ravel(), np.array(said, np.uint64))
        same &= np.array_equal(computed.sizes.ravel(), np.array(said_sizes, np.uint64))
        return found if same else None


def memory_of(pool: Any) -> list[tuple[int, int]]:
    """Address and bytes of each tensor of a host pool; none where it doesn't show them."""
    several = getattr(pool, "get_hybrid_pool_buffer", None)
    tensors = several() if several else [getattr(pool, "kv_buffer", None)]
    return [(t.data_ptr(), t.nbytes) for t in tensors if t is not None and t.nbytes]


class FlatPages:
    """The pages of a host pool that only copies them, as flat tensors."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self.page_bytes = tensor_bytes(pool.get_dummy_flat_data_page())

    def read(self, host_indices: Any, count: int) -> list[Any]:
        """A copy of each page, a contiguous tensor. Raises InvalidBuffer."""
        slots = page_numbers(self._pool, host_indices, count) * page_slots(self._pool)
        return [self._pool.get_data_page(slot, flat=True).contiguous() for slot in slots.tolist()]

    def targets(self, count: int) -> list[Any]:
        """Tensors to read that many pages into."""
        return [self._pool.get_dummy_flat_data_page() for _ in range(count)]

    def write(self, host_indices: Any, tensors: Sequence[Any], read: Sequence[Outcome]) -> None:
        """Copy the pages that were read into the pool. Raises InvalidBuffer."""
        slots = page_numbers(self._pool, host_indices, len(tensors)) * page_slots(self._pool)
        for slot, tensor, outcome in zip(slots.tolist(), tensors, read, strict=True):
            if outcome.ok:
                self._pool.set_from_flat_data_page(slot, tensor)


def tensor_pages(tensors: Sequence[Any], *, writable: bool) -> Pages:
    """Pages over contiguous CPU tensors, one each. Raises InvalidBuffer."""
    for tensor in tensors:
        if not is_flat(tensor):
            raise InvalidBuffer(f"a page is a contiguous CPU tensor, not on {tensor.device}")
    pointers = [tensor.data_ptr() for tensor in tensors]
    sizes = [tensor_bytes(tensor) for tensor in tensors]
    return Pages.from_pointers(pointers, sizes, pieces=1, keep=tuple(tensors), writable=writable)


def is_flat(tensor: Any) -> bool:
    """Whether a tensor's bytes lie in this process's memory, in one piece."""
    return bool(tensor.is_contiguous()) and tensor.device.type == "cpu"


def tensor_bytes(tensor: Any) -> int:
    """Bytes of a tensor's elements."""
    return int(tensor.numel()) * int(tensor.element_size())


def page_slots(pool: Any) -> int:
    """Slots of a page of this pool: tokens, or 1 where a page is one state."""
    return max(1, int(getattr(pool, "page_size", 1) or 1))


def page_numbers(pool: Any, host_indices: Any, count: int) -> Numbers:
    """Which pages `host_indices` names: int64, `page_slots` of them for each of `count` pages.

    Raises InvalidBuffer for another number of indices, and for a page outside the pool.
    """
    slots = page_slots(pool)
    given = 0 if host_indices is None else int(host_indices.numel())
    if given != count * slots:
        raise InvalidBuffer(f"{count} pages of {slots} slots, but {given} indices")
    if not count:
        return np.empty(0, np.int64)
    indices = host_indices.numpy()
    first: Numbers = indices[::slots].astype(np.int64)
    whole = (indices[slots - 1 :: slots] - first == slots - 1).all()  # what lies between is too
    if not whole or (first % slots).any() or first.min() < 0 or first.max() + slots > pool.size:
        raise InvalidBuffer(f"slots that are no pages of this pool of {pool.size}")
    return first // slots


def _indices(numbers: Sequence[int] | Numbers, slots: int) -> Any:
    """The pool's index tensor of these pages."""
    import torch  # SGLang has brought it along

    first = np.asarray(numbers, np.int64) * slots
    return torch.from_numpy((first[:, None] + np.arange(slots)).ravel())
