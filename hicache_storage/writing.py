"""Storing pages: claim, write, make known."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from hicache_backends.deadline import Deadline
from hicache_backends.errors import RegistryError, StorageError
from hicache_backends.outcomes import TIMED_OUT, Outcome, Reason
from hicache_backends.pages import Pages
from hicache_backends.storage import PageEntry, PageStorage
from hicache_storage.tally import Tally
from hicache_storage.throttle import LoadsFirst, RateCap
from kvmanager.model import Claim, Published
from kvmanager.registry import Registry

STORED_BY_OTHERS = Outcome(True, detail="stored by another process", existed=True)
BEING_WRITTEN = Outcome(True, detail="being written by another call", existed=True)

_LAST_WORD_MS = 20
"""So long the registry may take when the deadline is over; then the session sends it later."""


class Writer:
    """The stores of one page store."""

    def __init__(
        self,
        storage: PageStorage,
        registry: Registry | None,
        cap: RateCap,
        turns: LoadsFirst,
        batch_pages: int,
        tally: Tally,
    ) -> None:
        self._storage = storage
        self._registry = registry
        self._cap = cap
        self._turns = turns
        self._batch_pages = batch_pages
        self._tally = tally

    def set(
        self, digests: Sequence[bytes], pages: Pages, parent: bytes, deadline: Deadline
    ) -> list[Outcome]:
        """One outcome a page, in order. `parent`: the digest before the first page."""
        parents = [parent, *digests[:-1]]
        outcomes: list[Outcome] = []
        for start in range(0, len(digests), self._batch_pages):
            part = slice(start, start + self._batch_pages)
            chunk = pages[part]
            self._turns.before_store(deadline)
            if deadline.passed or not self._cap.take(len(chunk) * pages.page_bytes, deadline):
                outcomes += [TIMED_OUT] * (len(digests) - start)
                break
            outcomes += self._set_chunk(digests[part], chunk, parents[part], deadline)
        return outcomes

    def _set_chunk(
        self, digests: Sequence[bytes], pages: Pages, parents: Sequence[bytes], deadline: Deadline
    ) -> list[Outcome]:
        token, claims, absent = self._claim(digests, deadline)
        mine = [i for i, claim in enumerate(claims) if claim is Claim.GRANTED]
        outcomes = [
            BEING_WRITTEN if claim is Claim.ELSEWHERE else STORED_BY_OTHERS for claim in claims
        ]
        if not mine:
            return outcomes
        chosen = [digests[i] for i in mine]
        their_parents = [parents[i] for i in mine]
        try:
            written = self._storage.put(chosen, pages[mine], their_parents, deadline)
        except StorageError:
            self._abort(chosen, token, deadline)
            raise
        for i, outcome in zip(mine, written, strict=True):
            another = outcome.reason is Reason.BEING_WRITTEN
            outcomes[i] = BEING_WRITTEN if another else outcome
        if self._storage.capabilities.keyed:  # what others put there without telling is told by us
            fresh = [outcome.ok and i in absent for i, outcome in zip(mine, written, strict=True)]
        else:
            fresh = [outcome.ok and not outcome.existed for outcome in written]
        self._publish(chosen, their_parents, written, fresh, token, deadline)
        return outcomes

    def _claim(
        self, digests: Sequence[bytes], deadline: Deadline
    ) -> tuple[bytes, list[Claim], Collection[int]]:
        """Who may write what, and which pages the own index lacks. Pages that are here already
        are put again: that touches them."""
        everything = [Claim.GRANTED] * len(digests)
        if self._registry is None or not self._storage.capabilities.locations:
            return b"", everything, ()
        held = self._storage.contains(digests)
        absent = [i for i, here in enumerate(held) if not here]
        if not absent:
            return b"", everything, ()
        # half the time: the write must still fit in when the registry is stuck
        share = Deadline.after_ms(max(deadline.remaining_ms() / 2, 1))
        began_ns = time.monotonic_ns()
        try:
            token, claims = self._registry.claim([digests[i] for i in absent], share)
        except RegistryError:
            return b"", everything, absent  # two copies of a page are a waste, not a fault
        finally:
            self._tally.asked("claim", began_ns, share)
        for i, claim in zip(absent, claims, strict=True):
            everything[i] = claim
        return token, everything, absent

    def _publish(
        self,
        digests: list[bytes],
        parents: list[bytes],
        written: list[Outcome],
        fresh: list[bool],
        token: bytes,
        deadline: Deadline,
    ) -> None:
        if self._registry is None:
            return
        entries = [
            PageEntry(digest, parent, outcome.location)
            for digest, parent, outcome, new in zip(digests, parents, written, fresh, strict=True)
            if new and outcome.location
        ]
        failed = [d for d, outcome in zip(digests, written, strict=True) if not outcome.ok]
        if failed:
            self._abort(failed, token, deadline)
        if not entries:
            return
        until, began_ns = _at_least(deadline, _LAST_WORD_MS), time.monotonic_ns()
        try:
            answers = self._registry.publish(entries, token, until)
        except RegistryError:
            return  # the session has journalled it
        finally:
            self._tally.asked("publish", began_ns, until)
        lost = [e.digest for e, a in zip(entries, answers, strict=True) if a is Published.DUPLICATE]
        if lost and not self._storage.capabilities.keyed:
            self._storage.remove(lost)

    def _abort(self, digests: list[bytes], token: bytes, deadline: Deadline) -> None:
        if self._registry is None or not token:
            return
        try:
            self._registry.abort(digests, token, _at_least(deadline, _LAST_WORD_MS))
        except RegistryError:
            return  # the claim ends by itself


def _at_least(deadline: Deadline, ms: float) -> Deadline:
    return deadline if deadline.remaining_ms() >= ms else Deadline.after_ms(ms)
