"""Links, pipes, directories and huge files in the place of a store's files do no harm."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hicache_backends.errors import HiCacheError
from hicache_backends.nvme import open_nvme
from hicache_backends.outcomes import Reason
from hicache_backends.testing.canaries import NAMESPACE, Target, digests_of, get, put, soon
from hicache_storage.tools.media import read_medium
from tests.backends.segment.worker import ENVIRONMENT, options

FILES = (".medium", "*/namespace.msgpack", "*/*/owner", "*/*/*.index", "*/*/*.data")


def _link(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


def _child(root: Path) -> None:
    """Open the store and read its medium within 2 GiB of memory."""
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    pages = digests_of(*range(4))
    try:
        read_medium(root)
    except HiCacheError:
        sys.stdout.write("told,")
    try:
        storage = open_nvme(NAMESPACE, options(root))
    except HiCacheError:
        sys.stdout.write("refused")
        return
    get(storage, pages)
    put(storage, digests_of(*range(100, 104)))
    storage.close()
    sys.stdout.write("opened")


@pytest.mark.parametrize("other", [_link, os.mkfifo, Path.mkdir, _sparse])
def test_no_file_of_a_store_can_be_made_a_trap(
    tmp_path: Path, other: Callable[[Path], None]
) -> None:
    roots = [tmp_path / str(number) for number in range(len(FILES))]
    for file, root in zip(FILES, roots, strict=True):
        storage = open_nvme(NAMESPACE, options(root))
        assert all(put(storage, digests_of(*range(4))))
        storage.close()
        (path,) = root.glob(file)
        path.unlink()
        other(path)
    run = subprocess.run(
        [sys.executable, "-m", __name__, *map(str, roots)],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=False,
        timeout=60,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    said = [line.removeprefix("told,") for line in run.stdout.splitlines()]
    assert len(said) == len(FILES)
    assert {*said} <= {"refused", "opened"}


@pytest.mark.parametrize("other", [_link, os.mkfifo, Path.mkdir])
@pytest.mark.parametrize("file", ["*/*/*.index", "*/*/*.data"])
def test_a_file_that_turns_into_something_else_is_a_miss(
    tmp_path: Path, file: str, other: Callable[[Path], None]
) -> None:
    storage = open_nvme(NAMESPACE, options(tmp_path))
    places = [outcome.location for outcome in put(storage, digests_of(*range(4)))]
    (path,) = tmp_path.glob(file)
    path.unlink()
    other(path)
    reader = open_nvme(NAMESPACE, options(tmp_path))
    outcomes = reader.get(digests_of(*range(4)), Target(4).pages, soon(), places)
    reasons = {outcome.reason for outcome in outcomes}
    assert reasons <= {None, Reason.STALE_LOCATION, Reason.IO_ERROR}
    for one in (storage, reader):
        one.close()


if __name__ == "__main__":
    for argument in sys.argv[1:]:  # each in a process of its own, which begins with little memory
        sys.stdout.flush()
        if not (child := os.fork()):
            signal.alarm(20)
            _child(Path(argument))
            sys.stdout.write("\n")
            sys.stdout.flush()
            os._exit(0)
        if status := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            sys.exit(f"{argument}: {status}")
