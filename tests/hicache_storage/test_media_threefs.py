"""What lies on a 3FS mount is told and taken away as on a local disk."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hicache_backends.errors import ConfigError, StorageUnavailable
from hicache_storage.cli.app import run
from hicache_storage.config import load_config
from hicache_storage.sglang.neighbours import neighbours
from hicache_storage.tools import roots
from hicache_storage.tools.media import StoreReport, read_medium
from tests.hicache_storage.store_writer import (
    PAGE_BYTES,
    StoreWriter,
    namespace,
    open_store,
    put,
)
from tests.threefs.stand_in import ThreeFs


@pytest.fixture
def fs(tmp_path: Path) -> Iterator[ThreeFs]:
    with ThreeFs(tmp_path / "backing", tmp_path / "mount") as daemon:
        yield daemon


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    assert run([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def stores(root: Path) -> dict[str, StoreReport]:
    return {store.store: store for each in read_medium(root).namespaces for store in each.stores}


def test_stores_are_told_with_their_pages_and_who_writes_to_them(fs: ThreeFs) -> None:
    root = fs.mount / "kv"
    with StoreWriter("3fs", root, 20) as gone, StoreWriter("3fs", root, 10) as alive:
        gone.kill()
        report = read_medium(root)
        assert (report.kind, report.cluster, report.problem) == ("3fs", "stand-in", "")
        assert report.capacity_bytes == 16 << 20
        (found,) = report.namespaces
        assert found.namespace == namespace()
        assert found.in_use
        by_name = stores(root)
        assert by_name.keys() == {gone.store, alive.store}
        assert by_name[gone.store].pages == 20
        assert by_name[gone.store].page_bytes == 20 * PAGE_BYTES
        assert by_name[gone.store].in_use_by == ""
        assert not by_name[gone.store].closed_cleanly
        assert f"process {alive.pid}" in by_name[alive.store].in_use_by
        assert sum(store.file_bytes for store in by_name.values()) == report.used_bytes
        alive.close()
        assert stores(root)[alive.store].closed_cleanly


def test_a_store_that_was_taken_over_is_in_use(
    fs: ThreeFs, capsys: pytest.CaptureFixture[str]
) -> None:
    with StoreWriter("3fs", fs.mount, 10) as gone:
        gone.kill()
    with StoreWriter("3fs", fs.mount, 1) as heir:
        report = stores(fs.mount)[gone.store]
        assert report.adopted
        assert "adopted" in report.in_use_by
        done = said(capsys, "namespaces", "prune", fs.mount, "--all")
        assert not any(store["removed"] for store in done["stores"])
        heir.kill()
    assert not stores(fs.mount)[gone.store].adopted


def test_looking_changes_nothing(fs: ThreeFs) -> None:
    with StoreWriter("3fs", fs.mount, 10) as gone:
        gone.kill()

    def state() -> dict[Path, tuple[int, bytes]]:
        files = [p for p in fs.backing.rglob("*") if p.is_file()]
        return {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in files}

    before = state()
    read_medium(fs.mount)
    assert state() == before


def test_damaged_records_are_counted_and_a_damaged_medium_is_said(fs: ThreeFs) -> None:
    with StoreWriter("3fs", fs.mount, 10) as gone:
        gone.kill()
    index = next(p for p in fs.backing.rglob("*.index") if any(p.read_bytes()))
    raw = bytearray(index.read_bytes())
    whole = next(at for at in range(0, len(raw), 64) if any(raw[at : at + 64]))
    raw[whole + 5] ^= 1
    index.write_bytes(raw)
    report = stores(fs.mount)[gone.store]
    assert (report.pages, report.damaged_records) == (9, 1)
    (fs.backing / ".medium").write_bytes(b"\1" * 4096)
    assert "damaged" in read_medium(fs.mount).problem


def test_prune_takes_the_left_and_leaves_the_used(
    fs: ThreeFs, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        StoreWriter("3fs", fs.mount, 10, "old") as old,
        StoreWriter("3fs", fs.mount, 10, "live") as live,
    ):
        old.kill()
        dry = said(capsys, "namespaces", "prune", fs.mount, "--all", "--dry-run")
        assert {s["store"]: s["removed"] for s in dry["stores"]} == {
            old.store: True,
            live.store: False,
        }
        assert len(stores(fs.mount)) == 2
        done = said(capsys, "namespaces", "prune", fs.mount, "--all")
        assert {s["store"]: s["removed"] for s in done["stores"]} == {
            old.store: True,
            live.store: False,
        }
        assert stores(fs.mount).keys() == {live.store}
        live.close()
        said(capsys, "namespaces", "prune", fs.mount, "--all")
    left = {path.name for path in fs.backing.iterdir()}
    assert left == {".medium"}, "nothing else stays"


def test_clear_finds_the_stores_of_the_configured_mount(
    fs: ThreeFs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with StoreWriter("3fs", fs.mount, 3) as writer:
        writer.close()
    file = tmp_path / "l3.json"
    file.write_text(json.dumps({"storage_backend": "3fs", "3fs": {"mount_point": str(fs.mount)}}))
    cleared = said(capsys, "clear", "--tenant", "t", "--config", file)
    assert [store["removed"] for store in cleared["stores"]] == [True]
    assert stores(fs.mount) == {}


def test_deleted_pages_are_given_back_at_once(fs: ThreeFs) -> None:
    def blocks() -> int:
        return sum(path.stat().st_blocks for path in fs.backing.rglob("*"))

    storage = open_store("3fs", fs.mount)
    put(storage, 30)
    held = [path.open("rb") for path in fs.backing.rglob("*.data")]  # as 3FS holds them
    storage.close()
    (store,) = stores(fs.mount).values()
    assert roots.open_root(str(fs.mount)).kind == "3fs"
    assert run(["namespaces", "prune", str(fs.mount), "--all"]) == 0
    assert not Path(store.path).exists()
    assert sum(Path(f"/proc/self/fd/{file.fileno()}").stat().st_blocks for file in held) == 0
    for file in held:
        file.close()


def test_a_mount_that_hangs_is_an_error_in_time(
    fs: ThreeFs, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StoreWriter("3fs", fs.mount, 3) as writer:
        writer.close()
    monkeypatch.setattr(roots, "_ANSWER_MS", 300.0)
    fs.pause()
    with pytest.raises(StorageUnavailable, match="does not answer: is its mount hung"):
        read_medium(fs.mount)
    fs.resume()
    assert len(stores(fs.mount)) == 1
    fs.kill()
    with pytest.raises(StorageUnavailable, match="not connected"):
        read_medium(fs.mount)


def test_a_mount_without_a_store_is_an_error(fs: ThreeFs) -> None:
    with pytest.raises(ConfigError, match="holds no store"):
        read_medium(fs.mount)


def test_other_namespaces_beside_ones_own_are_found(fs: ThreeFs) -> None:
    with StoreWriter("3fs", fs.mount, 3) as own, StoreWriter("3fs", fs.mount, 3, "other") as other:
        tree = {"storage_backend": "3fs", "3fs": {"mount_point": str(fs.mount)}}
        config = load_config(tree, env={})
        assert neighbours(config, namespace()) == [namespace("other")]
        own.close()
        other.close()
