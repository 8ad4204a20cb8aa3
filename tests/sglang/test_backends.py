"""SGLang's own controller over every backend: a prompt of one server comes back in another."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.backends.mooncake.cluster import MooncakeCluster
from tests.backends.mooncake.real import running_cluster
from tests.sglang.harness.tree import Tree, tokens
from tests.sglang.plugin import extra_config
from tests.threefs.stand_in import ThreeFs

PAGES = 40


@pytest.fixture(scope="module")
def mooncake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MooncakeCluster]:
    with running_cluster(tmp_path_factory.mktemp("mooncake")) as cluster:
        yield cluster


@pytest.fixture
def threefs(tmp_path: Path) -> Iterator[ThreeFs]:
    with ThreeFs(tmp_path / "backing", tmp_path / "mount") as daemon:
        yield daemon


def started(
    backend: str,
    section: dict[str, Any],
    path: Path,
    caplog: pytest.LogCaptureFixture,
    *,
    register_pools: bool = False,
) -> str:
    """Store with one server, read with another; what the start of a pool printed."""
    config = {**extra_config(path), "storage_backend": backend, backend: section}
    config["sglang"] = {"register_pools": register_pools}
    del config["nvme"]
    ids = tokens(PAGES)
    with caplog.at_level(logging.INFO, "hicache_storage.sglang.pools"):
        with Tree(config) as server:
            stored = server.insert(ids)
        with Tree(config) as other:
            assert other.prefetch(ids) == len(ids)
            back = other.load_back(ids)
    assert all(torch.equal(a, b) for a, b in zip(stored, back, strict=True))
    lines = [m for m in caplog.messages if m.startswith("HiCache initialized")]
    assert len(lines) == 2
    assert lines[0].endswith(" ms")
    assert "self-test passed" in lines[0]
    return lines[0]


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_any_file_system_of_fsspec(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    line = started("fsspec", {"url": f"{kind}://{tmp_path}/kv"}, tmp_path, caplog)
    assert f"backend fsspec, {kind}:{tmp_path}/kv, staging, namespace " in line
    assert "capacity as it has, registry off" in line


@pytest.mark.parametrize("engine", ["usrbio", "fuse"])
def test_3fs(
    engine: str, threefs: ThreeFs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    section = {
        "mount_point": str(threefs.mount / "kv"),
        "io_engine": engine,
        "capacity": "64MiB",
        "free_floor": 0,
        "staging_bytes": "8MiB",
        "rings": 2,
    }
    line = started("3fs", section, tmp_path, caplog)
    assert f"backend 3fs, engine {engine}, " in line
    assert "staging, namespace " in line
    assert "capacity 64 MiB, registry off" in line


@pytest.mark.parametrize("how", ["staging", "zero copy"])
def test_mooncake(
    how: str, mooncake: MooncakeCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    section = {"master": mooncake.address, "prefix": tmp_path.name}
    line = started("mooncake", section, tmp_path, caplog, register_pools=how == "zero copy")
    place = f"mooncake://{mooncake.address}/{tmp_path.name}, transport tcp"
    assert f"backend mooncake, {place}, {how}, namespace " in line
    assert "capacity as it has, registry off" in line


def test_memory_that_cannot_be_registered_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    section = {"url": f"file://{tmp_path}/kv"}
    line = started("fsspec", section, tmp_path, caplog, register_pools=True)
    assert ", staging, " in line
    assert "sglang.register_pools: pages of the pool 'kv' are copied still" in caplog.messages
