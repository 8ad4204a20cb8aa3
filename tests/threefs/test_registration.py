from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest

from tests.threefs.client import SHARED, Client, Io, Ring, names
from tests.threefs.stand_in import ThreeFs

ID = "01234567-89ab-cdef-0123-456789abcdef"
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def target() -> Path:
    path = SHARED / f"threefs-test-{uuid.uuid4()}"
    path.write_bytes(bytes(5008))
    return path


def error_of(link: Path, target: Path) -> int | None:
    try:
        link.symlink_to(target)
    except OSError as error:
        return error.errno
    link.unlink()
    return None


def test_keys_follow_the_grammar(fs: ThreeFs, target: Path) -> None:
    good = ["", ".b4096", ".r0.t0", ".w8.t0", ".r-4.t10", ".r0.ph.t0", ".w0.pl.t5.f11", ".r0.f0.t1"]
    bad = [".t0", ".f1", ".ph", ".b0", ".b", ".b9999", ".r.t0", ".rx.t0", ".r9.t0", ".r0.t"]
    bad += [".r0.t-1", ".r0.t0.f2", ".r0.t0.px", ".r0.t0.", ".r0", ".r0.f1", ".x", "."]
    try:
        assert [key for key in good if error_of(fs.iovs / (ID + key), target)] == []
        assert {key: error_of(fs.iovs / (ID + key), target) for key in bad} == dict.fromkeys(
            bad, 22
        )
        assert error_of(fs.iovs / ID[:-1], target) == 22
        fs.set(strict_depth=1)
        assert error_of(fs.iovs / f"{ID}.r-4.t0", target) == 22
        assert error_of(fs.iovs / f"{ID}.r4.t0", target) is None
    finally:
        target.unlink()


def test_targets_lie_directly_in_shared_memory(fs: ThreeFs, tmp_path: Path, target: Path) -> None:
    elsewhere, below = tmp_path / "file", SHARED / f"threefs-test-{uuid.uuid4()}"
    elsewhere.write_bytes(bytes(4096))
    below.mkdir()
    (below / "file").write_bytes(bytes(4096))
    empty = target.with_name(target.name + "-empty")
    empty.touch()
    wrong = [elsewhere, below / "file", below, empty, SHARED / f"absent-{uuid.uuid4()}"]
    try:
        assert [error_of(fs.iovs / ID, path) for path in wrong] == [22] * 5
        assert error_of(fs.iovs / ID, target) is None
    finally:
        for path in (below / "file", empty, target):
            path.unlink()
        below.rmdir()


def test_an_id_is_registered_once_and_refusal_can_be_asked_for(fs: ThreeFs, target: Path) -> None:
    try:
        (fs.iovs / ID).symlink_to(target)
        assert error_of(fs.iovs / f"{ID}.b4096", target) == 17
        assert (fs.iovs / ID).readlink() == target
        (fs.iovs / ID).unlink()
        fs.set(refuse_errno=12)
        assert error_of(fs.iovs / ID, target) == 12
    finally:
        target.unlink()


def test_listing_unregisters_what_the_same_thread_has_registered(
    fs: ThreeFs, client: Client
) -> None:
    memory, file = client.memory(4096), client.open("page")
    ring = client.ring(4, reads=False)
    registered = {memory.link.name, ring.link.name}
    listed: list[str] = []
    thread = threading.Thread(target=lambda: listed.extend(names(fs.iovs)))
    thread.start()
    thread.join()
    assert registered < set(listed)
    assert ring.run([Io(memory, 0, file, 0, 4096)]) == [4096]
    assert registered < names(fs.iovs)
    fs.wait_until(lambda counters: counters["dropped"] == 2)
    ring.submit([Io(memory, 0, file, 0, 4096)])
    assert ring.reap(1, timeout_s=0.05) == []


def test_another_thread_registers_on_its_own_account(fs: ThreeFs, client: Client) -> None:
    theirs: list[Ring] = []
    thread = threading.Thread(target=lambda: theirs.append(client.ring(4, reads=True)))
    thread.start()
    thread.join()
    mine = client.memory(4096)
    with Client(fs.mount):
        pass  # a second descriptor of this thread: its end takes all that the thread registered
    fs.wait_until(lambda counters: counters["dropped"] == 1)
    left = names(fs.iovs)
    assert theirs[0].link.name in left
    assert mine.link.name not in left


CHILD = """
import sys, time
from pathlib import Path
from tests.threefs.client import Client
client = Client(Path(sys.argv[1]))
kept = client.memory(1 << 20), client.ring(8, reads=True), client.ring(8, reads=False)
print("registered", flush=True)
time.sleep(60)
"""


def test_the_end_of_a_client_drops_what_it_has_registered(fs: ThreeFs) -> None:
    before = names(SHARED)
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, fs.mount],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"registered\n"
    assert fs.counters()["registered"] == 3
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    fs.wait_until(lambda counters: counters["dropped"] == 3)
    assert len(names(fs.iovs)) == 3
    assert [name for name in names(SHARED) - before if "threefs-test" in name] == []
