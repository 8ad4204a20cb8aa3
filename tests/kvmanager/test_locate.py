"""Where a prefix is stored: by the library over real servers, and by a real service."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.types import ASGIApp, Message

from hicache_backends import native_calls
from hicache_backends.errors import InvalidKey
from hicache_backends.identity import Namespace, page_digests
from hicache_backends.segment.format import Location
from hicache_backends.storage import ROOT, PageEntry
from kvmanager import keys
from kvmanager.connect import connect_registry
from kvmanager.connection import Pool
from kvmanager.control.locate import MAX_PAGES, Locator, ServerPrefix
from kvmanager.control.namespaces import id_of
from kvmanager.driver import Driver
from kvmanager.endpoint import Endpoint
from kvmanager.model import MAX_PROBES, Member
from kvmanager.options import RegistryOptions
from kvmanager.service.access import Access
from kvmanager.service.app import make_app
from kvmanager.service.backing import Backing
from kvmanager.session import RedisRegistry
from tests.kvmanager.http_service import Service
from tests.kvmanager.members import NAMESPACE, eventually, soon
from tests.kvmanager.servers import Server
from tests.kvmanager.service_documents import post

HASHES = [f"{n:064x}" for n in range(100)]
PATIENT = RegistryOptions(timeout_ms=5000, heartbeat_ms=60_000, ttl_ms=180_000)
SHARED = os.urandom(16)
TAG = keys.tag(NAMESPACE.fingerprint)


@pytest.fixture
def driver(server: Server) -> Iterator[Driver]:
    made = Driver(Pool(Endpoint.parse(server.url), 1000), PATIENT)
    yield made
    made.pool.clear()


class Fleet:
    """Servers of several ranks, whose processes have joined."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.sessions: list[RedisRegistry] = []

    def rank(
        self,
        server: str,
        pages: range,
        *,
        rank: int = 0,
        medium: bytes | None = None,
        namespace: Namespace = NAMESPACE,
        options: RegistryOptions = PATIENT,
        process: bytes | None = None,
    ) -> Member:
        """A store with these of `HASHES`, on a medium of its own unless told otherwise."""
        member = Member(
            process or os.urandom(16),
            f"host of {server}",
            server,
            os.urandom(16),
            medium or os.urandom(16),
            shared=medium is not None,
            rank=rank,
        )
        session = connect_registry(self._url, namespace, member, options=options)
        self.sessions.append(session)
        self.write(session, member, pages, namespace)
        return member

    def write(
        self,
        session: RedisRegistry,
        member: Member,
        pages: range,
        namespace: Namespace = NAMESPACE,
    ) -> None:
        digests = page_digests(namespace.fingerprint, HASHES)
        parents = [ROOT, *digests]
        entries = [
            PageEntry(digests[n], parents[n], Location(member.store, 0, n, 4096, n, 7).pack())
            for n in pages
        ]
        session.publish(entries, b"", soon())


@pytest.fixture
def fleet(server: Server) -> Iterator[Fleet]:
    made = Fleet(server.url)
    yield made
    for session in made.sessions:
        session.close(500)


def located(driver: Driver, *namespaces: Namespace, pages: int = 100) -> dict[str, ServerPrefix]:
    tags = [keys.tag(namespace.fingerprint) for namespace in namespaces or (NAMESPACE,)]
    found = Locator().locate(driver, tags, HASHES[:pages], soon())
    assert [each.pages for each in found] == sorted((e.pages for e in found), reverse=True)
    return {each.server: each for each in found}


def lengths(driver: Driver, *namespaces: Namespace, pages: int = 100) -> dict[str, int]:
    found = located(driver, *namespaces, pages=pages)
    return {name: each.pages for name, each in found.items()}


