"""The Lua scripts. Each file's header names every key that it touches."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from kvmanager.resp import command

_BEFORE = {
    "lookup": ("entry",),
    "claim": ("entry",),
    "publish": ("entry", "telling", "mutation"),
    "remove": ("entry", "telling", "mutation"),
    "report": ("entry", "telling"),
    "beat": ("listed", "telling"),
    "locate": ("entry",),
    "explain": ("entry",),
    "clear": ("telling",),
    "leave": ("telling",),
    "sweep_begin": ("fenced",),
    "sweep_media": ("fenced", "listed", "absent", "telling"),
    "sweep_stores": ("fenced", "listed", "absent", "telling"),
    "popularity": ("fenced",),
    "sample": ("fenced",),
    "ledger": ("fenced",),
    "walk": ("entry",),
    "seen": ("entry",),
    "purge": ("entry",),
    "discard": ("entry", "telling"),
    "renew": ("fenced",),
    "release": ("fenced",),
    "sweep_claims": ("fenced",),
    "sweep_families": ("fenced", "listed"),
    "sweep_keys": ("fenced",),
    "sweep_dropped": ("fenced", "listed"),
    "sweep_orders": ("fenced", "absent"),
    "sweep_pins": ("fenced",),
    "settle": ("fenced",),
    "forget": ("fenced", "absent"),
}


@dataclass(frozen=True, slots=True)
class Script:
    """One script and the commands that load and call it."""

    name: str
    source: bytes

    @property
    def sha(self) -> bytes:
        """By which the server calls it."""
        return hashlib.sha1(self.source, usedforsecurity=False).hexdigest().encode()

    def load(self) -> bytes:
        """The command that makes the server know this script."""
        return command(b"SCRIPT", b"LOAD", self.source)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of one script, ready to be sent."""

    script: Script
    request: bytes

    @classmethod
    def of(cls, name: str, keys: Sequence[bytes], args: Sequence[bytes]) -> Call:
        script, head = _prepared(name, len(keys))
        return cls(script, command(*head, *keys, *args))


@cache
def script(name: str) -> Script:
    """The script of that name, with what it includes before it."""
    files = resources.files(__name__)
    parts = [(files / f"{part}.lua").read_text() for part in (*_BEFORE.get(name, ()), name)]
    return Script(name, "".join(parts).encode())


@cache
def _prepared(name: str, keys: int) -> tuple[Script, tuple[bytes, bytes, bytes]]:
    found = script(name)
    return found, (b"EVALSHA", found.sha, b"%d" % keys)
