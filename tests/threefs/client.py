"""The least client of USRBIO, for the tests of the double alone: it shares no code with ours."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import struct
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

SHARED = Path("/dev/shm")  # noqa: S108  it is what 3FS serves
_libc = ctypes.CDLL(None, use_errno=True)
_libc.sem_open.restype = ctypes.c_void_p
_SEMAPHORE_BYTES, _SPARE_BYTES = 32, 4096
ARGS, CQE, SQE = struct.Struct("=16sQQQQQ"), struct.Struct("=iiqQ"), struct.Struct("=iiQ")


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def names(directory: Path) -> set[str]:
    """Opens it, and closes it: on `iovs` not without consequence."""
    return {entry.name for entry in directory.iterdir()}


class Io(NamedTuple):
    """One page to move between `memory` at `offset` and an open file at `at`."""

    memory: Memory
    offset: int
    file: int
    at: int
    length: int


class Completion(NamedTuple):
    slot: int
    result: int
    userdata: int


class Shared:
    """A file in /dev/shm, mapped and registered; its name is gone afterwards."""

    def __init__(self, iovs: Path, size: int, suffix: str, *, target: Path | None = None) -> None:
        self.id = uuid.uuid4()
        self.link = iovs / f"{self.id}{suffix}"
        path = target or SHARED / f"threefs-test-{self.id}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            os.ftruncate(descriptor, size)
            self.map = mmap.mmap(descriptor, size)
            self.link.symlink_to(path)
        finally:
            os.close(descriptor)
            path.unlink()

    def unregister(self) -> None:
        self.link.unlink()


class Memory(Shared):
    def __init__(self, iovs: Path, size: int, *, block: int = 0, target: Path | None = None):
        super().__init__(iovs, size, f".b{block}" if block else "", target=target)


class Ring(Shared):
    """One ring; `keys` ends its key, as in `.t0.f10`."""

    def __init__(
        self, iovs: Path, entries: int, *, reads: bool, depth: int = 0, keys: str = ".t0"
    ) -> None:
        self.slots = entries + 1
        size = 16 + (ARGS.size + CQE.size + SQE.size) * self.slots + _SEMAPHORE_BYTES + _SPARE_BYTES
        super().__init__(iovs, size, f".{'r' if reads else 'w'}{depth}{keys}")
        self._marks = (ctypes.c_int32 * 4).from_buffer(self.map)
        self._cqes = 16 + ARGS.size * self.slots
        self._sqes = self._cqes + CQE.size * self.slots
        self._completed = ctypes.addressof(
            ctypes.c_char.from_buffer(self.map, self._sqes + SQE.size * self.slots)
        )
        link = "submit-ios" + next((p for p in (".ph", ".pl") if p in keys), "")
        name = (iovs / link).readlink().name.removeprefix("sem.")
        self._submitted = _libc.sem_open(f"/{name}".encode(), 0)
        assert self._submitted, os.strerror(ctypes.get_errno())
        self._free = list(range(entries))

    def submit(self, ios: Sequence[Io], *, first_userdata: int = 0, post: bool = True) -> list[int]:
        """The slots that they took."""
        slots = []
        for number, io in enumerate(ios):
            slot = self._free.pop()
            inode = os.fstat(io.file).st_ino
            args = (io.memory.id.bytes, io.offset, inode, io.at, io.length, 0)
            ARGS.pack_into(self.map, 16 + ARGS.size * slot, *args)
            head = self._marks[0]
            SQE.pack_into(self.map, self._sqes + SQE.size * head, slot, 0, first_userdata + number)
            self._marks[0] = (head + 1) % self.slots
            slots.append(slot)
        if post:
            self.post()
        return slots

    def post(self) -> None:
        _libc.sem_post(ctypes.c_void_p(self._submitted))

    def reap(self, least: int, timeout_s: float = 10) -> list[Completion]:
        """At least so many completions in the order in which they came, fewer after the timeout."""
        end = time.time() + timeout_s
        until = _Timespec(int(end), int(end % 1 * 1e9))
        reaped = self._take()
        while len(reaped) < least:
            if _libc.sem_timedwait(ctypes.c_void_p(self._completed), ctypes.byref(until)):
                break
            reaped += self._take()
        return reaped

    def run(self, ios: Sequence[Io]) -> list[int]:
        """The results in the order of `ios`."""
        slots = self.submit(ios)
        results = {done.slot: done.result for done in self.reap(len(ios))}
        return [results[slot] for slot in slots]

    def _take(self) -> list[Completion]:
        taken = []
        while self._marks[2] != self._marks[3]:
            tail = self._marks[3]
            slot, _, result, userdata = CQE.unpack_from(self.map, self._cqes + CQE.size * tail)
            self._marks[3] = (tail + 1) % self.slots
            self._free.append(slot)
            taken.append(Completion(slot, result, userdata))
        return taken


class Client:
    """Holds the directory descriptor that all registrations of this thread live by."""

    def __init__(self, mount: Path) -> None:
        self.mount, self.iovs = mount, mount / "3fs-virt" / "iovs"
        self._directory = os.open(self.iovs, os.O_RDONLY | os.O_DIRECTORY)
        self._files: list[int] = []

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close_all()

    def close_all(self) -> None:
        for file in [self._directory, *self._files]:
            with contextlib.suppress(OSError):  # ENOTCONN of a dead daemon, closed all the same
                os.close(file)

    def memory(self, size: int, *, block: int = 0, target: Path | None = None) -> Memory:
        return Memory(self.iovs, size, block=block, target=target)

    def ring(self, entries: int, *, reads: bool, depth: int = 0, keys: str = ".t0") -> Ring:
        return Ring(self.iovs, entries, reads=reads, depth=depth, keys=keys)

    def open(self, name: str, flags: int = os.O_RDWR | os.O_CREAT) -> int:
        self._files.append(os.open(self.mount / name, flags, 0o644))
        return self._files[-1]

    def close(self, file: int) -> None:
        self._files.remove(file)
        os.close(file)