@pytest.mark.parametrize("asked", [1, 2, 7, 8, 9, 63, 100])
def test_every_length_of_a_prefix_is_found(driver: Driver, fleet: Fleet, asked: int) -> None:
    stored = {f"s{n}": n for n in range(0, 101, 1 if asked > 60 else 7)}
    for name, length in stored.items():
        fleet.rank(name, range(length))
    expected = {name: min(length, asked) for name, length in stored.items() if length}
    assert lengths(driver, pages=asked) == expected


def test_a_server_is_as_good_as_its_worst_rank_and_pool(driver: Driver, fleet: Fleet) -> None:
    half = dataclasses.replace(NAMESPACE, kv_heads=(0, 4))
    index = dataclasses.replace(NAMESPACE, pool="index")
    for rank, namespace, length in ((0, NAMESPACE, 90), (0, index, 80), (1, half, 70)):
        fleet.rank("both", range(length), rank=rank, namespace=namespace)
    fleet.rank("one", range(60))
    found = located(driver, NAMESPACE, half, index)
    assert {name: each.pages for name, each in found.items()} == {"both": 70, "one": 60}
    assert found["both"].ranks == 2
    assert len(found["both"].namespaces) == 3
    assert lengths(driver, NAMESPACE) == {"both": 90, "one": 60}
    fleet.rank("both", range(0), rank=2, namespace=half)
    assert lengths(driver, NAMESPACE, half, index) == {"one": 60}


def test_a_rank_reads_all_the_media_that_it_has_stores_on(driver: Driver, fleet: Fleet) -> None:
    fleet.rank("writer", range(50), medium=SHARED)
    fleet.rank("both", range(50, 80))
    fleet.rank("both", range(0), medium=SHARED)
    found = located(driver)
    assert {name: each.pages for name, each in found.items()} == {"both": 80, "writer": 50}
    media = {each.medium: (each.shared, each.pages) for each in found["both"].media}
    assert media.pop(SHARED) == (True, 50)
    assert list(media.values()) == [(False, 0)], "by itself the disk lacks the beginning"


def test_a_hole_ends_a_prefix_at_its_first_page_or_is_short(driver: Driver, fleet: Fleet) -> None:
    fleet.rank("without its head", range(1, 100))
    for at in range(1, 80, 9):  # longer than an eighth of 100
        member = fleet.rank(f"hole at {at}", range(at))
        fleet.write(fleet.sessions[-1], member, range(at + 14, 100))
    found = lengths(driver)
    assert found == {f"hole at {at}": at for at in range(1, 80, 9)}


@pytest.mark.parametrize("seed", range(5))
def test_the_ends_of_what_is_claimed_are_there_whatever_is_missing(
    driver: Driver, fleet: Fleet, seed: int
) -> None:
    dice = random.Random(seed)  # noqa: S311  # the same pages every time
    stored = {}
    for n in range(20):
        member = fleet.rank(f"s{n}", range(0))
        pages = [page for page in range(100) if dice.random() < 0.9]
        stored[f"s{n}"] = set(pages)
        for page in pages:
            fleet.write(fleet.sessions[-1], member, range(page, page + 1))
    for name, length in lengths(driver).items():
        assert {0, length - 1} <= stored[name]
        assert length not in stored[name]


def test_only_living_processes_count(driver: Driver, fleet: Fleet, server: Server) -> None:
    gone = fleet.rank("gone", range(50))
    fleet.rank("here", range(20))
    assert lengths(driver) == {"gone": 50, "here": 20}
    locator = Locator(fresh_s=0.2)
    assert len(locator.locate(driver, [TAG], HASHES, soon())) == 2
    with server.client() as client:  # as its time to live does
        client.delete(b"r" + TAG + gone.process)
    eventually(
        lambda: [e.server for e in locator.locate(driver, [TAG], HASHES, soon())] == ["here"]
    )
    assert lengths(driver) == {"here": 20}


def test_a_process_that_is_switched_off_finds_nothing(
    driver: Driver, fleet: Fleet, server: Server
) -> None:
    fleet.rank("on", range(20))
    with server.client() as client:
        client.hset(b"n" + TAG, "mode", "off")
    session = fleet.sessions[0]
    session.driver.run(session.core.beat(), soon())
    assert lengths(driver) == {}


