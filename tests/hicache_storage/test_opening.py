"""A configuration becomes a running store, and each of its parts is in use."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from hicache_backends.errors import ConfigError, StorageUnavailable
from hicache_backends.identity import Namespace
from hicache_storage.access_log import read_access_log
from hicache_storage.config import load_config
from hicache_storage.opening import open_page_store
from tests.kvmanager.members import eventually

PAGE = 4096
KEYS = [hashlib.sha256(bytes([i])).hexdigest() for i in range(4)]
NAMESPACE = Namespace("m", "r", "bf16", "page_first", 64, PAGE, tenant="agents")


def settings(root: Path, **more: Any) -> dict[str, Any]:
    return {
        "storage_backend": "nvme",
        "nvme": {"path": str(root), "capacity": "16MiB", "free_floor": 0, "timeout_ms": 2000},
        "global_kvmanager": {"enabled": False, "namespace": "agents"},
        **more,
    }


def test_without_the_manager_one_process_runs_on_its_disk_alone(tmp_path: Path) -> None:
    config = load_config(settings(tmp_path / "root"), env={})
    with open_page_store(config, NAMESPACE) as store:
        assert store.registry is None
        assert all(store.set(KEYS, [bytes(PAGE)] * 4, parent=None))
        assert store.exists(KEYS) == 4
        assert store.options.timeout_ms == 2000
    with open_page_store(config, NAMESPACE) as again:
        assert again.exists(KEYS) == 4


def test_with_the_embedded_manager_two_processes_share(tmp_path: Path) -> None:
    manager = {"enabled": True, "endpoint": "embedded", "namespace": "agents"}
    config = load_config(settings(tmp_path / "root", global_kvmanager=manager), env={})
    with open_page_store(config, NAMESPACE) as a, open_page_store(config, NAMESPACE, rank=1) as b:
        assert all(a.set(KEYS, [bytes(PAGE)] * 4, parent=None))
        assert b.exists(KEYS) == 4
        assert a.stats()["registry_state"] == "up"


def test_processes_share_again_after_the_embedded_registry_was_deleted(tmp_path: Path) -> None:
    root = tmp_path / "root"
    manager = {"enabled": True, "heartbeat_ms": 200, "ttl_ms": 1000, "namespace": "agents"}
    config = load_config(settings(root, global_kvmanager=manager), env={})
    with open_page_store(config, NAMESPACE) as old:
        assert all(old.set(KEYS[:2], [bytes(PAGE)] * 2, parent=None))
        shutil.rmtree(root / ".registry")
        with open_page_store(config, NAMESPACE, rank=1) as new:
            eventually(lambda: new.exists(KEYS) == 2, 20)
            assert all(new.set(KEYS[2:], [bytes(PAGE)] * 2, parent=KEYS[1]))
            eventually(lambda: old.exists(KEYS) == 4, 20)


def test_calls_are_recorded_where_an_access_log_is_configured(tmp_path: Path) -> None:
    log = tmp_path / "log"
    config = load_config(settings(tmp_path / "root", access_log={"directory": str(log)}), env={})
    with open_page_store(config, NAMESPACE) as store:
        store.set(KEYS[:2], [bytes(PAGE)] * 2, parent=None)
        store.exists(KEYS)
        store.get(KEYS, [bytearray(PAGE) for _ in KEYS])
    assert [(a.op, len(a.keys), a.hits) for a in read_access_log(log)] == [
        ("set", 2, 2),
        ("exists", 4, 2),
        ("get", 4, 2),
    ]


def test_a_storage_that_nobody_else_reaches_needs_no_registry(tmp_path: Path) -> None:
    config = load_config({"storage_backend": "memory"}, env={})
    with open_page_store(config, NAMESPACE) as store:
        assert store.registry is None


def test_a_directory_that_cannot_be_written_stops_the_start_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    config = load_config(settings(tmp_path / "file"), env={})
    with pytest.raises(StorageUnavailable, match="file"):
        open_page_store(config, NAMESPACE)


def test_an_endpoint_that_cannot_be_one_closes_the_storage_again(tmp_path: Path) -> None:
    manager = {"enabled": True, "endpoint": "ftp://manager:8080"}
    root = tmp_path / "root"
    config = load_config(settings(root, global_kvmanager=manager), env={})
    with pytest.raises(ConfigError, match=r"redis://.*embedded"):
        open_page_store(config, NAMESPACE)
    with open_page_store(load_config(settings(root), env={}), NAMESPACE) as store:
        assert len(list(root.glob("*/*/owner"))) == 1, "its store was unlocked, and is used again"
        assert store.exists(KEYS) == 0
