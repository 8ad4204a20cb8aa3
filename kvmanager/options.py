"""How the registry's client behaves."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from hicache_backends.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RegistryOptions:
    """Raises ConfigError for values that contradict one another."""

    timeout_ms: float = 1000
    """Deadline of one call, if the caller's is not earlier."""
    connect_timeout_ms: float = 1000
    heartbeat_ms: float = 2000
    ttl_ms: float = 10_000
    """A process that sends no heartbeat for this long is gone; at least three heartbeats."""
    claim_grace_ms: float = 2000
    """A claim lasts this much longer than the deadline of the write."""
    touch_interval_ms: int = 60_000
    """A page's access time is written at most once in this time."""
    journal_entries: int = 65_536
    """Mutations kept for a registry that forgot some; beyond that all pages are announced."""
    announce_pages_per_s: float = 50_000
    breaker_failures: int = 3
    """Failed calls in a row after which the registry counts as down."""
    embedded_dir: str | None = None
    """Directory of the server that `embedded` starts or shares."""
    token: str | None = field(default=None, repr=False)
    """Bearer token for an endpoint of http:// or https://; None: as the environment says."""

    def __post_init__(self) -> None:
        for known in fields(self):
            value = getattr(self, known.name)
            if known.name not in ("embedded_dir", "token") and not value > 0:
                raise ConfigError(f"{known.name} must be above 0, not {value}")
        if self.ttl_ms < 3 * self.heartbeat_ms:
            raise ConfigError(
                f"ttl_ms ({self.ttl_ms:g}) must be at least three times heartbeat_ms "
                f"({self.heartbeat_ms:g})"
            )
