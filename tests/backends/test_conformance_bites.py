"""The conformance suite finds each fault that it was written for: broken backends fail it."""

from __future__ import annotations

import dataclasses
import inspect
import time
from collections.abc import Callable, Sequence

import pytest

from hicache_backends.deadline import Deadline
from hicache_backends.identity import Namespace
from hicache_backends.memory import MemoryStorage
from hicache_backends.memory_medium import MemoryMedium, StoredPage
from hicache_backends.outcomes import HIT, NEVER_WRITTEN, Outcome
from hicache_backends.pages import Pages
from hicache_backends.storage import UNKNOWN, Keeper, PageStorage
from hicache_backends.testing import limits
from hicache_backends.testing.canaries import NAMESPACE
from hicache_backends.testing.conformance import PageStorageConformance
from hicache_backends.testing.eviction import CAPACITY
from hicache_backends.testing.isolation import variant
from tests.backends.test_memory import RawMemory

Locations = Sequence[bytes] | None
Opener = Callable[..., MemoryStorage]


class MovesUpOverHoles(MemoryStorage):
    def get(
        self,
        digests: Sequence[bytes],
        pages: Pages,
        deadline: Deadline,
        locations: Locations = None,
    ) -> list[Outcome]:
        there = [d for d in digests if d in self._shelf.pages]
        found = iter(super().get(there, pages[: len(there)], deadline))
        return [next(found) if d in self._shelf.pages else NEVER_WRITTEN for d in digests]


class SaysAllRead(MemoryStorage):
    def get(
        self,
        digests: Sequence[bytes],
        pages: Pages,
        deadline: Deadline,
        locations: Locations = None,
    ) -> list[Outcome]:
        super().get(digests, pages, deadline)
        return [HIT] * len(digests)


class GivesNoReason(MemoryStorage):
    def get(
        self,
        digests: Sequence[bytes],
        pages: Pages,
        deadline: Deadline,
        locations: Locations = None,
    ) -> list[Outcome]:
        return [Outcome(o.ok) for o in super().get(digests, pages, deadline)]


class VerifiesNothing(MemoryStorage):
    def _read(
        self, digests: Sequence[bytes], stored: Sequence[StoredPage | None], pages: Pages
    ) -> list[bool]:
        super()._read(digests, stored, pages)
        return [page is not None for page in stored]


class KeepsBadPages(MemoryStorage):
    def _forget(self, doomed: Sequence[tuple[bytes, StoredPage | None]]) -> None:
        return


class AnswersOnceForTwins(MemoryStorage):
    def contains(self, digests: Sequence[bytes]) -> list[bool]:
        return super().contains([*dict.fromkeys(digests)])


class WritesAgain(MemoryStorage):
    def put(
        self, digests: Sequence[bytes], pages: Pages, parents: Sequence[bytes], deadline: Deadline
    ) -> list[Outcome]:
        self.remove(digests)
        return super().put(digests, pages, parents, deadline)


class IgnoresDeadlines(MemoryStorage):
    def put(
        self, digests: Sequence[bytes], pages: Pages, parents: Sequence[bytes], deadline: Deadline
    ) -> list[Outcome]:
        return super().put(digests, pages, parents, Deadline.after_ms(1000))


class ForgetsParents(MemoryStorage):
    def _put(
        self, digest: bytes, page: StoredPage, keep: set[bytes], deadline: Deadline
    ) -> Outcome:
        page.parent = UNKNOWN
        return super()._put(digest, page, keep, deadline)


class FirstInFirstOut(MemoryStorage):
    def _touch(self, digests: Sequence[bytes]) -> None:
        return


class TouchesOnContains(MemoryStorage):
    def contains(self, digests: Sequence[bytes]) -> list[bool]:
        self._touch(digests)
        return super().contains(digests)


class Unbounded(MemoryStorage):
    def _make_room(
        self, keep: set[bytes], count: int, deadline: Deadline, cause: str, idle_ms: int = 0
    ) -> bool:
        self._limit += 1
        return True


class HeedsNoLimit(MemoryStorage):
    def restrict(self, limit_bytes: int | None, ttl_ms: int | None) -> bool:
        return super().restrict(None, ttl_ms)


class ForgetsThatLimitsEnd(MemoryStorage):
    def restrict(self, limit_bytes: int | None, ttl_ms: int | None) -> bool:
        kept = self._limit * self._page_bytes
        return super().restrict(kept if limit_bytes is None else limit_bytes, ttl_ms)


class ExpiresNothing(MemoryStorage):
    def restrict(self, limit_bytes: int | None, ttl_ms: int | None) -> bool:
        return super().restrict(limit_bytes, None)


class ExpiresEverything(MemoryStorage):
    def restrict(self, limit_bytes: int | None, ttl_ms: int | None) -> bool:
        if ttl_ms:
            self.remove([*self._shelf.pages])
        return super().restrict(limit_bytes, ttl_ms)


class AsksNobody(MemoryStorage):
    def set_keeper(self, keeper: Keeper | None) -> None:
        return


