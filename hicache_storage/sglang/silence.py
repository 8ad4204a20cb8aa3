"""One warning where pages are stored and nothing is ever hit, with the likely cause."""

from __future__ import annotations

import dataclasses
import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

from hicache_backends.errors import HiCacheError
from hicache_backends.identity import Namespace
from hicache_backends.outcomes import Outcome, Reason

MIN_PAGES = 1000
MIN_SECONDS = 60.0
_MISSED_KEPT = 64
_RANK = re.compile(r"\b(tp|pp) \d+/")
_log = logging.getLogger(__name__)

Explain = Callable[[Sequence[str]], Sequence[Outcome]]
Neighbours = Callable[[], Sequence[Namespace]]


class SilentZero:
    """Watches one rank's calls until its first page is read. Thread safe.

    `explain`: why pages are missed. `neighbours`: other namespaces that hold pages where these
    are kept. It speaks after `min_pages` stored and `min_seconds` since the first of them.
    """

    def __init__(
        self,
        namespace: Namespace,
        explain: Explain,
        neighbours: Neighbours,
        *,
        min_pages: int = MIN_PAGES,
        min_seconds: float = MIN_SECONDS,
    ) -> None:
        self._namespace = namespace
        self._explain = explain
        self._neighbours = neighbours
        self._min_pages = min_pages
        self._min_seconds = min_seconds
        self._over = self._hit = False
        self._since: float | None = None
        self._stored = self._asked = self._found = 0
        self._missed: Sequence[str] = ()
        self._lock = threading.Lock()

    def asked(self, keys: Sequence[str], found: int) -> None:
        """SGLang asked for these pages, and so many were there from the start."""
        if self._over:
            return
        with self._lock:
            self._asked += len(keys)
            self._found += found
            if found < len(keys):
                self._missed = tuple(keys[found : found + _MISSED_KEPT])
        self._look()

    def stored(self, pages: int) -> None:
        """So many pages were stored, or found to be stored already."""
        if self._over or not pages:
            return
        with self._lock:
            self._stored += pages
            if self._since is None:
                self._since = time.monotonic()
        self._look()

    def read(self, hits: int) -> None:
        """So many pages were read: with the first one there is nothing to warn of any more."""
        if hits:
            self._over = self._hit = True

    def cause(self) -> str:
        """Why nothing was hit, as far as the counters tell."""
        if not self._asked:
            return (
                "SGLang never asked: prompts are shorter than prefetch_threshold, or all they "
                "share is still in its upper levels"
            )
        if self._found:
            return (
                f"{self._found} pages were found here but SGLang read none of them: another rank "
                "misses them, the hit is below prefetch_threshold, or its host memory was full"
            )
        reasons = Counter(outcome.reason for outcome in self._outcomes() if not outcome.ok)
        reason = reasons.most_common(1)[0][0] if reasons else None
        if reason is Reason.EVICTED:
            return "they were evicted before they were asked for: raise the capacity"
        if reason not in (None, Reason.NEVER_WRITTEN):
            return f"the pages asked for are missed because of {reason.value}"
        if differing := self._other_namespaces():
            return f"pages of this model are kept under another namespace, with another {differing}"
        return (
            "the pages asked for were never stored: prompts have no beginning in common (a time or "
            "an id in the system prompt?)"
        )

    def _look(self) -> None:
        with self._lock:
            waited = self._since is not None and time.monotonic() - self._since >= self._min_seconds
            enough = self._stored >= self._min_pages
            # asked a little is too early to tell; not asked at all tells
            told = self._asked == 0 or self._asked >= self._min_pages
            if self._over or not (waited and enough and told):
                return
            self._over = True
        # looking into the reasons takes locks and reads: not in a thread that SGLang waits for
        threading.Thread(target=self._warn, name="hicache-silent-zero", daemon=True).start()

    def _warn(self) -> None:
        try:
            cause = self.cause()
        except Exception as error:  # nobody waits for this thread, and nobody may suffer from it
            cause = f"unknown ({error})"
        if self._hit:
            return
        _log.warning(
            "%d pages were stored and not one was hit in %.0f s: %s",
            self._stored,
            time.monotonic() - (self._since or 0.0),
            cause,
        )

    def _outcomes(self) -> Sequence[Outcome]:
        try:
            return self._explain(self._missed)
        except HiCacheError:
            return ()

    def _other_namespaces(self) -> str:
        """In what the most similar namespace of the same model and pool differs from this one."""
        own = self._namespace
        try:
            found = [n for n in self._neighbours() if (n.model, n.pool) == (own.model, own.pool)]
        except (HiCacheError, OSError):
            return ""
        others = [fields for fields in (_differing(own, other) for other in found) if fields]
        closest: list[str] = min(others, key=len, default=[])
        return ", ".join(closest)


def _differing(own: Namespace, other: Namespace) -> list[str]:
    """What differs, but for what tells the ranks of one server apart."""
    ours, theirs = _without_rank(own), _without_rank(other)
    return [
        f"{field.name} ({getattr(theirs, field.name)!r} there, {value!r} here)"
        for field in dataclasses.fields(Namespace)
        if (value := getattr(ours, field.name)) != getattr(theirs, field.name)
        # stages of a pipeline may have different numbers of layers
        and not (field.name == "page_bytes" and own.layers != other.layers)
    ]


def _without_rank(namespace: Namespace) -> Namespace:
    """The namespace of the first rank of the same server."""
    low, high = namespace.kv_heads
    return dataclasses.replace(
        namespace,
        layers=(0, 0),
        kv_heads=(0, high - low),
        token_shard=(0, namespace.token_shard[1]),
        salt=_RANK.sub(r"\1 0/", namespace.salt),
    )
