from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from hicache_backends.deadline import Deadline
from hicache_backends.native_calls import exchange, try_exchange
from tests.backends.io.batches import soon

Pair = tuple[socket.socket, socket.socket]

REPLIES = [
    b"+OK\r\n",
    b"-ERR no\r\n",
    b":-42\r\n",
    b"$-1\r\n",
    b"$0\r\n\r\n",
    b"$5\r\nhello\r\n",
    b"$4\r\n\r\n\r\n\r\n",
    b"$70000\r\n" + b"x" * 70_000 + b"\r\n",
]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    yield ours, theirs
    ours.close()
    theirs.close()


def answer(theirs: socket.socket, work: Callable[[socket.socket], None]) -> threading.Thread:
    thread = threading.Thread(target=work, args=(theirs,), daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("reply", REPLIES, ids=lambda r: repr(r[:12]))
@pytest.mark.parametrize("blocking", [True, False])
def test_one_whole_reply_comes_back_raw(pair: Pair, reply: bytes, blocking: bool) -> None:
    ours, theirs = pair
    ours.setblocking(blocking)

    def serve(peer: socket.socket) -> None:
        assert peer.recv(100) == b"PING\r\n"
        peer.sendall(reply)

    thread = answer(theirs, serve)
    assert exchange(ours.fileno(), b"PING\r\n", soon()) == reply
    thread.join()


@pytest.mark.parametrize("reply", REPLIES[:-1], ids=lambda r: repr(r[:12]))
def test_a_reply_may_arrive_byte_by_byte(pair: Pair, reply: bytes) -> None:
    ours, theirs = pair

    def serve(peer: socket.socket) -> None:
        for byte in reply:
            time.sleep(0.001)
            peer.send(bytes([byte]))

    thread = answer(theirs, serve)
    assert exchange(ours.fileno(), b"x", soon()) == reply
    thread.join()


def test_a_request_larger_than_the_socket_takes_is_sent_whole(pair: Pair) -> None:
    ours, theirs = pair
    request = bytes(range(256)) * 20_000
    got = bytearray()

    def serve(peer: socket.socket) -> None:
        time.sleep(0.05)
        while len(got) < len(request):
            got.extend(peer.recv(1 << 16))
        peer.sendall(b"+OK\r\n")

    thread = answer(theirs, serve)
    assert exchange(ours.fileno(), request, soon()) == b"+OK\r\n"
    thread.join()
    assert got == request


@pytest.mark.parametrize(
    "reply", [b"*1\r\n:1\r\n", b"hello\r\n", b"$x\r\n", b"$\r\n", b"$-2\r\n", b"$99999999999\r\n"]
)
def test_another_kind_of_reply_is_a_broken_connection(pair: Pair, reply: bytes) -> None:
    ours, theirs = pair
    theirs.sendall(reply)
    with pytest.raises(ConnectionError, match="RESP2"):
        exchange(ours.fileno(), b"x", soon())


@pytest.mark.parametrize("reply", [b"+OK\r\n+MORE\r\n", b"$2\r\nokay\r\n", b"$2\r\nokXX"])
def test_bytes_out_of_step_are_a_broken_connection(pair: Pair, reply: bytes) -> None:
    ours, theirs = pair
    theirs.sendall(reply)
    with pytest.raises(ConnectionError, match="RESP2"):
        exchange(ours.fileno(), b"x", soon())


def test_a_line_without_an_end_is_a_broken_connection(pair: Pair) -> None:
    ours, theirs = pair
    thread = answer(theirs, lambda peer: peer.sendall(b"+" + b"x" * 200_000))
    with pytest.raises(ConnectionError, match="RESP2"):
        exchange(ours.fileno(), b"x", soon())
    ours.close()
    thread.join()


@pytest.mark.parametrize("begun", [b"", b"+O", b"$5\r\nhel"])
def test_a_closed_connection_is_said(pair: Pair, begun: bytes) -> None:
    ours, theirs = pair
    theirs.sendall(begun)
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionError, match="closed"):
        exchange(ours.fileno(), b"x", soon())


def test_a_peer_that_went_away_is_said(pair: Pair) -> None:
    ours, theirs = pair
    theirs.close()
    with pytest.raises(ConnectionError):
        exchange(ours.fileno(), b"x", soon())


@pytest.mark.parametrize("begun", [b"", b"+O", b"$5\r\nhel"])
def test_the_deadline_ends_the_wait(pair: Pair, begun: bytes) -> None:
    ours, theirs = pair
    theirs.sendall(begun)
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        exchange(ours.fileno(), b"x", Deadline.after_ms(60))
    assert 0.055 < time.monotonic() - start < 3


def test_the_deadline_ends_a_send_that_nobody_reads(pair: Pair) -> None:
    ours, _ = pair
    with pytest.raises(TimeoutError):
        exchange(ours.fileno(), bytes(8 << 20), Deadline.after_ms(60))


@pytest.mark.parametrize("fd", [-1, 987_654])
def test_what_is_no_socket_is_a_broken_connection(fd: int) -> None:
    with pytest.raises(ConnectionError):
        exchange(fd, b"x", soon())


def test_a_try_takes_a_reply_that_is_there(pair: Pair) -> None:
    ours, theirs = pair
    theirs.sendall(b"+OK\r\n$-1\r\n")
    assert try_exchange(ours.fileno(), b"PING\r\n", 2) == (6, b"+OK\r\n$-1\r\n", True)
    assert theirs.recv(100) == b"PING\r\n"


@pytest.mark.parametrize("drips", [False, True])
def test_a_try_ends_soon_whatever_comes(drips: bool) -> None:
    def drip(theirs: socket.socket) -> None:
        with contextlib.suppress(OSError):
            theirs.sendall(b"$60000000\r\n")
            while drips:
                theirs.sendall(b"x" * 4096)

    took = []
    for _ in range(10):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            server = answer(theirs, drip)
            began = time.monotonic()
            sent, _, whole = try_exchange(ours.fileno(), b"PING\r\n", 1)
            took.append(time.monotonic() - began)
            assert (sent, whole) == (6, False)
            ours.close()
            server.join()
    assert min(took) < 0.02, "80 µs, and what other load adds"


def test_other_threads_run_while_a_reply_is_awaited(pair: Pair) -> None:
    ours, theirs = pair
    ran = threading.Event()

    def serve(peer: socket.socket) -> None:
        ran.set()
        peer.sendall(b"+OK\r\n")

    timer = threading.Timer(0.05, serve, args=(theirs,))
    timer.start()
    assert exchange(ours.fileno(), b"x", soon()) == b"+OK\r\n"
    assert ran.is_set()
