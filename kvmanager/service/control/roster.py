"""All namespaces and processes, as several requests at once want them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from hicache_backends.errors import RegistryError, RegistryRefused, RegistryUnavailable
from kvmanager import keys
from kvmanager.control import namespaces, processes
from kvmanager.control.namespaces import NamespaceRecord
from kvmanager.control.processes import ProcessRecord
from kvmanager.flow import Flow, T
from kvmanager.service.codec import Refusal

A = TypeVar("A")
B = TypeVar("B")

FRESH_S = 2.0
"""A list of all is used again for so long."""
MAX_NAMESPACES = 65_536
MAX_PROCESSES = 65_536
_TAGS_A_STEP = 256
_AT_ONCE = 16


class Run(Protocol):
    """Carries a flow out on the shard of a hash tag."""

    async def __call__(self, flow: Flow[T], tag: bytes) -> T: ...


class Kept(Generic[A]):
    """Something that is read at most once in `FRESH_S`, however many ask."""

    def __init__(self, read: Callable[[Run], Awaitable[list[A]]]) -> None:
        self._read = read
        self._rows: list[A] = []
        self._until_s = 0.0
        self._reading = asyncio.Lock()

    async def get(self, run: Run) -> list[A]:
        """Raises what `run` does."""
        async with self._reading:
            if time.monotonic() >= self._until_s:
                self._rows = await self._read(run)
                self._until_s = time.monotonic() + FRESH_S
            return self._rows

    def expire(self) -> None:
        """The next one that asks gets it as it is then."""
        self._until_s = 0.0


class Roster:
    """All namespaces and all processes."""

    def __init__(self) -> None:
        self._namespaces = Kept(read_all)
        self._processes = Kept(read_processes)

    async def all(self, run: Run) -> list[NamespaceRecord]:
        """All namespaces, in the order of their ids. Raises what `run` does."""
        return await self._namespaces.get(run)

    async def processes(self, run: Run) -> list[ProcessRecord]:
        """All processes, by namespace. Raises what `run` does."""
        return await self._processes.get(run)

    def expire(self) -> None:
        """Something was changed."""
        self._namespaces.expire()
        self._processes.expire()


async def read_tags(run: Run) -> list[bytes]:
    """The tags of all namespaces, at most `MAX_NAMESPACES`, in the order of their ids."""
    tags: set[bytes] = set()
    cursor = b"0"
    while len(tags) < MAX_NAMESPACES:
        cursor, some = await run(namespaces.tags(cursor, _TAGS_A_STEP), keys.TAGS)
        tags.update(some)
        if cursor == b"0":
            break
    return sorted(tags, key=namespaces.id_of)[:MAX_NAMESPACES]


@dataclass(frozen=True, slots=True)
class Present:
    """All namespaces, in the order of their ids. `tags`: of all that are listed; `silent`: of those
    whose shard did not answer."""

    records: Sequence[NamespaceRecord]
    tags: Sequence[bytes]
    silent: Sequence[bytes]


async def read_all(run: Run) -> list[NamespaceRecord]:
    """All namespaces, a few at once, in the order of their ids. Raises what `run` does: a list
    without what a shard has would look whole."""
    tags = await read_tags(run)
    records: list[NamespaceRecord] = []
    for start in range(0, len(tags), _AT_ONCE):
        some = (run(namespaces.describe(tag), tag) for tag in tags[start : start + _AT_ONCE])
        records += [record for record in await asyncio.gather(*some) if record is not None]
    return records


async def read_present(run: Run, before: Sequence[bytes] = ()) -> Present:
    """The same, as far as shards answer. `before`: the tags that there were, for when the shard of
    the list does not."""
    try:
        tags = await read_tags(run)
    except (RegistryUnavailable, Refusal):
        if not before:
            raise
        tags = list(before)
    found = await gathered(run, tags, _described, lambda tag: tag)
    silent = [tag for tag, answer in zip(tags, found, strict=True) if answer is None]
    records = [answer[0] for answer in found if answer is not None and answer[0] is not None]
    return Present(records, tags, silent)


async def gathered(
    run: Run, things: Sequence[A], flow: Callable[[A], Flow[B]], tag: Callable[[A], bytes]
) -> list[B | None]:
    """The flow of each, a few at once, in order; None where a shard does not answer, or holds what
    it should not: one hides no other."""

    async def one(thing: A) -> B | None:
        try:
            return await run(flow(thing), tag(thing))
        except (RegistryError, Refusal):
            return None

    done: list[B | None] = []
    for start in range(0, len(things), _AT_ONCE):
        done += await asyncio.gather(*map(one, things[start : start + _AT_ONCE]))
    return done


def _described(tag: bytes) -> Flow[tuple[NamespaceRecord | None]]:
    return ((yield from namespaces.describe(tag)),)


def _processes(record: NamespaceRecord) -> Flow[list[ProcessRecord]]:
    """None of one that is not as it should be, which must not hide the others."""
    try:
        return (yield from processes.of_namespace(record))
    except RegistryRefused as error:
        namespaces.note(record.tag, str(error))
        return []


async def read_processes(
    run: Run, records: Iterable[NamespaceRecord] | None = None
) -> list[ProcessRecord]:
    """The processes of these namespaces, or of all; at most `MAX_PROCESSES`."""
    wanted = list(await read_all(run) if records is None else records)
    found: list[ProcessRecord] = []
    for start in range(0, len(wanted), _AT_ONCE):
        some = wanted[start : start + _AT_ONCE]
        for read in await asyncio.gather(*(run(_processes(r), r.tag) for r in some)):
            found += read
        if len(found) >= MAX_PROCESSES:
            break
    return found[:MAX_PROCESSES]
