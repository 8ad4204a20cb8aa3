"""A store that is told that pages are not where they should be looks for their files."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from hicache_backends.deadline import Deadline
from hicache_backends.identity import Namespace
from hicache_backends.nvme import NvmeOptions, open_nvme
from hicache_backends.pages import Pages
from hicache_backends.storage import ROOT, PageEntry, PageStorage

PAGE = 4096
SEGMENT_PAGES = 8
NAMESPACE = Namespace("m", "r", "bf16", "page_first", 64, PAGE)
DIGESTS = [os.urandom(16) for _ in range(3 * SEGMENT_PAGES)]


class Told:
    """A keeper that remembers which pages are gone."""

    def __init__(self) -> None:
        self.pages: list[bytes] = []

    def may_evict(
        self, entries: Sequence[PageEntry], touched_ms: Sequence[int], deadline: Deadline
    ) -> list[bool]:
        return [True] * len(entries)

    def gone(self, entries: Sequence[PageEntry]) -> None:
        self.pages += [entry.digest for entry in entries]


def put(storage: PageStorage, digests: list[bytes]) -> None:
    pages = Pages.from_buffers([digest * (PAGE // 16) for digest in digests], writable=False)
    parents = [ROOT, *digests[:-1]]
    assert all(o.ok for o in storage.put(digests, pages, parents, Deadline.after_ms(5000)))


def get(storage: PageStorage, digests: list[bytes]) -> list[bool]:
    """Which pages are hits, with the right bytes."""
    buffers = [bytearray(PAGE) for _ in digests]
    pages = Pages.from_buffers(buffers, writable=True)
    hits = [o.ok for o in storage.get(digests, pages, Deadline.after_ms(5000))]
    for digest, buffer, hit in zip(digests, buffers, hits, strict=True):
        assert not hit or bytes(buffer) == digest * (PAGE // 16)
    return hits


@pytest.mark.parametrize("half", ["data", "index"])
def test_a_segment_whose_file_is_gone_is_forgotten_and_its_space_used_again(
    half: str, tmp_path: Path
) -> None:
    options = NvmeOptions(
        (str(tmp_path / "kv"),),
        capacity_bytes=3 * SEGMENT_PAGES * (PAGE + 64),
        segment_bytes=SEGMENT_PAGES * (PAGE + 64),
        free_floor_bytes=0,
    )
    storage = open_nvme(NAMESPACE, options)
    told = Told()
    storage.set_keeper(told)
    put(storage, DIGESTS)
    storage.recheck(DIGESTS, Deadline.after_ms(5000))
    assert all(storage.contains(DIGESTS)), "nothing is gone yet"
    next(tmp_path.glob(f"kv/*/*/seg-000002.{half}")).unlink()
    if half == "data":
        assert all(get(storage, DIGESTS)), "what is open is read on"
    storage.recheck([os.urandom(16), *DIGESTS], Deadline.after_ms(5000))
    held = storage.contains(DIGESTS)
    gone = [digest for digest, here in zip(DIGESTS, held, strict=True) if not here]
    assert len(gone) == SEGMENT_PAGES
    assert sorted(told.pages) == sorted(gone)
    assert get(storage, DIGESTS) == held
    assert not list(tmp_path.glob("kv/*/*/seg-000002.*")), "half of it is left behind"
    put(storage, gone)
    assert all(storage.contains(DIGESTS)), "its space was not given back"
    assert storage.close()
    again = open_nvme(NAMESPACE, options)
    assert all(get(again, DIGESTS))
    assert again.close()


def test_a_root_that_grows_for_long_holds_nobody_up_who_looks_for_its_files(
    tmp_path: Path,
) -> None:
    storage = open_nvme(NAMESPACE, NvmeOptions((str(tmp_path),), free_floor_bytes=0))
    put(storage, DIGESTS[:4])
    next(tmp_path.glob("*/*/seg-*.index")).unlink()
    with storage._state.volumes[0].growing:
        looking = threading.Thread(
            target=storage.recheck, args=(DIGESTS, Deadline.after_ms(50)), daemon=True
        )
        looking.start()
        looking.join(5)
        assert not looking.is_alive()
    storage.recheck(DIGESTS, Deadline.after_ms(5000))
    assert not any(storage.contains(DIGESTS)), "what was left undone is done later"
    assert storage.close()
