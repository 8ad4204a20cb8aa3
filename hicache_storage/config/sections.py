"""The sections of a configuration, each a frozen model that refuses what it does not know."""

from __future__ import annotations

from typing import get_args

from pydantic import Field, SecretStr

from hicache_storage.config.backend_sections import BACKENDS
from hicache_storage.config.fields import (
    Count,
    PageBytes,
    PathText,
    Port,
    Positive,
    Range,
    Section,
    Size,
)
from kvmanager.options import RegistryOptions

_REGISTRY = RegistryOptions()


class StorageSection(Section):
    """Which backend holds the pages."""

    backend: str = Field(default="nvme", min_length=1, description="Name of the backend")


class KvManagerSection(Section):
    """The registry that tells processes of each other's pages."""

    enabled: bool = Field(default=False, description="Share pages with other processes")
    endpoint: str = Field(
        default="embedded",
        min_length=1,
        repr=False,
        description="redis://, rediss:// or unix:// of a Redis or Valkey; redis-sentinel:// or "
        "redis-cluster:// (rediss- with TLS) with one or several of its hosts, commas between; "
        "http:// or https:// of one or several kvmanager services, likewise; or embedded: a Valkey "
        "started here and shared by the processes of this machine",
    )
    namespace: str = Field(
        default="default", min_length=1, description="Tenant; tenants never see each other's pages"
    )
    username: str | None = Field(default=None, description="User at the endpoint")
    password: SecretStr | None = Field(default=None, description="Password at the endpoint")
    password_file: str | None = Field(default=None, description="File that holds the password")
    token: SecretStr | None = Field(
        default=None,
        description="Bearer token at an http:// endpoint; None: as KVMANAGER_TOKEN or "
        "KVMANAGER_TOKEN_FILE says",
    )
    token_file: str | None = Field(default=None, description="File that holds the token")
    embedded_dir: PathText | None = Field(
        default=None,
        description="Directory of the embedded server, on a local disk; None: .registry in the "
        "first path, and for 3fs one of this user's in the temporary directory",
    )
    timeout_ms: Positive = Field(
        default=_REGISTRY.timeout_ms, description="Deadline of one call to the registry"
    )
    connect_timeout_ms: Positive = Field(
        default=_REGISTRY.connect_timeout_ms, description="Deadline of a connection attempt"
    )
    heartbeat_ms: Positive = Field(
        default=_REGISTRY.heartbeat_ms, description="Between two signs of life"
    )
    ttl_ms: Positive = Field(
        default=_REGISTRY.ttl_ms,
        description="Silence after which a process counts as gone; at least 3 heartbeats",
    )
    claim_grace_ms: Positive = Field(
        default=_REGISTRY.claim_grace_ms,
        description="How long past its deadline a writer's claim holds",
    )
    touch_interval_ms: Count = Field(
        default=_REGISTRY.touch_interval_ms,
        description="A page's access time is renewed at most this often",
    )
    journal_entries: Count = Field(
        default=_REGISTRY.journal_entries,
        description="Changes kept for replay while the registry is away",
    )
    announce_pages_per_s: Positive = Field(
        default=_REGISTRY.announce_pages_per_s,
        description="Speed of announcing a store's pages again",
    )
    breaker_failures: Count = Field(
        default=_REGISTRY.breaker_failures,
        description="Failed calls in a row after which the process goes on alone",
    )


class AccessLogSection(Section):
    """A record of which pages were asked for, to be replayed."""

    directory: PathText | None = Field(
        default=None, description="Where calls are recorded; None: they are not"
    )
    rotate_bytes: Size = Field(default=64 << 20, description="Size of one file")
    keep: Count = Field(default=64, description="Files kept; the oldest go")
    max_queued_keys: Count = Field(
        default=1 << 20, description="Keys waiting to be written beyond which calls are dropped"
    )


class IdentitySection(Section):
    """What the bytes of a page are, where no engine says so. What both say must be equal."""

    model_file: PathText | None = Field(
        default=None,
        alias="model_config",
        description="Path of the model's config.json: gives what is not set below",
    )
    model: str | None = Field(default=None, min_length=1, description="Name of the model")
    revision: str | None = Field(
        default=None,
        min_length=1,
        description="Revision of the weights; anything that changes with them",
    )
    draft_revision: str | None = Field(
        default=None,
        min_length=1,
        description="Revision of the draft model's weights, where there is one",
    )
    kv_dtype: str | None = Field(
        default=None, min_length=1, description="Type of the KV cache's numbers"
    )
    layout: str | None = Field(
        default=None, min_length=1, description="Order of a page's bytes, such as page_first"
    )
    page_bytes: PageBytes | None = Field(
        default=None, description="Bytes of a page of this process"
    )
    layers: Range | None = Field(default=None, description="Layers held, from and to (half open)")
    kv_heads: Range | None = Field(
        default=None, description="KV heads held, from and to (half open)"
    )
    token_shard: Range | None = Field(
        default=None, description="Share of a page's tokens, and of how many"
    )
    pool: str | None = Field(default=None, min_length=1, description="Which of the engine's pools")
    salt: str | None = Field(default=None, description="Separates what is equal otherwise")


class SglangSection(Section):
    """The plugin in SGLang's processes."""

    metrics_port: Port | None = Field(
        default=None,
        description="Port of this library's own /metrics; each rank adds its number. None: they "
        "come with SGLang's, where --enable-metrics is set",
    )
    metrics_host: str = Field(
        default="127.0.0.1", min_length=1, description="Address that the port is bound to"
    )
    prefill_tokens_per_s: Positive | None = Field(
        default=None,
        description="Tokens that a server computes in a second, for the time that storage saves "
        "in the KVManager's dashboard. None: as SGLang measures it, where it does",
    )
    register_pools: bool = Field(
        default=False,
        description="Let Mooncake move pages in SGLang's host pools without a copy: faster, but a "
        "call then stays as long as Mooncake does, up to 10 s, whatever timeout_ms says",
    )


SECTIONS: dict[str, type[Section]] = {
    "storage": StorageSection,
    **BACKENDS,
    "global_kvmanager": KvManagerSection,
    "access_log": AccessLogSection,
    "identity": IdentitySection,
    "sglang": SglangSection,
}
RIVALS = {
    "path": "paths",
    "paths": "path",
    "token": "token_file",
    "token_file": "token",
    "password": "password_file",
    "password_file": "password",
}
"""Two ways to say one thing: never both in one place, and the later place replaces the other."""


def keys_of(section: type[Section]) -> list[str]:
    """The keys as they are written in a file."""
    return [field.alias or name for name, field in section.model_fields.items()]


def is_secret(section: type[Section], key: str) -> bool:
    """Whether this key's value must never be printed."""
    for name, field in section.model_fields.items():
        if key == (field.alias or name):
            return SecretStr in get_args(field.annotation) or key == "options"
    return False
