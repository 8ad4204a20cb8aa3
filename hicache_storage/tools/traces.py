"""Request traces: one JSON object a line, as published with the Mooncake paper.

`hash_ids` names the prompt's blocks in order; equal ids mean equal blocks with equal prefixes.
An access log of real traffic is read as the same requests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hicache_backends.errors import ConfigError
from hicache_storage.access_log import SUFFIX, read_access_log

MAX_BLOCK_ID = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Request:
    """One request: its arrival in milliseconds, its tokens, its chain of block ids."""

    timestamp_ms: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]


def read_requests(path: Path) -> Iterator[Request]:
    """The requests of a trace, or of an access log, one at a time. Blank lines are passed over.

    Raises ConfigError with the line's number for anything that is not a request.
    """
    if path.suffix == SUFFIX or path.is_dir():
        yield from _recorded(path)
        return
    try:
        file = path.open("rb")
    except OSError as error:
        raise ConfigError(f"trace {path}: {error.strerror}") from error
    with file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    yield _request(json.loads(line))
                except ValueError as error:  # JSON and UTF-8 errors are ValueErrors
                    raise ConfigError(f"{path}, line {number}: {error}") from error


def read_chains(path: Path) -> list[tuple[int, ...]]:
    """The chain of every request. Raises ConfigError, also for a trace without requests."""
    chains = [request.blocks for request in read_requests(path)]
    if not chains:
        raise ConfigError(f"trace {path} holds no request")
    return chains


def predecessors(chains: list[tuple[int, ...]]) -> dict[int, int | None]:
    """The block before each unique block, None where it begins its chain; by first appearance."""
    before: dict[int, int | None] = {}
    for chain in chains:
        last: int | None = None
        for block in chain:
            before.setdefault(block, last)
            last = block
    return before


def _recorded(log: Path) -> Iterator[Request]:
    """A request for each `exists` call of an access log, which an engine makes once a prompt.
    Block ids are numbers in the order of first appearance."""
    ids: dict[str, int] = {}
    first_us: int | None = None
    for access in read_access_log(log):
        if access.op == "exists":
            first_us = access.time_us if first_us is None else first_us
            blocks = tuple(ids.setdefault(key, len(ids)) for key in dict.fromkeys(access.keys))
            yield Request((access.time_us - first_us) / 1000, 0, 0, blocks)


def _request(raw: Any) -> Request:
    if not isinstance(raw, dict):
        raise ValueError(f"a request is a JSON object, not {type(raw).__name__}")
    blocks = raw.get("hash_ids")
    if not isinstance(blocks, list):
        raise ValueError("a request has 'hash_ids', a list of block ids")
    for block in blocks:
        if type(block) is not int or not 0 <= block <= MAX_BLOCK_ID:
            raise ValueError(f"a block id is an integer from 0 to 2^63 - 1, not {block!r:.40}")
    if len(set(blocks)) != len(blocks):
        raise ValueError("a block id stands twice in one chain")
    return Request(
        float(_number(raw, "timestamp")),
        int(_number(raw, "input_length")),
        int(_number(raw, "output_length")),
        tuple(blocks),
    )


def _number(raw: dict[str, Any], name: str) -> float:
    value = raw.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"'{name}' is a number, not {value!r:.40}")
    return value
