from __future__ import annotations

import errno
import fcntl
import os
import threading
import time

import pytest

from tests.threefs.client import Client, Io
from tests.threefs.stand_in import ThreeFs
from tests.threefs.test_files import GET_MAGIC
from tests.threefs.test_rings import CHUNK, written


def test_a_share_fails_is_cut_or_is_wrong(fs: ThreeFs, client: Client) -> None:
    file, memory = written(client, "shares", 8), client.memory(8 * CHUNK)
    ring = client.ring(8, reads=True)
    ios = [Io(memory, i * CHUNK, file, i * CHUNK, CHUNK) for i in range(8)]
    shares = {"fail_share": 0.2, "short_share": 0.2, "hole_share": 0.1, "corrupt_share": 0.2}
    fs.set(seed=3, **shares)
    results, wrong = [], 0
    for _ in range(25):
        memory.map[:] = b"?" * 8 * CHUNK
        results += (round_ := ring.run(ios))
        for i, result in enumerate(round_):
            page = memory.map[i * CHUNK : (i + 1) * CHUNK]
            assert page[max(result, 0) :] == b"?" * (CHUNK - max(result, 0))
            wrong += page[: max(result, 0)].strip(bytes([i + 1])) != b""
    counters = fs.counters()
    assert results.count(-errno.EREMOTEIO) == counters["failed"] > 0
    assert 0 < sum(0 < result < CHUNK for result in results) <= counters["shortened"]
    assert results.count(0) >= counters["holes"] > 0
    assert wrong == counters["corrupted"] > 0
    assert results.count(CHUNK) > 50


def test_zeros_pass_for_data_unless_holes_fail(fs: ThreeFs, client: Client) -> None:
    file, memory = written(client, "zeros", 1), client.memory(CHUNK)
    fs.set(zero_share=1)
    io = Io(memory, 0, file, 0, CHUNK)
    assert client.ring(1, reads=True).run([io]) == [CHUNK]
    assert memory.map[:] == bytes(CHUNK)
    assert client.ring(1, reads=True, keys=".t0.f10").run([io]) == [-errno.ENODATA]


def test_faults_act_on_reads_or_writes_alone_if_told_so(fs: ThreeFs, client: Client) -> None:
    file, memory = written(client, "only", 1), client.memory(CHUNK)
    reads, writes = client.ring(1, reads=True), client.ring(1, reads=False)
    io = Io(memory, 0, file, 0, CHUNK)
    fs.set(fail_share=1, fail_errno=errno.EIO, only=2)
    assert (reads.run([io]), writes.run([io])) == ([CHUNK], [-errno.EIO])
    fs.set(only=1)
    assert (reads.run([io]), writes.run([io])) == ([-errno.EIO], [CHUNK])


def test_what_hangs_lands_when_it_is_released(fs: ThreeFs, client: Client) -> None:
    file, memory = written(client, "hung", 1), client.memory(CHUNK)
    ring = client.ring(1, reads=True)
    fs.set(hang_share=1)
    ring.submit([Io(memory, 0, file, 0, CHUNK)])
    fs.wait_until(lambda counters: counters["held"] == 1)
    assert ring.reap(1, timeout_s=0.02) == []
    assert memory.map[:1] == b"\0"
    fs.set(hang_share=0)
    assert [done.result for done in ring.reap(1)] == [CHUNK]
    assert memory.map[:1] == b"\1"


def test_late_data_lands_in_memory_that_was_waited_for_in_vain(fs: ThreeFs, client: Client) -> None:
    file, memory = written(client, "late", 1), client.memory(CHUNK)
    ring = client.ring(1, reads=True)
    fs.set(late_share=1, late_ms=150)
    began = time.monotonic()
    ring.submit([Io(memory, 0, file, 0, CHUNK)])
    assert ring.reap(1, timeout_s=0.01) == []
    memory.map[:] = b"!" * CHUNK
    assert len(ring.reap(1)) == 1
    assert time.monotonic() - began >= 0.15
    assert memory.map[:1] == b"\1"


def test_a_daemon_that_stands_still_goes_on_where_it_was(still: ThreeFs) -> None:
    client = Client(still.mount)
    file, memory = written(client, "paused", 1), client.memory(CHUNK)
    ring = client.ring(1, reads=True)
    assert os.fstat(file).st_size == CHUNK
    still.pause()
    ring.submit([Io(memory, 0, file, 0, CHUNK)])
    assert ring.reap(1, timeout_s=0.05) == []
    still.resume()
    assert [done.result for done in ring.reap(1)] == [CHUNK]
    client.close_all()


def test_names_of_faults_are_checked(fs: ThreeFs) -> None:
    with pytest.raises(ValueError, match="tea_share"):
        fs.set(tea_share=1)
    fs.set(delay_ms=2.5)
    assert fs.faults()["delay_ms"] == 2.5
    fs.reset()
    assert fs.faults()["delay_ms"] == 0


def test_a_dead_daemon_is_silent_in_rings_and_loud_in_calls(still: ThreeFs) -> None:
    with Client(still.mount) as client:
        file, memory = written(client, "page", 1), client.memory(CHUNK)
        ring = client.ring(2, reads=True)
        assert os.fstat(file).st_size == CHUNK
        still.set(hang_share=1)
        ring.submit([Io(memory, 0, file, 0, CHUNK)])
        still.kill()
        ring.submit([Io(memory, 0, file, 0, CHUNK)])
        assert ring.reap(1, timeout_s=0.05) == []
        assert os.fstat(file).st_size == CHUNK
        for call in (
            lambda: client.open("page"),
            lambda: client.memory(CHUNK),
            lambda: fcntl.ioctl(file, GET_MAGIC, bytearray(4)),
        ):
            with pytest.raises(OSError) as caught:  # noqa: PT011  its number is looked at below
                call()
            assert caught.value.errno == errno.ENOTCONN


def test_after_a_restart_all_is_new(still: ThreeFs) -> None:
    fs = still
    with Client(fs.mount) as client:
        file, memory = written(client, "page", 1), client.memory(CHUNK)
        ring = client.ring(2, reads=True)
        before = [link.readlink() for link in fs.iovs.glob("submit-ios*")]
        assert os.fstat(file).st_size == CHUNK
        fs.restart()
        ring.submit([Io(memory, 0, file, 0, CHUNK)])
        assert ring.reap(1, timeout_s=0.05) == []
    after = [link.readlink() for link in fs.iovs.glob("submit-ios*")]
    assert len(after) == 3
    assert not set(before) & set(after)
    with Client(fs.mount) as client:
        file, memory = client.open("page"), client.memory(CHUNK)
        assert client.ring(2, reads=True).run([Io(memory, 0, file, 0, CHUNK)]) == [CHUNK]
        assert memory.map[:] == b"\1" * CHUNK
        assert fs.counters()["reads"] == 1


def test_a_call_that_hangs_ends_with_the_daemon(fs: ThreeFs) -> None:
    with Client(fs.mount) as client:
        hang_and_kill(fs, client)


def hang_and_kill(fs: ThreeFs, client: Client) -> None:
    file = client.open("hung", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    fs.set(fuse_hang=1)
    raised: list[OSError] = []

    def write() -> None:
        try:
            os.write(file, b"x" * 512)
        except OSError as error:
            raised.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    fs.wait_until(lambda counters: counters["calls"]["write"] == 1)
    fs.kill()
    thread.join(10)
    assert raised[0].errno in (errno.ENOTCONN, errno.ECONNABORTED)