def test_a_cleared_namespace_holds_nothing_and_is_found_again(driver: Driver, fleet: Fleet) -> None:
    member = fleet.rank("s", range(20))
    locator = Locator(fresh_s=60)
    assert locator.locate(driver, [TAG], HASHES, soon())[0].pages == 20
    session = fleet.sessions[0]
    session.clear_namespace(soon())
    assert locator.locate(driver, [TAG], HASHES, soon()) == []
    session.driver.run(session.core.beat(), soon())
    fleet.write(session, member, range(5))
    assert locator.locate(driver, [TAG], HASHES, soon())[0].pages == 5


def test_nothing_is_known_of_a_namespace_that_is_not_there(driver: Driver) -> None:
    assert Locator().locate(driver, [TAG], HASHES, soon()) == []


def test_many_servers_are_asked_about_in_short_calls(
    driver: Driver, fleet: Fleet, server: Server
) -> None:
    for n in range(300):
        fleet.rank(f"s{n}", range(1))
    with server.client() as client:
        client.config_resetstat()
        assert len(lengths(driver)) == 300
        stats = client.info("commandstats")
    assert stats["cmdstat_hget"]["calls"] < 300 * 13 + 300 + MAX_PROBES
    assert stats["cmdstat_evalsha"]["calls"] >= 300 // 255 + 1


def test_too_many_pages_and_odd_hashes_are_refused(driver: Driver, fleet: Fleet) -> None:
    fleet.rank("s", range(1))
    with pytest.raises(ValueError, match="4096"):
        Locator().locate(driver, [TAG], ["x"] * (MAX_PAGES + 1), soon())
    with pytest.raises(InvalidKey):
        Locator().locate(driver, [TAG], [""], soon())


# over HTTP

OURS = dataclasses.replace(NAMESPACE, model="ours", tenant="a")
INDEX = dataclasses.replace(OURS, pool="index")


@pytest.fixture(scope="module")
def service(shared_server: Server) -> Iterator[Service]:
    lines = ["router a " + "r" * 16, "router b " + "s" * 16, "node a,b " + "n" * 16]
    started = Service(shared_server.url, environment={"KVMANAGER_TOKENS": ";".join(lines)})
    yield started.start()
    started.stop()


def ask(service: Service, asked: dict[str, Any], letter: str = "r") -> tuple[int, Any]:
    bearer = {"authorization": f"Bearer {letter * 16}"}
    return post(service, "/v1/locate", asked, bearer)


def test_a_router_asks_by_model_or_by_namespaces(service: Service, fleet: Fleet) -> None:
    fleet.rank("one", range(40), namespace=OURS)
    member = fleet.rank("one", range(30), namespace=INDEX)
    names = [id_of(keys.tag(each.fingerprint)) for each in (OURS, INDEX)]
    eventually(lambda: len(ask(service, {"model": "ours", "hashes": []})[1]["namespaces"]) == 2)
    for asked in ({"model": "ours"}, {"namespaces": names}, {"model": "ours", "tenant": "a"}):
        status, said = ask(service, {**asked, "hashes": HASHES})
        assert status == 200
        assert sorted(said["namespaces"]) == sorted(names)
        (found,) = said["servers"]
        assert (found["server"], found["pages"], found["ranks"]) == ("one", 30, 1)
        assert found["hosts"] == ["host of one"]
        media = {each["medium"]: each["pages"] for each in found["media"]}
        assert media[member.medium.hex()] == 30
    kv = ask(service, {"model": "ours", "pools": ["kv"], "hashes": HASHES})[1]
    assert kv["servers"][0]["pages"] == 40
    digests = [each.hex() for each in page_digests(OURS.fingerprint, HASHES)]
    said = ask(service, {"namespaces": names[:1], "digests": digests})[1]
    assert said["servers"][0]["pages"] == 40
    assert ask(service, {"model": "ours", "tenant": "b", "hashes": HASHES})[1]["servers"] == []


