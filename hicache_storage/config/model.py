"""The whole configuration, and what each part of the library is told of it."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pydantic import ConfigDict, Field, PrivateAttr, SecretStr

from hicache_backends.errors import ConfigError
from hicache_backends.identity import Namespace
from hicache_backends.sizes import format_size
from hicache_backends.table import backend_names
from hicache_storage.config.backend_sections import (
    BackendSection,
    CustomSection,
    FsspecSection,
    MemorySection,
    MooncakeSection,
    NvmeSection,
    ThreeFsSection,
)
from hicache_storage.config.fields import MAX_PAGE_BYTES, Section
from hicache_storage.config.layers import Origin, suggestion
from hicache_storage.config.model_files import ModelFacts, read_model
from hicache_storage.config.sections import (
    AccessLogSection,
    IdentitySection,
    KvManagerSection,
    SglangSection,
    StorageSection,
)
from hicache_storage.options import StoreOptions
from kvmanager.options import RegistryOptions

if TYPE_CHECKING:
    from hicache_storage.access_log import AccessLog

EMBEDDED_DIR = ".registry"
_STORE_KEYS = tuple(field.name for field in dataclasses.fields(StoreOptions))
_NOT_FOR_STORAGE = {*_STORE_KEYS, "page_size", "token_file"}
_NOT_FOR_REGISTRY = (
    *("enabled", "endpoint", "namespace", "username", "password", "password_file"),
    *("token", "token_file"),
)


class Config(Section):
    """Every section, checked. Build one with `load_config`."""

    model_config = ConfigDict(title="hicache-storage configuration")

    storage: StorageSection = Field(default_factory=StorageSection)
    nvme: NvmeSection = Field(default_factory=NvmeSection)
    three_fs: ThreeFsSection = Field(default_factory=ThreeFsSection, alias="3fs")
    mooncake: MooncakeSection = Field(default_factory=MooncakeSection)
    fsspec: FsspecSection = Field(default_factory=FsspecSection)
    memory: MemorySection = Field(default_factory=MemorySection)
    custom: CustomSection = Field(default_factory=CustomSection)
    global_kvmanager: KvManagerSection = Field(default_factory=KvManagerSection)
    recording: AccessLogSection = Field(default_factory=AccessLogSection, alias="access_log")
    identity: IdentitySection = Field(default_factory=IdentitySection)
    sglang: SglangSection = Field(default_factory=SglangSection)
    _origins: dict[tuple[str, ...], Origin] = PrivateAttr(default_factory=dict)

    @property
    def backend(self) -> str:
        """Name of the chosen backend."""
        return self.storage.backend

    @property
    def section(self) -> BackendSection:
        """The chosen backend's section."""
        sections: dict[str, BackendSection] = {
            "nvme": self.nvme,
            "3fs": self.three_fs,
            "mooncake": self.mooncake,
            "fsspec": self.fsspec,
            "memory": self.memory,
        }
        return sections.get(self.backend, self.custom)

    def origin(self, section: str, key: str) -> Origin | None:
        """Where a value was said; None for a default."""
        return self._origins.get((section, key))

    def store_options(self) -> StoreOptions:
        """How the page store behaves."""
        return StoreOptions(**{key: getattr(self.section, key) for key in _STORE_KEYS})

    def storage_options(self) -> dict[str, object]:
        """The options of `open_storage` for the chosen backend; None stands for its default.

        They hold secrets in the clear: never print them.
        """
        section = self.section
        given = {
            key: value.get_secret_value() if isinstance(value, SecretStr) else value
            for key, value in section.model_dump(exclude=_NOT_FOR_STORAGE).items()
        }
        if self.backend not in backend_names():
            raise ConfigError(
                f"the backend {self.backend!r} is not in this version; there are "
                f"{', '.join(backend_names())}"
            )
        if isinstance(section, NvmeSection):
            path, paths = given.pop("path"), given.pop("paths")
            if path is None and paths is None:
                raise ConfigError(
                    'nvme.path is missing: the directory that holds the pages, as "path" in the '
                    "section nvme or in HICACHE_STORAGE_NVME__PATH"
                )
            given["paths"] = paths or (path,)
        if isinstance(section, ThreeFsSection) and section.mount_point is None:
            raise ConfigError(
                '3fs.mount_point is missing: a directory on the 3FS mount, as "mount_point" in the '
                "section 3fs or in HICACHE_STORAGE_3FS__MOUNT_POINT"
            )
        if isinstance(section, FsspecSection) and section.url is None:
            raise ConfigError(
                'fsspec.url is missing: where the pages go, such as "s3://bucket/prefix", as '
                '"url" in the section fsspec or in HICACHE_STORAGE_FSSPEC__URL'
            )
        return given

    def roots(self) -> tuple[str, ...]:
        """The directories in which the chosen backend keeps its stores; none where it has none."""
        if isinstance(self.section, NvmeSection):
            return self.nvme.paths or ((self.nvme.path,) if self.nvme.path else ())
        if isinstance(self.section, ThreeFsSection) and self.three_fs.mount_point:
            return (self.three_fs.mount_point,)
        return ()

    def registry_endpoint(self) -> str:
        """The registry's URL, user and password included: never print it."""
        manager = self.global_kvmanager
        if manager.password is None and manager.username is None:
            return manager.endpoint
        scheme, _, place = manager.endpoint.partition("://")
        if not scheme.startswith(("redis", "unix")):
            raise ConfigError(
                "global_kvmanager.password is for endpoints of redis://, rediss:// and unix://, "
                "redis-sentinel:// and redis-cluster://"
            )
        if "@" in place.partition("/")[0]:
            raise ConfigError(
                "global_kvmanager.endpoint holds a user or password already: give them once"
            )
        user = quote(manager.username or "", safe="")
        password = quote(manager.password.get_secret_value(), safe="") if manager.password else ""
        return f"{scheme}://{user}:{password}@{place}"

    def registry_options(self) -> RegistryOptions:
        """How the registry's client behaves. Where nothing else is said, processes of a machine
        that share a directory share an embedded server: it lies beside the pages, or for those
        on 3FS, where no socket can be, in a local directory named after theirs."""
        given = self.global_kvmanager.model_dump(exclude=set(_NOT_FOR_REGISTRY))
        first = next(iter(self.roots()), None)
        if given["embedded_dir"] is None and first:
            by_3fs = isinstance(self.section, ThreeFsSection)
            beside = f"{first.rstrip('/')}/{EMBEDDED_DIR}"
            given["embedded_dir"] = _local_directory(first) if by_3fs else beside
        token = self.global_kvmanager.token
        return RegistryOptions(**given, token=token.get_secret_value() if token else None)

    def access_log(self) -> AccessLog | None:
        """A new access log, or None where none is configured. Raises ConfigError where its
        directory cannot be used."""
        from hicache_storage.access_log import AccessLog

        given = self.recording.model_dump()
        directory = given.pop("directory")
        try:
            return AccessLog(directory, **given) if directory else None
        except OSError as error:
            raise ConfigError(f"access_log.directory {directory}: {error.strerror}") from None

    def namespace(self, **engine: Any) -> Namespace:
        """What the pages are: what the engine says, completed by the section `identity`.

        `engine` takes the fields of `Namespace`. Raises ConfigError where both speak and differ,
        and where nobody names the model, revision, dtype, layout, page tokens or bytes.
        """
        names = [field.name for field in dataclasses.fields(Namespace)]
        if unknown := [name for name in engine if name not in names]:
            raise ConfigError(f"a namespace has no {unknown[0]}{suggestion(unknown[0], names)}")
        values = {name: value for name, value in engine.items() if value is not None}
        for name, (key, configured) in self._identity().items():
            if configured is not None and values.setdefault(name, configured) != configured:
                raise ConfigError(
                    f"{key} is {configured!r}, but the engine says {values[name]!r}: its pages "
                    "would not be the ones that are stored"
                )
        self._complete(values)
        if values.get("page_bytes", 0) > MAX_PAGE_BYTES:
            raise ConfigError(
                f"identity.page_bytes, or what the engine or identity.model_config makes of it, "
                f"is {values['page_bytes']}: at most {format_size(MAX_PAGE_BYTES)}"
            )
        if missing := self._missing(values):
            name, key = missing
            raise ConfigError(f"{key} is missing: pages of another {name} must not be mixed up")
        return Namespace(**values)

    def own_namespace(self) -> Namespace | None:
        """The namespace that the section `identity` alone makes; None where it is incomplete.

        Raises ConfigError where its `model_config` cannot be read.
        """
        known = {name: v for name, (_, v) in self._identity().items() if v is not None}
        self._complete(known)
        return None if self._missing(known) else self.namespace()

    def _missing(self, values: Mapping[str, Any]) -> tuple[str, str] | None:
        """The first field of a namespace that nobody has set, and the key that would."""
        required = [field.name for field in dataclasses.fields(Namespace)][:6]
        name = next((name for name in required if name not in values), None)
        return None if name is None else (name, self._identity()[name][0])

    def _identity(self) -> dict[str, tuple[str, Any]]:
        """For each field of a namespace the key that sets it, and its value or None."""
        identity = self.identity
        keys = ("model", "revision", "kv_dtype", "layout", "page_bytes", "layers", "kv_heads")
        found = {k: (f"identity.{k}", getattr(identity, k)) for k in (*keys, "token_shard")}
        found |= {k: (f"identity.{k}", getattr(identity, k)) for k in ("pool", "salt")}
        found["page_tokens"] = (f"{self.backend}.page_size", self.section.page_size)
        found["tenant"] = ("global_kvmanager.namespace", self.global_kvmanager.namespace)
        return found

    def _complete(self, values: dict[str, Any]) -> None:
        """Fill in what only the model's own files say."""
        if self.identity.model_file is None:
            return
        facts: ModelFacts = read_model(self.identity.model_file)
        values.setdefault("model", facts.name)
        values.setdefault("revision", facts.revision)
        values.setdefault("kv_dtype", facts.dtype)
        if "page_tokens" in values and "page_bytes" not in values:
            token_bytes = facts.kv_bytes_per_token(values["kv_dtype"])
            values["page_bytes"] = values["page_tokens"] * token_bytes


def _local_directory(root: str) -> str:
    """A directory of this user's on this machine that stands for a root elsewhere. Nobody is
    asked about the root: its mount may be hung."""
    name = hashlib.blake2b(bytes(Path(root).absolute()), digest_size=8).hexdigest()
    return f"{tempfile.gettempdir()}/hicache-registry-{os.geteuid()}-{name}"


def redacted(value: object) -> object:
    """The value as it may be printed: no secret, no user or password in a URL."""
    if isinstance(value, SecretStr):
        return "********"
    if isinstance(value, str) and "://" in value:
        from kvmanager.endpoint import redacted as without_secrets  # loads the Redis client

        return without_secrets(value)
    if isinstance(value, Mapping):
        return dict.fromkeys(value, "********")
    return value
