"""Real page-hash traffic, recorded as Arrow IPC streams for replay.

A file holds record batches of `time` (UTC, microseconds), `op`, `keys` and `hits`. Recording puts
a tuple on a queue; a thread of its own writes. What would make the queue too long is dropped and
counted: the data path never waits. A file that its process could not finish is read as far as it
goes.
"""

from __future__ import annotations

import logging
import os
import queue
import secrets
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from hicache_backends.errors import ConfigError, MissingExtra

SUFFIX = ".arrows"
_BATCH_ROWS = 4096
_FLUSH_SECONDS = 1.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Access:
    """One recorded call. `time_us`: microseconds since 1970, UTC. `hits`: pages found, read or
    written."""

    time_us: int
    op: str
    keys: tuple[str, ...]
    hits: int


class AccessLog:
    """Records calls into `directory`, in files of about `rotate_bytes`.

    The newest `keep` files of the directory stay, whichever process wrote them. At most
    `max_queued_keys` keys wait to be written. Thread safe.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        rotate_bytes: int = 64 << 20,
        keep: int = 64,
        max_queued_keys: int = 1 << 20,
    ) -> None:
        if rotate_bytes < 1 or keep < 1 or max_queued_keys < 1:
            raise ConfigError("rotate_bytes, keep and max_queued_keys of an access log are above 0")
        self._arrow = _arrow()
        self._directory = Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._rotate_bytes = rotate_bytes
        self._keep = keep
        self._max_queued_keys = max_queued_keys
        self._queue: queue.SimpleQueue[Access | None] = queue.SimpleQueue()
        self._queued_keys = 0
        self._count = threading.Lock()
        self.dropped = 0
        # containers share a directory and a process number
        self._name = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._files = 0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="hicache-access-log", daemon=True)
        self._thread.start()

    def record(self, op: str, keys: Sequence[str], hits: int) -> None:
        """Queue one call. Never blocks, never raises; drops it where the queue is full."""
        with self._count:
            if self._closed or self._queued_keys + len(keys) > self._max_queued_keys:
                self.dropped += 1
                return
            self._queued_keys += len(keys)
        self._queue.put(Access(time.time_ns() // 1000, op, tuple(keys), hits))

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what is queued and finish the file. Closing again is fine."""
        with self._count:
            closed, self._closed = self._closed, True
        if not closed:
            self._queue.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while not self._write_file():
                pass
        except Exception:
            with self._count:
                self._closed = True
            _log.exception("the access log stops: it cannot be written")

    def _write_file(self) -> bool:
        """Write one file until it is full; True when the log is closed."""
        rows = self._next_rows()
        if not rows:
            return True
        self._files += 1
        path = self._directory / f"{self._name}-{self._files:06d}{SUFFIX}"
        with path.open("xb") as file, self._arrow.ipc.new_stream(file, _schema()) as stream:
            while rows:
                stream.write_batch(_batch(rows))
                file.flush()
                if file.tell() >= self._rotate_bytes:
                    break
                rows = self._next_rows()
        for old in _own_files(self._directory)[: -self._keep]:
            old.unlink(missing_ok=True)
        return not rows

    def _next_rows(self) -> list[Access]:
        """What came within a second of the first call; nothing when the log is closed."""
        first = self._queue.get()  # no timeout: an idle log wakes nobody
        if first is None:
            return []
        rows = [first]
        until = time.monotonic() + _FLUSH_SECONDS
        while len(rows) < _BATCH_ROWS and (left := until - time.monotonic()) > 0:
            try:
                row = self._queue.get(timeout=left)
            except queue.Empty:
                break
            if row is None:
                self._queue.put(None)  # seen again by the next call
                break
            rows.append(row)
        taken = sum(len(row.keys) for row in rows)
        with self._count:
            self._queued_keys -= taken
        return rows


def read_access_log(path: str | Path) -> Iterator[Access]:
    """The calls in a file, or in all files of a directory in the order of their start."""
    for file in _files(Path(path)):
        with file.open("rb") as stream:
            yield from _read(stream, file)


async def read_access_log_async(path: str | Path) -> AsyncIterator[Access]:
    """The same beside an event loop: files are read without blocking it, one at a time."""
    try:
        import aiofiles
    except ImportError as error:
        raise MissingExtra("reading an access log beside an event loop", "aio") from error
    for file in _files(Path(path)):
        async with aiofiles.open(file, "rb") as stream:
            raw = await stream.read()
        for access in _read(raw, file):
            yield access


def _read(source: BinaryIO | bytes, file: Path) -> Iterator[Access]:
    arrow = _arrow()
    try:
        for batch in arrow.ipc.open_stream(source):
            columns = batch.to_pydict()
            for row in zip(*(columns[name] for name in _schema().names), strict=True):
                yield Access(row[0], row[1], tuple(row[2]), row[3])
    except (arrow.ArrowInvalid, OSError, KeyError) as error:
        _log.warning("%s is read up to where it is broken: %s", file, error)


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return _own_files(path)
    if not path.is_file():
        raise ConfigError(f"{path}: there is no access log")
    return [path]


def _own_files(directory: Path) -> list[Path]:
    """The log's files, oldest first."""
    found = [(file.stat().st_mtime_ns, file) for file in directory.glob(f"*{SUFFIX}")]
    return [file for _, file in sorted(found)]


def _batch(rows: list[Access]) -> Any:
    columns = [
        [row.time_us for row in rows],
        [row.op for row in rows],
        [row.keys for row in rows],
        [row.hits for row in rows],
    ]
    return _arrow().record_batch(columns, schema=_schema())


def _schema() -> Any:
    arrow = _arrow()
    return arrow.schema(
        [
            ("time", arrow.int64()),
            ("op", arrow.string()),
            ("keys", arrow.list_(arrow.string())),
            ("hits", arrow.int32()),
        ]
    )


def _arrow() -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError as error:
        raise MissingExtra("the access log", "tools") from error
    return pyarrow
