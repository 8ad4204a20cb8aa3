"""What the data routes are asked and answer, as msgpack or as JSON.

In msgpack bytes are binary values, in JSON hexadecimal digits. A field that is not declared here
is passed over, so that a client may be a version ahead of the service.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from hicache_backends.identity import Namespace
from hicache_backends.outcomes import Reason
from kvmanager import figures, reports
from kvmanager.model import MAX_KEYS, MAX_PROBES, Member
from kvmanager.service.fields import (
    Digest,
    Digests,
    Encoding,
    Interval,
    Location,
    Locations,
    LongText,
    MaybeLocation,
    Milliseconds,
    Nothing,
    Number,
    NumberOrNone,
    Positive,
    Range,
    Results,
    Text,
    Token,
    Uuid,
    Word,
)
from kvmanager.service.figures_fields import CounterName, GaugeFields

MAX_MEDIA = 1024
MAX_KNOWN_BYTES = 1024
"""Longer encodings are read anew each time: who asks about namespaces fills no memory."""


class Document(BaseModel):
    """What all of them share."""

    model_config = ConfigDict(
        strict=True, extra="ignore", frozen=True, val_json_bytes="hex", ser_json_bytes="hex"
    )


class NamespaceFields(Document):
    """Everything that must be equal for the bytes of a page to be interchangeable."""

    model: LongText
    revision: LongText
    kv_dtype: LongText
    layout: LongText
    page_tokens: Positive
    page_bytes: Positive
    layers: Range = [0, 0]
    kv_heads: Range = [0, 0]
    token_shard: Range = [0, 1]
    pool: LongText = "kv"
    tenant: LongText = "default"
    salt: LongText = ""

    def namespace(self) -> Namespace:
        """Raises ConfigError for ranges that end before they begin."""
        given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in self}
        return Namespace(**given)


class Asked(Document):
    """A question about one namespace."""

    namespace: Annotated[
        Encoding | NamespaceFields, Field(description="Its fields, or its canonical encoding")
    ]

    def named(self) -> Namespace:
        """Raises ValueError for what is no namespace."""
        if isinstance(self.namespace, NamespaceFields):
            return self.namespace.namespace()
        if len(self.namespace) > MAX_KNOWN_BYTES:
            return _decode(self.namespace)
        return _decoded(self.namespace)


class InEpoch(Asked):
    """A question about the pages of one epoch of a namespace."""

    epoch: Number


class LookupAsked(InEpoch):
    """Where pages are, on media that the caller reaches (uuids, nearest first)."""

    digests: Digests
    media: Annotated[list[Uuid], Field(max_length=MAX_MEDIA)]
    prefix: Annotated[bool, Field(description="Stop at the first page that is nowhere")] = True
    touch_interval_ms: Annotated[
        Interval, Field(description="How often a page's access time is written")
    ] = 60_000
    why: Annotated[bool, Field(description="Whether reasons for misses are wanted")] = True
    counts: Annotated[
        bool, Field(description="The caller counts pages found, and tells with its heartbeats")
    ] = False

    @model_validator(mode="after")
    def _bounded(self) -> LookupAsked:
        if len(self.digests) * len(self.media) > MAX_PROBES:
            raise ValueError(f"digests times media must be at most {MAX_PROBES}")
        return self


class LookupAnswer(Document):
    """For each digest the location of the nearest copy (empty: none), and why there is none.
    `counted`: the service counted the pages found; else the caller is to."""

    locations: list[MaybeLocation]
    reasons: list[Reason | None]
    counted: bool = True


class ClaimAsked(InEpoch):
    """The right to write pages on a medium. The token is the caller's choice: asked again with
    the same one, a claim is renewed."""

    digests: Digests
    medium: Uuid
    token: Token
    ttl_ms: Milliseconds


class ClaimAnswer(Document):
    """For each digest: 0 granted, 1 stored there, 2 being written by another process."""

    claims: Results


class AbortAsked(InEpoch):
    """Claims given up without publishing."""

    digests: Digests
    medium: Uuid
    token: Token


class MutationAsked(InEpoch):
    """Pages of one store. `sequence` numbers the store's mutations without gaps."""

    store: Uuid
    medium: Uuid
    sequence: Number
    digests: Digests
    parents: Digests
    locations: Locations

    @model_validator(mode="after")
    def _equally_long(self) -> MutationAsked:
        if not len(self.digests) == len(self.parents) == len(self.locations):
            raise ValueError("digests, parents and locations must be equally many")
        return self


