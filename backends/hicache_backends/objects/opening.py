"""The readable identity beside the pages: written once, compared at every opening."""

from __future__ import annotations

import time

import msgpack

from hicache_backends.deadline import Deadline
from hicache_backends.errors import IdentityMismatch, StorageUnavailable
from hicache_backends.identity import Namespace
from hicache_backends.objects.store import ObjectStore

_GONE_MS = 20.0


def check_namespace(store: ObjectStore, namespace: Namespace, deadline: Deadline) -> None:
    """Raises IdentityMismatch where another namespace lies in this one's place, and
    StorageUnavailable where what says so can't be kept there."""
    key = f"{namespace.fingerprint.hex()}/namespace.msgpack"
    found = store.read(key, deadline)
    while found is None:
        store.create(key, namespace.encode(), deadline)
        found = store.read(key, deadline)
        if found is None:  # evicted, or removed by another, right after it was there
            if deadline.remaining_ms() <= _GONE_MS:
                raise StorageUnavailable(f"{store.name}: {key} is gone as soon as it is stored")
            time.sleep(_GONE_MS / 1000)
    if not _is(found, namespace):
        raise IdentityMismatch(
            f"{store.name}: {key} is not the namespace whose fingerprint it lies under; remove "
            "that folder or use another prefix"
        )


def _is(packed: bytes, namespace: Namespace) -> bool:
    try:
        return Namespace.decode(packed) == namespace
    except (ValueError, TypeError, msgpack.UnpackException):
        return False
