"""The identity beside the pages: one that is gone right after it was stored is no mismatch."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace

import pytest

from hicache_backends.deadline import Deadline
from hicache_backends.errors import IdentityMismatch, StorageUnavailable
from hicache_backends.fsspec_store import FsspecStore
from hicache_backends.objects.opening import check_namespace
from hicache_backends.testing.canaries import NAMESPACE
from tests.backends.objects.media import soon


class Forgetful(FsspecStore):
    """A store that takes away the first objects it creates, as eviction does at a bad moment."""

    def __init__(self, times: float) -> None:
        super().__init__(f"memory://{uuid.uuid4().hex}", {})
        self.times = times
        self.created = 0

    def create(self, key: str, data: bytes, deadline: Deadline) -> None:
        super().create(key, data, deadline)
        self.created += 1
        if self.created <= self.times:
            assert all(self.remove([key], soon()))


def test_an_identity_that_is_gone_once_is_stored_again() -> None:
    store = Forgetful(1)
    check_namespace(store, NAMESPACE, soon())
    assert store.created == 2
    key = f"{NAMESPACE.fingerprint.hex()}/namespace.msgpack"
    assert store.read(key, soon()) == NAMESPACE.encode()
    store.close()


def test_an_identity_that_is_always_gone_is_the_stores_fault_by_the_deadline() -> None:
    store = Forgetful(float("inf"))
    began = time.monotonic()
    with pytest.raises(StorageUnavailable):
        check_namespace(store, NAMESPACE, Deadline.after_ms(1000))
    assert time.monotonic() - began < 5
    assert store.created > 1
    store.close()


def test_another_namespace_in_its_place_is_a_mismatch_at_once() -> None:
    store = Forgetful(0)
    other = replace(NAMESPACE, page_bytes=2 * NAMESPACE.page_bytes)
    store.create(f"{NAMESPACE.fingerprint.hex()}/namespace.msgpack", other.encode(), soon())
    with pytest.raises(IdentityMismatch):
        check_namespace(store, NAMESPACE, soon())
    store.close()
