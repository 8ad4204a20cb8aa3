"""One member's session without its I/O: what is asked, in which order, and what answers mean.

Every call is a `Flow`: a generator that yields requests, is sent the reply to each (or thrown the
error that it says), and returns the call's result. The reply to a `Probe` is the list of locations
that it found, or the script's reply where it did not suffice. Whoever makes and drives the flow of
a mutation or a heartbeat holds the session's sending lock meanwhile, so that mutations reach the
registry in sequence, and calls `lagging` if the flow fails.
"""

from __future__ import annotations

import itertools
import secrets
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from hicache_backends.errors import RegistryError, RegistryUnavailable
from hicache_backends.identity import Namespace
from hicache_backends.outcomes import Reason
from hicache_backends.storage import UNKNOWN, PageEntry
from kvmanager import model, replies, wire
from kvmanager.flow import Flow, T, answer
from kvmanager.journal import Batch, Journal
from kvmanager.model import MAX_KEYS, MAX_PROBES, Claim, Lookup, Member, Orders, Published, Removal
from kvmanager.options import RegistryOptions
from kvmanager.probe import UNIT_MS, Probe, Routes, monotonic_units
from kvmanager.resp import Reply
from kvmanager.scripts import Call

OTHER_WRITER = "the registry has mutations of this store that it did not send; announcing all again"


