"""SGLang's file backend under measurement: as many pages, and memory of its own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from hicache_backends.errors import StorageError
from hicache_storage.tools.content import PageContent, page_key, page_memory
from hicache_storage.tools.sglang_file import open_file_pages


class FileArena:
    """Holds the blocks 0 to `pages` - 1, one file each, written once."""

    def __init__(self, directory: Path, page_bytes: int, pages: int) -> None:
        self.directory = directory
        self.pages = pages
        self.page_bytes = page_bytes
        self.files = open_file_pages(directory)
        self.keys = [page_key(block) for block in range(pages)]
        self._content = PageContent(page_bytes)
        self._memory = page_memory(pages, page_bytes)
        self._content.fill(range(pages), self._memory)
        self._targets = self.files.targets(list(self._memory))
        self.files.set(self.keys, self._targets)

    def read(self) -> float:
        """Read every page; bytes a second."""
        return self.pages * self.page_bytes / self.batch(range(self.pages))

    def batch(self, which: Sequence[int]) -> float:
        """Read these pages in one call; seconds."""
        keys = [self.keys[n] for n in which]
        targets = [self._targets[n] for n in which]
        began = time.perf_counter()
        self.files.get(keys, targets)
        return time.perf_counter() - began

    def check(self) -> None:
        """Compare every page with what it must hold. Raises StorageError."""
        if self._content.wrong(range(self.pages), self._memory).any():
            raise StorageError("the file backend read a page wrong")
