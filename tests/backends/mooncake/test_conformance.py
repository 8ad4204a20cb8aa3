"""Pages keep every promise in the real Mooncake: a master, a holder, and this process as client."""

from __future__ import annotations

import urllib.request
import uuid
from pathlib import Path

import pytest

from hicache_backends.identity import Namespace
from hicache_backends.mooncake.backend import MooncakeStore
from hicache_backends.mooncake.filesystem import MooncakeFileSystem
from hicache_backends.pages import Pages
from hicache_backends.testing.batches import BatchTests
from hicache_backends.testing.conformance import PageStorageConformance
from hicache_backends.testing.medium import Medium
from hicache_backends.testing.state_machine import StateMachineTests
from tests.backends.mooncake.cluster import MooncakeCluster
from tests.backends.objects.media import ObjectMedium


class MooncakeMedium(ObjectMedium):
    """A prefix of its own in a cluster."""

    def __init__(
        self,
        cluster: MooncakeCluster,
        *,
        bound: bool = False,
        shared: bool = False,
        kind: type[MooncakeStore] = MooncakeStore,
    ) -> None:
        self.cluster, self.prefix = cluster, uuid.uuid4().hex

        def connect() -> MooncakeStore:
            fs = MooncakeFileSystem(cluster.address, skip_instance_cache=True)
            return kind(fs, self.prefix)

        super().__init__(connect, bound=bound, shared=shared)

    def stored(self, namespace: Namespace) -> set[bytes]:
        with urllib.request.urlopen(f"{self.cluster.http}/get_all_keys") as reply:  # noqa: S310 - our own server
            keys = reply.read().decode().split()
        inside = f"{self.prefix}/{namespace.fingerprint.hex()}/"
        names = [key.rpartition("/")[2] for key in keys if key.startswith(inside)]
        return {bytes.fromhex(name) for name in names if name != "namespace.msgpack"}


class InPlace(MooncakeStore):
    """Takes any memory for registered, which TCP does not mind."""

    def reaches(self, pages: Pages) -> bool:
        return len(pages) > 0


class InMooncake:
    @pytest.fixture(autouse=True)
    def _cluster(self, cluster: MooncakeCluster) -> None:
        self.cluster = cluster

    def make_medium(self, directory: Path) -> Medium:
        return MooncakeMedium(self.cluster)


class MooncakeSuite(InMooncake, PageStorageConformance):
    """Enough for every change; the long form is below."""

    machine_examples = 3
    hole_patterns = 16
    churn_seconds = 0.5


class TestMooncake(MooncakeSuite):
    pass


@pytest.mark.slow  # what is bounded is the index, which the next class has too
class TestMooncakeBounded(MooncakeSuite):
    def make_medium(self, directory: Path) -> Medium:
        return MooncakeMedium(self.cluster, bound=True)


class TestMooncakeBesideARegistry(MooncakeSuite):
    def make_medium(self, directory: Path) -> Medium:
        return MooncakeMedium(self.cluster, bound=True, shared=True)


class TestMooncakeInPlace(MooncakeSuite):
    def make_medium(self, directory: Path) -> Medium:
        return MooncakeMedium(self.cluster, kind=InPlace)


@pytest.mark.slow
class TestMooncakeLong(InMooncake, StateMachineTests, BatchTests):
    pass
