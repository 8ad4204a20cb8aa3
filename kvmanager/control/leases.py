"""One leader a task: a lease that ends by itself, and a fence that stops whoever lost it.

A holder acts by scripts that begin with `fenced.lua`: they compare the lease in the same step in
which they act, so that one that slept through its time does nothing. Only Redis's clock ends a
lease. All keys of a task lie in one hash tag.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hicache_backends.errors import RegistryRefused
from kvmanager.flow import Flow, answer
from kvmanager.resp import Reply
from kvmanager.scripts import Call

HOLDER_BYTES = 16
_LOST = b"F"


class LeaseLost(Exception):
    """Another one has the lease by now: nothing was done."""


@dataclass(frozen=True, slots=True)
class Lease:
    """One that was taken. `mark` is what its key holds as long as it is ours."""

    key: bytes
    mark: bytes

    @property
    def fence(self) -> int:
        """Rises with every new holder."""
        return int(self.mark[HOLDER_BYTES + 1 :])

    def act(self, name: str, keys: Sequence[bytes], args: Sequence[bytes]) -> Flow[Reply]:
        """The reply of a fenced script. Raises LeaseLost."""
        call = Call.of(name, (*keys, self.key), (*args, self.mark))
        reply: Reply = yield from answer(call)
        if reply == _LOST:
            raise LeaseLost(self.key)
        return reply

    def renew(self, ttl_ms: int) -> Flow[None]:
        """Keep it for so long from now. Raises LeaseLost."""
        yield from self.act("renew", (), (b"%d" % ttl_ms,))

    def release(self) -> Flow[None]:
        """Let another one take it at once."""
        yield from answer(Call.of("release", (self.key,), (self.mark,)))


def sweep_key(tag: bytes) -> bytes:
    """The lease of whoever sweeps a namespace."""
    return b"w" + tag


def task_key(tag: bytes, task: bytes) -> bytes:
    """The lease of any other task; `tag`: of a namespace or a tenant."""
    return b"l" + tag + task


def take(key: bytes, holder: bytes, ttl_ms: int) -> Flow[Lease | None]:
    """The lease, for so long; None while another one has it. `holder`: 16 bytes, of one process;
    one that has the lease gets it again."""
    tag = key[key.index(b"{") : key.index(b"}") + 1]
    reply = yield from answer(Call.of("lease", (key, b"l" + tag), (holder, b"%d" % ttl_ms)))
    if reply == b"":
        return None
    if not isinstance(reply, bytes) or not reply[HOLDER_BYTES + 1 :].isdigit():
        raise RegistryRefused(f"a reply is malformed: {reply!r:.60}")
    return Lease(key, reply)
