"""The real Mooncake for tests: what it needs is installed, in a network where nobody else is."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hicache_backends.mooncake.client import connect, disconnect
from hicache_backends.mooncake.options import find_cluster
from tests.backends.mooncake.cluster import MooncakeCluster, master_binary
from tests.backends.mooncake.network import lonely_network

LIBRARIES = ("libibverbs1", "libnuma1", "libcurl4")
PACKAGES = Path(__file__).parents[3] / ".ci" / "debian-packages"


@contextmanager
def mooncake_network(congestion: str | None = None) -> Iterator[None]:
    """Skip where Mooncake or the right to a network is missing; in CI that is a failure."""
    if importlib.util.find_spec("mooncake") is None or master_binary() is None:
        _absent("mooncake-transfer-engine-non-cuda is not installed")
    subprocess.run([str(PACKAGES), *LIBRARIES], check=True, timeout=300)
    try:
        with lonely_network(congestion):
            yield
    except PermissionError as error:
        _absent(f"no network namespace can be made ({error}): tests of Mooncake need root")


@contextmanager
def running_cluster(directory: Path) -> Iterator[MooncakeCluster]:
    """A master and one holder, in a network of their own that this thread joins meanwhile."""
    with mooncake_network():
        cluster = MooncakeCluster(directory)
        try:
            cluster.start_master()
            cluster.start_holder()
            client = connect(find_cluster({"master": cluster.address}))  # made and ended once
            yield cluster
            disconnect(client)
        finally:
            cluster.stop()


def _absent(what: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(f"{what}, and CI must test on the real Mooncake")
    pytest.skip(what)
