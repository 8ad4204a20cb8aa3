"""One parser for every way in which a configuration can be given."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from hicache_backends.errors import ConfigError
from hicache_backends.table import backend_names
from hicache_storage.config.backend_sections import BACKENDS
from hicache_storage.config.document import Document, KeyPath, parse, read_file
from hicache_storage.config.layers import (
    Origin,
    document_layer,
    environment_layer,
    merged,
    read_secret_files,
    reasons,
    suggestion,
)
from hicache_storage.config.model import Config, redacted
from hicache_storage.config.sections import SECTIONS, is_secret, keys_of

Origins = Mapping[KeyPath, Origin]
Source = str | bytes | Path | Mapping[str, Any] | None


def load_config(
    source: Source = None,
    *,
    env: Mapping[str, str] | None = None,
    others: Collection[str] = (),
) -> Config:
    """The configuration in `source`, completed by the environment and the defaults.

    `source`: a Path, "@path", a JSON text (str or bytes), a mapping, or nothing. A value of the
    environment overrides a file's; a text or mapping is an argument and overrides both.
    `others`: names at its top level that are for somebody else.
    Raises ConfigError that names the place, the key and, for a wrong key, the right one.
    """
    document, is_file = document_of(source)
    own = {name: value for name, value in document.tree.items() if name not in others}
    document = dataclasses.replace(document, tree=own)
    said = document_layer(document, document.name)
    environment = environment_layer(os.environ if env is None else env)
    tree, origins = merged([said, environment] if is_file else [environment, said])
    read_secret_files(tree, origins)
    try:
        config = Config.model_validate(tree)
    except ValidationError as error:
        raise ConfigError("\n".join(_messages(error, document, origins))) from None
    config._origins.update(origins)
    _check_whole(config, document)
    return config


def document_of(source: Source) -> tuple[Document, bool]:
    """The parsed source, and whether it is a file. Raises ConfigError."""
    if source is None:
        return Document("argument", {}), False
    if isinstance(source, Path):
        return read_file(source), True
    if isinstance(source, Mapping):
        return Document("argument", dict(source)), False
    text = source.decode("utf-8", "replace") if isinstance(source, bytes) else source
    if text.startswith("@"):
        return read_file(text[1:]), True
    if not text.strip():
        return Document("argument", {}), False
    if text.endswith((".json", ".toml")):
        raise ConfigError(f"a configuration file is given as '@{text}'")
    return parse(source, "argument"), False


def _check_whole(config: Config, document: Document) -> None:
    """What no single key shows."""
    if config.backend not in BACKENDS and config.backend not in backend_names():
        names = {*BACKENDS, *backend_names()}
        where = _where(("storage", "backend"), document, config._origins)
        hint = suggestion(config.backend, names)
        raise ConfigError(f"{where}: unknown backend {config.backend!r}{hint}")
    try:
        config.registry_options()
    except ConfigError as error:
        key = "ttl_ms" if config.origin("global_kvmanager", "ttl_ms") else "heartbeat_ms"
        where = _where(("global_kvmanager", key), document, config._origins)
        raise ConfigError(f"{where}: {error}") from None


def _messages(error: ValidationError, document: Document, origins: Origins) -> list[str]:
    """One line a wrong key; what a union's members say of one value is joined."""
    found: dict[KeyPath, list[ErrorDetails]] = {}
    for detail in error.errors():
        path = tuple(str(part) for part in detail["loc"][:2])
        found.setdefault(path, []).append(detail)
    return [_message(path, details, document, origins) for path, details in found.items()]


def _message(
    path: KeyPath, details: list[ErrorDetails], document: Document, origins: Origins
) -> str:
    where = _where(path, document, origins)
    section, key = path
    if details[0]["type"] == "extra_forbidden":
        return f"{where}: unknown key{suggestion(key, keys_of(SECTIONS[section]))}"
    why = reasons(details)
    says_value = details[0]["type"] == "value_error"
    if says_value or (section in SECTIONS and is_secret(SECTIONS[section], key)):
        return f"{where}: {why}"
    return f"{where}: {why}, not {redacted(details[0]['input'])!r:.80}"


def _where(path: KeyPath, document: Document, origins: Origins) -> str:
    """`file:line:column: key` as it is written there."""
    origin = origins.get(path)
    if origin is None:
        return ".".join(path)
    if origin.source != document.name:
        return f"{origin.source} {origin.key}"
    return f"{document.at(tuple(origin.key.split('.')))}: {origin.key}"
