"""What lies on a medium is told as it is, and only what nobody uses is taken away."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hicache_backends.deadline import Deadline
from hicache_backends.errors import ConfigError
from hicache_backends.identity import Namespace
from hicache_backends.nvme import NvmeOptions, NvmeStorage, open_nvme
from hicache_backends.pages import Pages
from hicache_backends.storage import ROOT, PageEntry
from hicache_storage.cli.app import run
from hicache_storage.tools.media import read_medium
from kvmanager.connect import connect_registry
from kvmanager.model import Member

PAGE_BYTES = 4096


def namespace(model: str = "m", tenant: str = "t") -> Namespace:
    return Namespace(model, "r", "bf16", "page_first", 64, PAGE_BYTES, tenant=tenant)


@contextmanager
def stored(root: Path, pages: int, model: str = "m", tenant: str = "t") -> Iterator[NvmeStorage]:
    """An open store that holds so many pages."""
    options = NvmeOptions((str(root),), capacity_bytes=64 << 20, free_floor_bytes=0)
    storage = open_nvme(namespace(model, tenant), options)
    digests = [f"{n:016d}".encode() for n in range(pages)]
    buffers = Pages.from_buffers(
        [bytes([n % 256]) * PAGE_BYTES for n in range(pages)], writable=False
    )
    parents = [ROOT, *digests[:-1]]
    assert all(storage.put(digests, buffers, parents, Deadline.after_ms(20000)))
    try:
        yield storage
    finally:
        assert storage.close()


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    assert run([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_medium_is_told_with_its_stores_and_who_holds_them(tmp_path: Path) -> None:
    with stored(tmp_path, 10) as storage:
        report = read_medium(tmp_path)
        assert report.medium == storage.media[0].hex()
        assert report.capacity_bytes == 64 << 20
        (found,) = report.namespaces
        assert found.namespace == namespace()
        (store,) = found.stores
        assert (store.store, store.pages, store.page_bytes) == (
            storage.stores[0][0].hex(),
            10,
            40960,
        )
        assert store.damaged_records == 0
        assert "process" in store.in_use_by
        assert store.file_bytes == report.used_bytes > 0
    (store,) = read_medium(tmp_path).namespaces[0].stores
    assert store.in_use_by == ""
    assert store.closed_cleanly


def test_looking_changes_nothing(tmp_path: Path) -> None:
    with stored(tmp_path, 10):
        pass
    before = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in tmp_path.rglob("*") if p.is_file()}
    read_medium(tmp_path)
    assert before == {
        p: (p.stat().st_mtime_ns, p.read_bytes()) for p in tmp_path.rglob("*") if p.is_file()
    }


def test_damaged_records_and_namespaces_are_counted(tmp_path: Path) -> None:
    with stored(tmp_path, 10):
        pass
    index = next(tmp_path.rglob("*.index"))
    raw = bytearray(index.read_bytes())
    whole = [at for at in range(0, len(raw), 64) if any(raw[at : at + 64])]
    raw[whole[3] + 5] ^= 1
    index.write_bytes(raw)
    next(tmp_path.rglob("namespace.msgpack")).write_bytes(b"\xc1 not a namespace")
    (found,) = read_medium(tmp_path).namespaces
    assert (found.pages, found.stores[0].damaged_records) == (9, 1)
    assert found.namespace is None


def test_a_copied_root_is_said_to_be_one(tmp_path: Path) -> None:
    with stored(tmp_path / "kv", 3):
        pass
    shutil.copytree(tmp_path / "kv", tmp_path / "copy")
    report = read_medium(tmp_path / "copy")
    assert "copy" in report.problem
    assert report.namespaces[0].pages == 3
    assert read_medium(tmp_path / "kv").problem == ""


def test_a_directory_without_a_store_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no store"):
        read_medium(tmp_path)
    assert not any(tmp_path.iterdir())


def test_inspect_and_list_show_the_same_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with stored(tmp_path, 10, "llama"):
        inspected = said(capsys, "inspect", tmp_path)
        (listed,) = said(capsys, "namespaces", "list", tmp_path)
        assert listed["pages"] == 10
        assert listed["in_use"]
        assert inspected["namespaces"][0]["fingerprint"] == listed["fingerprint"]
        assert inspected["namespaces"][0]["namespace"]["model"] == "llama"
        for command in (["inspect"], ["namespaces", "list"]):
            assert run([*command, str(tmp_path)]) == 0
            text = capsys.readouterr().out
            assert listed["fingerprint"][:16] in text
            assert "llama" in text


def test_prune_takes_what_is_chosen_and_not_in_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with stored(tmp_path, 3, "old"), stored(tmp_path, 3, "new"):
        pass
    with stored(tmp_path, 5, "live"):
        for model in ("old", "live"):
            dry = said(capsys, "namespaces", "prune", tmp_path, "--namespace", model, "--dry-run")
            assert [s["removed"] for s in dry["stores"]] == [model == "old"]
        assert len(read_medium(tmp_path).namespaces) == 3
        used = read_medium(tmp_path).used_bytes
        done = said(capsys, "namespaces", "prune", tmp_path, "--namespace", "old")
        assert [(s["pages"], s["removed"]) for s in done["stores"]] == [(3, True)]
        report = read_medium(tmp_path)
        models = {n.namespace.model for n in report.namespaces if n.namespace}
        assert models == {"new", "live"}
        assert report.used_bytes == used - done["stores"][0]["file_bytes"]
        done = said(capsys, "namespaces", "prune", tmp_path, "--all")
        kept = [s for s in done["stores"] if not s["removed"]]
        assert "in use by" in kept[0]["why_not"]
        (left,) = read_medium(tmp_path).namespaces
        assert left.pages == 5
    assert not said(capsys, "namespaces", "prune", tmp_path, "--unused-for", "1h")["stores"][0][
        "removed"
    ]
    assert run(["namespaces", "prune", str(tmp_path), "--all"]) == 0
    assert "deleted" in capsys.readouterr().out
    assert read_medium(tmp_path).namespaces == ()
    assert read_medium(tmp_path).used_bytes == 0


def test_prune_by_tenant_and_by_fingerprint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with stored(tmp_path, 1, tenant="a"), stored(tmp_path, 1, tenant="b"):
        pass
    b = namespace(tenant="b").fingerprint.hex()
    short = said(capsys, "namespaces", "prune", tmp_path, "--namespace", b[:4], "--dry-run")
    assert short["stores"] == [], "too short a prefix could mean another"
    done = said(capsys, "namespaces", "prune", tmp_path, "--namespace", b[:16])
    assert [s["fingerprint"] for s in done["stores"]] == [b]
    done = said(capsys, "namespaces", "prune", tmp_path, "--tenant", "a")
    assert [s["removed"] for s in done["stores"]] == [True]
    assert read_medium(tmp_path).namespaces == ()


def config_file(directory: Path, root: Path, **manager: Any) -> Path:
    file = directory / "l3.json"
    file.write_text(json.dumps({"nvme": {"path": str(root)}, "global_kvmanager": manager}))
    return file


def test_clear_takes_one_tenants_pages_from_the_media(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "kv"
    with stored(root, 2, tenant="a"), stored(root, 2, tenant="b"):
        pass
    file = config_file(tmp_path, root)
    dry = said(capsys, "clear", "--tenant", "a", "--config", file, "--dry-run")
    assert dry["namespaces"] == [namespace(tenant="a").fingerprint.hex()]
    assert len(read_medium(root).namespaces) == 2
    assert run(["clear", "--tenant", "a", "--config", str(file)]) == 0
    assert namespace(tenant="a").fingerprint.hex()[:16] in capsys.readouterr().out
    (left,) = read_medium(root).namespaces
    assert left.namespace == namespace(tenant="b")
    assert said(capsys, "clear", "--tenant", "none", "--config", file)["namespaces"] == []


def test_clear_voids_a_namespace_in_the_registry_for_everybody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "kv"
    endpoint = f"embedded:{tmp_path / 'registry'}"
    file = config_file(tmp_path, root, enabled=True, endpoint=endpoint)
    digest, medium, location = b"d" * 16, b"m" * 16, b"l" * 44
    soon = Deadline.after_ms(20000)
    with stored(root, 2, tenant="a"), stored(root, 2, tenant="b"):
        pass
    members = {t: Member(t.encode() * 16, "h", "s", t.encode() * 16, medium) for t in "ab"}
    sessions = {t: connect_registry(endpoint, namespace(tenant=t), m) for t, m in members.items()}
    try:
        for session in sessions.values():
            session.publish([PageEntry(digest, ROOT, location)], b"", soon)
        dry = said(capsys, "clear", "--tenant", "a", "--config", file, "--dry-run")
        assert dry["epochs"] == {}
        assert sessions["a"].lookup([digest], [medium], soon).locations == [location]
        cleared = said(capsys, "clear", "--tenant", "a", "--config", file)
        assert list(cleared["epochs"]) == [namespace(tenant="a").fingerprint.hex()]
        assert [s["removed"] for s in cleared["stores"]] == [True]
        visitor = Member(b"v" * 16, "h", "s", b"v" * 16, medium)
        later = connect_registry(endpoint, namespace(tenant="a"), visitor)
        assert later.lookup([digest], [medium], soon).locations == [b""]
        later.close()
        assert sessions["b"].lookup([digest], [medium], soon).locations == [location]
    finally:
        for session in sessions.values():
            session.close()
