"""The registry's calls as requests to the service, and what the documents that it answers mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from hicache_backends.errors import RegistryRefused
from hicache_backends.outcomes import Reason
from hicache_backends.storage import UNKNOWN, PageEntry
from kvmanager import replies, reports
from kvmanager.http import message as http_message
from kvmanager.model import MAX_LOCATION_BYTES, Claim, Lookup
from kvmanager.probe import UNIT_MS
from kvmanager.replies import Beat, EpochMoved, Forgotten, Mutation
from kvmanager.scripts import Call, script
from kvmanager.wire import Wire, joined, joined_locations

MAX_TTL_MS = 24 * 3600 * 1000
_WHY = {reason.value: reason for reason in Reason}
_MAX_NUMBER = 1 << 53


class HttpWire(Wire):
    """The calls of one member within one namespace, by way of the service."""

    direct = False

    def lookup(
        self,
        epoch: int,
        digests: Sequence[bytes],
        media: Sequence[bytes],
        prefix: bool,
        touch_interval: int,
        why: bool = True,
    ) -> Call:
        return self._call(
            "lookup",
            epoch=epoch,
            digests=_checked(digests),
            media=list(media),
            prefix=prefix,
            touch_interval_ms=min(touch_interval * UNIT_MS, MAX_TTL_MS),
            why=why,
            counts=True,
        )

    def claim(self, epoch: int, digests: Sequence[bytes], token: bytes, ttl_ms: int) -> Call:
        return self._call(
            "claim",
            epoch=epoch,
            digests=_checked(digests),
            medium=self._member.medium,
            token=token,
            ttl_ms=min(max(ttl_ms, 1), MAX_TTL_MS),
        )

    def abort(self, epoch: int, digests: Sequence[bytes], token: bytes) -> Call:
        medium = self._member.medium
        return self._call(
            "abort", epoch=epoch, digests=_checked(digests), medium=medium, token=token
        )

    def publish(
        self, epoch: int, sequence: int, entries: Sequence[PageEntry], *, claimed: bool
    ) -> Call:
        return self._changed("publish", epoch, sequence, entries, claimed=claimed)

    def remove(
        self,
        epoch: int,
        sequence: int,
        entries: Sequence[PageEntry],
        touched_ms: Sequence[int] | None,
    ) -> Call:
        touched = None if touched_ms is None else [max(0, int(ms)) for ms in touched_ms]
        return self._changed("remove", epoch, sequence, entries, touched_ms=touched)

    def report(self, epoch: int, digest: bytes, location: bytes, parent: bytes) -> Call:
        return self._call(
            "report",
            "report_bad",
            epoch=epoch,
            digest=digest,
            location=location,
            parent=parent,
        )

    def beat(
        self,
        obeyed_epoch: int,
        ttl_ms: int,
        hits: int = 0,
        begin: int | None = None,
        mode: str = "",
    ) -> Call:
        me = self._member
        return self._call(
            "beat",
            "heartbeat" if begin is None else "register",
            process=me.process,
            store=me.store,
            medium=me.medium,
            host=me.host,
            server=me.server,
            rank=me.rank,
            shared=me.shared,
            obeyed=obeyed_epoch,
            ttl_ms=min(ttl_ms, MAX_TTL_MS),
            hits=hits,
            begin=begin,
            mode=mode,
        )

    def figures(self, report: reports.Report) -> Call:
        return self._call(
            "figures",
            process=self._member.process,
            number=report.number,
            counters=dict(report.counters),
            gauges=asdict(report.gauges),
        )

    def clear(self) -> Call:
        return self._call("clear")

    def leave(self) -> Call:
        me = self._member
        return self._call("leave", process=me.process, store=me.store or None)

    @staticmethod
    def first_found(reply: Any) -> bytes:
        return b""  # the service decides by itself whether access times are due

    @staticmethod
    def counted(reply: Any) -> bool:
        return _answer(reply).get("counted") is not False

    @staticmethod
    def read_lookup(reply: Any, keys_asked: int, absent: Reason) -> Lookup:
        answer = _answer(reply)
        locations, said = answer.get("locations"), answer.get("reasons")
        if not (isinstance(locations, list) and isinstance(said, list)):
            raise _malformed(answer)
        whole = len(locations) == len(said) == keys_asked and set(map(type, locations)) <= {bytes}
        if not whole or max(map(len, locations), default=0) > MAX_LOCATION_BYTES:
            raise _malformed(answer)
        if said.count(None) == keys_asked and all(locations):
            return Lookup(locations, said)
        try:
            reasons = [
                None if why is None else absent if why == "never_written" else _WHY[why]
                for why in said
            ]
        except (KeyError, TypeError):
            raise _malformed(answer) from None
        if any(bool(found) != (why is None) for found, why in zip(locations, reasons, strict=True)):
            raise _malformed(answer)
        return Lookup(locations, reasons)

    @staticmethod
    def read_claims(reply: Any, keys_asked: int) -> list[Claim]:
        return replies.claims(_bytes(_answer(reply), "claims"), keys_asked)

    @staticmethod
    def read_done(reply: Any) -> bytes:
        _answer(reply)
        return b""

    @staticmethod
    def read_epoch(reply: Any) -> int:
        return _number(_answer(reply), "epoch")

    @staticmethod
    def read_mutation(reply: Any, sequence: int) -> Mutation:
        answer = _answer(reply)
        applied = answer.get("applied")
        if not isinstance(applied, bool):
            raise _malformed(answer)
        return Mutation(_number(answer, "last", -1), applied, _bytes(answer, "results"))

    @staticmethod
    def read_beat(reply: Any) -> Beat:
        answer = _answer(reply)
        mode = answer.get("mode")
        try:
            bad = tuple(
                PageEntry(page["digest"], UNKNOWN, page["location"]) for page in answer["bad"]
            )
            clear, returned = answer["clear"], answer["returned"]
        except (KeyError, TypeError):
            raise _malformed(answer) from None
        words = [part for page in bad for part in (page.digest, page.location)]
        known = mode is None or isinstance(mode, str)
        if not known or not all(isinstance(word, bytes) for word in words):
            raise _malformed(answer)
        return Beat(
            _number(answer, "epoch"),
            _number(answer, "sequence", -1),
            clear is True,
            returned is True,
            bad,
            mode,
            _number(answer, "now"),
            _maybe(answer, "limit_bytes"),
            _maybe(answer, "ttl_ms"),
        )

    def _call(self, script_name: str, route: str = "", **fields: object) -> Call:
        document = {"namespace": self._encoding, **fields}
        return Call(script(script_name), http_message.request(route or script_name, document))

    def _changed(
        self,
        name: str,
        epoch: int,
        sequence: int,
        entries: Sequence[PageEntry],
        **more: object,
    ) -> Call:
        joined_locations(entries)
        fields: dict[str, object] = {
            "epoch": epoch,
            "store": self._member.store,
            "medium": self._member.medium,
            "sequence": sequence,
            "digests": _checked([entry.digest for entry in entries]),
            "parents": _checked([entry.parent for entry in entries]),
            "locations": [entry.location for entry in entries],
        }
        return self._call(name, "", **fields, **more)


def _checked(digests: Sequence[bytes]) -> list[bytes]:
    joined(digests)
    return list(digests)


def _answer(reply: Any) -> dict[str, Any]:
    """The document of an answer. Raises what one that tells of an older state means."""
    if not isinstance(reply, dict):
        raise _malformed(reply)
    error = reply.get("error")
    if error == "stale_epoch":
        raise EpochMoved(_number(reply, "epoch"))
    if error == "forgotten":
        raise Forgotten("the registry does not know this namespace, until a process joins it")
    if error is not None:
        raise _malformed(reply)
    return reply


def _number(answer: dict[str, Any], name: str, least: int = 0) -> int:
    value = answer.get(name)
    if type(value) is not int or not least <= value <= _MAX_NUMBER:
        raise _malformed(answer)
    return value


def _maybe(answer: dict[str, Any], name: str) -> int | None:
    return None if answer.get(name) is None else _number(answer, name)


def _bytes(answer: dict[str, Any], name: str) -> bytes:
    value = answer.get(name)
    if not isinstance(value, bytes):
        raise _malformed(answer)
    return value


def _malformed(answer: object) -> RegistryRefused:
    return RegistryRefused(f"the service's answer is malformed: {answer!r:.60}")
