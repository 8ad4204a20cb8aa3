"""A root directory seen from outside: what differs between a local disk and 3FS."""

from __future__ import annotations

import contextlib
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeVar

from hicache_backends.deadline import Deadline
from hicache_backends.errors import ConfigError, StorageUnavailable
from hicache_backends.segment.plain import NotPlain, read_plain
from hicache_backends.threefs.aside import Aside
from hicache_backends.threefs.medium_file import FORMAT_VERSION as THREEFS_VERSION
from hicache_backends.usrbio.mount import find_mount

_HEAD = struct.Struct("<8sI")  # of `.medium`, whatever wrote it: magic, format version
_MAGIC = b"HICACHE\0"
_ANSWER_MS = 10_000.0
_T = TypeVar("_T")


@dataclass(frozen=True)
class RootFacts:
    """What a root says of itself. `medium`: its uuid; `used_bytes` None: the sum of its files;
    `problem`: what is wrong with its `.medium`, "" if nothing is."""

    medium: str
    cluster: str
    capacity_bytes: int
    used_bytes: int | None
    free_bytes: int
    problem: str = ""


@dataclass(frozen=True)
class Holder:
    """Whose a store is. `in_use_by`: host and process, "" if it is nobody's; `adopted`: by a
    process that goes on with it and never writes to it; `owner_problem`: what is wrong with its
    file `owner`; `idle_s`: seconds since it was last used."""

    in_use_by: str
    adopted: bool
    closed_cleanly: bool
    owner_problem: str
    idle_s: float


class Root(ABC):
    """A root directory. Every method raises OSError."""

    kind: str

    def __init__(self, path: str) -> None:
        self.path = path

    def run(self, work: Callable[[], _T]) -> _T:
        """The result of work on the file system, which may hang. Raises TimeoutError then."""
        return work()

    @abstractmethod
    def held(self) -> AbstractContextManager[RootFacts]:
        """Inside the context no store is opened, copied or deleted, where that can be had."""

    @abstractmethod
    def holder(self, store: str) -> Holder:
        """Whose the store at this path is."""

    @abstractmethod
    def records(self, store: str, number: int) -> bytes | bytearray:
        """The index file of a segment."""

    @abstractmethod
    def taken(self, store: str) -> AbstractContextManager[str]:
        """The store to oneself inside the context; yields why not, "" if it is so."""

    @abstractmethod
    def delete(self, store: str) -> str:
        """Delete a store that was taken, and its namespace with the last store; what is still
        there, "" if nothing is."""

    @abstractmethod
    def void(self, store: str, number: int, slots: Sequence[int]) -> None:
        """Empty these records of a store that was taken."""

    @abstractmethod
    def unlink(self, path: str) -> None:
        """Delete a file and give its space back; one that is gone is fine."""


def open_root(path: str) -> Root:
    """The root of this kind. Raises ConfigError where the directory is none, StorageUnavailable
    where it does not answer."""
    path = path.rstrip("/") or "/"
    try:
        is_3fs = Aside().run(lambda: _is_3fs(path), Deadline.after_ms(_ANSWER_MS))
    except (FileNotFoundError, NotADirectoryError, NotPlain):
        raise ConfigError(f"{path} holds no store: it has no file .medium") from None
    except TimeoutError:
        raise StorageUnavailable(f"{path} does not answer: is its mount hung?") from None
    except OSError as error:
        raise StorageUnavailable(f"{path} cannot be read: {error.strerror}") from error
    if is_3fs:
        from hicache_storage.tools.root_threefs import ThreeFsRoot

        return ThreeFsRoot(path)
    from hicache_storage.tools.root_local import LocalRoot

    return LocalRoot(path)


def is_root(path: str) -> bool:
    """Whether stores lie in a directory. Raises StorageUnavailable where it does not answer."""
    with contextlib.suppress(ConfigError):
        open_root(path)
        return True
    return False


@contextlib.contextmanager
def explained(path: str, doing: str) -> Iterator[None]:
    """Raises StorageUnavailable for an OSError."""
    try:
        yield
    except OSError as error:
        raise StorageUnavailable(f"{path} cannot be {doing}: {error.strerror}") from error


def _is_3fs(path: str) -> bool:
    """As its `.medium` says, or where that is damaged, its mount."""
    head = read_plain(f"{path}/.medium", _HEAD.size)
    if len(head) == _HEAD.size and head.startswith(_MAGIC):
        return bool(_HEAD.unpack(head)[1] == THREEFS_VERSION)
    try:
        find_mount(path)
    except StorageUnavailable:
        return False
    return True
