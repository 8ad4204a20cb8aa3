"""A root on 3FS: no lock holds there, so a store is anybody's only once it has been adopted."""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from hicache_backends.deadline import Deadline
from hicache_backends.errors import IdentityMismatch
from hicache_backends.segment.format import RECORD_BYTES
from hicache_backends.segment.plain import open_plain, read_plain
from hicache_backends.segment.segment import index_path, segment_files
from hicache_backends.threefs import adoption
from hicache_backends.threefs.aside import Aside
from hicache_backends.threefs.directory import SignedDirectory
from hicache_backends.threefs.medium_file import MediumFile
from hicache_backends.threefs.punch import delete_file
from hicache_backends.threefs.reclaim import delete_segment, remove_store
from hicache_backends.threefs.tenure import LEASE_S, Tenure
from hicache_storage.tools.roots import Holder, Root, RootFacts

_MEDIUM_BYTES = 4096
_RUN_MS = 60_000.0
_READ_BYTES = 1 << 20
_T = TypeVar("_T")


class ThreeFsRoot(Root):
    """What the backend 3fs keeps its stores in. To take a store is to adopt it, by a store made
    for that, which is signed meanwhile and then removed."""

    kind = "3fs"

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._aside = Aside()

    def run(self, work: Callable[[], _T]) -> _T:
        return self._aside.run(work, Deadline.after_ms(_RUN_MS))

    @contextlib.contextmanager
    def held(self) -> Iterator[RootFacts]:
        yield self.run(self._facts)

    def holder(self, store: str) -> Holder:
        try:
            tenure, problem = Tenure.read(store), ""
        except FileNotFoundError:
            tenure, problem = None, "missing"
        except OSError as error:
            tenure, problem = None, error.strerror or str(error)
        if tenure is None:
            problem = problem or "damaged"
        idle_s = max(0.0, time.time() - max(_touched_s(store), tenure.signed_s if tenure else 0))
        adopted = False
        in_use_by = ""
        if tenure and not tenure.is_over:
            in_use_by = f"{tenure.here.host}, process {tenure.here.pid}"
        elif tenure is None and idle_s < LEASE_S:
            in_use_by = "a process that has not signed it yet"
        elif adoption.is_adopted(store):
            adopted, in_use_by = True, "a process that has adopted it"
        clean = bool(tenure and tenure.clean)
        return Holder(in_use_by, adopted, clean, problem, round(idle_s, 1))

    def records(self, store: str, number: int) -> bytearray:
        """Read past the page cache to where the file ends: sizes known here may be old."""
        fd = open_plain(index_path(store, number), os.O_RDONLY | os.O_DIRECT)
        found = bytearray()
        try:
            with mmap.mmap(-1, _READ_BYTES) as piece:
                while moved := os.preadv(fd, [piece], len(found)):
                    found += piece[:moved]
        finally:
            os.close(fd)
        return found

    @contextlib.contextmanager
    def taken(self, store: str) -> Iterator[str]:
        if holder := self.run(lambda: self.holder(store)).in_use_by:
            yield f"in use by {holder}"
            return
        parent = str(Path(store).parent)
        own = self.run(lambda: SignedDirectory.make(parent, 1))
        try:
            claimed = self.run(lambda: adoption.claim(store, own.uuid))
            yield "" if claimed else "in use by a process that has adopted it"
        finally:
            self.run(lambda: own.sign(clean=True))
            own.close()
            self.run(lambda: remove_store(own.path))

    def delete(self, store: str) -> str:
        """The directory stays where something foreign has come into it meanwhile."""

        def delete() -> str:
            for number in sorted({number for number, _ in segment_files(store)}):
                delete_segment(store, number)
            remove_store(store)
            return "other files lie there" if Path(store).exists() else ""

        return self.run(delete)

    def void(self, store: str, number: int, slots: Sequence[int]) -> None:
        """Each record by itself: what lies between may be changing."""

        def void() -> None:
            fd = open_plain(index_path(store, number), os.O_RDWR | os.O_DIRECT)
            try:
                for slot in slots:
                    os.pwrite(fd, bytes(RECORD_BYTES), slot * RECORD_BYTES)
            finally:
                os.close(fd)

        self.run(void)

    def unlink(self, path: str) -> None:
        self.run(lambda: delete_file(path))

    def _facts(self) -> RootFacts:
        free_bytes = shutil.disk_usage(self.path).free
        try:
            said = MediumFile.unpack(read_plain(f"{self.path}/.medium", _MEDIUM_BYTES))
        except IdentityMismatch as error:
            return RootFacts("", "", 0, None, free_bytes, str(error))
        if said is None:
            problem = "damaged: it is written anew when the directory is opened"
            return RootFacts("", "", 0, None, free_bytes, problem)
        name = said.uuid.hex()
        return RootFacts(name, said.cluster, said.capacity_bytes, None, free_bytes)


def _touched_s(store: str) -> float:
    """When the store was signed, or read by another process, last."""
    for path in (f"{store}/owner", store):
        with contextlib.suppress(OSError):
            return Path(path).stat().st_mtime
    return 0.0
