"""The medium under test: opening stores on it, and raw access that bypasses them."""

from __future__ import annotations

from abc import ABC, abstractmethod

import pytest

from hicache_backends.identity import Namespace
from hicache_backends.storage import PageStorage


class Medium(ABC):
    """A place where a backend keeps pages, empty when made.

    `open` and `close` are required. The rest is raw access: override what the backend allows;
    the tests that need the others are skipped. `persistent`: a store opened again finds the
    pages of the one before. `bounded`: `capacity_pages` is honoured, by eviction.
    """

    persistent = True
    bounded = True

    @abstractmethod
    def open(self, namespace: Namespace, *, capacity_pages: int | None = None) -> PageStorage:
        """A store of this namespace. It holds at most `capacity_pages` pages and, unless it is
        bounded otherwise, at least half of them; None: some hundreds at least."""

    def close(self) -> None:
        """Remove the medium. Every store on it is closed by then."""
        return

    def stored(self, namespace: Namespace) -> set[bytes]:
        """The digests that lie on the medium, committed, whatever a store believes."""
        raise pytest.skip.Exception("raw listing is not offered")

    def flip_bit(self, namespace: Namespace, digest: bytes, bit: int) -> None:
        """Invert one bit of a stored page's bytes; bits count from the page's first byte."""
        raise pytest.skip.Exception("raw bit flips are not offered")

    def truncate(self, namespace: Namespace, digest: bytes) -> None:
        """Cut the medium within this page."""
        raise pytest.skip.Exception("raw truncation is not offered")

    def delete(self, namespace: Namespace, digest: bytes) -> None:
        """Take this page's bytes away without telling the store."""
        raise pytest.skip.Exception("raw deletion is not offered")

    def swap(self, namespace: Namespace, first: bytes, second: bytes) -> None:
        """Exchange the stored bytes of two pages."""
        raise pytest.skip.Exception("raw swaps are not offered")

    def offers(self, ability: str) -> bool:
        """Whether this medium overrides the raw access of that name."""
        return getattr(type(self), ability) is not getattr(Medium, ability)
