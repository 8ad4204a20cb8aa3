"""Times, sizes and moments as people write and read them."""

from __future__ import annotations

import re
from datetime import datetime, timezone

from hicache_backends.errors import ConfigError

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
NONE = "none"
"""Written where what is set is to be taken away."""


def seconds(text: str, option: str) -> float:
    """Seconds of "90s", "30m", "12h" or "7d". Raises ConfigError."""
    match = re.fullmatch(r"([0-9]+)([smhd])", text.strip().lower())
    if match is None:
        raise ConfigError(f"{option} takes a time such as 30m, 12h or 7d, not {text!r}")
    return int(match[1]) * _SECONDS[match[2]]


def ttl_ms(text: str | None) -> int | None:
    """Of the option --ttl. Raises ConfigError."""
    return None if text in (None, NONE) else int(seconds(str(text), "--ttl") * 1000)


def moment(since_1970_s: float | None) -> str:
    """A time of the registry's clock, UTC, to the second."""
    if not since_1970_s:
        return ""
    return datetime.fromtimestamp(since_1970_s, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def lasting(ms: int | None) -> str:
    """A duration in its largest whole unit."""
    if ms is None:
        return ""
    for unit in ("d", "h", "m"):
        if ms % (_SECONDS[unit] * 1000) == 0:
            return f"{ms // (_SECONDS[unit] * 1000)}{unit}"
    return f"{ms / 1000:g}s"


def size(count: int | None) -> str:
    """Bytes in the largest unit that fits."""
    from hicache_backends.sizes import format_size

    return "" if count is None else format_size(count)
