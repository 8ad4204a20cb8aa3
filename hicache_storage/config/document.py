"""A configuration text, JSON or TOML, parsed strictly, with the place of every key.

Strict: duplicate keys, NaN and infinities are errors. A byte order mark and CRLF are fine.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hicache_backends.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KeyPath = tuple[str, ...]
_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+')
_TOML_PART = r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|[A-Za-z0-9_-]+)"""
_TOML_KEYS = rf"{_TOML_PART}(?:\s*\.\s*{_TOML_PART})*"
_TOML_HEADER = re.compile(rf"\s*\[\s*({_TOML_KEYS})\s*\]")
_TOML_ASSIGNMENT = re.compile(rf"\s*({_TOML_KEYS})\s*=")


@dataclass(frozen=True)
class Document:
    """What one text says. `name` is for messages; `places`: line and column of each key."""

    name: str
    tree: dict[str, Any]
    places: Mapping[KeyPath, tuple[int, int]] = field(default_factory=dict)

    def at(self, path: KeyPath) -> str:
        """`name:line:column` of a key, or of the nearest table around it."""
        for length in range(len(path), 0, -1):
            if place := self.places.get(path[:length]):
                return f"{self.name}:{place[0]}:{place[1]}"
        return self.name


def read_file(path: str | Path) -> Document:
    """The document in a `.json` or `.toml` file. Raises ConfigError."""
    file = Path(path).expanduser()
    if file.suffix not in (".json", ".toml"):
        raise ConfigError(f"{file}: a configuration file ends in .json or .toml")
    try:
        raw = file.read_bytes()
    except (OSError, ValueError) as error:  # a null character in the path is a ValueError
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{file}: cannot be read: {why}") from None
    return parse(raw, str(file), toml=file.suffix == ".toml")


def parse(raw: bytes | str, name: str, *, toml: bool = False) -> Document:
    """The document in a text. Raises ConfigError with line and column."""
    try:
        text = raw if isinstance(raw, str) else raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name}: is not UTF-8 text (byte {error.start})") from None
    text = text.removeprefix("\ufeff")
    try:
        return _toml(text, name) if toml else _json(text, name)
    except RecursionError:
        raise ConfigError(f"{name}: is nested too deeply") from None


def _toml(text: str, name: str) -> Document:
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name}: TOML syntax error: {error}") from None
    return Document(name, tree, _toml_places(text))


def _json(text: str, name: str) -> Document:
    try:
        tree = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        hint = "; JSON strings and keys stand in double quotes, not '" if "'" in text else ""
        raise ConfigError(
            f"{name}:{error.lineno}:{error.colno}: JSON syntax error: {error.msg}{hint}"
        ) from None
    except _NotFiniteError as error:
        raise ConfigError(f"{name}: {error.args[0]} is not a number that can be used") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{name}: must be an object of sections, not {type(tree).__name__}")
    places, twice = _json_places(text)
    document = Document(name, tree, places)
    if twice is not None:
        raise ConfigError(f"{document.at(twice)}: {'.'.join(twice)} stands there twice")
    return document


class _NotFiniteError(Exception):
    """NaN or an infinity in a JSON text."""


def _refuse_constant(word: str) -> float:
    raise _NotFiniteError(word)


def _finite(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise _NotFiniteError(digits)
    return value


def _json_places(text: str) -> tuple[dict[KeyPath, tuple[int, int]], KeyPath | None]:
    """Places of the keys of valid JSON, and the first key that one object has twice."""
    places: dict[KeyPath, tuple[int, int]] = {}
    path: list[str] = []  # one item an open container; what a list holds has the name "[]"
    kinds: list[str] = []
    lists = 0
    expects_key = False
    for token in _JSON_TOKEN.finditer(text):
        word = token.group()
        if word in "{[":
            kinds.append(word)
            lists += word == "["
            path.append(f"[{lists}]" if word == "[" else "")
            expects_key = word == "{"
        elif word in "}]":
            kinds.pop()
            path.pop()
        elif word == ",":
            lists += 1
            expects_key = kinds[-1] == "{"
            if not expects_key:
                path[-1] = f"[{lists}]"
        elif expects_key and word.startswith('"'):
            path[-1] = json.loads(word)
            expects_key = False
            known = tuple(path) in places
            places[tuple(path)] = _place(text, token.start())
            if known:
                return places, tuple(path)
    return places, None


def _toml_places(text: str) -> dict[KeyPath, tuple[int, int]]:
    """Places of the keys that stand at the start of a line, as nearly all do."""
    places: dict[KeyPath, tuple[int, int]] = {}
    table: KeyPath = ()
    for number, line in enumerate(text.split("\n"), 1):
        if header := _TOML_HEADER.match(line):
            table = _toml_path(header.group(1))
            places.setdefault(table, (number, header.start(1) + 1))
        elif assignment := _TOML_ASSIGNMENT.match(line):
            path = table + _toml_path(assignment.group(1))
            places.setdefault(path, (number, assignment.start(1) + 1))
    return places


def _toml_path(dotted: str) -> KeyPath:
    parts = re.findall(_TOML_PART, dotted)
    return tuple(part.strip("\"'") for part in parts)


def _place(text: str, offset: int) -> tuple[int, int]:
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)
