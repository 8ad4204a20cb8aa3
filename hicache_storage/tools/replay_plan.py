"""What a replay was asked to do, what a process of it is told, and what came out."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hicache_backends.errors import ConfigError
from hicache_backends.identity import Namespace
from hicache_storage.config.fields import MAX_PAGE_BYTES
from hicache_storage.tools.replay_backend import check_paths

TOUCH_INTERVAL_MS = 250
"""Replayed time is compressed: a trace's hour passes in about a minute, so access times in the
registry are stamped a few times a second instead of once a minute."""
TOKENS_PER_BLOCK = 512
"""Of the published traces."""


def replay_namespace(block_bytes: int) -> Namespace:
    """The namespace of replayed pages."""
    return Namespace(
        model="trace-replay",
        revision="content-1",
        kv_dtype="uint8",
        layout="block",
        page_tokens=TOKENS_PER_BLOCK,
        page_bytes=block_bytes,
    )


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """`capacity` and `front`: a number of pages ("5000") or a share of the unique blocks ("10%").

    `directory`: of an embedded registry, and of the pages unless `paths` are given; None for a
    temporary one that is removed afterwards. `paths`: where the backend `backend` keeps pages;
    process i uses path i mod their number, so that several mounts of one file system stand for
    several hosts. `options`: more of the backend's, as in a URL.
    `registry`: an endpoint; None for "embedded" where several processes share, none for one.
    """

    trace: Path
    nodes: int = 1
    block_bytes: int = 4096
    capacity: str | None = None
    front: str | None = None
    concurrent: bool = False
    corrupt: int = 0
    directory: Path | None = None
    backend: str = "nvme"
    paths: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    registry: str | None = None

    def __post_init__(self) -> None:
        check_paths(self.backend, len(self.paths))
        if self.corrupt and self.backend != "nvme":
            raise ConfigError(f"corrupt damages pages of nvme, not of {self.backend}")
        if not 1 <= self.nodes <= 256:
            raise ConfigError(f"nodes must be 1 to 256, not {self.nodes}")
        if self.corrupt < 0:
            raise ConfigError(f"corrupt must be 0 or more pages, not {self.corrupt}")
        if not 8 <= self.block_bytes <= MAX_PAGE_BYTES:
            raise ConfigError(f"block bytes must be 8 to 1 GiB, not {self.block_bytes}")
        for option in ("capacity", "front"):
            if (amount := getattr(self, option)) is not None:
                pages_of(amount, 1, option)


def pages_of(amount: str, unique: int, option: str) -> int:
    """Pages meant by "5000" or "10%" of `unique`; at least 1. Raises ConfigError."""
    try:
        pages = unique * float(amount[:-1]) / 100 if amount.endswith("%") else int(amount)
    except ValueError:
        raise ConfigError(
            f"{option} is a number of pages or a percentage, not {amount!r}"
        ) from None
    if not 0 < pages < 2**40:
        raise ConfigError(f"{option} must be above 0 and below 2^40 pages, not {amount!r}")
    return max(1, int(pages))


@dataclass(frozen=True, slots=True)
class Sizes:
    """Processes; blocks in front of each process; blocks of all stores together."""

    nodes: int
    front: int
    store: int


@dataclass(frozen=True, slots=True)
class NodeOrders:
    """What one process of a replay is told at its start, as JSON on its standard input."""

    trace: str
    node: int
    block_bytes: int
    backend: str
    options: dict[str, object]
    front_blocks: int
    registry: str | None
    registry_dir: str
    touch_interval_ms: int = TOUCH_INTERVAL_MS

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> NodeOrders:
        return cls(**raw)


@dataclass(slots=True)
class NodeReport:
    """What one process counted, and its seconds inside the store's calls.

    `wrong`: the blocks for which another page came back; `wrong_pages` counts every time.
    `damaged`: the blocks whose page a checksum rejected; `misses` counts every such rejection.
    """

    requests: int = 0
    block_refs: int = 0
    prefix_hits: int = 0
    front_hits: int = 0
    remote_hits: int = 0
    wrong_pages: int = 0
    pages_written: int = 0
    pages_existed: int = 0
    set_failures: int = 0
    exists_seconds: float = 0.0
    get_seconds: float = 0.0
    set_seconds: float = 0.0
    misses: Counter[str] = field(default_factory=Counter)
    damaged: set[int] = field(default_factory=set)
    wrong: set[int] = field(default_factory=set)

    @classmethod
    def sum(cls, reports: Sequence[NodeReport]) -> NodeReport:
        """All of them together."""
        total = cls()
        for report in reports:
            for name in (f.name for f in dataclasses.fields(cls)):
                value, more = getattr(total, name), getattr(report, name)
                setattr(total, name, value | more if name in _SETS else value + more)
        return total

    def to_json(self) -> dict[str, Any]:
        """What JSON can hold; asdict would break a Counter."""
        raw = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {**raw, **{name: sorted(raw[name]) for name in _SETS}}

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> NodeReport:
        sets = {name: set(raw[name]) for name in _SETS}
        return cls(**{**raw, **sets, "misses": Counter(raw["misses"])})


_SETS = ("damaged", "wrong")
"""Of the report's fields those that are sets of blocks."""


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The figures of a replay. `nodes`: one report a process; `total`: their sum."""

    total: NodeReport
    nodes: list[NodeReport]
    unique_blocks: int
    resident_pages: int
    stranded_pages: int
    corrupted_pages: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """The published keys first."""
        t = self.total
        return {
            "requests": t.requests,
            "block_refs": t.block_refs,
            "unique_blocks": self.unique_blocks,
            "prefix_hits": t.prefix_hits,
            "prefix_hit_percent": round(100 * t.prefix_hits / max(1, t.block_refs), 2),
            "front_hits": t.front_hits,
            "remote_hits": t.remote_hits,
            "wrong_pages": t.wrong_pages,
            "stranded_pages": self.stranded_pages,
            "checksum_misses": len(t.damaged),
            "seconds": round(self.seconds, 3),
            "misses": dict(sorted(t.misses.items())),
            "resident_pages": self.resident_pages,
            "corrupted_pages": self.corrupted_pages,
            "pages_written": t.pages_written,
            "pages_existed": t.pages_existed,
            "set_failures": t.set_failures,
            "exists_seconds": round(t.exists_seconds, 3),
            "get_seconds": round(t.get_seconds, 3),
            "set_seconds": round(t.set_seconds, 3),
        }
