"""Finding and reading pages: own index first, then one question to the registry."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence

from hicache_backends.deadline import Deadline
from hicache_backends.errors import RegistryError, StaleEpoch
from hicache_backends.outcomes import TIMED_OUT, Outcome, Reason, miss
from hicache_backends.pages import Pages
from hicache_backends.storage import PageStorage
from hicache_storage.metrics import Metrics
from hicache_storage.throttle import LoadsFirst, RateCap
from kvmanager.model import Lookup, State
from kvmanager.registry import Registry

_MOST_REPORTS = 8
"""Bad pages that one call reports, a round trip each; others are reported when met again."""
_DOUBTFUL = (Reason.STALE_LOCATION, Reason.CHECKSUM, Reason.IO_ERROR)
_INTEGRITY: dict[Reason | None, str] = {
    Reason.STALE_LOCATION: "integrity.stale",
    Reason.CHECKSUM: "integrity.checksum",
}


class Reader:
    """The loads of one page store."""

    def __init__(
        self,
        storage: PageStorage,
        registry: Registry | None,
        cap: RateCap,
        turns: LoadsFirst,
        batch_pages: int,
        metrics: Metrics,
    ) -> None:
        self._storage = storage
        self._registry = registry
        self._cap = cap
        self._turns = turns
        self._batch_pages = batch_pages
        self._metrics = metrics
        self._tally = metrics.tally
        self.second_looks = 0

    def exists(self, digests: Sequence[bytes], deadline: Deadline) -> tuple[int, Reason | None]:
        """How many pages from the start are in the own index or known to the registry, and why
        the next one is not, as far as that is known without asking further."""
        held = self._storage.contains(digests)
        if False not in held:
            return len(digests), None
        if self._registry is None:
            found = held.index(False)
            return found, self._storage.explain(digests[found]).reason
        missing = [digest for digest, here in zip(digests, held, strict=True) if not here]
        answer = self._ask(missing, deadline, prefix=True, why=False)
        found = answer.prefix
        if found == len(missing):
            return len(digests), None
        reason = answer.reasons[found]
        if reason is Reason.NEVER_WRITTEN:
            reason = self._storage.explain(missing[found]).reason
        return digests.index(missing[found]), reason

    def present(self, digests: Sequence[bytes], deadline: Deadline) -> list[bool]:
        """For each page whether it is in the own index or known to the registry."""
        held = list(self._storage.contains(digests))
        absent = [i for i, here in enumerate(held) if not here]
        if absent and self._registry is not None:
            answer = self._ask([digests[i] for i in absent], deadline, prefix=False, why=False)
            for i, location in zip(absent, answer.locations, strict=True):
                held[i] = bool(location)
        return held

    def get(self, digests: Sequence[bytes], pages: Pages, deadline: Deadline) -> list[Outcome]:
        """One outcome a page, in order; the whole call looks up at most twice."""
        locations, reasons = self._locate(digests, deadline)
        with self._turns.load():
            outcomes = self._read(digests, pages, locations, deadline)
            bad = [i for i, o in enumerate(outcomes) if o.reason in _DOUBTFUL]
            if bad:
                self._count_bad(outcomes[i].reason for i in bad)
            doubtful = [i for i in bad if locations[i]]
            if doubtful:
                self._look_again(doubtful, digests, pages, locations, outcomes, deadline)
        for i, reason in enumerate(reasons):
            if reason is not None and outcomes[i].reason is Reason.NEVER_WRITTEN:
                outcomes[i] = miss(reason)
        return outcomes

    def explain(self, digests: Sequence[bytes], deadline: Deadline) -> list[Outcome]:
        """Why each page would be missed right now; reads no page."""
        locations, reasons = self._locate(digests, deadline)
        outcomes = []
        for digest, location, reason in zip(digests, locations, reasons, strict=True):
            here = Outcome(True) if location else self._storage.explain(digest)
            if here.reason is Reason.NEVER_WRITTEN and reason is not None:
                here = miss(reason)
            outcomes.append(here)
        return outcomes

    def _read(
        self, digests: Sequence[bytes], pages: Pages, locations: list[bytes], deadline: Deadline
    ) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for start in range(0, len(digests), self._batch_pages):
            part = slice(start, start + self._batch_pages)
            chunk = pages[part]
            if deadline.passed or not self._cap.take(len(chunk) * pages.page_bytes, deadline):
                outcomes += [TIMED_OUT] * (len(digests) - start)
                break
            outcomes += self._storage.get(digests[part], chunk, deadline, locations[part])
        return outcomes

    def _locate(
        self, digests: Sequence[bytes], deadline: Deadline
    ) -> tuple[list[bytes], list[Reason | None]]:
        """Locations of the pages that the own index lacks (b"" for the others), and why none."""
        locations = [b""] * len(digests)
        reasons: list[Reason | None] = [None] * len(digests)
        if self._registry is not None:
            held = self._storage.contains(digests)
            absent = [i for i, here in enumerate(held) if not here]
            if absent:
                answer = self._ask([digests[i] for i in absent], deadline, prefix=False)
                for i, location, reason in zip(
                    absent, answer.locations, answer.reasons, strict=True
                ):
                    locations[i] = location
                    reasons[i] = reason
        return locations, reasons

    def _ask(
        self, digests: list[bytes], deadline: Deadline, *, prefix: bool, why: bool = True
    ) -> Lookup:
        """A lookup that answers whatever happens: no answer is a miss with its reason."""
        registry = self._registry
        assert registry is not None, "asked without a registry"  # noqa: S101 - narrows the type
        # half the time: what the own index knows must still be read before the deadline
        now_ns = time.monotonic_ns()
        share = Deadline(now_ns + max(deadline.at_ns - now_ns, 2_000_000) // 2)
        try:
            media = self._storage.media
            answer = registry.lookup(digests, media, share, prefix=prefix, why=why)
        except StaleEpoch:
            return _nowhere(len(digests), Reason.NEVER_WRITTEN)
        except RegistryError:
            return _nowhere(len(digests), Reason.REGISTRY_DOWN)
        finally:
            self._tally.asked("lookup", now_ns, share)
        if why and registry.state is State.REBUILDING:
            rebuilt: list[Reason | None] = [
                Reason.REGISTRY_REBUILDING if reason is Reason.NEVER_WRITTEN else reason
                for reason in answer.reasons
            ]
            return Lookup(answer.locations, rebuilt)
        return answer

    def _look_again(
        self,
        doubtful: list[int],
        digests: Sequence[bytes],
        pages: Pages,
        locations: list[bytes],
        outcomes: list[Outcome],
        deadline: Deadline,
    ) -> None:
        """Pages that were wrong where the registry said: moved since, or really bad?"""
        self.second_looks += len(doubtful)
        answer = self._ask([digests[i] for i in doubtful], deadline, prefix=False)
        moved = []
        reports = 0
        for i, fresh in zip(doubtful, answer.locations, strict=True):
            if fresh and fresh != locations[i]:
                locations[i] = fresh
                moved.append(i)
            elif fresh and outcomes[i].reason is not Reason.IO_ERROR:
                reports += 1
                if reports <= _MOST_REPORTS:
                    self._report(digests[i], fresh, deadline)
            elif fresh:
                continue  # the trouble may be this host's alone
            else:
                outcomes[i] = miss(Reason.STALE_LOCATION)
        if moved:
            again = self._storage.get(
                [digests[i] for i in moved],
                pages[moved],
                deadline,
                [locations[i] for i in moved],
            )
            for i, outcome in zip(moved, again, strict=True):
                outcomes[i] = outcome

    def _count_bad(self, reasons: Iterable[Reason | None]) -> None:
        counts = Counter(_INTEGRITY[reason] for reason in reasons if reason in _INTEGRITY)
        self._metrics.count(*counts.items())

    def _report(self, digest: bytes, location: bytes, deadline: Deadline) -> None:
        if self._registry is None:
            return
        try:
            self._registry.report_bad(digest, location, deadline)
        except RegistryError:
            return  # the next reader will find it as bad and report it again
        self._metrics.count(("integrity.reported", 1))


def _nowhere(n: int, reason: Reason) -> Lookup:
    return Lookup([b""] * n, [reason] * n)
