"""A ring in plain memory, and a daemon of a few lines that serves it from a thread."""

from __future__ import annotations

import ctypes
import os
import struct
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hicache_backends import _native
from hicache_backends.deadline import Deadline
from hicache_backends.io.engine import IoResult, ReadBatch, WriteBatch
from hicache_backends.io.native import packed, packed_pieces, packed_records
from hicache_backends.usrbio.layout import ring_bytes

_libc = ctypes.CDLL(None, use_errno=True)
_ARGUMENTS = struct.Struct("=16sQQQQQ")
_COMPLETION = struct.Struct("=iiqQ")


@dataclass(frozen=True)
class Job:
    """One I/O as the daemon finds it."""

    index: int
    userdata: int
    buffer_offset: int
    inode: int
    offset: int
    size: int


class PlainRing:
    """Both sides of a ring. `staging` has a canary page before and after the blocks."""

    def __init__(
        self, device: int, entries: int = 8, block_bytes: int = 4096, burst: int = 4
    ) -> None:
        self.entries, self.block_bytes, self.device = entries, block_bytes, device
        self.shared = np.zeros(ring_bytes(entries), np.uint8)
        self.submitted = np.zeros(32, np.uint8)
        self.staging = np.full(entries * block_bytes + 2 * 4096, 0xC3, np.uint8)
        self.uuid = uuid.uuid4().bytes
        self._cells = entries + 1
        _libc.sem_init(ctypes.c_void_p(self._completed), 1, 0)
        _libc.sem_init(ctypes.c_void_p(_address(self.submitted)), 1, 0)
        self.handle = _native.ring_open(
            _address(self.shared),
            self.shared.size,
            entries,
            burst,
            _address(self.submitted),
            _address(self.staging) + 4096,
            entries * block_bytes,
            4096,
            block_bytes,
            self.uuid,
            -1,
        )
        self._taken = 0

    # --- the client's side

    def read(self, batch: ReadBatch, deadline: Deadline, memories: bytes = b"") -> IoResult:
        return _result(
            _native.ring_read(self.handle, *_arguments(batch, deadline, memories, self.device))
        )

    def write(self, batch: WriteBatch, deadline: Deadline, memories: bytes = b"") -> IoResult:
        return _result(
            _native.ring_write(
                self.handle,
                *_arguments(batch, deadline, memories, self.device),
                batch.padded_bytes,
                *packed_records(batch),
            )
        )

    def facts(self) -> dict[str, int]:
        return _native.ring_facts(self.handle)

    # --- the daemon's side

    @property
    def _completed(self) -> int:
        return _address(self.shared) + 16 + 96 * self._cells

    def set_header(self, cell: int, value: int) -> None:
        self.shared[:16].view(np.int32)[cell] = value

    def take(self) -> list[Job]:
        """What was submitted since the last time."""
        header = self.shared[:16].view(np.int32)
        jobs = []
        while self._taken != header[0]:
            at = 16 + 80 * self._cells + 16 * self._taken
            index, userdata = struct.unpack("=i4xQ", self.shared[at : at + 16].tobytes())
            if not 0 <= index < self._cells:
                break  # a test has scribbled over it
            start = 16 + 56 * index
            name, buffer_offset, inode, offset, size, _ = _ARGUMENTS.unpack(
                self.shared[start : start + 56].tobytes()
            )
            assert name == self.uuid or buffer_offset < 1 << 32
            jobs.append(Job(index, userdata, buffer_offset, inode, offset, size))
            self._taken = (self._taken + 1) % self._cells
        header[1] = self._taken
        return jobs

    def complete(self, index: int, userdata: int, result: int, *, head: int | None = None) -> None:
        """Answer one I/O with whatever."""
        header = self.shared[:16].view(np.int32)
        at = 16 + 56 * self._cells + 24 * int(header[2])
        self.shared[at : at + 24] = np.frombuffer(
            _COMPLETION.pack(index, 0, result, userdata), np.uint8
        )
        header[2] = (header[2] + 1) % self._cells if head is None else head
        _libc.sem_post(ctypes.c_void_p(self._completed))

    def wait_for_work(self, timeout_s: float = 5) -> bool:
        """Whether the submit semaphore was posted."""

        class Timespec(ctypes.Structure):
            _fields_ = (("s", ctypes.c_long), ("ns", ctypes.c_long))

        at = time.time() + timeout_s
        until = Timespec(int(at), int(at % 1 * 1e9))
        semaphore = ctypes.c_void_p(_address(self.submitted))
        return int(_libc.sem_timedwait(semaphore, ctypes.byref(until))) == 0


class Serving:
    """Serves a ring from a thread: `answer` gets the jobs that were found together, and says what
    to answer, in this order; None keeps a job without an answer."""

    def __init__(
        self,
        ring: PlainRing,
        fds: Sequence[int],
        answer: Callable[[list[Job]], list[tuple[Job, int | None]]] | None = None,
        memory: np.ndarray | None = None,
    ) -> None:
        self._ring, self._answer = ring, answer or (lambda jobs: [(job, job.size) for job in jobs])
        self._fds = {os.fstat(fd).st_ino: fd for fd in fds}
        self._memory = memory if memory is not None else ring.staging
        self._stop = threading.Event()
        self.for_read = True
        self.unanswered: list[Job] = []
        self.served: list[Job] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Serving:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def move(self, job: Job, result: int) -> None:
        """Move what the result says, and answer."""
        buffer = self._memory[job.buffer_offset : job.buffer_offset + max(result, 0)]
        if result > 0 and self.for_read:
            data = os.pread(self._fds[job.inode], result, job.offset)
            result = min(result, len(data))
            buffer[: len(data)] = np.frombuffer(data, np.uint8)
        elif result > 0:
            os.pwrite(self._fds[job.inode], buffer.tobytes(), job.offset)
        self._ring.complete(job.index, job.userdata, result)

    def _serve(self) -> None:
        while not self._stop.is_set():
            if not self._ring.wait_for_work(0.02):
                continue
            jobs = self._ring.take()
            self.served += jobs
            for job, result in self._answer(jobs) if jobs else ():
                if result is None:
                    self.unanswered.append(job)
                else:
                    self.move(job, result)


def _address(array: np.ndarray) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _arguments(
    batch: ReadBatch | WriteBatch, deadline: Deadline, memories: bytes, device: int
) -> tuple[bytes, bytes, bytes, int, bytes, int, bytes, int]:
    return (
        packed(batch.fds, np.int32),
        packed(batch.offsets, np.int64),
        packed_pieces(batch.pages),
        batch.pages.pieces,
        batch.digests,
        deadline.at_ns,
        memories,
        device,
    )


def _result(moved: tuple[bytearray, bytearray]) -> IoResult:
    return IoResult(np.frombuffer(moved[0], np.int64), np.frombuffer(moved[1], np.uint64))
