"""What to do about an error, by its kind."""

from __future__ import annotations

from hicache_backends.errors import (
    ConfigError,
    HiCacheError,
    IdentityMismatch,
    RegistryError,
    RegistryRefused,
    StorageUnavailable,
)

_REMEDIES: dict[type[HiCacheError], str] = {
    ConfigError: "mend the option or key that is named; `hicache-storage config show` has each "
    "value's origin",
    StorageUnavailable: "create or mount the directory, and let this user write there",
    IdentityMismatch: "give the pages of another identity another directory, or prune them",
    RegistryRefused: "the registry answers: mend what it refuses, such as "
    "global_kvmanager.username, password or password_file, or the server's own settings",
    RegistryError: "start the registry or mend global_kvmanager.endpoint; until then processes "
    "find only their own pages",
}


def remedy(error: HiCacheError) -> str:
    """What to do, "" where nothing general can be said."""
    return next((text for kind, text in _REMEDIES.items() if isinstance(error, kind)), "")
