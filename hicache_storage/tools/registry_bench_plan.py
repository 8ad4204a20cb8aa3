"""What a benchmark of the registry is asked to measure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hicache_backends.errors import ConfigError

MEMORY_PAGES = 50_000

Progress = Callable[[str, float], None]
"""Told the name of a phase and the share of it that is done, 0 to 1."""


@dataclass(frozen=True, slots=True)
class RegistryBenchPlan:
    """`trace`: a request trace to look up; without one only synthetic pages are measured.

    `stored_requests`: of the trace, from its start. `against`: "mini3fs" or None, by
    `sglang_wheel` if given, laid out in `cache`. `http`: look the trace up by way of the service,
    too. `pages`: the most pages to measure memory and
    lookup cost with. `directory`: on a local disk, for the medium that the clients share.
    """

    trace: Path | None = None
    clients: int = 16
    stored_requests: int = 6000
    rounds: int = 3
    pages: int = MEMORY_PAGES
    against: str | None = None
    http: bool = False
    sglang_wheel: Path | None = None
    cache: Path | None = None
    directory: Path | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.clients <= 256:
            raise ConfigError(f"--clients must be 1 to 256, not {self.clients}")
        if self.rounds < 1 or self.stored_requests < 1:
            raise ConfigError("--rounds and --stored-requests must be 1 or more")
        if self.pages < 1024:
            raise ConfigError(f"--pages must be 1,024 or more, not {self.pages}")
        if self.against not in (None, "mini3fs"):
            raise ConfigError(f"--against is 'mini3fs', not {self.against!r}")
        if self.against and self.trace is None:
            raise ConfigError("--against mini3fs compares the requests of a trace: name one")
        if self.http and self.trace is None:
            raise ConfigError("--http looks the requests of a trace up: name one")

    @property
    def many(self) -> str:
        """What the case with all clients is called."""
        return "sixteen_clients" if self.clients == 16 else f"{self.clients}_clients"
