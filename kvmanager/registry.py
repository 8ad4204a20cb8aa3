"""The registry as a store sees it: small batched calls, each one round trip.

Every call returns by its deadline or raises a `RegistryError`. While the registry is down the
calls raise `RegistryUnavailable` at once; mutations made meanwhile are journalled by the session
and replayed later. Nothing here is needed to read a page that the own index knows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from hicache_backends.deadline import Deadline
from hicache_backends.storage import UNKNOWN, PageEntry
from kvmanager.model import Claim, Lookup, Orders, Published, Removal, State
from kvmanager.reports import Totals


class Registry(ABC):
    """One member's session with the registry, within one namespace. Thread safe."""

    @property
    @abstractmethod
    def state(self) -> State:
        """How much the registry can be believed right now."""

    @abstractmethod
    def lookup(
        self,
        digests: Sequence[bytes],
        media: Sequence[bytes],
        deadline: Deadline,
        *,
        prefix: bool = True,
        why: bool = True,
    ) -> Lookup:
        """Where each page is, on a medium of `media` (nearest first). With `prefix` the search
        stops at the first page that is nowhere; the rest have the same reason. Hits are counted
        and touched. Without `why` a page that is nowhere may have no better reason than that."""

    @abstractmethod
    def claim(
        self, digests: Sequence[bytes], deadline: Deadline, *, token: bytes = b""
    ) -> tuple[bytes, list[Claim]]:
        """The right to write pages on the own medium, and the token that proves it (8 bytes).
        A claim lasts until the deadline and a grace; with the `token` of an earlier claim it is
        renewed."""

    @abstractmethod
    def publish(
        self, entries: Sequence[PageEntry], token: bytes, deadline: Deadline
    ) -> list[Published]:
        """Make written pages known; gives the claims up. `token` b"" where nothing was claimed.
        An expired token still publishes if nobody else has. When the registry is down the
        entries are journalled before the error is raised."""

    @abstractmethod
    def abort(self, digests: Sequence[bytes], token: bytes, deadline: Deadline) -> None:
        """Give up claims without publishing."""

    @abstractmethod
    def remove(
        self,
        entries: Sequence[PageEntry],
        deadline: Deadline,
        *,
        touched_ms: Sequence[int] | None = None,
    ) -> list[Removal]:
        """Forget the own store's pages whose location is still the given one. With `touched_ms`
        (milliseconds since the owner last used each) pages used by another process since, and
        pages whose followers are still stored, are kept and said so. Journalled when down."""

    @abstractmethod
    def report_bad(
        self, digest: bytes, location: bytes, deadline: Deadline, *, parent: bytes = UNKNOWN
    ) -> None:
        """The page at this location was read and is wrong, or is no longer there: the entry goes
        if it still says so, and its owner is told."""

    @abstractmethod
    def clear_namespace(self, deadline: Deadline) -> int:
        """Void every entry of the namespace by raising its epoch, which is returned. Owners drop
        their pages at their next heartbeat."""

    @abstractmethod
    def start(self, on_orders: Callable[[Orders], None]) -> None:
        """Register and begin to send heartbeats, in a daemon thread. Returns at once, whether
        or not the registry is up."""

    def report(self, source: Callable[[], Totals]) -> None:
        """From `start` on, tell the registry every ten seconds, and at the end, what `source` says
        then. Counters that it could not take are told later."""
        return

    @abstractmethod
    def close(self, timeout_ms: float = 2000) -> None:
        """Leave: stop the heartbeat, flush what is journalled, deregister. Never raises."""

    def stats(self) -> dict[str, int | float | str]:
        """Counters: calls, failures, round trips, journal length, announcements, ..."""
        return {}
