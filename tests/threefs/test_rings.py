from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from tests.threefs.client import Client, Io
from tests.threefs.stand_in import DaemonError, ThreeFs

CHUNK = 64 << 10


def written(client: Client, name: str, chunks: int) -> int:
    """A file whose chunk i holds the byte i + 1."""
    file = client.open(name)
    os.pwrite(file, b"".join(bytes([i + 1]) * CHUNK for i in range(chunks)), 0)
    return file


def test_pages_come_back_as_they_were_written(fs: ThreeFs, client: Client) -> None:
    memory, file = client.memory(8 * CHUNK), client.open("pages")
    pages = [bytes([65 + i]) * CHUNK for i in range(4)]
    memory.map[: 4 * CHUNK] = b"".join(pages)
    writes = client.ring(8, reads=False)
    reads = client.ring(8, reads=True)
    ios = [Io(memory, i * CHUNK, file, i * CHUNK, CHUNK) for i in range(4)]
    assert writes.run(ios) == [CHUNK] * 4
    backwards = [Io(memory, (4 + i) * CHUNK, file, (3 - i) * CHUNK, CHUNK) for i in range(4)]
    assert reads.run(backwards) == [CHUNK] * 4
    assert memory.map[4 * CHUNK :] == b"".join(reversed(pages))
    assert (fs.backing / "pages").read_bytes() == b"".join(pages)
    served = fs.counters()
    assert (served["reads"], served["writes"]) == (4, 4)
    assert served["written_bytes"] == served["read_bytes"] == 4 * CHUNK
    assert served["fuse_writes"] == 0


def test_two_hosts_see_each_others_data_at_once(
    fs: ThreeFs, other: ThreeFs, client: Client
) -> None:
    file = client.open("shared")
    with Client(other.mount) as there:
        theirs = there.open("shared", os.O_RDONLY)
        mine, memory = client.memory(CHUNK), there.memory(CHUNK)
        writes, reads = client.ring(1, reads=False), there.ring(1, reads=True)
        for round_ in range(20):  # the file grows: its cached length says nothing
            mine.map[:] = bytes([round_]) * CHUNK
            assert writes.run([Io(mine, 0, file, round_ * CHUNK, CHUNK)]) == [CHUNK]
            assert reads.run([Io(memory, 0, theirs, round_ * CHUNK, CHUNK)]) == [CHUNK]
            assert memory.map[:] == mine.map[:]


def test_jobs_finish_in_any_order_under_jitter(fs: ThreeFs, client: Client) -> None:
    file, memory = written(client, "many", 8), client.memory(8 * CHUNK)
    ring = client.ring(8, reads=True, depth=-1)
    ios = [Io(memory, i * CHUNK, file, i * CHUNK, CHUNK) for i in range(8)]
    fs.set(jitter_ms=4, seed=7)
    disordered = 0
    for round_ in range(10):
        ring.submit(ios, first_userdata=100 * round_)
        done = [completion.userdata - 100 * round_ for completion in ring.reap(8)]
        assert sorted(done) == list(range(8))
        disordered += done != sorted(done)
        assert memory.map[::CHUNK] == bytes(range(1, 9))
    assert disordered
    assert fs.counters()["batches"] == {"1": 80}


def test_a_window_of_reordered_jobs_runs_last_to_first(tmp_path: Path) -> None:
    with (
        ThreeFs(tmp_path / "backing", tmp_path / "mount", workers=1) as fs,
        Client(fs.mount) as client,
    ):
        file, memory = written(client, "reordered", 4), client.memory(4 * CHUNK)
        ring = client.ring(4, reads=True, depth=-1)
        fs.set(reorder_ms=100)
        ring.submit([Io(memory, i * CHUNK, file, i * CHUNK, CHUNK) for i in range(4)])
        done = [completion.userdata for completion in ring.reap(4)]
    assert done != sorted(done)  # two windows if one ends just then
    assert sorted(done) == list(range(4))


@pytest.mark.parametrize(
    ("depth", "submitted", "batches"),
    [(0, 7, {"7": 1}), (-3, 7, {"3": 2, "1": 1}), (3, 7, {"3": 2}), (3, 2, {})],
)
def test_jobs_are_formed_by_the_depth(
    fs: ThreeFs, client: Client, depth: int, submitted: int, batches: dict[str, int]
) -> None:
    file, memory = written(client, "jobs", 8), client.memory(8 * CHUNK)
    ring = client.ring(8, reads=True, depth=depth)
    ring.submit([Io(memory, i * CHUNK, file, i * CHUNK, CHUNK) for i in range(submitted)])
    expected = sum(int(size) * number for size, number in batches.items())
    assert len(ring.reap(expected)) == expected
    assert ring.reap(submitted, timeout_s=0.05 if expected < submitted else 0) == []
    assert fs.counters()["batches"] == batches


def test_a_partial_batch_with_a_timeout_waits_for_another_post(client: Client) -> None:
    file, memory = written(client, "partial", 2), client.memory(2 * CHUNK)
    ring = client.ring(4, reads=True, depth=-4, keys=".t10")
    ring.submit([Io(memory, i * CHUNK, file, i * CHUNK, CHUNK) for i in range(2)])
    assert ring.reap(2, timeout_s=0.1) == []
    ring.post()
    assert len(ring.reap(2)) == 2


def test_nothing_runs_without_a_post_at_the_rings_own_priority(client: Client) -> None:
    file, memory = written(client, "quiet", 1), client.memory(CHUNK)
    ring, plain = client.ring(1, reads=True, keys=".ph.t0"), client.ring(1, reads=True)
    ring.submit([Io(memory, 0, file, 0, CHUNK)], post=False)
    plain.post()
    assert ring.reap(1, timeout_s=0.05) == []
    ring.post()
    assert [done.result for done in ring.reap(1)] == [CHUNK]


