"""A process that did not sign for longer than a lease, and what became of its store meanwhile."""

from __future__ import annotations

import contextlib

import pytest

from hicache_backends.testing.canaries import NAMESPACE, digests_of, get, put
from hicache_backends.threefs import adoption
from hicache_backends.threefs.tenure import LEASE_S
from tests.backends.threefs.medium import ThreeFsMedium
from tests.threefs.stand_in import ThreeFs


@pytest.mark.parametrize("adopted", [True, False])
def test_a_store_that_another_took_over_meanwhile_is_written_to_no_more(
    fs: ThreeFs, adopted: bool
) -> None:
    medium = ThreeFsMedium(fs)
    other, storage = medium.open(NAMESPACE), medium.open(NAMESPACE)
    pages = digests_of(*range(4))
    assert all(put(storage, pages[:2]))
    store = storage._state.volumes[0].store
    if adopted:
        assert adoption.claim(store.path, other.stores[0][0])
    store._signed_s -= int(LEASE_S) + 1  # type: ignore[attr-defined] # of 3FS
    with contextlib.suppress(OSError):
        store.sign()
    assert store.vanished == adopted
    put(storage, pages[2:])
    assert all(put(storage, pages[2:]))
    assert get(storage, pages) == [not adopted] * 2 + [True] * 2
    assert (storage._state.volumes[0].store.path != store.path) == adopted
    assert storage.close()
    assert other.close()
