"""Stand-ins of what SGLang and torch bring along: host pools of numpy memory, and index tensors.

They answer the calls that the plugin makes of the real ones, whose own tests are in
`tests/sglang`.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


class StandInTensor:
    """The few methods of a CPU tensor that the plugin calls, over numpy memory."""

    device = types.SimpleNamespace(type="cpu")

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array

    def numel(self) -> int:
        return int(self.array.size)

    def element_size(self) -> int:
        return int(self.array.itemsize)

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)

    def numpy(self) -> NDArray[Any]:
        return self.array

    def tolist(self) -> list[int]:
        return [int(index) for index in self.array]

    def is_contiguous(self) -> bool:
        return bool(self.array.flags.c_contiguous)

    def contiguous(self) -> StandInTensor:
        return StandInTensor(np.ascontiguousarray(self.array))

    def detach(self) -> StandInTensor:
        return self

    def cpu(self) -> StandInTensor:
        return self

    def view(self, dtype: Any) -> StandInTensor:
        return StandInTensor(self.array.view(dtype))

    def copy_(self, other: StandInTensor) -> None:
        self.array[...] = other.array


def stand_in_torch() -> types.ModuleType:
    """A module that makes `StandInTensor`s as torch makes tensors."""
    torch = types.ModuleType("torch")

    def arange(low: int, high: int, *, dtype: Any) -> StandInTensor:
        return StandInTensor(np.arange(low, high, dtype=dtype))

    def frombuffer(data: bytearray, *, dtype: Any) -> StandInTensor:
        return StandInTensor(np.frombuffer(data, dtype))

    vars(torch).update(
        from_numpy=StandInTensor,
        arange=arange,
        frombuffer=frombuffer,
        int64=np.int64,
        uint8=np.uint8,
    )
    return torch


class StandInPool:
    """A host pool of `pages` pages: K and V of a few layers, laid out as SGLang's pools do.

    `start` shifts the memory by so many bytes. `bent` moves one page out of line, as no pool of
    SGLang does.
    """

    head_num, head_dim = 2, 4

    def __init__(
        self,
        layout: str = "page_first",
        *,
        pages: int = 6,
        page_size: int = 4,
        layers: int = 3,
        start: int = 0,
        bent: int | None = None,
    ) -> None:
        self.layout, self.page_size, self.layer_num = layout, page_size, layers
        self.target_layer_num, self.start_layer = layers, 0
        self.size, self.dtype = pages * page_size, "torch.float16"
        self._token_bytes = self.head_num * self.head_dim * 2
        self._half = self.size * layers * self._token_bytes
        spare = page_size * layers * self._token_bytes
        self._whole = np.zeros(start + 2 * (self._half + spare), np.uint8)
        self.memory = self._whole[start:]
        self._bent = bent
        self.asked = 0

    @property
    def page_bytes(self) -> int:
        return 2 * self.page_size * self.layer_num * self._token_bytes

    def get_page_buffer_meta(self, indices: Any) -> tuple[list[int], list[int]]:
        self.asked += 1
        slots = indices.tolist()[:: self.page_size]
        pointers = [at for slot in slots for at in self._pieces(slot)]
        pieces = self.layer_num if self.layout == "layer_first" else 1
        return pointers, [self.page_bytes // 2 // pieces] * len(pointers)

    def _pieces(self, slot: int) -> list[int]:
        base = self.memory.ctypes.data
        if self._bent == slot // self.page_size:
            slot = self.size  # the spare page behind the last one
        if self.layout != "layer_first":
            at = base + slot * self.layer_num * self._token_bytes
            return [at, at + self._half + self.page_bytes // 2]
        layer = (self.size + self.page_size) * self._token_bytes
        firsts = [base + slot * self._token_bytes + n * layer for n in range(self.layer_num)]
        return [at for first in firsts for at in (first, first + self.layer_num * layer)]


class StandInFlatPool:
    """A host pool that only copies its pages, as flat tensors."""

    layout, page_size, layer_num, head_num, start_layer = "page_first", 4, 3, 2, 0
    dtype = "torch.float16"

    def __init__(self, pages: int = 6, page_numbers: int = 24) -> None:
        self.size = pages * self.page_size
        self.memory = np.zeros((pages, page_numbers), np.float16)
        self.page_bytes = page_numbers * 2

    def get_dummy_flat_data_page(self) -> StandInTensor:
        return StandInTensor(np.zeros(self.memory.shape[1], np.float16))

    def get_data_page(self, index: int, flat: bool = True) -> StandInTensor:
        assert flat
        return StandInTensor(self.memory[index // self.page_size])

    def set_from_flat_data_page(self, index: int, page: StandInTensor) -> None:
        self.memory[index // self.page_size] = page.array


def slots_of(pages: Sequence[int], page_size: int, dtype: Any = np.int64) -> StandInTensor:
    """The index tensor of these pages."""
    first = np.asarray(pages, dtype)[:, None] * page_size
    return StandInTensor((first + np.arange(page_size, dtype=dtype)).astype(dtype).ravel())
