"""One page store alone: what get, set, exists, prefetch, modes and clear promise."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from hicache_backends.errors import ConfigError, InvalidBuffer, InvalidKey, StorageClosed
from hicache_backends.identity import Namespace
from hicache_backends.memory import MemoryStorage
from hicache_backends.outcomes import Reason
from hicache_storage.metrics import Metrics
from hicache_storage.options import StoreOptions
from hicache_storage.page_store import PageStore

PAGE = 4096
NAMESPACE = Namespace(
    model="m", revision="r", kv_dtype="bf16", layout="page_first", page_tokens=64, page_bytes=PAGE
)


def hashes(n: int, chain: str = "a") -> list[str]:
    return [hashlib.sha256(f"{chain}{i}".encode()).hexdigest() for i in range(n)]


def canaries(keys: list[str]) -> list[bytes]:
    return [hashlib.shake_128(key.encode()).digest(PAGE) for key in keys]


def blank(n: int) -> list[bytearray]:
    return [bytearray(b"\xa5" * PAGE) for _ in range(n)]


def open_store(capacity_pages: int | None = None, **options: Any) -> PageStore:
    """A page store with counters of its own."""
    return PageStore(
        MemoryStorage(NAMESPACE, capacity_pages),
        NAMESPACE,
        options=StoreOptions(**options),
        metrics=Metrics.create("memory", "default", CollectorRegistry()),
    )


@pytest.fixture
def store() -> Iterator[PageStore]:
    with open_store(batch_get_size=4) as opened:
        yield opened


def test_pages_come_back_as_they_were_set(store: PageStore) -> None:
    keys = hashes(9)
    assert all(store.set(keys, canaries(keys), parent=None))
    buffers = blank(9)
    assert all(store.get(keys, buffers))
    assert buffers == canaries(keys)
    assert store.exists(keys) == 9


@pytest.mark.parametrize("held", [0b000000000, 0b111111110, 0b101010101, 0b111101111, 0b011111111])
def test_each_key_has_its_own_outcome_whatever_is_missing(store: PageStore, held: int) -> None:
    keys = hashes(9)
    for i, key in enumerate(keys):
        if held >> i & 1:
            store.set([key], canaries([key]))
    buffers = blank(9)
    outcomes = store.get(keys, buffers)
    assert [bool(o) for o in outcomes] == [bool(held >> i & 1) for i in range(9)]
    for key, buffer, outcome in zip(keys, buffers, outcomes, strict=True):
        if outcome:
            assert buffer == canaries([key])[0]
        else:
            assert outcome.reason is Reason.NEVER_WRITTEN
    gap = next((i for i in range(9) if not held >> i & 1), 9)
    assert store.exists(keys) == gap


def test_pieces_are_one_page_whatever_their_number(store: PageStore) -> None:
    keys = hashes(3)
    whole = canaries(keys)
    cut = [[page[i : i + 512] for i in range(0, PAGE, 512)] for page in whole]
    assert all(store.set(keys, cut))
    buffers = blank(3)
    assert all(store.get(keys, buffers))
    assert buffers == whole


def test_empty_batches_are_fine(store: PageStore) -> None:
    assert store.exists([]) == 0
    assert store.get([], []) == []
    assert store.set([], []) == []
    assert store.prefetch([], []).wait(1000) == []


@pytest.mark.parametrize(
    ("buffers", "complaint"),
    [
        ([bytes(PAGE)], "read-only"),
        ([bytearray(PAGE - 1)], "pages of 4095 bytes; this namespace stores pages of 4096"),
        ([memoryview(bytearray(2 * PAGE))[::2]], "not contiguous"),
        ([bytearray(PAGE), bytearray(PAGE)], "1 keys but 2 buffers"),
        ([object()], "buffer protocol"),
    ],
)
def test_a_buffer_that_cannot_hold_the_page_is_refused_before_any_io(
    store: PageStore, buffers: list[object], complaint: str
) -> None:
    key = hashes(1)
    store.set(key, canaries(key))
    with pytest.raises(InvalidBuffer, match=complaint):
        store.get(key, buffers)


def test_overlapping_destinations_are_refused(store: PageStore) -> None:
    memory = memoryview(bytearray(2 * PAGE))
    with pytest.raises(InvalidBuffer, match="overlap"):
        store.get(hashes(2), [memory[:PAGE], memory[PAGE // 2 : PAGE // 2 + PAGE]])


@pytest.mark.parametrize("key", ["", "x" * 4096, b"bytes", None, 7])
def test_what_is_no_key_is_refused_and_named(store: PageStore, key: object) -> None:
    with pytest.raises(InvalidKey):
        store.exists([key])  # type: ignore[list-item]  # what a careless caller passes


def test_odd_but_legal_keys_name_pages(store: PageStore) -> None:
    keys = ["../x", "/etc/passwd", "a\0b", "ключ", "x" * 1024]
    assert all(store.set(keys, canaries(keys)))
    buffers = blank(len(keys))
    assert all(store.get(keys, buffers))
    assert buffers == canaries(keys)


def test_one_string_is_not_a_batch(store: PageStore) -> None:
    with pytest.raises(ConfigError, match="not one string"):
        store.exists("abc")


def test_modes_switch_while_running_and_say_why_nothing_happened(store: PageStore) -> None:
    keys = hashes(2)
    store.mode = "read"
    refused = store.set(keys, canaries(keys))
    assert {(o.reason, o.detail) for o in refused} == {(Reason.MODE, "mode is read")}
    store.mode = "read_write"
    assert all(store.set(keys, canaries(keys)))
    store.mode = "off"
    assert store.exists(keys) == 0
    assert {o.detail for o in store.get(keys, blank(2))} == {"mode is off"}
    assert {o.detail for o in store.explain(keys)} == {"mode is off"}
    store.mode = "read"
    assert all(store.get(keys, blank(2)))
    with pytest.raises(ConfigError, match="mode must be one of off, read, read_write"):
        store.mode = "reed"


def test_explain_reads_nothing_and_says_what_a_get_would(store: PageStore) -> None:
    keys = hashes(3)
    store.set(keys[:1], canaries(keys[:1]))
    assert [o.reason for o in store.explain(keys)] == [None, *[Reason.NEVER_WRITTEN] * 2]


def test_clear_empties_the_own_store(store: PageStore) -> None:
    keys = hashes(5)
    store.set(keys, canaries(keys))
    assert store.clear() == 5
    assert store.exists(keys) == 0
    assert all(store.set(keys, canaries(keys))), "and it takes pages again"


def test_evicted_pages_say_so() -> None:
    with open_store(capacity_pages=4) as small:
        first, second = hashes(4, "a"), hashes(4, "b")
        small.set(first, canaries(first), parent=None)
        small.set(second, canaries(second), parent=None)
        assert {o.reason for o in small.explain(first)} == {Reason.EVICTED}
        assert small.metrics.snapshot()["evict"] == 4


def test_a_timed_out_call_gives_every_page_that_reason(store: PageStore) -> None:
    keys = hashes(3)
    store.set(keys, canaries(keys))
    outcomes = store.get(keys, blank(3), timeout_ms=1e-6)
    assert {o.reason for o in outcomes} == {Reason.TIMEOUT}


def test_a_rate_cap_ends_in_timeouts_not_in_waiting_for_ever() -> None:
    with open_store(max_read_bytes_per_s=PAGE, batch_get_size=2) as slow:
        keys = hashes(6)
        slow.set(keys, canaries(keys))
        outcomes = slow.get(keys, blank(6), timeout_ms=200)
        assert [bool(o) for o in outcomes] == [True] * 2 + [False] * 4
        assert {o.reason for o in outcomes[2:]} == {Reason.TIMEOUT}


def test_prefetch_reads_in_order_up_to_the_first_miss(store: PageStore) -> None:
    keys = hashes(12)
    store.set(keys[:9], canaries(keys[:9]))
    buffers = blank(12)
    handle = store.prefetch(keys, buffers)
    outcomes = handle.wait(5000)
    assert outcomes is not None
    assert handle.progress == 9
    assert buffers[:9] == canaries(keys[:9])
    assert outcomes[9].reason is Reason.NEVER_WRITTEN


def test_the_storage_is_closed_whatever_else_does_not_close(
    store: PageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError("no space left for the metrics")

    monkeypatch.setattr(store.metrics, "unwatch", fail)
    with pytest.raises(OSError, match="no space left"):
        store.close()
    with pytest.raises(StorageClosed):
        store.storage.contains([b"x" * 16])


def test_closing_twice_is_fine_and_a_closed_store_says_so(store: PageStore) -> None:
    assert store.close()
    assert store.close()
    with pytest.raises(StorageClosed):
        store.exists(hashes(1))
    with pytest.raises(StorageClosed):
        store.get(hashes(1), blank(1))


def test_every_page_asked_for_is_counted_once_as_a_hit_or_with_its_reason(store: PageStore) -> None:
    keys = hashes(8)
    store.set(keys[:5], canaries(keys[:5]))
    store.get(keys, blank(8))
    counted = store.metrics.snapshot()
    assert counted["hit"] == 5
    assert counted["miss"] == {"never_written": 3}
    assert counted["stored"] == 5


@pytest.mark.parametrize("timeout_ms", [float("inf"), 1e300, 10**30])
def test_a_deadline_as_far_away_as_one_likes_is_fine(store: PageStore, timeout_ms: float) -> None:
    keys = hashes(2)
    assert all(store.set(keys, canaries(keys), timeout_ms=timeout_ms))
    outcomes = store.prefetch(keys, blank(2), timeout_ms=timeout_ms).wait(5000)
    assert outcomes is not None
    assert all(outcomes)


@pytest.mark.parametrize("timeout_ms", [0, -1, float("nan"), "5"])
def test_a_deadline_that_is_none_is_refused(store: PageStore, timeout_ms: float) -> None:
    with pytest.raises(ConfigError, match="timeout_ms must be a number above 0"):
        store.exists(hashes(1), timeout_ms=timeout_ms)
