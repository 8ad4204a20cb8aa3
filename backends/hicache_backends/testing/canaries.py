"""Pages that tell on themselves: bytes made from the digest, buffers filled with 0xA5."""
# ruff: noqa: S101 - these are tests

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from hicache_backends.deadline import Deadline
from hicache_backends.identity import Namespace, page_digests
from hicache_backends.outcomes import Outcome
from hicache_backends.pages import Pages
from hicache_backends.storage import ROOT, UNKNOWN, PageStorage

PAGE_BYTES = 8192
FILLER = 0xA5
NAMESPACE = Namespace(
    model="canary",
    revision="0",
    kv_dtype="bfloat16",
    layout="page_first",
    page_tokens=64,
    page_bytes=PAGE_BYTES,
)


def soon() -> Deadline:
    """A deadline that a healthy test never meets."""
    return Deadline.after_ms(30_000)


def digests_of(*names: object, namespace: Namespace = NAMESPACE) -> list[bytes]:
    """Digests of the pages that have these names."""
    return page_digests(namespace.fingerprint, [str(name) for name in names])


def canary(digest: bytes, page_bytes: int = PAGE_BYTES) -> bytes:
    """The content of this page: no other page's, and aperiodic, so that a shift shows."""
    return hashlib.shake_128(digest).digest(page_bytes)


def chain_parents(digests: Sequence[bytes]) -> list[bytes]:
    """Parents that make these pages one chain from the root."""
    return [ROOT, *digests[:-1]][: len(digests)]


def source(digests: Sequence[bytes], page_bytes: int = PAGE_BYTES, pieces: int = 1) -> Pages:
    """The canaries of these pages in memory, each cut into `pieces`."""
    size = page_bytes // pieces
    rows = []
    for digest in digests:
        page = memoryview(canary(digest, page_bytes))
        rows.append([page[i * size : (i + 1) * size] for i in range(pieces)])
    return Pages.from_buffers(rows, writable=False)


class Target:
    """Destination buffers full of 0xA5, each page in `pieces` of its own memory."""

    def __init__(self, count: int, page_bytes: int = PAGE_BYTES, pieces: int = 1) -> None:
        size = page_bytes // pieces
        self.rows = [[bytearray([FILLER]) * size for _ in range(pieces)] for _ in range(count)]
        self.pages = Pages.from_buffers(self.rows, writable=True)

    def __getitem__(self, page: int) -> bytes:
        return b"".join(self.rows[page])


def put(
    storage: PageStorage,
    digests: Sequence[bytes],
    *,
    parents: Sequence[bytes] | None = None,
    page_bytes: int = PAGE_BYTES,
    pieces: int = 1,
) -> list[Outcome]:
    """Store the canaries of these pages, of unknown parents unless told."""
    pages = source(digests, page_bytes, pieces)
    return storage.put(digests, pages, parents or [UNKNOWN] * len(digests), soon())


def read(
    storage: PageStorage,
    digests: Sequence[bytes],
    *,
    page_bytes: int = PAGE_BYTES,
    pieces: int = 1,
) -> list[Outcome]:
    """Read these pages and check each that claims to be ok."""
    target = Target(len(digests), page_bytes, pieces)
    outcomes = storage.get(digests, target.pages, soon())
    assert_truthful(outcomes, len(digests))
    for i, (digest, outcome) in enumerate(zip(digests, outcomes, strict=True)):
        if outcome.ok:
            assert target[i] == canary(digest, page_bytes), f"page {i} has wrong bytes"
    return outcomes


def get(
    storage: PageStorage,
    digests: Sequence[bytes],
    *,
    page_bytes: int = PAGE_BYTES,
    pieces: int = 1,
) -> list[bool]:
    """As `read`; whether each page was a hit."""
    return [o.ok for o in read(storage, digests, page_bytes=page_bytes, pieces=pieces)]


def assert_truthful(outcomes: Sequence[Outcome], count: int) -> None:
    """One outcome a key; ok ones without a reason, the others with one."""
    assert isinstance(outcomes, list)
    assert len(outcomes) == count
    for outcome in outcomes:
        assert outcome.ok == (outcome.reason is None), outcome
        assert len(outcome.location) <= 48, outcome