class ForgetsOnClose(MemoryStorage):
    def close(self, timeout_ms: float = 5000) -> bool:
        if not self._closed:
            self.remove([*self._shelf.pages])
        return super().close(timeout_ms)


class NeverClosed(MemoryStorage):
    def _check_open(self) -> None:
        return


class OverlooksSalt(MemoryStorage):
    def __init__(
        self, namespace: Namespace, capacity: int | None = None, *, medium: MemoryMedium
    ) -> None:
        super().__init__(dataclasses.replace(namespace, salt=""), capacity, medium=medium)


class Broken(RawMemory):
    def __init__(self, storage: Opener) -> None:
        super().__init__()
        self.storage = storage

    def open(self, namespace: Namespace, *, capacity_pages: int | None = None) -> PageStorage:
        return self.storage(namespace, capacity_pages, medium=self.memory)


CASES: list[tuple[Opener, str]] = [
    (MovesUpOverHoles, "test_every_pattern_of_holes_is_answered_page_by_page"),
    (SaysAllRead, "test_pages_never_written_are_missed_and_say_so"),
    (GivesNoReason, "test_pages_never_written_are_missed_and_say_so"),
    (VerifiesNothing, "test_one_flipped_bit_is_a_miss_and_the_next_put_repairs_it"),
    (VerifiesNothing, "test_swapped_pages_are_misses_not_each_other"),
    (KeepsBadPages, "test_one_flipped_bit_is_a_miss_and_the_next_put_repairs_it"),
    (KeepsBadPages, "test_a_truncated_page_is_a_miss_and_the_next_put_repairs_it"),
    (AnswersOnceForTwins, "test_a_page_twice_in_a_batch_is_answered_twice"),
    (WritesAgain, "test_a_second_put_writes_nothing"),
    (IgnoresDeadlines, "test_a_deadline_that_has_passed_times_every_page_out"),
    (ForgetsParents, "test_no_page_outlives_the_pages_before_it"),
    (ForgetsParents, "test_entries_are_what_is_stored_heads_first"),
    (FirstInFirstOut, "test_a_page_in_use_outlives_pages_that_are_not"),
    (TouchesOnContains, "test_asking_whether_a_page_is_there_does_not_keep_it"),
    (Unbounded, "test_it_never_holds_more_than_its_capacity_and_says_evicted"),
    (AsksNobody, "test_what_the_keeper_keeps_is_not_evicted"),
    (AsksNobody, "test_the_keeper_is_asked_before_a_limit_takes_a_page"),
    (HeedsNoLimit, "test_a_limit_holds_from_the_call_on_and_ends_when_it_is_lifted"),
    (HeedsNoLimit, "test_no_batch_exceeds_a_limit_and_its_head_is_what_is_stored"),
    (HeedsNoLimit, "test_a_limit_of_nothing_refuses_pages_and_breaks_nothing"),
    (ForgetsThatLimitsEnd, "test_a_limit_holds_from_the_call_on_and_ends_when_it_is_lifted"),
    (ForgetsParents, "test_a_limit_takes_the_tails_of_chains_before_their_heads"),
    (ForgetsParents, "test_a_chain_expires_from_its_tail"),
    (ExpiresNothing, "test_what_nobody_uses_expires_and_says_so_while_what_is_used_stays"),
    (ExpiresEverything, "test_what_nobody_uses_expires_and_says_so_while_what_is_used_stays"),
    (ForgetsOnClose, "test_pages_are_found_by_the_next_store"),
    (NeverClosed, "test_a_closed_store_says_so"),
    (NeverClosed, "test_a_forked_child_is_refused_and_the_parent_goes_on"),
    (OverlooksSalt, "test_equal_digests_of_two_namespaces_keep_their_own_bytes"),
]


@pytest.mark.parametrize(("broken", "promise"), CASES)
def test_a_broken_backend_fails(
    broken: Opener, promise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)  # where pytest takes seconds to compare bytes in full
    monkeypatch.setattr(limits, "_until", _until_soon)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        _run(Broken(broken), promise)


@pytest.mark.parametrize("promise", sorted({promise for _, promise in CASES}))
def test_a_sound_backend_passes_the_same(promise: str) -> None:
    _run(RawMemory(), promise)


def _until_soon(happened: Callable[[], bool]) -> None:
    """As of the suite, for what never happens."""
    give_up = time.monotonic() + 2
    while not happened():
        assert time.monotonic() < give_up
        time.sleep(0.005)


def _run(medium: RawMemory, promise: str) -> None:
    """One test of the suite, with fixtures made here."""
    suite = PageStorageConformance()
    suite.other_bytes = NAMESPACE.page_bytes
    fixtures: dict[str, Callable[[], object]] = {
        "medium": lambda: medium,
        "storage": lambda: medium.open(NAMESPACE),
        "small": lambda: medium.open(NAMESPACE, capacity_pages=CAPACITY),
        "other": lambda: medium.open(variant("salt")),
        "count": lambda: 8,
        "bit": lambda: 1000,
        "call": lambda: "contains",
    }
    test = getattr(suite, promise)
    test(**{name: fixtures[name]() for name in inspect.signature(test).parameters})
