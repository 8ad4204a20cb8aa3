"""The registry over Redis: one member's session, for threads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from hicache_backends.deadline import Deadline
from hicache_backends.errors import RegistryError, RegistryUnavailable
from hicache_backends.identity import Namespace
from hicache_backends.storage import UNKNOWN, PageEntry
from kvmanager.connection import ChannelPool
from kvmanager.core import SessionCore, most_pages
from kvmanager.driver import Driver
from kvmanager.flow import Flow, T
from kvmanager.heartbeat import Heartbeat
from kvmanager.model import Claim, EntrySource, Lookup, Member, Orders, Published, Removal, State
from kvmanager.options import RegistryOptions
from kvmanager.recovery import Recovery
from kvmanager.registry import Registry
from kvmanager.replies import EpochMoved, Forgotten
from kvmanager.reports import Totals
from kvmanager.resp import NoScript
from kvmanager.upkeep import Upkeep
from kvmanager.wire import Wire

_log = logging.getLogger(__name__)


class RedisRegistry(Registry):
    """Lookups and claims run side by side, each over a connection of its own; the mutations of a
    store go one after another."""

    def __init__(
        self,
        pool: ChannelPool,
        namespace: Namespace,
        member: Member,
        options: RegistryOptions,
        entries: EntrySource | None = None,
        *,
        revive: Callable[[], None] = lambda: None,
        release: Callable[[], None] = lambda: None,
        speaks: type[Wire] = Wire,
    ) -> None:
        """`revive` is called before a server that is down is asked again, `release` at the end;
        `speaks` is the language of the connections that `pool` makes."""
        self._options = options
        self._release = release
        self._announces = entries is not None
        self.sending = threading.Lock()
        self.driver = Driver(pool, options)
        self.core = SessionCore(namespace, member, options, self._wake, speaks)
        recovery = Recovery(self.core, entries)
        self._upkeep = Upkeep(self.core, self.driver, recovery, self.sending, revive)
        self._heartbeat = Heartbeat(self._upkeep, self.driver, options)

    @property
    def state(self) -> State:
        if self.driver.closed or self.driver.breaker.is_open or not self.core.joined:
            return State.DOWN
        return State.UP if self.core.in_step else State.REBUILDING

    def lookup(
        self,
        digests: Sequence[bytes],
        media: Sequence[bytes],
        deadline: Deadline,
        *,
        prefix: bool = True,
        why: bool = True,
    ) -> Lookup:
        core, deadline = self.core, self.driver.limit(deadline)
        few = 0 < len(digests) <= most_pages(media)
        if few and prefix and not why and core.may_probe(media):
            with suppress(NoScript, EpochMoved, Forgotten):  # a flow knows what to do
                reply = self.driver.probe(core.probe(digests, media, why=False), deadline)
                return core.found(reply, len(digests))
        return self.driver.run(core.lookup(digests, media, prefix=prefix, why=why), deadline)

    def claim(
        self, digests: Sequence[bytes], deadline: Deadline, *, token: bytes = b""
    ) -> tuple[bytes, list[Claim]]:
        ttl_ms = deadline.remaining_ms() + self._options.claim_grace_ms
        return self._read(self.core.claim(digests, ttl_ms, token), deadline)

    def publish(
        self, entries: Sequence[PageEntry], token: bytes, deadline: Deadline
    ) -> list[Published]:
        return self._mutate(lambda: self.core.publish(entries, token), deadline)

    def abort(self, digests: Sequence[bytes], token: bytes, deadline: Deadline) -> None:
        self._read(self.core.abort(digests, token), deadline)

    def remove(
        self,
        entries: Sequence[PageEntry],
        deadline: Deadline,
        *,
        touched_ms: Sequence[int] | None = None,
    ) -> list[Removal]:
        return self._mutate(lambda: self.core.remove(entries, touched_ms), deadline)

    def report_bad(
        self, digest: bytes, location: bytes, deadline: Deadline, *, parent: bytes = UNKNOWN
    ) -> None:
        self._read(self.core.report_bad(digest, location, parent), deadline)

    def clear_namespace(self, deadline: Deadline) -> int:
        return self._read(self.core.clear_namespace(), deadline)

    def start(self, on_orders: Callable[[Orders], None]) -> None:
        self._heartbeat.begin(on_orders)

    def report(self, source: Callable[[], Totals]) -> None:
        self._upkeep.report_from(source)

    def join(self, deadline: Deadline) -> None:
        """Register now, in this thread. Raises RegistryError; unavailable means down from now."""
        try:
            orders = self._upkeep.beat(deadline)
        except RegistryUnavailable as error:
            self.driver.failed(str(error), at_once=True)
            raise
        if not orders.clear:
            self.core.obeyed = orders.epoch
            self._upkeep.step()  # mutations count from here; pages are announced in the background
            if not self._announces:
                self._upkeep.catch_up(threading.Event(), deadline)

    def close(self, timeout_ms: float = 2000) -> None:
        if self.driver.closed or self.driver.forked:
            return
        self.driver.closed = True
        deadline = Deadline.after_ms(timeout_ms)
        if self._heartbeat.end(deadline):
            if not self.driver.breaker.is_open:
                self._take_leave(deadline)
            self._upkeep.disconnect()
        self.driver.pool.clear()
        self._release()

    def _take_leave(self, deadline: Deadline) -> None:
        try:
            self._upkeep.catch_up(threading.Event(), deadline)
            self._upkeep.report(deadline, last=True)
            self._upkeep.leave(deadline)
        except (RegistryError, ValueError) as error:
            _log.info("left the registry without a word: %s", error)

    def stats(self) -> dict[str, int | float | str]:
        return {
            "calls": self.driver.calls,
            "round_trips": self.driver.round_trips,
            "failures": self.driver.failures,
            "breaker_open": int(self.driver.breaker.is_open),
            "heartbeats": self._heartbeat.beats,
            "journal_entries": len(self.core.journal),
            **self.core.counters,
        }

    def _wake(self) -> None:
        self._heartbeat.wake()

    def _read(self, flow: Flow[T], deadline: Deadline) -> T:
        return self.driver.run(flow, self.driver.limit(deadline))

    def _mutate(self, call: Callable[[], Flow[T]], deadline: Deadline) -> T:
        if self.driver.forked:
            self.driver.check()
        deadline = self.driver.limit(deadline)
        alone = self.sending.acquire(timeout=deadline.remaining_ms() / 1000)
        try:
            flow = call()  # from here on it is in the journal
            if not alone:
                raise RegistryUnavailable("another mutation of this store waits for its reply")
            return self.driver.run(flow, deadline)
        except RegistryError:
            self.core.lagging()
            raise
        finally:
            if alone:
                self.sending.release()
