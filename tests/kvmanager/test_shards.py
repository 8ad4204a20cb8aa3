"""Sentinels and Clusters as endpoints: what a URL may say, and what seeds may answer."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hicache_backends.deadline import Deadline
from hicache_backends.errors import ConfigError, RegistryRefused, RegistryUnavailable
from kvmanager.connect import check_endpoint
from kvmanager.endpoint import redacted
from kvmanager.shards import Finder, finder
from tests.kvmanager.members import soon
from tests.kvmanager.servers import Server, free_port

TAG = b"{tag}"


@pytest.mark.parametrize(
    "url",
    [
        "redis-sentinel://h:26379",
        "redis-sentinel://h:26379/",
        "redis-sentinel:///kv",
        "redis-sentinel://h:port/kv",
        "redis-sentinel://h,,i/kv",
        "redis-sentinel://h/kv/first",
        "redis-sentinel://user:hunter2@h,user:hunter2@i/kv",
        "redis-cluster://",
        "redis-cluster://h:99999",
        "redis-cluster://h:6379/1",
        "redis-cluster://h,http://i",
        "redis-shards://h",
    ],
)
def test_what_names_no_servers_is_an_error_of_the_configuration(url: str) -> None:
    with pytest.raises(ConfigError, match="endpoint") as error:
        check_endpoint(url)
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis-sentinel://10.0.0.1,10.0.0.2:26380,[::1]:26381/my%20service/3",
        "rediss-sentinel://user:pa%3Ass@h/kv?sentinel_password=x&ssl_ca_certs=/ca.pem",
        "redis-cluster://:password@10.0.0.1:6379,kv-1",
        "rediss-cluster://user:password@[::1],h/0?ssl_cert_reqs=none",
    ],
)
def test_several_seeds_users_and_options_are_understood(url: str) -> None:
    check_endpoint(url)


@pytest.mark.parametrize(
    "url",
    [
        "redis-sentinel://user:hunter2@h:1,i:2/kv?sentinel_password=hunter2",
        "rediss-cluster://:hunter2@h,i",
        "redis-cluster://h,i?password=hunter2",
    ],
)
def test_secrets_of_several_servers_are_never_shown(url: str) -> None:
    found = finder(url)
    assert "hunter2" not in redacted(url) + found.shown
    with pytest.raises(RegistryUnavailable) as error:
        found.find(Deadline.after_ms(50))
    assert "hunter2" not in str(error.value) + repr(vars(found))


def test_open_servers_off_this_machine_are_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    finder("redis-cluster://127.0.0.1,localhost")
    assert not [r for r in caplog.records if r.levelno == logging.WARNING]
    finder("redis-cluster://10.1.2.3,10.1.2.4")
    assert [r for r in caplog.records if r.levelno == logging.WARNING]


@contextmanager
def seed(reply: bytes | None) -> Iterator[str]:
    """host:port of what answers every command with the same; None: never."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    stream, _ = listener.accept()
                except OSError:
                    return
                with stream:
                    while reply is not None and stream.recv(4096):
                        stream.sendall(reply)
                    if reply is None:
                        stream.recv(4096)
                        stream.recv(4096)

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def sentinels(*places: str) -> Finder:
    return finder(f"redis-sentinel://{','.join(places)}/kv")


def master_at(port: int) -> bytes:
    return b"*2\r\n$9\r\n127.0.0.1\r\n$%d\r\n%d\r\n" % (len(str(port)), port)


def test_a_seed_that_never_answers_takes_only_its_share_of_the_time() -> None:
    with seed(None) as silent, seed(master_at(7)) as other:
        found = sentinels(silent, other)
        for _ in range(2):  # each is the first at its turn
            began = time.monotonic()
            endpoint = found.find(Deadline.after_ms(1600)).holder(TAG)
            assert time.monotonic() - began < 1.5
            assert endpoint.shown.endswith("127.0.0.1:7")


def test_a_service_that_one_sentinel_does_not_know_is_asked_of_the_others() -> None:
    with seed(b"*-1\r\n") as ignorant, seed(master_at(7)) as other:
        assert sentinels(ignorant, other).find(soon()).endpoints
        with pytest.raises(RegistryUnavailable, match="knows no service 'kv'"):
            sentinels(ignorant).find(soon())


def test_a_seed_that_is_out_of_date_is_not_the_first_again() -> None:
    with seed(master_at(7)) as stale, seed(master_at(8)) as other:
        found = sentinels(stale, other)
        told = {found.find(soon()).holder(TAG).shown for _ in range(2)}
        assert len(told) == 2


@pytest.mark.parametrize(
    "reply",
    [
        b"+OK\r\n",
        b":1\r\n",
        b"*0\r\n",
        b"*2\r\n$1\r\n\xff\r\n$1\r\n1\r\n",
        b"*2\r\n$1\r\nh\r\n$5\r\n99999\r\n",
        b"*2\r\n$0\r\n\r\n$1\r\n1\r\n",
        b"*1\r\n*2\r\n:0\r\n:1\r\n",
        b"*1\r\n*3\r\n:0\r\n:1\r\n*1\r\n$1\r\nh\r\n",
        b"*1\r\n*3\r\n:0\r\n$1\r\nx\r\n*2\r\n$1\r\nh\r\n:1\r\n",
        b"-ERR unknown command\r\n",
    ],
)
def test_an_answer_that_makes_no_sense_is_refused(reply: bytes) -> None:
    with seed(reply) as place:
        for url in (f"redis-sentinel://{place}/kv", f"redis-cluster://{place}"):
            with pytest.raises((RegistryRefused, RegistryUnavailable)):
                finder(url).find(soon()).holder(TAG)


def test_a_node_that_does_not_know_its_name_is_where_it_was_asked() -> None:
    for host in (b"$0\r\n\r\n", b"$-1\r\n", b"$1\r\n?\r\n"):
        with seed(b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n%b:6379\r\n" % host) as place:
            found = finder(f"redis-cluster://{place}").find(soon()).holder(TAG)
            assert found.shown.endswith(" at 127.0.0.1:6379")


def test_what_is_said_to_be_a_master_and_is_none_is_not_used(server: Server) -> None:
    port = free_port()
    with server.client() as client:
        client.replicaof("127.0.0.1", port)
        try:
            with seed(master_at(server.port)) as place:
                found = sentinels(place).find(soon()).holder(TAG)
                with pytest.raises(RegistryUnavailable, match="is no master, but b'slave'"):
                    found.connect(1)
        finally:
            client.replicaof("NO", "ONE")
    found.connect(1).disconnect()  # type: ignore[no-untyped-call]  # redis-py's
