"""A configuration for people: effective values with their origin, and every key there is."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Any

from hicache_backends.sizes import format_size
from hicache_backends.table import backend_names
from hicache_storage.config.backend_sections import BACKENDS, BackendSection
from hicache_storage.config.fields import Section
from hicache_storage.config.model import Config, redacted
from hicache_storage.config.sections import SECTIONS


@dataclass(frozen=True)
class Setting:
    """One effective value. `source`: "default", "argument", the file's name or "env NAME"."""

    key: str
    value: object
    source: str


def settings(config: Config) -> Iterator[Setting]:
    """Every value in force, secrets redacted: the chosen backend's section and the common ones."""
    sections: dict[str, Section] = {
        "storage": config.storage,
        config.backend: config.section,
        "global_kvmanager": config.global_kvmanager,
        "access_log": config.recording,
        "identity": config.identity,
        "sglang": config.sglang,
    }
    for name, section in sections.items():
        place = name if name in SECTIONS else "custom"
        for key, value in section.model_dump(by_alias=True).items():
            origin = config.origin(place, key)
            source = "default"
            if origin is not None:
                source = f"env {origin.key}" if origin.source == "env" else origin.source
            yield Setting(f"{name}.{key}", redacted(value), source)


def json_schema() -> dict[str, Any]:
    """JSON Schema of the flat shape, as `storage_backend` and a section each."""
    schema = Config.model_json_schema()
    properties: dict[str, Any] = schema["properties"]
    for name in ("storage", "custom"):
        properties.pop(name, None)
    definitions = schema["$defs"]
    properties["storage_backend"] = definitions.pop("StorageSection")["properties"]["backend"]
    definitions.pop("CustomSection")
    return schema


def reference_table() -> str:
    """A Markdown table of every key, its default and its meaning, of the backends there are."""
    lines = ["| key | default | meaning |", "| --- | --- | --- |"]
    lines += _rows("storage", SECTIONS["storage"], skip=())
    lines += _rows("*backend*", BackendSection, skip=())
    for name in sorted(set(BACKENDS) & set(backend_names())):
        lines += _rows(name, BACKENDS[name], skip=BackendSection.model_fields)
    for name in ("global_kvmanager", "access_log", "identity", "sglang"):
        lines += _rows(name, SECTIONS[name], skip=())
    return "\n".join(lines)


def _rows(name: str, section: type[Section], skip: Container[str]) -> Iterator[str]:
    for field_name, field in section.model_fields.items():
        if field_name not in skip:
            key = f"`{name}.{field.alias or field_name}`"
            default = field.get_default(call_default_factory=True)
            yield f"| {key} | {_shown(field_name, default)} | {field.description} |"


def _shown(name: str, value: object) -> str:
    if value is None or value in ("", {}):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and "bytes" in name and value:
        return format_size(value)
    return f"{value:g}" if isinstance(value, float) else str(value)
