"""The document that answers what operators ask first. Unknown is None, never 0; a share is left to
its reader, who is given numerator and denominator."""

from __future__ import annotations

from dataclasses import dataclass

Counts = dict[str, int]


@dataclass(frozen=True, slots=True)
class Served:
    """Prompt tokens by where their KV came from, as engines tell. `total`: of all four."""

    l1: int | None
    l2: int | None
    l3: int | None
    recomputed: int | None
    total: int | None


@dataclass(frozen=True, slots=True)
class Pages:
    """Pages asked for; `hits` of them were read and verified, the others missed, by reason. Before
    that engines ask whether pages are there: `found` of `looked_up`; `absent`: why others were
    not, a sample."""

    asked: int | None
    hits: int | None
    misses: Counts
    looked_up: int | None
    found: int | None
    absent: Counts


@dataclass(frozen=True, slots=True)
class Worth:
    """Loading against computing again, in seconds of processes that work side by side.

    `load_s`: spent loading `loaded_tokens`; `prefill_s` and `prefill_tokens`: what engines
    computed; `saved_s`: what computing the loaded tokens would have taken. `ask_s`: the median of
    asking whether pages are there. `break_even_tokens`: prefixes longer than this are loaded faster
    than computed; None if unknown, or if loading a token takes longer (`never`).
    """

    load_s: float | None
    loaded_tokens: int | None
    prefill_s: float | None
    prefill_tokens: int | None
    saved_s: float | None
    ask_s: float | None
    break_even_tokens: int | None
    never: bool


@dataclass(frozen=True, slots=True)
class Latency:
    """Calls of one operation on one kind of medium. `late`: that met their deadline.
    `buckets`: [seconds at most, calls], those without a call left out."""

    kind: str
    operation: str
    calls: int
    late: int
    p50_s: float | None
    p99_s: float | None
    buckets: list[tuple[float, int]]


@dataclass(frozen=True, slots=True)
class Moved:
    """Bytes of pages that were read and verified, and written."""

    read_bytes: int | None
    written_bytes: int | None


@dataclass(frozen=True, slots=True)
class Space:
    """What a tenant uses; about `orphan_bytes` of that was left by vanished stores, which no quota
    bounds. `grows_bytes_per_day` is taken from the last day; `days_to_full` is None
    without a quota, where that is unknown, and where it does not grow."""

    tenant: str
    namespaces: int
    pages: int
    used_bytes: int
    orphan_bytes: int
    quota_bytes: int | None
    grows_bytes_per_day: float | None
    days_to_full: float | None


@dataclass(frozen=True, slots=True)
class Ages:
    """How long evicted pages had not been used: [less than so many seconds, pages]."""

    pages: int
    p50_s: float | None
    buckets: list[tuple[float, int]]


@dataclass(frozen=True, slots=True)
class Stored:
    """Pages to be stored: written, or not since they were `existed`, or refused by reason. And
    pages that went since, by cause."""

    asked: int | None
    stored: int | None
    existed: int | None
    refused: Counts
    evicted: Counts


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Pages asked for ahead of their use; `wasted`: read and not used."""

    pages: int | None
    used: int | None
    unfulfilled: int | None
    wasted: int | None
    cancelled: int | None


@dataclass(frozen=True, slots=True)
class Process:
    """One process and its store. `seen_s`: its last heartbeat, seconds since 1970. The fields after
    that are from its last report, None if there is none."""

    id: str
    namespace: str
    tenant: str
    model: str
    host: str
    server: str
    rank: int
    alive: bool
    seen_s: float
    kind: str | None
    mode: str | None
    breaker: str | None
    hung: bool | None
    version: str | None
    pages: int | None
    bytes: int | None
    capacity_bytes: int | None


@dataclass(frozen=True, slots=True)
class Liveness:
    """Processes that beat, of those that are known; `gone_lately`: left or lost within the last
    hour. Breakers and hung stores are among the `reported` of the living. `processes`: at most so
    many, those in trouble first."""

    known: int
    alive: int
    gone_lately: int
    reported: int
    breakers: Counts
    hung: int
    processes: list[Process]


@dataclass(frozen=True, slots=True)
class Claims:
    """Rights to write pages; an orphan has run out and waits for the sweep. `whole`: not so many
    that only the first were counted."""

    held: int
    orphans: int
    whole: bool


@dataclass(frozen=True, slots=True)
class Hottest:
    """The first page of a prefix; `loads`: that began with it, older ones counted less."""

    digest: str
    namespace: str
    tenant: str
    model: str
    loads: float
    pages: int | None


@dataclass(frozen=True, slots=True)
class Fsck:
    """What the last checks of a namespace against its media found, by kind; of each medium the
    last one. `time_s`: the oldest; `unseen` of its `media` were never looked at."""

    namespace: str
    tenant: str
    model: str
    time_s: float
    clean: bool
    found: Counts
    repaired: int
    media: int
    unseen: int


@dataclass(frozen=True, slots=True)
class Integrity:
    """Pages that were wrong when they were read, those reported as such by others, and the checks.
    `checked` of `namespaces` have been checked ever."""

    checksum: int | None
    stale: int | None
    reported: int | None
    checked: int
    namespaces: int
    fsck: list[Fsck]


@dataclass(frozen=True, slots=True)
class Span:
    """What happened between two samples. `used_bytes`, `alive`: at its end."""

    from_s: float
    to_s: float
    tokens: dict[str, int | None]
    pages_asked: int
    pages_hit: int
    read_bytes: int
    written_bytes: int
    used_bytes: int
    alive: int
    get_p99_s: float | None


@dataclass(frozen=True, slots=True)
class Overview:
    """All of it, of one tenant or of all that the token is for.

    `window_s`: what was asked for; `covered_s`: how far counts go back, None where no tenant is as
    old as that: then they are those since the beginning. `as_of_s`: when it was looked.
    `namespaces`: of which `left_out` are too many to be counted in.
    """

    as_of_s: float
    window_s: int
    covered_s: float | None
    tenant: str | None
    tenants: list[str]
    namespaces: int
    left_out: int
    served: Served
    pages: Pages
    worth: Worth
    latency: list[Latency]
    moved: Moved
    space: list[Space]
    ages: Ages
    stored: Stored
    prefetch: Prefetch
    liveness: Liveness
    claims: Claims
    hottest: list[Hottest]
    integrity: Integrity
    curve: list[Span]