class PublishAsked(MutationAsked):
    """Written pages are made known, and the claims of them given up."""

    claimed: Annotated[bool, Field(description="The pages had been claimed")] = False


class RemoveAsked(MutationAsked):
    """Pages are forgotten whose location is still the given one. With `touched_ms`, milliseconds
    since the owner used each, those used by another process since, and those whose followers are
    stored, are kept."""

    touched_ms: Annotated[list[Number], Field(max_length=MAX_KEYS)] | None = None

    @model_validator(mode="after")
    def _one_each(self) -> RemoveAsked:
        if self.touched_ms is not None and len(self.touched_ms) != len(self.digests):
            raise ValueError("touched_ms must have one entry a digest")
        return self


class MutationAnswer(Document):
    """The last sequence that the registry has of the store (-1: none), whether this mutation was
    carried out, and what became of each page: published 0, or 1 where another store was first;
    removed 0, or kept since 1 used by another process, 2 a parent of stored pages."""

    last: NumberOrNone
    applied: bool
    results: Results


class ReportAsked(InEpoch):
    """The page at this location was read and is wrong."""

    digest: Digest
    location: Location
    parent: Digest


class BeatAsked(Asked):
    """A process and its store are there, for `ttl_ms`. A visitor has neither store nor medium."""

    process: Uuid
    store: Uuid | Nothing
    medium: Uuid | Nothing
    host: Text
    server: Text
    rank: Number = 0
    shared: Annotated[bool, Field(description="Other processes may reach the medium")] = True
    obeyed: Annotated[
        NumberOrNone, Field(description="Epoch whose clear was carried out; -1: not known")
    ] = -1
    ttl_ms: Milliseconds
    hits: Annotated[Number, Field(description="Pages found that the service has not counted")] = 0
    begin: Annotated[
        Number | None, Field(description="Sequence from which all pages are announced anew")
    ] = None
    mode: Annotated[Word, Field(description="The ordered mode that is in force")] = ""

    def member(self) -> Member:
        """Who this is."""
        return Member(
            self.process,
            self.host,
            self.server,
            self.store,
            self.medium,
            shared=self.shared,
            rank=self.rank,
        )


class BadPage(Document):
    """A page of the own store that another process found wrong."""

    digest: Digest
    location: Location


class BeatAnswer(Document):
    """What the registry knows of the process, and orders it to do."""

    epoch: Number
    sequence: Annotated[NumberOrNone, Field(description="The store's last; -1: none")]
    clear: Annotated[bool, Field(description="The store's pages were cleared: drop them")]
    returned: Annotated[bool, Field(description="The process was known until now")]
    bad: list[BadPage]
    mode: str | None
    now: Annotated[Number, Field(description="The server's clock, 100 ms")]
    limit_bytes: Annotated[
        Number | None, Field(description="What the store may keep of its tenant's quota")
    ] = None
    ttl_ms: Annotated[
        Number | None, Field(description="Pages that were not used for so long are to go")
    ] = None


class FiguresAsked(Asked):
    """What a process has counted since its last report, and how it is. A report whose number was
    applied is not applied again."""

    process: Uuid
    number: Positive
    counters: Annotated[dict[CounterName, Number], Field(max_length=figures.MAX_COUNTERS)]
    gauges: GaugeFields = GaugeFields()

    def report(self) -> reports.Report:
        """The same in the words of the library."""
        known = {name: n for name, n in self.counters.items() if figures.valid(name)}
        return reports.Report(self.number, known, self.gauges.gauges())


class LeaveAsked(Asked):
    """A process takes its leave, and one of its stores with it."""

    process: Uuid
    store: Uuid | None = None


class ClearAnswer(Document):
    """The epoch of the cleared namespace."""

    epoch: Number


class Done(Document):
    """It was done."""


class Problem(Document):
    """Why a request was not carried out. `epoch`: the namespace's, where the request named an
    older one."""

    error: str
    detail: str
    epoch: Number | None = None


@lru_cache(4096)
def _decoded(encoding: bytes) -> Namespace:
    return _decode(encoding)


def _decode(encoding: bytes) -> Namespace:
    try:
        found = Namespace.decode(encoding)
        fields = {f: getattr(found, f) for f in NamespaceFields.model_fields}
    except (TypeError, OverflowError) as error:
        raise ValueError(f"not the encoding of a namespace: {error}") from None
    lists = {k: list(v) if isinstance(v, tuple) else v for k, v in fields.items()}
    namespace = NamespaceFields.model_validate(lists).namespace()
    if namespace.encode() != encoding:
        raise ValueError("not the canonical encoding of a namespace")
    return namespace
