"""The service's loops and its operators' routes where namespaces lie on several shards."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvmanager.service.loops.settling import Settling
from kvmanager.service.loops.sweeping import Sweeping
from tests.kvmanager.conftest import binary_of
from tests.kvmanager.deployments import ClusterDeployment
from tests.kvmanager.http_service import Service
from tests.kvmanager.loop_steps import run_step
from tests.kvmanager.members import Cluster, digests, eventually
from tests.kvmanager.test_cluster import WITHIN_S, listed, spread, tag_of

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def shards() -> Iterator[ClusterDeployment]:
    with tempfile.TemporaryDirectory(prefix="kv") as directory:
        made = ClusterDeployment(binary_of("valkey"), Path(directory), replicas=0)
        with made:
            yield made.start()


def test_settings_quotas_sweeps_and_forgetting_reach_every_shard(
    shards: ClusterDeployment,
) -> None:
    service = Service(shards.url, "--no-loops").start()
    try:
        spaces = list(spread(shards).values())
        assert len(spaces) == len(shards.servers)
        with Cluster(shards.url) as cluster:
            stores = [cluster.store(namespace=namespace) for namespace in spaces]
            for store in stores:
                store.settled()
                store.write(store.chain(digests(10)))
            asked = json.dumps({"quota_bytes": 3 * 4096, "mode": "read"}).encode()
            status, said = service.request("PUT", "/v1/tenants/default", asked, JSON)
            assert (status, json.loads(said)["quota_bytes"]) == (200, 3 * 4096)
            run_step(shards, Settling)
            eventually(lambda: all(s.orders[-1].mode == "read" for s in stores), WITHIN_S)
            eventually(lambda: all(s.orders[-1].limit_bytes == 4096 for s in stores), WITHIN_S)
            rows = json.loads(service.get("/v1/processes")[1])["processes"]
            assert len(rows) == len(stores)
            assert listed(shards) == {tag_of(namespace) for namespace in spaces}
        run_step(shards, lambda worker: Sweeping(worker, -1000, -1000, -1000))
        assert listed(shards) == set()
        left = set()
        for server in shards.servers:
            with server.client() as client:
                left |= {key[:1] for key in client.scan_iter(count=1000)}
        assert left <= {b"a", b"u", b"w", b"l"}
    finally:
        service.stop()
