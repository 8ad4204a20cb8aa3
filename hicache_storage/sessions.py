"""One registry for a storage that lies on several media: a session a store, asked as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from hicache_backends.deadline import Deadline
from hicache_backends.errors import RegistryError
from hicache_backends.segment.format import Location
from hicache_backends.storage import UNKNOWN, PageEntry
from kvmanager.model import Claim, Lookup, Orders, Published, Removal, State
from kvmanager.registry import Registry
from kvmanager.reports import Totals

_TOKEN_BYTES = 8


class _Each:
    """Every session gets its share, so that each journals what it could not send; the first
    failure is raised when all have been asked."""

    def __init__(self) -> None:
        self._error: RegistryError | None = None

    def __enter__(self) -> _Each:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._error is not None and raised[0] is None:
            raise self._error

    @contextmanager
    def attempt(self) -> Iterator[None]:
        try:
            yield
        except RegistryError as error:
            self._error = self._error or error


class RegistrySet(Registry):
    """Sessions of the stores of one storage.

    `sessions`: by store uuid, the first answers lookups, which name their media themselves.
    `store_of`: the store that a page of this digest would be put into.
    """

    def __init__(
        self, sessions: Mapping[bytes, Registry], store_of: Callable[[bytes], bytes]
    ) -> None:
        self._sessions = dict(sessions)
        self._numbers = {store: n for n, store in enumerate(sessions)}
        self._first = next(iter(self._sessions.values()))
        self._store_of = store_of

    @property
    def state(self) -> State:
        states = [session.state for session in self._sessions.values()]
        worst = (State.DOWN, State.REBUILDING)
        return next((state for state in worst if state in states), State.UP)

    def lookup(
        self,
        digests: Sequence[bytes],
        media: Sequence[bytes],
        deadline: Deadline,
        *,
        prefix: bool = True,
        why: bool = True,
    ) -> Lookup:
        return self._first.lookup(digests, media, deadline, prefix=prefix, why=why)

    def claim(
        self, digests: Sequence[bytes], deadline: Deadline, *, token: bytes = b""
    ) -> tuple[bytes, list[Claim]]:
        """The token is those of all sessions, one behind the other."""
        claims = [Claim.GRANTED] * len(digests)
        tokens = [b"\0" * _TOKEN_BYTES] * len(self._sessions)
        for store, rows in self._by_store([self._store_of(d) for d in digests]).items():
            number = self._numbers[store]
            tokens[number], answers = self._sessions[store].claim(
                [digests[i] for i in rows], deadline, token=self._token(token, store)
            )
            for i, answer in zip(rows, answers, strict=True):
                claims[i] = answer
        return b"".join(tokens), claims

    def publish(
        self, entries: Sequence[PageEntry], token: bytes, deadline: Deadline
    ) -> list[Published]:
        published = [Published.OK] * len(entries)
        with _Each() as each:
            for store, rows in self._by_location(entries).items():
                with each.attempt():
                    answers = self._sessions[store].publish(
                        [entries[i] for i in rows], self._token(token, store), deadline
                    )
                    for i, answer in zip(rows, answers, strict=True):
                        published[i] = answer
            with each.attempt():
                self._release_strays(entries, token, deadline)
        return published

    def abort(self, digests: Sequence[bytes], token: bytes, deadline: Deadline) -> None:
        with _Each() as each:
            for store, rows in self._by_store([self._store_of(d) for d in digests]).items():
                with each.attempt():
                    chosen = [digests[i] for i in rows]
                    self._sessions[store].abort(chosen, self._token(token, store), deadline)

    def remove(
        self,
        entries: Sequence[PageEntry],
        deadline: Deadline,
        *,
        touched_ms: Sequence[int] | None = None,
    ) -> list[Removal]:
        removals = [Removal.REMOVED] * len(entries)
        with _Each() as each:
            for store, rows in self._by_location(entries).items():
                with each.attempt():
                    answers = self._sessions[store].remove(
                        [entries[i] for i in rows],
                        deadline,
                        touched_ms=None if touched_ms is None else [touched_ms[i] for i in rows],
                    )
                    for i, answer in zip(rows, answers, strict=True):
                        removals[i] = answer
        return removals

    def report_bad(
        self, digest: bytes, location: bytes, deadline: Deadline, *, parent: bytes = UNKNOWN
    ) -> None:
        self._first.report_bad(digest, location, deadline, parent=parent)

    def clear_namespace(self, deadline: Deadline) -> int:
        return self._first.clear_namespace(deadline)

    def start(self, on_orders: Callable[[Orders], None]) -> None:
        limits: dict[bytes, int | None] = dict.fromkeys(self._sessions)

        def relay(store: bytes, orders: Orders) -> None:
            """The limit of the storage is the sum of those of its stores."""
            limits[store] = orders.limit_bytes
            known = [limit for limit in limits.values() if limit is not None]
            total = sum(known) if len(known) == len(limits) else None
            on_orders(replace(orders, limit_bytes=total))

        for store, session in self._sessions.items():
            session.start(partial(relay, store))

    def report(self, source: Callable[[], Totals]) -> None:
        self._first.report(source)  # what it says is about all of them

    def close(self, timeout_ms: float = 2000) -> None:
        for session in self._sessions.values():
            session.close(timeout_ms / len(self._sessions))

    def stats(self) -> dict[str, int | float | str]:
        return {
            f"{name}_{number}" if number else name: value
            for number, session in enumerate(self._sessions.values())
            for name, value in session.stats().items()
        }

    def _release_strays(
        self, entries: Sequence[PageEntry], token: bytes, deadline: Deadline
    ) -> None:
        """Claims of pages that were put on another root than their own, which was full."""
        homes = [self._store_of(entry.digest) for entry in entries]
        strays = [
            entry.digest
            for entry, home in zip(entries, homes, strict=True)
            if Location.unpack(entry.location).store != home
        ]
        if strays and token:
            self.abort(strays, token, deadline)

    def _token(self, token: bytes, store: bytes) -> bytes:
        start = self._numbers[store] * _TOKEN_BYTES
        return (
            token[start : start + _TOKEN_BYTES].strip(b"\0") and token[start : start + _TOKEN_BYTES]
        )

    def _by_location(self, entries: Sequence[PageEntry]) -> dict[bytes, list[int]]:
        return self._by_store([Location.unpack(entry.location).store for entry in entries])

    def _by_store(self, stores: Sequence[bytes]) -> dict[bytes, list[int]]:
        rows: dict[bytes, list[int]] = {}
        for i, store in enumerate(stores):
            if store in self._sessions:
                rows.setdefault(store, []).append(i)
        return rows