def test_each_mistake_has_its_error(fs: ThreeFs, client: Client) -> None:
    file, memory = written(client, "wrong", 4), client.memory(4 * CHUNK, block=2 * CHUNK)
    (fs.mount / "empty").touch()
    reads, writes = client.ring(8, reads=True), client.ring(8, reads=False)
    good = Io(memory, 0, file, 0, CHUNK)

    gone = client.memory(CHUNK)
    gone.unregister()
    assert reads.run([good._replace(memory=gone)]) == [-errno.EINVAL]
    assert reads.run([good._replace(offset=CHUNK, length=2 * CHUNK)]) == [-errno.EINVAL]
    assert reads.run([good._replace(offset=3 * CHUNK + 1)]) == [-errno.EINVAL]
    overlapping = [good, good._replace(offset=CHUNK - 1), good._replace(offset=2 * CHUNK)]
    whole_jobs = client.ring(8, reads=True, depth=3)
    assert whole_jobs.run(overlapping) == [-errno.EINVAL] * 3
    assert writes.run(overlapping[::2]) == [CHUNK] * 2
    assert writes.run([good, good._replace(at=CHUNK)]) == [CHUNK] * 2

    only_read = client.open("empty", os.O_RDONLY)
    assert reads.run([good._replace(file=only_read)]) == [0]
    assert writes.run([good._replace(file=only_read)]) == [-errno.EBADF]
    fs.set(unpinned=1)
    assert reads.run([good]) == [-errno.EACCES]
    fs.reset()
    fs.set(no_space=1)
    assert writes.run([good]) == [-errno.ENOSPC]
    fs.set(no_space=0, read_only=1)
    assert writes.run([good]) == [-errno.EROFS]
    assert reads.run([good]) == [CHUNK]


def test_only_an_open_descriptor_pins_an_inode(fs: ThreeFs, client: Client) -> None:
    file, memory = written(client, "pinned", 1), client.memory(CHUNK)
    ring = client.ring(1, reads=True)
    io = Io(memory, 0, file, 0, CHUNK)
    assert ring.run([io]) == [CHUNK]
    twin = os.open(fs.backing / "pinned", os.O_RDONLY)  # the same inode, on no mount
    try:
        client.close(file)
        fs.wait_until(lambda counters: counters["calls"]["release"] == 1)
        assert ring.run([io._replace(file=twin)]) == [-errno.EBADF]
    finally:
        os.close(twin)


def test_holes_are_zeros_before_data_and_nothing_after_it(client: Client) -> None:
    file, memory = client.open("holes"), client.memory(4 * CHUNK)
    os.pwrite(file, b"a" * CHUNK, 0)
    os.pwrite(file, b"c" * CHUNK, 2 * CHUNK)
    strict = client.ring(1, reads=True, keys=".t0.f10")
    lax = client.ring(1, reads=True)
    memory.map[:] = b"?" * 4 * CHUNK
    assert lax.run([Io(memory, 0, file, 0, 4 * CHUNK)]) == [3 * CHUNK]
    assert memory.map[::CHUNK] == b"a\0c?"
    assert strict.run([Io(memory, 0, file, 0, 4 * CHUNK)]) == [-errno.ENODATA]
    assert strict.run([Io(memory, 0, file, 0, 2 * CHUNK)]) == [CHUNK]
    assert strict.run([Io(memory, 0, file, CHUNK, CHUNK)]) == [0]
    assert lax.run([Io(memory, 0, file, 9 * CHUNK, CHUNK)]) == [0]
    assert lax.run([Io(memory, 0, file, 3 * CHUNK - 4096, CHUNK)]) == [4096]


def test_readers_see_a_chunk_before_or_after_a_write(client: Client) -> None:
    file, source, sink = written(client, "whole", 1), client.memory(CHUNK), client.memory(CHUNK)
    end = threading.Event()

    def write_on() -> None:
        with Client(client.mount) as writer:
            ring = writer.ring(1, reads=False)
            for i in range(1, 10_000):
                if end.is_set():
                    break
                source.map[:] = bytes([i % 251 + 1]) * CHUNK
                ring.run([Io(source, 0, file, 0, CHUNK)])

    thread = threading.Thread(target=write_on)
    thread.start()
    reads, seen = client.ring(1, reads=True), set()
    for _ in range(300):
        assert reads.run([Io(sink, 0, file, 0, CHUNK)]) == [CHUNK]
        page = sink.map[:]
        assert page == page[:1] * CHUNK
        seen.add(page[0])
    end.set()
    thread.join()
    assert len(seen) > 1


def test_more_in_flight_than_entries_breaks_the_daemon(tmp_path: Path) -> None:
    fs = ThreeFs(tmp_path / "backing", tmp_path / "mount")
    with pytest.raises(DaemonError, match="more I/Os in flight"), fs, Client(fs.mount) as client:
        flood(fs, client)


def flood(fs: ThreeFs, client: Client) -> None:
    file, memory = written(client, "flood", 2), client.memory(2 * CHUNK)
    ring = client.ring(2, reads=True)
    io = Io(memory, 0, file, 0, CHUNK)
    ring.submit([io, io._replace(offset=CHUNK)])
    fs.wait_until(lambda counters: counters["reads"] == 2)
    ring._free = [0]  # though its completion lies unreaped
    ring.submit([io])
    fs.await_end()