def test_another_tenants_pages_are_nowhere(service: Service, fleet: Fleet) -> None:
    fleet.rank("one", range(40), namespace=OURS)
    name = id_of(keys.tag(OURS.fingerprint))
    unknown = ask(service, {"namespaces": ["0" * 18], "hashes": HASHES}, "s")
    assert ask(service, {"namespaces": [name], "hashes": HASHES}, "s") == unknown
    assert unknown[0] == 404
    status, said = ask(service, {"model": "ours", "hashes": HASHES}, "s")
    assert (status, said) == (200, {"servers": [], "namespaces": []})
    assert ask(service, {"namespaces": [name], "hashes": HASHES}, "n")[0] == 200
    assert ask(service, {"namespaces": [name], "hashes": HASHES}, "x")[0] == 401


async def test_a_long_question_about_many_namespaces_holds_no_other_request_up(
    server: Server, fleet: Fleet
) -> None:
    several = [dataclasses.replace(NAMESPACE, model=f"m{n}") for n in range(64)]
    for namespace in several:
        fleet.rank("s", range(1), namespace=namespace)
    hashes = [f"{n:064x}" for n in range(MAX_PAGES)]
    began = time.thread_time()
    for namespace in several:
        native_calls.page_digests(namespace.fingerprint, hashes)
    hashing_s = time.thread_time() - began
    names = [id_of(keys.tag(each.fingerprint)) for each in several]
    backing = Backing(server.url)
    app = make_app(backing, Access())
    await answered(app, {"namespaces": names, "hashes": HASHES})  # who is there is known by now
    longest_s, last_s, done = 0.0, time.thread_time(), False

    async def others() -> None:
        nonlocal longest_s, last_s
        while not done:
            await asyncio.sleep(0)
            now_s = time.thread_time()
            longest_s, last_s = max(longest_s, now_s - last_s), now_s

    waiting = asyncio.create_task(others())
    assert await answered(app, {"namespaces": names, "hashes": hashes}) == 200
    done = True
    await waiting
    await backing.close()
    assert longest_s < hashing_s / 2


async def answered(app: ASGIApp, asked: dict[str, Any]) -> int:
    """The status, from the application itself."""
    statuses: list[int] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": json.dumps(asked).encode()}

    async def send(message: Message) -> None:
        statuses.extend([message["status"]] if "status" in message else [])

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/v1/locate"}
    scope |= {"raw_path": b"/v1/locate", "query_string": b"", "root_path": "", "headers": headers}
    await app(scope, receive, send)
    return statuses[0]


@pytest.mark.parametrize(
    "change",
    [
        {"hashes": None},
        {"hashes": HASHES, "digests": ["00" * 16]},
        {"hashes": [""]},
        {"hashes": ["x" * 257]},
        {"hashes": ["x"] * 4097},
        {"hashes": [1]},
        {"hashes": "x"},
        {"hashes": None, "digests": ["00" * 16]},
        {"namespaces": ["0" * 18]},
        {"model": None},
        {"model": None, "namespaces": ["0" * 17]},
        {"model": None, "namespaces": ["0" * 18] * 65},
        {"model": "x" * 5000},
        {"tenant": 5},
        {"pools": [None]},
    ],
)
def test_what_is_no_question_is_refused(service: Service, change: dict[str, Any]) -> None:
    assert ask(service, {"model": "m", "hashes": HASHES, **change})[0] == 422


def test_text_that_cannot_be_encoded_is_no_error_of_the_service(
    service: Service, fleet: Fleet
) -> None:
    fleet.rank("one", range(4), namespace=OURS)
    name = id_of(keys.tag(OURS.fingerprint))
    assert ask(service, {"namespaces": [name], "hashes": ["\udcff"]})[0] == 422
    assert ask(service, {"namespaces": [name], "hashes": ["\U0001f600" * 256]})[0] == 200
