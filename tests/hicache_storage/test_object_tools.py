"""What the commands see of pages that are objects, and what they take away of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hicache_storage.cli.app import run
from hicache_storage.config import Config, load_config
from hicache_storage.opening import open_page_store
from hicache_storage.tools import objects
from tests.backends.mooncake.cluster import MooncakeCluster
from tests.backends.mooncake.real import running_cluster
from tests.hicache_storage.test_cli_check import IDENTITY, config_file

PAGES = 5
Place = tuple[str, Config]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MooncakeCluster]:
    with running_cluster(tmp_path_factory.mktemp("mooncake")) as cluster:
        yield cluster


@pytest.fixture(params=["fsspec", "mooncake"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A configuration file of a medium on which two tenants have pages."""
    if request.param == "mooncake":
        cluster: MooncakeCluster = request.getfixturevalue("cluster")
        section = {"master": cluster.address, "prefix": tmp_path.name}
        return filled(tmp_path, mooncake=section)
    return filled(tmp_path, fsspec={"url": f"file://{tmp_path}/kv"})


def filled(directory: Path, **section: Any) -> Place:
    backend = next(iter(section))
    file = config_file(directory, storage_backend=backend, identity=IDENTITY, **section)
    config = load_config(Path(file))
    for tenant in ("default", "other"):
        page = bytes(64 << 10)
        namespace = replace(config.namespace(page_tokens=64), tenant=tenant)
        with open_page_store(config, namespace) as store:
            keys = [f"{tenant} {n}" for n in range(PAGES)]
            assert all(o.ok for o in store.set(keys, [page] * PAGES, parent=None))
    return file, config


def counted(file: str, capsys: pytest.CaptureFixture[str]) -> dict[str, int]:
    """Pages by tenant."""
    capsys.readouterr()
    assert run(["namespaces", "list", "--config", file, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    return {each["namespace"]["tenant"]: each["pages"] for each in found}


def test_a_tenants_objects_go_and_nothing_else(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    file, config = place
    with objects.object_medium(config) as medium:
        medium.store.create("mine/0", b"of somebody else", objects.later())
        before = set(medium.keys())
    assert run(["inspect", "--config", file]) == 0
    assert "1 objects that are no pages" in capsys.readouterr().out
    assert counted(file, capsys) == {"default": PAGES, "other": PAGES}
    assert run(["clear", "--tenant", "other", "--config", file, "--dry-run"]) == 0
    assert counted(file, capsys) == {"default": PAGES, "other": PAGES}
    assert run(["clear", "--tenant", "other", "--config", file]) == 0
    assert counted(file, capsys) == {"default": PAGES}
    with objects.object_medium(config) as medium:
        gone = before - set(medium.keys())
    assert len(gone) == PAGES + 1
    assert len({key.partition("/")[0] for key in gone}) == 1


def test_pages_that_are_wrong_are_found_and_removed(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    file, config = place
    assert run(["fsck", "--config", file]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "clean"
    with objects.object_medium(config) as medium:
        pages = [key for found in medium.read().namespaces for key in found.pages]
        first, second, third, *_ = pages
        whole = medium.store.read(first, objects.later())
        assert whole is not None
        medium.remove([first, second, third])
        medium.store.create(first, b"?" + whole[1:], objects.later())
        medium.store.create(second, whole, objects.later())  # of another page
        medium.store.create(third, whole[:100], objects.later())
    assert run(["fsck", "--config", file, "--json"]) == 1
    (root,) = json.loads(capsys.readouterr().out)["roots"]
    assert sorted(root["wrong"]) == sorted([first, second, third])
    assert root["pages"] == 2 * PAGES
    assert run(["fsck", "--config", file, "--repair"]) == 0
    assert "removed: 3 wrong pages" in capsys.readouterr().out
    assert sum(counted(file, capsys).values()) == 2 * PAGES - 3


def test_what_objects_cannot_tell_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, _ = filled(tmp_path, fsspec={"url": f"file://{tmp_path}/kv"})
    assert run(["namespaces", "prune", "--config", file, "--unused-for", "7d"]) == 2
    assert "`hicache-storage clear`" in capsys.readouterr().err
    assert run(["fsck", "--delete-left", "--config", file]) == 2
    assert "objects belong to no process" in capsys.readouterr().err
    assert run(["inspect", f"file://{tmp_path}/kv"]) == 2
    assert "name that with --config" in capsys.readouterr().err
    assert counted(file, capsys) == {"default": PAGES, "other": PAGES}


def test_a_directory_is_named_by_a_configuration_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    section = {"path": str(tmp_path / "kv"), "capacity": "64MiB", "free_floor": 0}
    file, _ = filled(tmp_path, nvme=section)
    assert run(["inspect", "--config", file, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["root"] == section["path"]
    assert run(["inspect", "--config", config_file(tmp_path, storage_backend="memory")]) == 2
    assert "name a directory" in capsys.readouterr().err
