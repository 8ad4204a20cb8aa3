"""Backends by name and by URL: the built-in table, and what other distributions register.

A name is a row of the table below or an entry point of the group `hicache_storage.backends`
that loads a `Backend`. A URL is `name:path?option=value&...`, such as
`nvme:///mnt/kv?capacity=10GiB` or `memory:`. Options become the backend's own frozen dataclass:
unknown names and wrong types are errors, and a field `x_bytes` may be written `x`.
"""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

from hicache_backends.errors import ConfigError, MissingExtra
from hicache_backends.identity import Namespace
from hicache_backends.sizes import parse_size
from hicache_backends.storage import PageStorage

ENTRY_POINT_GROUP = "hicache_storage.backends"


class Opener(Protocol):
    """Opens the pages of a namespace; `options` is an instance of the backend's own dataclass.
    `shared`: other processes reach the medium too and learn through a registry what it holds."""

    def __call__(self, namespace: Namespace, options: Any, *, shared: bool) -> PageStorage: ...


@dataclass(frozen=True, slots=True)
class Backend:
    """What a row of the table or an entry point provides.

    `options`: a frozen dataclass, every field with a default or required. `path_option`: the
    field that the path of a URL fills, "" where a path means nothing.
    """

    options: type[Any]
    open: Opener
    path_option: str = ""


def _fsspec() -> Backend:
    from hicache_backends.fsspec_store import FsspecOptions, open_fsspec

    return Backend(FsspecOptions, open_fsspec, path_option="url")


def _memory() -> Backend:
    from hicache_backends.memory import MemoryOptions, open_memory

    return Backend(MemoryOptions, open_memory)


def _mooncake() -> Backend:
    from hicache_backends.mooncake.backend import MooncakeOptions, open_mooncake

    return Backend(MooncakeOptions, open_mooncake)


def _nvme() -> Backend:
    from hicache_backends.nvme import NvmeOptions, open_nvme

    return Backend(NvmeOptions, open_nvme, path_option="paths")


def _threefs() -> Backend:
    from hicache_backends.threefs.backend import ThreeFsOptions, open_threefs

    return Backend(ThreeFsOptions, open_threefs, path_option="mount_point")


_TABLE: Mapping[str, tuple[Callable[[], Backend], str]] = {
    "3fs": (_threefs, ""),
    "fsspec": (_fsspec, "fsspec"),
    "memory": (_memory, ""),
    "mooncake": (_mooncake, "mooncake"),
    "nvme": (_nvme, ""),
}
"""Name: (loader, the extra that the loader's imports need)."""


def backend_names() -> list[str]:
    """Every name that `open_storage` takes, sorted."""
    return sorted({*_TABLE, *entry_points(group=ENTRY_POINT_GROUP).names})


def load_backend(name: str) -> Backend:
    """The backend of this name. Raises ConfigError, or MissingExtra where its imports fail."""
    loader, extra = _TABLE.get(name) or (_entry_point_loader(name), "")
    try:
        return loader()
    except ImportError as error:
        if extra and not (error.name or "").startswith("hicache_backends"):
            raise MissingExtra(f"the backend {name!r}", extra) from error
        raise ConfigError(f"the backend {name!r} cannot be imported: {error}") from error


def open_storage(
    name: str,
    namespace: Namespace,
    options: Mapping[str, object] | None = None,
    *,
    shared: bool = False,
) -> PageStorage:
    """Open the backend `name`, a name of `backend_names()` or a URL.

    Raises ConfigError for an unknown name or option, MissingExtra, and whatever opening the
    backend raises.
    """
    given = dict(options or {})
    if ":" in name:
        name, path, query = _split_url(name)
        backend = load_backend(name)
        given = _merged(given, _from_url(backend, name, path, query))
    else:
        backend = load_backend(name)
    return backend.open(namespace, build_options(backend.options, given, name), shared=shared)


def build_options(options: type[Any], given: Mapping[str, object], section: str) -> Any:
    """An instance of the dataclass `options` from names and values as people write them.

    Sizes may be strings (`sizes.parse_size`), a lone string a list of one, and numbers and
    booleans strings, as in a URL. Raises ConfigError naming `section.option`.
    """
    hints = typing.get_type_hints(options)
    values: dict[str, object] = {}
    for key, value in given.items():
        field = key if key in hints else f"{key}_bytes"
        if field not in hints:
            raise ConfigError(f"unknown option {section}.{key}{_suggestion(key, hints)}")
        if field in values:
            raise ConfigError(f"{section}.{key} and {section}.{field} are the same option")
        values[field] = _converted(value, hints[field], field, f"{section}.{key}")
    for required in dataclasses.fields(options):
        has_default = not (required.default is required.default_factory is dataclasses.MISSING)
        if not has_default and required.name not in values:
            raise ConfigError(f"{section}.{required.name} is required")
    return options(**values)


def _entry_point_loader(name: str) -> Callable[[], Backend]:
    found = entry_points(group=ENTRY_POINT_GROUP, name=name)
    if not found:
        raise ConfigError(f"unknown backend {name!r}{_suggestion(name, backend_names())}")

    def load() -> Backend:
        backend = next(iter(found)).load()
        if not isinstance(backend, Backend):
            raise ConfigError(f"the entry point of the backend {name!r} is not a Backend")
        return backend

    return load


def _split_url(url: str) -> tuple[str, str, dict[str, object]]:
    parts = urlsplit(url)
    if parts.netloc or parts.fragment:
        raise ConfigError(f"a backend URL is name:///path?option=value, not {url!r}")
    try:
        pairs = parse_qsl(
            parts.query, keep_blank_values=True, strict_parsing=bool(parts.query), errors="strict"
        )
    except ValueError as error:
        raise ConfigError(f"the options of {url!r} cannot be read: {error}") from None
    query: dict[str, object] = {}
    for key, value in pairs:
        query = _merged(query, {key: value})
    return parts.scheme or url.partition(":")[0], unquote(parts.path), query


def _from_url(
    backend: Backend, name: str, path: str, query: dict[str, object]
) -> dict[str, object]:
    if not path:
        return query
    if not backend.path_option:
        raise ConfigError(f"the backend {name!r} takes no path, not {path!r}")
    return _merged(query, {backend.path_option: path})


def _merged(first: dict[str, object], second: dict[str, object]) -> dict[str, object]:
    if twice := sorted(first.keys() & second.keys()):
        raise ConfigError(f"the option {twice[0]!r} is given twice")
    return first | second


def _suggestion(word: str, known: Iterable[str]) -> str:
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"{hint} (known: {', '.join(names)})"


def _converted(value: object, hint: Any, field: str, name: str) -> object:
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    kinds = typing.get_args(hint) if union else (hint,)
    if value is None and type(None) in kinds:
        return None
    kind = next(k for k in kinds if k is not type(None))
    if kind is int and field.endswith("_bytes"):
        return parse_size(value, name=name)
    if typing.get_origin(kind) is tuple:
        return _strings(value, name)
    kind = typing.get_origin(kind) or kind
    if kind is not str and isinstance(value, str):
        value = _read(value, kind)
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise ConfigError(f"{name} must be {_WORDS.get(kind, kind)}, not {value!r}")
    return value


_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a string",
    dict: "a table",
}


def _read(text: str, kind: type) -> object:
    if kind is dict:
        return text
    if kind is bool:
        return {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)
    try:
        return kind(text)
    except ValueError:
        return text


def _strings(value: object, name: str) -> tuple[str, ...]:
    items = (value,) if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not all(isinstance(i, str) and i for i in items):
        raise ConfigError(f"{name} must be a string or a list of strings, not {value!r}")
    return tuple(items)
