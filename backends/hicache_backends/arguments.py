"""What a call on a storage may be given; checked before anything is touched."""

from __future__ import annotations

from collections.abc import Sequence

from hicache_backends.errors import InvalidBuffer, InvalidKey
from hicache_backends.identity import DIGEST_BYTES
from hicache_backends.pages import Pages
from hicache_backends.storage import ROOT, UNKNOWN


def check_put(
    digests: Sequence[bytes], pages: Pages, parents: Sequence[bytes], page_bytes: int
) -> None:
    """Raises InvalidBuffer and InvalidKey."""
    _check(digests, pages, page_bytes)
    if len(parents) != len(digests):
        raise InvalidBuffer(f"{len(digests)} pages, {len(parents)} parents")
    if not _are_names(parents):
        raise InvalidKey(f"a parent is {DIGEST_BYTES} bytes")


def check_get(
    digests: Sequence[bytes], pages: Pages, locations: Sequence[bytes] | None, page_bytes: int
) -> None:
    """Raises InvalidBuffer and InvalidKey."""
    _check(digests, pages, page_bytes)
    if not pages.writable:
        raise InvalidBuffer("the buffers of a get must be writable")
    if locations is not None and len(locations) != len(digests):
        raise InvalidBuffer(f"{len(digests)} pages, {len(locations)} locations")


def _check(digests: Sequence[bytes], pages: Pages, page_bytes: int) -> None:
    if len(pages) != len(digests):
        raise InvalidBuffer(f"{len(digests)} pages, buffers for {len(pages)}")
    if not _are_names(digests) or ROOT in digests or UNKNOWN in digests:
        raise InvalidKey(f"a digest is {DIGEST_BYTES} bytes that stand for a page")
    if len(pages) and pages.page_bytes != page_bytes:
        raise InvalidBuffer(
            f"a page of this namespace has {page_bytes} bytes, not {pages.page_bytes}"
        )


def _are_names(names: Sequence[bytes]) -> bool:
    return {*map(type, names)} <= {bytes} and {*map(len, names)} <= {DIGEST_BYTES}
