"""A tenant's sums over time: samples in three streams, each coarser than the one before.

A window is the difference of two samples. A sample is a whole picture, so that any of them may be
missing; the streams have a fixed length, and a sample a fixed size at most.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgpack

from kvmanager import figures
from kvmanager.control import namespaces
from kvmanager.control.leases import Lease
from kvmanager.flow import Flow, answer
from kvmanager.replies import read_done
from kvmanager.scripts import Call


@dataclass(frozen=True, slots=True)
class Resolution:
    """Samples `step_s` apart, of which `length` are kept."""

    step_s: int
    length: int

    @property
    def reach_s(self) -> int:
        """How far back they go."""
        return self.step_s * self.length


RESOLUTIONS = (Resolution(10, 360), Resolution(60, 1440), Resolution(600, 2016))
"""An hour, a day, fourteen days."""
MAX_SAMPLE_BYTES = 4096
"""So that a tenant takes 15 MiB at most, all streams full; a usual sample has 1 to 2 KiB."""
MAX_POINTS = 120
_LEVEL = 6
_MAX_UNPACKED = 1 << 20


@dataclass(frozen=True, slots=True)
class Sample:
    """`sums`: the counters of all the tenant's namespaces since the beginning, by name. `pages`,
    `bytes`: that the registry knows; `alive`: processes."""

    time_s: float
    sums: Mapping[str, int] = field(default_factory=dict)
    pages: int = 0
    bytes: int = 0
    alive: int = 0


def packed(sample: Sample) -> bytes:
    """A sample as it is kept, without its time. Histograms of the rarest operations are left out
    where it would be too large otherwise."""
    plain, histograms = _apart(sample.sums)
    size = min(sample.bytes, figures.MAX_SUM)
    by_calls = sorted(histograms, key=lambda prefix: sum(histograms[prefix][1:]))
    while True:
        record = [sample.pages, size, sample.alive, plain, histograms]
        made = zlib.compress(msgpack.packb(record), _LEVEL)
        if len(made) <= MAX_SAMPLE_BYTES or not by_calls:
            return made
        del histograms[by_calls.pop(0)]


def unpacked(time_s: float, kept: bytes) -> Sample | None:
    """What is kept of a sample; None of what can't be read."""
    try:
        pages, size, alive, plain, histograms = _record(kept)[:5]
        sums = _together(plain, histograms)
        return Sample(time_s, sums, int(pages), int(size), int(alive))
    except (ValueError, TypeError, AttributeError, zlib.error, msgpack.UnpackException):
        return None


def packed_sums(sums: Mapping[str, int]) -> bytes:
    """All of them, however large that is."""
    return zlib.compress(msgpack.packb(_apart(sums)), _LEVEL)


def unpacked_sums(kept: bytes) -> dict[str, int]:
    """Raises ValueError, TypeError, AttributeError or zlib.error for what cannot be read."""
    plain, histograms = _record(kept)[:2]
    return _together(plain, histograms)


def resolution(window_s: float) -> Resolution:
    """The finest samples that reach back so far."""
    return next((r for r in RESOLUTIONS if r.reach_s >= window_s), RESOLUTIONS[-1])


def keys_of(tenant: bytes) -> list[bytes]:
    """The streams of a tenant (its hash tag)."""
    return [_key(tenant, r) for r in RESOLUTIONS]


def curve(tenant: bytes, window_s: float, points: int) -> Flow[list[Sample]]:
    """The samples nearest before `points` moments that divide the window into equal parts, the
    oldest first; the very oldest stands for moments before it."""
    chosen = resolution(window_s)
    wanted = max(2, min(points, MAX_POINTS, int(window_s // chosen.step_s) + 1))
    args = (b"%d" % int(window_s * 1000), b"%d" % wanted)
    reply = yield from answer(Call.of("curve", (_key(tenant, chosen),), args))
    found = namespaces.unpacked(reply)
    samples = (unpacked(ms / 1000, kept) for ms, kept in found)
    return [sample for sample in samples if sample is not None]


def add(lease: Lease, tenant: bytes, sample: Sample) -> Flow[int]:
    """Add a sample to each stream whose last one is old enough; to how many. Raises LeaseLost."""
    steps = [b"%d" % n for r in RESOLUTIONS for n in (r.step_s, r.length)]
    reply = yield from lease.act("sample", keys_of(tenant), (packed(sample), *steps))
    return int(read_done(reply))


def increase(now: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    """What each counter grew by; one that is smaller than before began anew."""
    return {name: n if n < (last := before.get(name, 0)) else n - last for name, n in now.items()}


def _key(tenant: bytes, r: Resolution) -> bytes:
    return b"h%b%d" % (tenant, r.step_s)


def _record(kept: bytes) -> Any:
    return msgpack.unpackb(zlib.decompressobj().decompress(kept, _MAX_UNPACKED))


def _together(plain: Any, histograms: Any) -> dict[str, int]:
    sums: dict[str, int] = {str(name): int(n) for name, n in plain.items()}
    for prefix, (first, *counts) in histograms.items():
        sums.update({f"{prefix}.{first + i}": int(n) for i, n in enumerate(counts) if n})
    return sums


def _apart(sums: Mapping[str, int]) -> tuple[dict[str, int], dict[str, Any]]:
    """Plain counters, and histograms as the number of their first bucket and all counts from it."""
    plain: dict[str, int] = {}
    buckets: dict[str, dict[int, int]] = {}
    for name, counted in sums.items():
        n = min(counted, figures.MAX_SUM)
        prefix, _, last = name.rpartition(".")
        if last.isdigit():
            buckets.setdefault(prefix, {})[int(last)] = n
        else:
            plain[name] = n
    histograms = {}
    for prefix, counts in buckets.items():
        first, end = min(counts), max(counts)
        histograms[prefix] = [first, *(counts.get(n, 0) for n in range(first, end + 1))]
    return plain, histograms
