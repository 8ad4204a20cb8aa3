from __future__ import annotations

from pathlib import Path

from hicache_backends.identity import Namespace
from hicache_backends.memory import MemoryStorage
from hicache_backends.memory_medium import MemoryMedium
from hicache_backends.outcomes import Reason
from hicache_backends.storage import PageStorage
from hicache_backends.testing.canaries import NAMESPACE, PAGE_BYTES, digests_of, put
from hicache_backends.testing.conformance import PageStorageConformance
from hicache_backends.testing.medium import Medium
from tests.backends.keepers import Stubborn


class RawMemory(Medium):
    """A memory medium with its pages laid open."""

    def __init__(self) -> None:
        self.memory = MemoryMedium()

    def open(self, namespace: Namespace, *, capacity_pages: int | None = None) -> PageStorage:
        return MemoryStorage(namespace, capacity_pages, medium=self.memory)

    def stored(self, namespace: Namespace) -> set[bytes]:
        return {*self.memory.pages(namespace)}

    def flip_bit(self, namespace: Namespace, digest: bytes, bit: int) -> None:
        self.memory.pages(namespace)[digest].data[bit // 8] ^= 1 << bit % 8

    def truncate(self, namespace: Namespace, digest: bytes) -> None:
        data = self.memory.pages(namespace)[digest].data
        del data[len(data) // 2 :]

    def delete(self, namespace: Namespace, digest: bytes) -> None:
        self.memory.pages(namespace)[digest].data.clear()

    def swap(self, namespace: Namespace, first: bytes, second: bytes) -> None:
        a, b = (self.memory.pages(namespace)[digest] for digest in (first, second))
        a.data, b.data = b.data, a.data


class TestMemoryConformance(PageStorageConformance):
    def make_medium(self, directory: Path) -> Medium:
        return RawMemory()


def test_a_put_after_a_limit_fell_takes_a_few_steps_of_many_pages_towards_it() -> None:
    storage, keeper = MemoryStorage(NAMESPACE), Stubborn()
    put(storage, digests_of(*range(800)))
    storage.set_keeper(keeper)
    storage.restrict(100 * PAGE_BYTES, None)
    assert storage.stats()["pages"] == 800
    assert len(keeper.asked) < 20
    keeper.lets_go, keeper.asked = True, []
    fresh = digests_of("a", "b")
    assert {outcome.reason for outcome in put(storage, fresh)} == {Reason.QUOTA}
    assert len(keeper.asked) < 10
    assert max(keeper.asked) <= 200
    assert 100 < int(storage.stats()["pages"]) < 600
    while not all(put(storage, fresh)):
        assert len(keeper.asked) < 20
    assert storage.stats()["pages"] == 100
