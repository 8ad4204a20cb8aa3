"""Where values come from, and how one place overrides another: file, environment, argument.

Two shapes of one configuration become one tree, `{section: {key: value}}`:

    {"storage_backend": "nvme", "nvme": {...}, "global_kvmanager": {...}}
    {"storage": {"backend": "nvme", "nvme": {...}}, "global_kvmanager": {...}}
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import SecretStr, ValidationError
from pydantic_core import ErrorDetails

from hicache_backends.errors import ConfigError
from hicache_storage.config.backend_sections import BACKENDS
from hicache_storage.config.document import Document, KeyPath
from hicache_storage.config.fields import Section
from hicache_storage.config.sections import RIVALS, SECTIONS, keys_of

ENV_PREFIX = "HICACHE_STORAGE_"
_FLAT_BACKEND = "storage_backend"


@dataclass(frozen=True)
class Origin:
    """Where one value was said: `source` for people, `key` as it is written there."""

    source: str
    key: str


@dataclass
class Layer:
    """The values of one place. A value of a file or argument is unchecked, others converted."""

    values: dict[KeyPath, Any]
    origins: dict[KeyPath, Origin]


def suggestion(word: str, known: Iterable[str]) -> str:
    """`; did you mean ...?` with the closest of the known words, or the known words."""
    names = sorted(known)
    close = difflib.get_close_matches(word.lower(), names, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(names)}"


def reasons(details: Iterable[ErrorDetails]) -> str:
    """What is wrong with one value; what the members of a union say is joined."""
    whys = [d["msg"].removeprefix("Value error, ").removeprefix("Input ") for d in details]
    return " or ".join(dict.fromkeys(whys))


def document_layer(document: Document, source: str) -> Layer:
    """The values of a document of either shape. Raises ConfigError for keys it cannot place."""
    layer = Layer({}, {})
    backend = _backend_name(document.tree)
    for name, value in document.tree.items():
        if name == _FLAT_BACKEND:
            _add(layer, ("storage", "backend"), value, document, (name,), source)
        elif name == "storage":
            for key, inner in _table(document, (name,), value).items():
                if key == "backend":
                    _add(layer, ("storage", key), inner, document, (name, key), source)
                else:
                    _add_section(layer, key, inner, document, (name, key), source, backend)
        else:
            _add_section(layer, name, value, document, (name,), source, backend)
    return layer


def environment_layer(env: Mapping[str, str]) -> Layer:
    """The values of HICACHE_STORAGE_<SECTION>__<KEY>. Raises ConfigError for unknown names."""
    known = {
        f"{name}__{key}".upper(): (name, key)
        for name, section in SECTIONS.items()
        for key in keys_of(section)
    }
    layer = Layer({}, {})
    for variable in sorted(env):
        if not variable.startswith(ENV_PREFIX):
            continue
        word = variable.removeprefix(ENV_PREFIX)
        if word not in known:
            section = word.partition("__")[0]
            same = [name for name in known if name.partition("__")[0] == section]
            close = difflib.get_close_matches(word, same or known, n=1, cutoff=0.7)
            hint = f"did you mean {ENV_PREFIX}{close[0]}?" if close else "see `config schema`"
            raise ConfigError(f"environment variable {variable}: unknown; {hint}")
        path = known[word]
        layer.values[path] = _converted(variable, env[variable], path)
        layer.origins[path] = Origin("env", variable)
    return layer


def merged(layers: Iterable[Layer]) -> tuple[dict[str, dict[str, Any]], dict[KeyPath, Origin]]:
    """One tree and the origin of each value; a later layer overrides an earlier one."""
    tree: dict[str, dict[str, Any]] = {}
    origins: dict[KeyPath, Origin] = {}
    for layer in layers:
        _refuse_rivals(layer)
        for (section, key), value in layer.values.items():
            table = tree.setdefault(section, {})
            if rival := RIVALS.get(key):
                table.pop(rival, None)
                origins.pop((section, rival), None)
            table[key] = value
            origins[section, key] = layer.origins[section, key]
    return tree, origins


def read_secret_files(tree: dict[str, dict[str, Any]], origins: dict[KeyPath, Origin]) -> None:
    """Put what the files of `token_file` and `password_file` hold in the places they stand for."""
    for section, table in tree.items():
        for key in [key for key in table if key.endswith("_file") and key in RIVALS]:
            file, origin = table[key], origins[section, key]
            if not isinstance(file, str):
                continue  # the model says so with its place
            try:
                secret = Path(file).expanduser().read_text(encoding="utf-8").strip()
            except (OSError, ValueError) as error:  # a null character in the path is one, too
                not_text = isinstance(error, UnicodeDecodeError)
                why = getattr(error, "strerror", "not UTF-8 text" if not_text else str(error))
                raise ConfigError(
                    f"{origin.source}: {origin.key}: cannot read {file}: {why}"
                ) from None
            table[RIVALS[key]] = SecretStr(secret)
            origins[section, RIVALS[key]] = Origin(f"file {file}", origin.key)


def _backend_name(tree: Mapping[str, Any]) -> object:
    nested = tree.get("storage")
    if isinstance(nested, Mapping) and "backend" in nested:
        return nested["backend"]
    return tree.get(_FLAT_BACKEND)


def _add_section(
    layer: Layer,
    name: str,
    value: object,
    document: Document,
    path: KeyPath,
    source: str,
    backend: object,
) -> None:
    """A whole section; one named like a backend of another distribution is `custom`."""
    nested = len(path) > 1
    known = set(BACKENDS) if nested else set(SECTIONS) - {"storage"}
    section = name
    if name not in known:
        if name != backend or name in SECTIONS:
            words = known | ({"backend"} if nested else {"storage", _FLAT_BACKEND})
            raise ConfigError(
                f"{document.at(path)}: unknown key {_dotted(path)!r}{suggestion(name, words)}"
            )
        section = "custom"
    for key, inner in _table(document, path, value).items():
        _add(layer, (section, key), inner, document, (*path, key), source)


def _add(
    layer: Layer, target: KeyPath, value: object, document: Document, path: KeyPath, source: str
) -> None:
    if target in layer.values:
        raise ConfigError(
            f"{document.at(path)}: {_dotted(path)} is also said as {layer.origins[target].key}"
        )
    layer.values[target] = value
    layer.origins[target] = Origin(source, _dotted(path))


def _table(document: Document, path: KeyPath, value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{document.at(path)}: {_dotted(path)} is a section, not {type(value).__name__}"
        )
    return dict(value)


def _converted(variable: str, text: str, path: KeyPath) -> object:
    section: type[Section] = SECTIONS[path[0]]
    try:
        checked = section.model_validate_strings({path[1]: text})
    except ValidationError as error:
        raise ConfigError(f"environment variable {variable}: {reasons(error.errors())}") from None
    field = next(n for n, f in section.model_fields.items() if (f.alias or n) == path[1])
    return getattr(checked, field)


def _refuse_rivals(layer: Layer) -> None:
    for (section, key), origin in layer.origins.items():
        rival = layer.origins.get((section, RIVALS.get(key, "")))
        if rival is not None:
            raise ConfigError(f"{origin.source}: {origin.key} and {rival.key}: give only one")


def _dotted(path: KeyPath) -> str:
    return ".".join(path)
