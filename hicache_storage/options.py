"""How a page store behaves, whatever its backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hicache_backends.errors import ConfigError

Mode = Literal["off", "read", "read_write"]
MODES: tuple[Mode, ...] = ("off", "read", "read_write")
MAX_DEPTH = 64


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Frozen settings of one `PageStore`.

    `batch_get_size`, `batch_set_size`: pages of one storage call; a longer call is split.
    `prefetch_depth`: chunks of a prefetch in flight, or "auto" to follow measured throughput.
    `timeout_ms`: deadline of a call that names none. `mode`: what calls may do.
    `max_read_bytes_per_s`, `max_write_bytes_per_s`: caps of this process, None for none.
    `max_queued_bytes`: prefetches waiting beyond this are refused, never dropped in silence.
    """

    batch_get_size: int = 128
    batch_set_size: int = 128
    prefetch_depth: int | Literal["auto"] = 4
    timeout_ms: float = 5000.0
    mode: Mode = "read_write"
    max_read_bytes_per_s: int | None = None
    max_write_bytes_per_s: int | None = None
    max_queued_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        for name in ("batch_get_size", "batch_set_size", "timeout_ms", "max_queued_bytes"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be above 0, not {getattr(self, name)}")
        for name in ("max_read_bytes_per_s", "max_write_bytes_per_s"):
            cap = getattr(self, name)
            if cap is not None and cap <= 0:
                raise ConfigError(f"{name} must be above 0, or absent for no cap, not {cap}")
        depth = self.prefetch_depth
        if depth != "auto" and not 1 <= depth <= MAX_DEPTH:
            raise ConfigError(f"prefetch_depth must be 1 to {MAX_DEPTH} or 'auto', not {depth}")
        check_mode(self.mode)


def check_mode(mode: str) -> Mode:
    """The mode of this name. Raises ConfigError for anything else."""
    for known in MODES:
        if mode == known:
            return known
    raise ConfigError(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
