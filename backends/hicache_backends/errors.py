"""Every error this distribution raises.

HiCacheError                     anything below
├── ConfigError                  a configuration key or value is wrong; names the key
│   └── MissingExtra             an optional dependency is not installed; names the extra
├── InvalidKey                   a page key cannot name a page
├── InvalidBuffer                a caller's buffer cannot hold the pages; no I/O was done
├── StorageError                 a medium failed as a whole
│   ├── StorageUnavailable       the medium cannot be opened: missing, not writable, not mounted
│   ├── StorageClosed            the store was closed, or belongs to the parent of this fork
│   ├── StorageHung              an earlier I/O has not come back from the kernel
│   └── IdentityMismatch         what lies on the medium was written under another identity
└── RegistryError                the registry failed as a whole
    ├── RegistryUnavailable      no answer: down, unreachable, past the deadline, or breaker open
    ├── RegistryRefused          an answer that refuses: wrong schema, no permission, out of memory
    └── StaleEpoch               the namespace was cleared since this client last looked

A page that is not there is not an error: see `hicache_backends.outcomes`.
"""

from __future__ import annotations


class HiCacheError(Exception):
    """Base of everything this distribution raises."""


class ConfigError(HiCacheError, ValueError):
    """A configuration key or value is wrong; the message names the key and the remedy."""


class MissingExtra(ConfigError, ImportError):
    """An optional dependency is not installed; the message names the extra."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs an extra: pip install 'hicache-storage[{extra}]'")
        self.feature, self.extra = feature, extra

    def __reduce__(self) -> tuple[type[MissingExtra], tuple[str, str]]:
        return type(self), (self.feature, self.extra)  # the message alone does not rebuild it


class InvalidKey(HiCacheError, ValueError):
    """A page key cannot name a page."""


class InvalidBuffer(HiCacheError, ValueError):
    """A caller's buffer cannot hold the pages; nothing was read or written."""


class StorageError(HiCacheError):
    """A medium failed as a whole; the failure of one page is an outcome."""


class StorageUnavailable(StorageError):
    """The medium cannot be opened: missing, not writable, not mounted."""


class StorageClosed(StorageError):
    """The store was closed, or belongs to the parent of this fork."""


class StorageHung(StorageError):
    """An earlier I/O has not come back from the kernel; the store takes no calls until it does."""


class IdentityMismatch(StorageError):
    """What lies on the medium was written under another identity."""


class RegistryError(HiCacheError):
    """The registry failed as a whole."""


class RegistryUnavailable(RegistryError):
    """No answer: down, unreachable, past the deadline, or breaker open."""


class RegistryRefused(RegistryError):
    """An answer that refuses: wrong schema, no permission, out of memory."""


class StaleEpoch(RegistryError):
    """The namespace was cleared since this client last looked."""