class SessionCore:
    """State and calls of a session. `wake` is called when a heartbeat should come at once; `speaks`
    is how the calls are asked and answered."""

    def __init__(
        self,
        namespace: Namespace,
        member: Member,
        options: RegistryOptions,
        wake: Callable[[], None] = lambda: None,
        speaks: type[wire.Wire] = wire.Wire,
    ) -> None:
        self.member = member
        self.options = options
        self.wake = wake
        self.wire = speaks(namespace, member)
        self.routes = Routes(self.wire.tag, max(1, options.touch_interval_ms // UNIT_MS))
        self.journal = Journal(options.journal_entries)
        self.joined = False
        self.epoch = 0
        self.obeyed = -1  # the epoch whose clear the owner has carried out; -1: it cannot tell
        self.mode: str | None = None  # the ordered one that the owner has carried out
        # a random start keeps the numbers of one life apart from those of another
        self.sequence = secrets.randbits(40) << 12
        self.last = -1  # the sequence that the registry had when it last said so
        self.begin_anew = True  # nothing short of announcing all pages will do
        self.behind = True  # the registry may lack a mutation
        self.withdrawn: set[tuple[bytes, bytes]] | None = None  # removed since announcing began
        self.hits = 0  # found by probes since the last heartbeat, which counts them
        self.counters = {"stale_epochs": 0, "rejoined": 0, "replayed": 0, "announced": 0}
        self._numbering = threading.Lock()  # held while mutations take their sequence
        self._tokens = itertools.count(model.first_token(member.process, member.store))

    @property
    def in_step(self) -> bool:
        """Whether the registry knows every page of this store."""
        return self.joined and not self.behind and self.obeyed == self.epoch

    def lookup(
        self, digests: Sequence[bytes], media: Sequence[bytes], *, prefix: bool, why: bool
    ) -> Flow[Lookup]:
        """As `Registry.lookup`."""
        absent = Reason.NEVER_WRITTEN if self.in_step else Reason.REGISTRY_REBUILDING
        found = Lookup([], [])
        for chunk in _chunks(digests, most_pages(media)):
            call: Call | Probe
            if prefix and self.may_probe(media):
                call = self.probe(chunk, media, why=why)
            else:
                call = self.wire.lookup(
                    self.epoch, chunk, media, prefix, self.routes.touch_interval, why
                )
            try:
                read = partial(self.found, keys_asked=len(chunk), absent=absent)
                part = yield from self._ask(call, read)
            except replies.Forgotten:
                part = _nowhere(len(chunk), Reason.REGISTRY_REBUILDING)
            found.locations.extend(part.locations)
            found.reasons.extend(part.reasons)
            if prefix and part.reasons and part.reasons[-1] is not None:
                rest = _nowhere(len(digests) - len(found.reasons), part.reasons[-1])
                return Lookup(found.locations + rest.locations, found.reasons + rest.reasons)
        return found

    def claim(
        self, digests: Sequence[bytes], ttl_ms: float, token: bytes = b""
    ) -> Flow[tuple[bytes, list[Claim]]]:
        """As `Registry.claim`."""
        if not self.member.shared:
            return b"", [Claim.GRANTED] * len(digests)
        token = token or (next(self._tokens) % (1 << 64)).to_bytes(8, "big")
        claims: list[Claim] = []
        for chunk in _chunks(digests):
            call = self.wire.claim(self.epoch, chunk, token, int(ttl_ms))
            read = partial(self.wire.read_claims, keys_asked=len(chunk))
            claims += yield from self._ask(call, read)
        return token, claims

    def abort(self, digests: Sequence[bytes], token: bytes) -> Flow[None]:
        """As `Registry.abort`."""
        if token:
            for chunk in _chunks(digests):
                call = self.wire.abort(self.epoch, chunk, token)
                yield from self._ask(call, self.wire.read_done)

    def publish(self, entries: Sequence[PageEntry], token: bytes) -> Flow[list[Published]]:
        """As `Registry.publish`. Journalled when this returns, before the flow is driven."""
        chunks = _chunks(entries)
        with self._numbering:
            batches = [
                self._journalled(
                    self.wire.publish(self.epoch, n, chunk, claimed=bool(token)), n, len(chunk)
                )
                for n, chunk in enumerate(chunks, self.sequence + 1)
            ]
        return self._publish(batches)

    def _publish(self, batches: list[Batch]) -> Flow[list[Published]]:
        published: list[Published] = []
        for batch in batches:
            results = yield from self._mutate(batch.call, batch.sequence)
            published += replies.published(results, batch.entries)
        return published

    def remove(
        self, entries: Sequence[PageEntry], touched_ms: Sequence[int] | None
    ) -> Flow[list[Removal]]:
        """As `Registry.remove`. Journalled when this returns, before the flow is driven."""
        chunks = _chunks(entries)
        with self._numbering:
            # what is replayed is not asked again: by then the owner has reused the slots
            batches = [
                self._journalled(self.wire.remove(self.epoch, n, chunk, None), n, len(chunk))
                for n, chunk in enumerate(chunks, self.sequence + 1)
            ]
            self._withdraw(entries)
        return self._remove(batches, chunks, touched_ms)

    def _remove(
        self,
        batches: list[Batch],
        chunks: list[Sequence[PageEntry]],
        touched_ms: Sequence[int] | None,
    ) -> Flow[list[Removal]]:
        removals: list[Removal] = []
        for batch, chunk in zip(batches, chunks, strict=True):
            call = batch.call
            if touched_ms is not None:
                touched = touched_ms[len(removals) : len(removals) + len(chunk)]
                call = self.wire.remove(self.epoch, batch.sequence, chunk, touched)
            try:
                results = yield from self._mutate(call, batch.sequence)
                answers = replies.removals(results, len(chunk))
            except (RegistryError, GeneratorExit):
                # the registry may have kept pages, and counts this sequence as done
                if touched_ms is not None:
                    self._remove_again(chunk)
                raise
            if any(results):
                self._keep(batch, chunk, answers)
            removals += answers
        return removals

    def report_bad(self, digest: bytes, location: bytes, parent: bytes = UNKNOWN) -> Flow[None]:
        """As `Registry.report_bad`."""
        call = self.wire.report(self.epoch, digest, location, parent)
        yield from self._ask(call, self.wire.read_done)

    def clear_namespace(self) -> Flow[int]:
        """As `Registry.clear_namespace`."""
        epoch = yield from self._ask(self.wire.clear(), self.wire.read_epoch)
        self._moved(epoch)
        return epoch

    def beat(self, begin: int | None = None) -> Flow[replies.Beat]:
        """Register, or say that the process is still there. `begin`: see `Wire.beat`."""
        hits = self.hits
        ttl_ms = int(self.options.ttl_ms)
        call = self.wire.beat(self.obeyed, ttl_ms, hits, begin, self.mode or "")
        beat = yield from self._ask(call, self.wire.read_beat)
        self.hits -= hits
        self.routes.clock_ahead = beat.now - monotonic_units()
        self.counters["rejoined"] += self.joined and not beat.returned
        self.joined = True
        if beat.epoch != self.epoch:
            self._moved(beat.epoch)
        self.heard(beat.sequence)
        return beat

    def orders(self, beat: replies.Beat, bad: tuple[PageEntry, ...]) -> Orders:
        """What a heartbeat's reply tells the owner; `obeyed` is set when it has been done."""
        return Orders(beat.epoch, beat.mode, beat.clear, bad, beat.limit_bytes, beat.ttl_ms)

    def heard(self, last: int) -> None:
        """The registry said which sequence it has."""
        self.last = last
        if last != self.sequence and not self.journal.covers(last):
            self.begin_anew = True
        self.behind = self.begin_anew or last != self.sequence or self.withdrawn is not None

    def resend(self, batch: Batch) -> Flow[None]:
        """Carry a journalled mutation out again; one that the registry has already is fine."""
        mutation = yield from self._ask(
            batch.call, partial(self.wire.read_mutation, sequence=batch.sequence)
        )
        self.heard(mutation.last)

    def lagging(self) -> None:
        """A mutation may not have reached the registry."""
        self.behind = True
        self.wake()

    def _journalled(self, call: Call, sequence: int, entries: int) -> Batch:
        batch = Batch(sequence, call, entries)
        self.journal.append(batch)
        self.sequence = sequence
        return batch

    def _mutate(self, call: Call, sequence: int) -> Flow[bytes]:
        mutation = yield from self._ask(call, partial(self.wire.read_mutation, sequence=sequence))
        self.last = mutation.last
        if not mutation.applied:
            self.begin_anew = True
            raise RegistryUnavailable(OTHER_WRITER)
        if mutation.last != sequence:
            self.lagging()
        return mutation.results

    def announcing(self) -> int:
        """All pages are to be announced from here; the sequence to begin from."""
        with self._numbering:
            self.withdrawn = set()
            self.begin_anew = False
            start = self.journal.start
            return self.sequence if start is None else start

    def _remove_again(self, chunk: Sequence[PageEntry]) -> None:
        with self._numbering:
            n = self.sequence + 1
            self._journalled(self.wire.remove(self.epoch, n, chunk, None), n, len(chunk))

    def _withdraw(self, entries: Sequence[PageEntry]) -> None:
        """An announcement under way must not bring these back; too many of them end it."""
        if self.withdrawn is None or self.begin_anew:
            return
        self.withdrawn.update((entry.digest, entry.location) for entry in entries)
        if len(self.withdrawn) > self.options.journal_entries:
            self.withdrawn = set()
            self.begin_anew = True

    def _keep(self, batch: Batch, chunk: Sequence[PageEntry], answers: list[Removal]) -> None:
        """Pages that stay are no longer removed by a replay of the batch."""
        kept = [e for e, a in zip(chunk, answers, strict=True) if a is not Removal.REMOVED]
        gone = [e for e, a in zip(chunk, answers, strict=True) if a is Removal.REMOVED]
        batch.call = self.wire.remove(self.epoch, batch.sequence, gone, None)
        if self.withdrawn is not None:
            self.withdrawn.difference_update((entry.digest, entry.location) for entry in kept)

    def found(
        self,
        reply: Reply | list[bytes],
        keys_asked: int,
        absent: Reason = Reason.NEVER_WRITTEN,
    ) -> Lookup:
        """What the reply to a lookup says. `absent`: the reason of a page that is nowhere."""
        if not isinstance(reply, list):
            self.routes.scripted(self.wire.first_found(reply))
        lookup = self.wire.read_lookup(reply, keys_asked, absent)
        if not self.wire.counted(reply):
            self.hits += sum(map(bool, lookup.locations))
        return lookup

    def may_probe(self, media: Sequence[bytes]) -> bool:
        """Whether a probe is likely to suffice."""
        return self.wire.direct and self.routes.may_suffice(media)

    def probe(self, digests: Sequence[bytes], media: Sequence[bytes], *, why: bool) -> Probe:
        """For at most `most_pages(media)` digests, on one medium at least."""
        return self.routes.probe(self.epoch, digests, media, why=why)

    def _ask(self, call: Call | Probe, read: Callable[[Any], T]) -> Flow[T]:
        try:
            reply = yield from answer(call)
            return read(reply)
        except replies.EpochMoved as moved:
            self._moved(moved.epoch)
            raise
        except replies.Forgotten:
            self.wake()
            raise

    def _moved(self, epoch: int) -> None:
        """Everything of an older epoch is void, here too."""
        self.counters["stale_epochs"] += self.epoch < epoch and self.joined
        self.epoch = epoch
        self.begin_anew = self.behind = True
        with self._numbering:
            self.journal.clear()
        self.wake()


def most_pages(media: Sequence[bytes]) -> int:
    """Pages that one lookup may ask for."""
    return min(MAX_KEYS, MAX_PROBES // max(1, len(media)))


def _nowhere(n: int, reason: Reason | None) -> Lookup:
    return Lookup([b""] * n, [reason] * n)


def _chunks(items: Sequence[T], most: int = MAX_KEYS) -> list[Sequence[T]]:
    size = max(1, most)
    if len(items) <= size:
        return [items] if items else []
    return [items[i : i + size] for i in range(0, len(items), size)]
