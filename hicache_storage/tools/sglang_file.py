"""The comparison: SGLang's file backend, one file a page.

The real `HiCacheFile` where SGLang 0.5.23 or a compatible release is installed; else a minimal
equivalent that does the same system calls a page and nothing more.
"""

from __future__ import annotations

import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hicache_backends.errors import StorageError

_MODULE = "sglang.srt.mem_cache.hicache_storage"


class FilePages(ABC):
    """Pages in files. `targets` are made from rows of memory once, outside what is timed."""

    name: str
    """Which implementation this is, for the output."""

    def targets(self, rows: Sequence[NDArray[np.uint8]]) -> list[Any]:
        """What get and set take for these rows."""
        return list(rows)

    @abstractmethod
    def exists(self, keys: Sequence[str]) -> int:
        """How many pages from the start are there."""

    @abstractmethod
    def get(self, keys: Sequence[str], targets: Sequence[Any]) -> None:
        """Read pages. Raises StorageError if one is missing."""

    @abstractmethod
    def set(self, keys: Sequence[str], targets: Sequence[Any]) -> None:
        """Write pages. Raises StorageError if one failed."""


class MinimalFilePages(FilePages):
    """What the file backend does a page: open, readinto, close; a temporary file and a rename."""

    def __init__(self, directory: Path, why: str) -> None:
        self.name = f"equivalent of SGLang's HiCacheFile ({why})"
        self._directory = str(directory)

    def exists(self, keys: Sequence[str]) -> int:
        for n, key in enumerate(keys):
            if not os.path.exists(self._path(key)):  # noqa: PTH110 - as the original does it
                return n
        return len(keys)

    def get(self, keys: Sequence[str], targets: Sequence[Any]) -> None:
        for key, row in zip(keys, targets, strict=True):
            with open(self._path(key), "rb", buffering=0) as file:  # noqa: PTH123 - as the original
                if file.readinto(row) != row.nbytes:
                    raise StorageError(f"a short page file: {key}")

    def set(self, keys: Sequence[str], targets: Sequence[Any]) -> None:
        for key, row in zip(keys, targets, strict=True):
            if self.exists([key]):
                continue
            temporary = f"{self._path(key)}.tmp"
            row.tofile(temporary)
            os.replace(temporary, self._path(key))  # noqa: PTH105 - as the original does it

    def _path(self, key: str) -> str:
        return os.path.join(self._directory, f"{key}_bench_0_1.bin")  # noqa: PTH118 - as the original


class SglangFilePages(FilePages):
    """SGLang's own class, with tensors over the rows' memory."""

    def __init__(self, directory: Path) -> None:
        module = importlib.import_module(_MODULE)
        sglang = importlib.import_module("sglang")
        self._torch = importlib.import_module("torch")
        config = module.HiCacheStorageConfig(
            tp_rank=0,
            tp_size=1,
            pp_rank=0,
            pp_size=1,
            attn_cp_rank=0,
            attn_cp_size=1,
            is_mla_model=False,
            enable_storage_metrics=False,
            is_page_first_layout=True,
            model_name="bench",
            extra_config={"file_storage_path": str(directory)},
        )
        self._file = module.HiCacheFile(config)
        if Path(self._file.file_path) != directory:
            raise StorageError(f"HiCacheFile writes to {self._file.file_path}: unset its variable")
        self.name = f"HiCacheFile of SGLang {getattr(sglang, '__version__', '(unknown version)')}"

    def targets(self, rows: Sequence[NDArray[np.uint8]]) -> list[Any]:
        return [self._torch.from_numpy(row) for row in rows]

    def exists(self, keys: Sequence[str]) -> int:
        for n, key in enumerate(keys):
            if not self._file.exists(key):
                return n
        return len(keys)

    def get(self, keys: Sequence[str], targets: Sequence[Any]) -> None:
        if any(page is None for page in self._file.batch_get(list(keys), list(targets))):
            raise StorageError("HiCacheFile misses a page")

    def set(self, keys: Sequence[str], targets: Sequence[Any]) -> None:
        if not self._file.batch_set(list(keys), list(targets)):
            raise StorageError("HiCacheFile failed to write a page")


def open_file_pages(directory: Path) -> FilePages:
    """SGLang's class if it can be had, else the equivalent; `name` says which and why."""
    directory.mkdir(parents=True, exist_ok=True)
    try:
        return SglangFilePages(directory)
    except ImportError as error:
        return MinimalFilePages(directory, f"SGLang is not importable: {error}")
    except (AttributeError, TypeError) as error:
        return MinimalFilePages(directory, f"this SGLang's HiCacheFile is another one: {error}")
