"""Lookups by plain HGETs by way of the service: as without it, for callers that count what they
find."""

from __future__ import annotations

import dataclasses
import os
import time

import msgpack
import pytest

from kvmanager.service.backing import Backing
from kvmanager.service.documents import LookupAsked
from kvmanager.service.routes import DATA_ROUTES, tag_of
from tests.kvmanager.http_fixtures import cluster, server_binary, service
from tests.kvmanager.http_service import Service
from tests.kvmanager.members import NAMESPACE, Cluster, digests, soon
from tests.kvmanager.servers import Server
from tests.kvmanager.test_probe import (
    quiet_pair,
    scripts_called,
    test_a_number_of_buckets_that_is_none_misleads_nobody,
    test_no_page_is_missed_or_misplaced_while_buckets_are_split,
    test_pages_read_over_and_over_are_not_removed_by_their_owner,
    test_pages_that_moved_to_new_buckets_are_found,
    test_what_was_found_without_the_script_is_counted,
    test_who_reaches_no_medium_finds_nothing,
)

__all__ = [
    "cluster",
    "server_binary",
    "service",
    "test_a_number_of_buckets_that_is_none_misleads_nobody",
    "test_no_page_is_missed_or_misplaced_while_buckets_are_split",
    "test_pages_read_over_and_over_are_not_removed_by_their_owner",
    "test_pages_that_moved_to_new_buckets_are_found",
    "test_what_was_found_without_the_script_is_counted",
    "test_who_reaches_no_medium_finds_nothing",
]


def hgets(server: Server) -> int:
    with server.client() as client:
        return int(client.info("commandstats")["cmdstat_hget"]["calls"])


def lookup(
    service: Service, chain: list[bytes], medium: bytes, **more: object
) -> dict[str, object]:
    asked = {"namespace": NAMESPACE.encode(), "epoch": 0, "digests": chain, "media": [medium]}
    status, body = service.request(
        "POST",
        "/v1/lookup",
        msgpack.packb({**asked, **more}),
        {"content-type": "application/msgpack"},
    )
    assert status == 200
    answer: dict[str, object] = msgpack.unpackb(body)
    return answer


def test_who_counts_is_answered_without_the_script(
    server: Server, service: Service, cluster: Cluster
) -> None:
    owner, _ = quiet_pair(cluster)
    chain = digests(20)
    entries = owner.chain(chain)
    owner.write(entries)
    medium = owner.member.medium
    give_up = time.monotonic() + 10
    while lookup(service, chain, medium, counts=True)["counted"]:  # until it knows the clock
        assert time.monotonic() < give_up
        time.sleep(0.01)
    before, scripts = hgets(server), scripts_called(server)
    for _ in range(50):
        answer = lookup(service, chain, medium, counts=True)
        assert answer == {
            "locations": [e.location for e in entries],
            "reasons": [None] * 20,
            "counted": False,
        }
    assert hgets(server) >= before + 50 * 20
    assert scripts_called(server) < scripts + 25, "the loops' alone"


def test_for_who_does_not_count_the_service_does(service: Service, cluster: Cluster) -> None:
    owner, _ = quiet_pair(cluster)
    chain = digests(20)
    owner.write(owner.chain(chain))
    for _ in range(5):
        assert lookup(service, chain, owner.member.medium)["counted"] is True


def test_a_miss_has_a_reason_where_one_is_wanted(service: Service, cluster: Cluster) -> None:
    owner, _ = quiet_pair(cluster)
    chain, absent = digests(3), digests(2)
    owner.write(owner.chain(chain))
    owner.registry.claim(absent[:1], soon())
    for _ in range(3):
        answer = lookup(service, chain + absent, owner.member.medium, counts=True)
        assert answer["reasons"] == [None] * 3 + ["being_written"] * 2


@pytest.mark.parametrize("counts", [True, False])
async def test_a_service_that_learns_the_clock_late_probes_from_then_on(
    server: Server, counts: bool
) -> None:
    namespace = dataclasses.replace(NAMESPACE, salt=os.urandom(8).hex())  # nobody asked about it
    with Cluster(server.url) as direct:
        owner = direct.store(namespace=namespace, start=False)
        chain = digests(5)
        owner.write(owner.chain(chain))
        backing = Backing(server.url)
        (route,) = [route for route in DATA_ROUTES if route.name == "lookup"]

        async def counted(counts: bool) -> bool:
            asked = LookupAsked(
                namespace=namespace.encode(),
                epoch=0,
                digests=chain,
                media=[owner.member.medium],
                counts=counts,
            )
            answer = await backing.ask(route.plan(namespace, asked), tag_of(namespace), 2000)
            assert all(answer["locations"])
            return bool(answer["counted"])

        assert [await counted(counts) for _ in range(3)] == [True] * 3
        for node in backing._nodes.values():
            await node.tend()
        assert await counted(False)
        await counted(True)
        assert not await counted(True)
        await backing.close()
