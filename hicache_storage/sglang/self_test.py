"""One page stored, found, read and compared at the start, by the calls that SGLang will make.

The host pool's last page lends its memory and gets its bytes back: no request runs meanwhile.
"""

from __future__ import annotations

import ctypes
import logging
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hicache_backends.errors import ConfigError, HiCacheError, StorageUnavailable
from hicache_backends.native_calls import page_digests
from hicache_backends.outcomes import Outcome, Reason
from hicache_storage.sglang.host_pages import FlatPages, HostPages, page_slots
from hicache_storage.sglang.pool_store import PoolStore

_log = logging.getLogger(__name__)
_TOLERABLE = (Reason.NO_SPACE, Reason.QUOTA, Reason.TIMEOUT)
"""Reasons for a page not stored that can pass; what is stored already can still be read."""


def self_test(pages: PoolStore, pool: Any) -> str:
    """What was done, in a few words. Raises StorageUnavailable, ConfigError that say what to do."""
    if pages.store.mode != "read_write":
        return f"no self-test: mode is {pages.store.mode}"
    key = f"probe-{uuid.uuid4().hex}"
    began = time.monotonic()
    with _last_page(pages.form, pool) as memory:
        try:
            refused = _round_trip(pages, key, memory)
        finally:
            _forget(pages, key)
    if refused:
        return f"self-test stored nothing: {refused}"
    return f"self-test passed in {(time.monotonic() - began) * 1000:.1f} ms"


def _round_trip(pages: PoolStore, key: str, memory: _Memory) -> str:
    """Why nothing could be stored for now, "" after a whole round trip."""
    written = os.urandom(pages.store.namespace.page_bytes)
    memory.fill(written)
    stored = pages.put([key], memory.indices, None)[0]
    if stored.reason in _TOLERABLE:
        return _words(stored)
    _require(stored.ok, "set", _words(stored))
    _require(pages.exists([key]) == 1, "exists", "a page just stored isn't found")
    memory.fill(bytes(len(written)))
    read = pages.get([key], memory.indices)[0]
    _require(read.ok, "get", _words(read))
    _require(memory.content() == written, "get", "the bytes read aren't those written")
    return ""


def _forget(pages: PoolStore, key: str) -> None:
    digests = page_digests(pages.store.namespace.fingerprint, [key])
    try:
        pages.store.storage.remove(digests)
    except HiCacheError as error:  # it's in nobody's way, and why the test failed must be told
        _log.debug("the self-test's page stays until it is evicted: %s", error)


def _require(holds: bool, step: str, why: str) -> None:
    if not holds:
        raise StorageUnavailable(
            f"storage backend init failed: the self-test failed at {step}: {why}; "
            "`hicache-storage check` tries the same without SGLang"
        )


def _words(outcome: Outcome) -> str:
    return f"{outcome.reason.value if outcome.reason else 'ok'} {outcome.detail}".rstrip()


class _Memory:
    """The bytes of one page of a host pool."""

    def __init__(self, form: HostPages | FlatPages | None, pool: Any) -> None:
        import torch  # SGLang has brought it along

        slots = page_slots(pool)
        last = int(pool.size) // slots - 1
        if last < 0:
            raise ConfigError(f"the host pool holds {pool.size} tokens: less than one page")
        self.indices = torch.arange(last * slots, (last + 1) * slots, dtype=torch.int64)
        self._pool = pool
        self._flat = None if isinstance(form, HostPages) else last * slots
        if isinstance(form, HostPages):
            pages = form(self.indices, 1, writable=True)
            self._pieces = list(
                zip(pages.addresses[0].tolist(), pages.sizes[0].tolist(), strict=True)
            )

    def content(self) -> bytes:
        """What it holds."""
        if self._flat is not None:
            import torch

            page = self._pool.get_data_page(self._flat, flat=True).contiguous()
            return bytes(page.view(torch.uint8).numpy().tobytes())
        return b"".join(ctypes.string_at(address, size) for address, size in self._pieces)

    def fill(self, content: bytes) -> None:
        """Put these bytes there."""
        if self._flat is not None:
            import torch

            page = self._pool.get_dummy_flat_data_page()
            page.view(torch.uint8).copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
            self._pool.set_from_flat_data_page(self._flat, page)
            return
        at = 0
        for address, size in self._pieces:
            ctypes.memmove(address, content[at : at + size], size)
            at += size


@contextmanager
def _last_page(form: HostPages | FlatPages | None, pool: Any) -> Iterator[_Memory]:
    memory = _Memory(form, pool)
    before = memory.content()
    try:
        yield memory
    finally:
        memory.fill(before)
