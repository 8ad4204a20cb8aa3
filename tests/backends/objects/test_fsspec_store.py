"""Any fsspec file system: asked at once, told apart where it fails, and imported only when used."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from hicache_backends.deadline import Deadline
from hicache_backends.errors import ConfigError, IdentityMismatch, MissingExtra, StorageUnavailable
from hicache_backends.fsspec_calls import FileSystemCalls, LateError
from hicache_backends.fsspec_files import ABANDONED_S, WRITING
from hicache_backends.fsspec_store import MEDIUM_KEY, FsspecOptions, FsspecStore, open_fsspec
from hicache_backends.outcomes import Reason
from hicache_backends.pages import Pages
from hicache_backends.table import open_storage
from hicache_backends.testing.canaries import NAMESPACE, digests_of, get, put
from tests.backends.objects.media import soon

KILLED = Path(__file__).with_name("killed_writer.py")


def memory_url() -> str:
    return f"memory://{uuid.uuid4().hex}"


def test_it_opens_by_name_and_url(tmp_path: Path) -> None:
    storage = open_storage(f"fsspec:file://{tmp_path}/kv?concurrency=4", NAMESPACE)
    pages = digests_of(*range(3))
    assert all(put(storage, pages))
    assert storage.close()
    again = open_storage("fsspec", NAMESPACE, {"url": f"file://{tmp_path}/kv"})
    assert get(again, pages) == [True] * 3
    assert again.close()


def test_all_who_open_a_place_agree_which_medium_it_is(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/kv"
    found: list[bytes] = []
    start = threading.Barrier(6)

    def ask() -> None:
        store = FsspecStore(url, {})
        start.wait(10)
        found.append(store.medium(soon()))
        store.close()

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert len({*found}) == 1
    other = FsspecStore(f"file://{tmp_path}/other", {})
    assert other.medium(soon()) not in found
    other.close()


def test_what_a_killed_writer_left_goes_at_an_opening_an_hour_later(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, str(KILLED), f"file://{tmp_path}"], check=False)
    assert killed.returncode == -signal.SIGKILL
    [left] = (tmp_path / WRITING).iterdir()
    assert left.read_bytes() == b"half"
    for age_s, there in ((0, True), (ABANDONED_S - 60, True), (ABANDONED_S + 60, False)):
        os.utime(left, (time.time() - age_s,) * 2)
        store = FsspecStore(f"file://{tmp_path}", {})
        store.medium(soon())
        store.close()
        assert left.exists() is there


def test_files_that_cannot_be_put_in_their_place_do_not_pile_up(tmp_path: Path) -> None:
    storage = open_fsspec(NAMESPACE, FsspecOptions(f"file://{tmp_path}"))
    pages = digests_of(*range(3))
    for page in pages:  # a file stands where its folder belongs
        (tmp_path / NAMESPACE.fingerprint.hex() / page.hex()[:2]).touch()
    assert not any(put(storage, pages))
    assert storage.close()
    assert [*(tmp_path / WRITING).iterdir()] == []


def test_another_identity_in_its_place_is_refused() -> None:
    url = memory_url()
    open_fsspec(NAMESPACE, FsspecOptions(url)).close()
    store = FsspecStore(url, {})
    name = f"{NAMESPACE.fingerprint.hex()}/namespace.msgpack"
    store.remove([name], soon())
    store.create(name, b"something else", soon())
    with pytest.raises(IdentityMismatch, match=r"namespace\.msgpack"):
        open_fsspec(NAMESPACE, FsspecOptions(url))
    store.remove([MEDIUM_KEY], soon())
    store.create(MEDIUM_KEY, b"garbage", soon())
    with pytest.raises(StorageUnavailable, match="medium"):
        open_fsspec(NAMESPACE, FsspecOptions(url))
    store.close()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (FsspecOptions("nosuch://bucket"), ConfigError, "nosuch"),
        (FsspecOptions("gcs://bucket/prefix"), MissingExtra, "gcs"),
        (FsspecOptions("memory://x", capacity_bytes=1), ConfigError, "capacity_bytes"),
        (FsspecOptions("memory://x", concurrency=0), ConfigError, "concurrency"),
        (FsspecOptions("memory://x", zero_copy="yes"), ConfigError, "zero_copy"),
    ],
)
def test_a_place_that_cannot_be_opened_says_why(
    options: FsspecOptions, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        open_fsspec(NAMESPACE, options)


def test_a_missing_bucket_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageUnavailable):
        open_fsspec(NAMESPACE, FsspecOptions(f"file://{tmp_path}/file/kv"))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ENOSPC, "full"), Reason.NO_SPACE),
        (OSError(errno.EDQUOT, "quota"), Reason.NO_SPACE),
        (OSError(errno.EIO, "broken"), Reason.IO_ERROR),
        (PermissionError(errno.EACCES, "no"), Reason.IO_ERROR),
        (TimeoutError("late"), Reason.TIMEOUT),
        (RuntimeError("a fault of the library"), Reason.IO_ERROR),
    ],
)
def test_each_failure_of_the_file_system_is_an_outcome(
    monkeypatch: pytest.MonkeyPatch, error: Exception, reason: Reason
) -> None:
    storage = open_fsspec(NAMESPACE, FsspecOptions(memory_url()))
    pages = digests_of(*range(4))
    put(storage, pages[:2])

    def fail(*_: Any, **__: Any) -> bytes:
        raise error

    with monkeypatch.context() as broken:
        broken.setattr(MemoryFileSystem, "cat_file", fail)
        broken.setattr(MemoryFileSystem, "pipe_file", fail)
        assert [o.reason for o in put(storage, pages)] == [None, None, reason, reason]
        memory = Pages.from_buffers([bytearray(NAMESPACE.page_bytes)], writable=True)
        assert storage.get(pages[:1], memory, soon())[0].reason is reason
    assert get(storage, pages) == [True, True, False, False]
    assert all(put(storage, pages))
    storage.close()


def test_calls_run_beside_each_other_and_late_ones_are_told_apart() -> None:
    calls = FileSystemCalls(memory_url(), {}, 8)
    together = threading.Barrier(8)
    assert calls.all([lambda: together.wait(10) >= 0] * 8, soon()) == [True] * 8
    gate = threading.Event()
    results = calls.all([lambda: 1, lambda: gate.wait(10)], Deadline.after_ms(100))
    assert results[0] == 1
    assert isinstance(results[1], LateError)
    gate.set()
    calls.close()


def test_fsspec_is_imported_when_it_is_used_and_not_before() -> None:
    code = (
        "import sys, hicache_backends.fsspec_store, hicache_backends.mooncake.backend\n"
        "print('fsspec' in sys.modules, 'mooncake' in sys.modules)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(filter(None, sys.path))},
    )
    assert ran.stdout.split() == ["False", "False"]


def test_without_fsspec_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(MissingExtra, match=r"hicache-storage\[fsspec\]"):
        open_storage("fsspec:memory://x", NAMESPACE)
    monkeypatch.setitem(sys.modules, "hicache_backends.mooncake.filesystem", None)
    with pytest.raises(MissingExtra, match=r"hicache-storage\[mooncake\]"):
        open_storage("mooncake", NAMESPACE, {"master": "m:1"})
