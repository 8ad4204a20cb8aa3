"""What processes report of themselves: the names of counters, and what the sums of them say.

A process counts from its start and reports what was added since its last report; the script adds
that to the sums of the namespace, t{tag}, which outlive the process, and keeps the gauges as its
record, i{tag}<process>. `names()` is the whole vocabulary: what is not in it is passed over, so
that the sums are bounded.

    tokens.<source>                  prompt tokens by where their KV came from (SOURCES)
    prefill.tokens prefill.us        what the engine computed, and how long that took
    get.pages get.hits get.bytes     pages asked for (prefetches included), and read and verified
    load.us                          time that these calls took
    exists.pages exists.found        pages that exists calls asked about, and found
    put.pages put.stored put.existed put.bytes
    miss.<reason> refused.<reason>   pages asked for and not read; pages not stored
    absent.<reason>                  pages that exists calls did not find; a sample
    evicted.<cause>                  pages that went (CAUSES)
    age.<n>                          evicted pages last used less than 2^n s before
    op.<kind>.<operation>.<n>        calls that took 2^(n/4) us at most, and more than 2^((n-1)/4)
    late.<kind>.<operation>          calls that met their deadline
    prefetch.pages .used .unfulfilled .wasted .cancelled
    integrity.checksum .stale .reported
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache

from hicache_backends.outcomes import Reason
from kvmanager.control import namespaces
from kvmanager.flow import Flow, answer
from kvmanager.scripts import Call

SOURCES = ("l1", "l2", "l3", "recomputed")
KINDS = ("nvme", "3fs", "mooncake", "fsspec", "memory", "other")
OPERATIONS = ("get", "put", "exists", "lookup", "claim", "publish")
CAUSES = ("capacity", "ttl", "quota", "space", "other")
BUCKETS_AN_OCTAVE = 4
MOST_BUCKET = 27 * BUCKETS_AN_OCTAVE
"""Of latencies: 134 s and more."""
MOST_AGE = 32
"""Of ages: 136 years and more."""
MAX_COUNTERS = 1024
"""Of one report."""
MAX_INCREMENT = 1 << 53
"""The scripts count in doubles."""
MAX_SUM = (1 << 63) - 1
"""Sums end there; Redis counts no further."""

_BOUNDS_US = [2 ** (n / BUCKETS_AN_OCTAVE) for n in range(MOST_BUCKET)]
_PLAIN = """
    prefill.tokens prefill.us load.us get.pages get.hits get.bytes exists.pages exists.found
    put.pages put.stored put.existed put.bytes prefetch.pages prefetch.used prefetch.unfulfilled
    prefetch.wasted prefetch.cancelled integrity.checksum integrity.stale integrity.reported
"""


@cache
def names() -> frozenset[str]:
    """Every counter that there is."""
    found = set(_PLAIN.split())
    found.update(f"tokens.{source}" for source in SOURCES)
    found.update(f"{f}.{r.value}" for f in ("miss", "refused", "absent") for r in Reason)
    found.update(f"evicted.{cause}" for cause in CAUSES)
    found.update(f"age.{n}" for n in range(MOST_AGE + 1))
    for kind in KINDS:
        for operation in OPERATIONS:
            found.add(f"late.{kind}.{operation}")
            found.update(f"op.{kind}.{operation}.{n}" for n in range(MOST_BUCKET + 1))
    return frozenset(found)


def valid(name: str) -> bool:
    """Whether a counter of that name may be reported."""
    return name in names()


def kind(backend: str) -> str:
    """How counters call a backend."""
    return backend if backend in KINDS else "other"


def bucket(us: float) -> int:
    """Of a latency: the least n with `us` <= 2^(n/4)."""
    return bisect_left(_BOUNDS_US, us, 0, MOST_BUCKET)


def bound_us(n: int) -> float:
    """The most that a latency in bucket `n` can be."""
    return float(2 ** (n / BUCKETS_AN_OCTAVE))


def age_bucket(seconds: float) -> int:
    """Of an age: the least n with `seconds` < 2^n."""
    return min(MOST_AGE, int(seconds).bit_length()) if seconds >= 1 else 0


def quantile(counts: Mapping[int, int], q: float) -> float | None:
    """Us below which the share `q` of the calls lies, at most 19 % too high; None of no calls.
    `counts`: by latency bucket."""
    n = _quantile(counts, q)
    return None if n is None else bound_us(n)


def age_quantile(counts: Mapping[int, int], q: float) -> float | None:
    """Seconds below which the share `q` of the ages lies, up to twice too high; None of none."""
    n = _quantile(counts, q)
    return None if n is None else float(2**n)


def summed(many: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The counters of several namespaces or processes as one."""
    total: Counter[str] = Counter()
    for counters in many:
        total.update(counters)
    return {name: min(n, MAX_SUM) for name, n in total.items()}


def family(counters: Mapping[str, int], prefix: str) -> dict[str, int]:
    """The counters that begin with `prefix` and a dot, by what follows that."""
    head = prefix + "."
    return {name[len(head) :]: n for name, n in counters.items() if name.startswith(head)}


def buckets(counters: Mapping[str, int], prefix: str) -> dict[int, int]:
    """A histogram, `age` or `op.<kind>.<operation>`, by bucket."""
    return {int(n): count for n, count in family(counters, prefix).items() if n.isdigit()}


def totals(tag: bytes) -> Flow[dict[str, int]]:
    """The sums of a namespace, as far as their names are known here."""
    flat = namespaces.unpacked((yield from answer(Call.of("totals", (b"t" + tag,), ()))))
    pairs = zip(flat[::2], flat[1::2], strict=True)
    known = names()
    return {
        name: n
        for raw, value in pairs
        if (name := raw.decode("ascii", "replace")) in known
        and (n := namespaces.number(value)) is not None
    }


def _quantile(counts: Mapping[int, int], q: float) -> int | None:
    total = sum(counts.values())
    if total <= 0:
        return None
    rank, seen = max(1, math.ceil(q * total)), 0
    for n in sorted(counts):
        seen += counts[n]
        if seen >= rank:
            return n
    return max(counts)
