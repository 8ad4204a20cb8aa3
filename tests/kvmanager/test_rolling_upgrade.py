"""Members and services whose versions of the keys are one apart work together; two apart, the
newcomer is told so."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import msgpack
import pytest

from hicache_storage.tools.line_process import LineProcess
from kvmanager import keys, replies
from kvmanager.http import message as http_message
from kvmanager.http.wire import HttpWire
from tests.kvmanager.conftest import binary_of
from tests.kvmanager.http_service import Service
from tests.kvmanager.members import NAMESPACE, Cluster, Store, digests, eventually, soon
from tests.kvmanager.neighbour import neighbour
from tests.kvmanager.servers import Server

Join = Callable[[int], LineProcess]
NEXT, BEFORE = keys.SCHEMA + 1, keys.SCHEMA - 1
MEDIUM = b"m" * 16


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(binary_of("valkey"), tmp_path_factory.mktemp("kv")).start()
    yield server
    server.stop()


@pytest.fixture
def server(running: Server) -> Server:
    """An empty one, of one kind: versions are the scripts' business."""
    with running.client() as client:
        client.flushall()
    return running


@pytest.fixture
def join(server: Server) -> Iterator[Join]:
    """Starts a member of a version in a process of its own."""
    with ExitStack() as stack:
        yield lambda schema: stack.enter_context(neighbour(schema, server.url, MEDIUM))


def assert_they_share(one: Store, other: LineProcess) -> None:
    """Pages and heartbeats of both."""
    written = [bytes.fromhex(page) for page in other.ask("write 20").split(",")]
    assert one.lookup(written).prefix == 20
    own = digests(20)
    one.write(one.chain(own))
    assert other.ask(f"look {','.join(page.hex() for page in own)}") == "20"
    beats = len(one.orders)
    theirs = int(other.ask("beat").split()[0])
    eventually(lambda: len(one.orders) > beats + 2)
    eventually(lambda: int(other.ask("beat").split()[0]) > theirs + 2)
    assert other.ask("beat").split()[1] == "up"


@pytest.mark.parametrize("schema", [BEFORE, NEXT])
@pytest.mark.parametrize("first", [True, False], ids=["they-come-first", "they-come-last"])
def test_members_one_version_apart_share_pages(
    join: Join, server: Server, schema: int, first: bool
) -> None:
    with Cluster(server.url) as cluster:
        ours = None if first else cluster.store(medium=MEDIUM)
        theirs = join(schema)
        assert theirs.answer() == "ready"
        ours = ours or cluster.store(medium=MEDIUM)
        ours.settled()
        assert_they_share(ours, theirs)


def test_a_newcomer_two_versions_ahead_is_told_so(join: Join, server: Server) -> None:
    with Cluster(server.url) as cluster:
        ours = cluster.store(medium=MEDIUM)
        ours.settled()
        said = join(keys.SCHEMA + 2).answer()
        assert f"schema {keys.SCHEMA} is kept there, not {keys.SCHEMA + 2}" in said
        assert "one version at a time" in said
        assert_they_share(ours, _ready(join(NEXT)))


def test_while_members_of_one_version_are_there_none_comes_that_does_not_understand_them(
    join: Join, server: Server
) -> None:
    """Ours, then the next version beside it, and only when ours has gone the one after that."""
    with Cluster(server.url) as cluster:
        ours = cluster.store(medium=MEDIUM)
        ours.settled()
        middle = _ready(join(NEXT))
        said = join(keys.SCHEMA + 2).answer()
        assert f"members of schema {keys.SCHEMA} are there" in said
        assert_they_share(ours, middle)
    give_up = time.monotonic() + 10
    while join(keys.SCHEMA + 2).answer() != "ready":  # until what ours said has ended
        assert time.monotonic() < give_up
    assert middle.ask("beat").endswith("up")
    with Cluster(server.url) as cluster, pytest.raises(Exception, match="one version at a time"):
        cluster.store(medium=MEDIUM)


def _ready(member: LineProcess) -> LineProcess:
    assert member.answer() == "ready"
    return member


@pytest.fixture(scope="module")
def ours(running: Server) -> Iterator[Service]:
    """A service of our version."""
    started = Service(running.url).start()
    yield started
    started.stop()


class OtherService(Service):
    """A service whose keys have another version."""

    def __init__(self, redis_url: str, schema: int) -> None:
        super().__init__(redis_url)
        self._command[2:3] = ["tests.kvmanager.neighbour", str(schema)]


@pytest.mark.parametrize("schema", [BEFORE, NEXT])
def test_a_service_one_version_apart_serves_members_beside_one_of_ours(
    server: Server, ours: Service, schema: int
) -> None:
    theirs = OtherService(server.url, schema).start()
    try:
        with (
            Cluster(f"{theirs.url},{ours.url}") as over_both,
            Cluster(theirs.url) as over_theirs,
            Cluster(server.url) as direct,
        ):
            stores = [members.store(medium=MEDIUM) for members in (over_both, over_theirs, direct)]
            pages = []
            for store in stores:
                store.settled()
                pages.append(digests(20))
                store.write(store.chain(pages[-1]))
            for store in stores:
                assert [store.lookup(some).prefix for some in pages] == [20] * 3
            theirs.kill()  # it is replaced by ours
            eventually(lambda: stores[0].lookup_or_none(pages[2]) == 20)
    finally:
        theirs.stop()


BEAT = {"epoch": 3, "sequence": 5, "clear": False, "returned": True, "bad": [], "now": 7}


def test_heartbeats_replies_of_other_versions_are_understood() -> None:
    """Without what came later, and with what will come."""
    for more in ({}, {"mode": None, "limit_bytes": None}, {"of_the_future": [1, {"a": b"b"}]}):
        packed = msgpack.packb({**BEAT, **more})
        for beat in (replies.read_beat(packed), HttpWire.read_beat({**BEAT, **more})):
            assert (beat.epoch, beat.sequence, beat.now, beat.mode) == (3, 5, 7, None)
            assert beat.limit_bytes is beat.ttl_ms is None


def test_fields_that_the_service_does_not_know_are_passed_over(
    server: Server, ours: Service
) -> None:
    with Cluster(ours.url) as members:
        store = members.store(medium=MEDIUM)
        store.settled()
        asked = {
            **{"namespace": NAMESPACE.encode(), "epoch": store.registry.core.epoch},
            **{"digests": digests(2), "media": [MEDIUM], "prefix": True},
            **{"touch_interval_ms": 60_000, "of_the_future": {"anything": [1, None]}},
        }
        pool, deadline = store.registry.driver.pool, soon()
        channel = pool.take(deadline)
        raw = channel.exchange(http_message.request("lookup", asked), deadline)
        pool.give(channel)
        assert http_message.parse(raw)["locations"] == [b"", b""]
