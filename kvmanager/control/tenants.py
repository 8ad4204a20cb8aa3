"""What is set for a tenant, in all its namespaces. Flows on the shard of its own hash tag."""

from __future__ import annotations

from dataclasses import dataclass, fields

from kvmanager import keys, resp
from kvmanager.control import namespaces
from kvmanager.flow import Flow, answer
from kvmanager.scripts import Call

TENANTS = b"a"
MAX_TENANTS = 65_536
_A_STEP = 256


@dataclass(frozen=True, slots=True)
class Settings:
    """None: not set. `quota_bytes`: of all its pages together; `ttl_ms`: pages not used for so long
    go; `mode`: off, read or read_write."""

    quota_bytes: int | None = None
    ttl_ms: int | None = None
    mode: str | None = None


_NAMES = tuple(field.name for field in fields(Settings))


def names() -> Flow[list[str]]:
    """The tenants that have settings, at most `MAX_TENANTS`; on the shard of `TENANTS`."""
    found: set[bytes] = set()
    cursor = b"0"
    while len(found) < MAX_TENANTS:
        cursor, some = yield from namespaces.scan_set(TENANTS, cursor, _A_STEP)
        found.update(some)
        if cursor == b"0":
            break
    return sorted(name.decode("utf-8", "replace") for name in found)[:MAX_TENANTS]


def enlist(name: str) -> Flow[None]:
    """Add one to them; on the shard of `TENANTS`, before anything is set."""
    yield resp.command(b"SADD", TENANTS, name.encode())


def strike(name: str) -> Flow[None]:
    """Take one off, after nothing is set any more."""
    yield resp.command(b"SREM", TENANTS, name.encode())


def read(name: str) -> Flow[Settings]:
    """What is set for a tenant."""
    call = Call.of("values", (_key(name),), [field.encode() for field in _NAMES])
    quota, ttl, mode = namespaces.unpacked((yield from answer(call)))
    return Settings(namespaces.number(quota), namespaces.number(ttl), namespaces.text(mode))


def write(name: str, settings: Settings) -> Flow[None]:
    """Set all of it anew."""
    args = [b"", b"name", name.encode()]
    for field in _NAMES:
        value = getattr(settings, field)
        args += [field.encode(), b"" if value is None else str(value).encode()]
    yield from answer(Call.of("fields", (_key(name),), args))


def delete(name: str) -> Flow[bool]:
    """Whether anything was set."""
    gone: int = yield resp.command(b"DEL", _key(name))
    return gone > 0


def _key(name: str) -> bytes:
    return b"u" + keys.tenant_tag(name)
