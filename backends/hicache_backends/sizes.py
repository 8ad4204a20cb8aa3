"""Byte counts as people write them: 4GiB, 4gb, 4G, 4294967296 are all the same.

Every unit is a power of 1024, with or without the i and in either case, as memory and cache
sizes are given everywhere in this field.
"""

from __future__ import annotations

import re
from decimal import Decimal

from hicache_backends.errors import ConfigError

_UNITS = "KMGTPE"
_SIZE = re.compile(
    rf"\s*([0-9]+(?:\.[0-9]+)?)\s*(?:([{_UNITS}])i?)?B?\s*", re.IGNORECASE | re.ASCII
)


def parse_size(value: object, *, name: str = "size", minimum: int = 0) -> int:
    """Bytes of `value`, an int or a string such as "4GiB", "1.5 tb" or "4096".

    Raises ConfigError, which calls the value `name`, for anything else, for a fraction of a
    byte, and below `minimum`.
    """
    count = _count(value, name)
    if count < minimum:
        raise ConfigError(f"{name} must be at least {format_size(minimum)}, not {value!r}")
    return count


def format_size(count: int) -> str:
    """`count` bytes in the largest unit that is not below 1, to one decimal: "1.5 GiB"."""
    if abs(count) < 1024:
        return f"{count} B"
    power = 1
    while abs(count) >= 1024 ** (power + 1) and power < len(_UNITS):
        power += 1
    amount = f"{count / 1024**power:.1f}".removesuffix(".0")
    return f"{amount} {_UNITS[power - 1]}iB"


def _count(value: object, name: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ConfigError(
            f"{name} is a number of bytes or a size such as '4GiB' or '512M', not {value!r}"
        )
    number, unit = match.groups()
    power = _UNITS.index(unit.upper()) + 1 if unit else 0
    count = Decimal(number) * 1024**power
    if count != int(count):
        raise ConfigError(f"{name} is not a whole number of bytes: {value!r}")
    return int(count)
