"""Names of pages: the namespace that makes bytes interchangeable, and the digest of a page.

A fingerprint is BLAKE2b-256 over the canonical encoding of a namespace: msgpack of
`[FORMAT, [name, value], ...]` with the fields in their declared order, so that two different
namespaces never encode alike. A digest is BLAKE2b-128 of the page hash's UTF-8 bytes, keyed
with the fingerprint (RFC 7693): equal hashes of different namespaces never meet.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from hicache_backends.errors import ConfigError, InvalidKey

FORMAT = "hicache-namespace-1"
DIGEST_BYTES = 16
FINGERPRINT_BYTES = 32
MAX_KEY_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Namespace:
    """Everything that must be equal for the bytes of a page to be interchangeable.

    It names bytes, not ranks: tensor-parallel ranks that hold different heads differ in
    `kv_heads`, while MLA ranks and data-parallel replicas share one namespace.
    Ranges are half open. An empty `salt` means none.
    """

    model: str
    revision: str
    kv_dtype: str
    layout: str
    page_tokens: int
    page_bytes: int
    layers: tuple[int, int] = (0, 0)
    kv_heads: tuple[int, int] = (0, 0)
    token_shard: tuple[int, int] = (0, 1)
    pool: str = "kv"
    tenant: str = "default"
    salt: str = ""

    def __post_init__(self) -> None:
        """Raises ConfigError for a field that cannot be encoded, and for pages without bytes."""
        for name in ("page_tokens", "page_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} of a namespace must be above 0")
        for name in ("layers", "kv_heads"):
            low, high = getattr(self, name)
            if not 0 <= low <= high:
                raise ConfigError(f"{name} of a namespace is from and to, not {low} to {high}")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, str) and not value.isascii():
                try:
                    value.encode()
                except UnicodeEncodeError:
                    raise ConfigError(f"{field.name} of a namespace is not valid text") from None

    def encode(self) -> bytes:
        """The canonical encoding that the fingerprint is made from."""
        pairs = [[f.name, getattr(self, f.name)] for f in dataclasses.fields(self)]
        packed: bytes = msgpack.packb([FORMAT, *pairs], use_bin_type=True)
        return packed

    @property
    def fingerprint(self) -> bytes:
        """32 bytes that stand for this namespace."""
        return hashlib.blake2b(self.encode(), digest_size=FINGERPRINT_BYTES).digest()

    @classmethod
    def decode(cls, packed: bytes) -> Namespace:
        """The namespace of an encoding. Raises ValueError for anything else."""
        raw: Any = msgpack.unpackb(packed)
        names = [f.name for f in dataclasses.fields(cls)]
        if not isinstance(raw, list) or not raw or raw[0] != FORMAT:
            raise ValueError("not a namespace encoding of this version")
        fields: dict[str, Any] = dict(raw[1:])
        if sorted(fields) != sorted(names):
            raise ValueError("a namespace encoding with other fields")
        values: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()
        }
        return cls(**values)


def page_digests(fingerprint: bytes, keys: Sequence[str]) -> list[bytes]:
    """The 16-byte digest of each page hash within a namespace.

    Raises InvalidKey for a key that is not a string, is empty, or is longer than 1,024 bytes.
    """
    digests = []
    for key in keys:
        if not isinstance(key, str) or not key:
            raise InvalidKey(f"a page key is a non-empty string, not {key!r:.80}")
        raw = key.encode("utf-8", "surrogatepass")
        if len(raw) > MAX_KEY_BYTES:
            raise InvalidKey(f"a page key of {len(raw)} bytes; at most {MAX_KEY_BYTES} are taken")
        digests.append(hashlib.blake2b(raw, digest_size=DIGEST_BYTES, key=fingerprint).digest())
    return digests
