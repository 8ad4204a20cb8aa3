"""A stand-in of 3FS's daemon, and engines over it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from hicache_backends.usrbio import layout
from hicache_backends.usrbio.engine import UsrbioEngine
from hicache_backends.usrbio.ring import RingSettings
from tests.backends.usrbio.official_double import OfficialDouble
from tests.threefs.stand_in import ThreeFs

PAGE = 64 << 10
SMALL = RingSettings(block_bytes=PAGE, rings=2, staging_bytes=4 << 20)


@pytest.fixture
def fs(tmp_path: Path) -> Iterator[ThreeFs]:
    with ThreeFs(tmp_path / "backing", tmp_path / "mount") as fs:
        yield fs


@pytest.fixture
def open_engine(fs: ThreeFs) -> Iterator[Callable[..., UsrbioEngine]]:
    """Opens engines on the mount and closes them."""
    opened: list[UsrbioEngine] = []

    def open_one(settings: RingSettings = SMALL, **options: Any) -> UsrbioEngine:
        engine = UsrbioEngine(str(fs.mount), settings, **{"client": "own", **options})
        opened.append(engine)
        return engine

    yield open_one
    for engine in opened:
        engine.close()


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> OfficialDouble:
    """The official module, as if it were installed."""
    double = OfficialDouble()
    package = ModuleType("hf3fs_fuse")
    monkeypatch.setattr(package, "io", double, raising=False)
    monkeypatch.setitem(sys.modules, "hf3fs_fuse", package)
    monkeypatch.setitem(sys.modules, "hf3fs_fuse.io", double)
    return double


@pytest.fixture
def fd(fs: ThreeFs) -> Iterator[int]:
    """A file of 64 random pages on the mount."""
    fd = os.open(fs.mount / "data", os.O_RDWR | os.O_CREAT)
    os.pwrite(fd, np.random.default_rng(3).bytes(64 * PAGE), 0)
    yield fd
    close_quietly(fd)


def close_quietly(fd: int) -> None:
    """Closing a file of a dead mount is an error, and closes it."""
    with contextlib.suppress(OSError):
        os.close(fd)


def leftovers(fs: ThreeFs) -> list[str]:
    """Shared memory and registrations of ours."""
    registered = [p.name for p in fs.iovs.iterdir() if not p.name.startswith("submit-ios")]
    return registered + shared_memory(os.getpid())


def shared_memory(pid: int) -> list[str]:
    """What a process has put into /dev/shm."""
    return [path.name for path in Path(layout.SHM_DIR).glob(f"hicache-{pid}-*")]
