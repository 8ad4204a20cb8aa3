"""fsck finds each kind of trouble on both kinds of root, mends what it may, and harms no store
that is in use."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hicache_backends.deadline import Deadline
from hicache_backends.pages import Pages
from hicache_backends.threefs import adoption
from hicache_storage.cli.app import run
from hicache_storage.tools.media import read_medium
from tests.hicache_storage.store_writer import (
    PAGE_BYTES,
    StoreWriter,
    namespace,
    open_store,
    put,
)
from tests.threefs.stand_in import ThreeFs

LONG_AGO_S = time.time() - 10_000


class Site:
    """A root of one kind. `behind`: the same files, to be changed behind the mount."""

    def __init__(self, backend: str, root: Path, behind: Path) -> None:
        self.backend, self.root, self.behind = backend, root, behind

    def writer(self, pages: int, model: str = "m") -> StoreWriter:
        return StoreWriter(self.backend, self.root, pages, model)

    def store(self, name: str) -> Path:
        return next(self.behind.glob(f"*/{name}"))


@pytest.fixture(params=["nvme", "3fs"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    if request.param == "nvme":
        yield Site("nvme", tmp_path / "kv", tmp_path / "kv")
        return
    backing, mount = tmp_path / "backing", tmp_path / "mount"
    # what is changed behind the mount is seen at once
    with ThreeFs(backing, mount, attr_ms=0, entry_ms=0, absent_ms=0) as fs:
        yield Site("3fs", fs.mount / "kv", fs.backing / "kv")


def fsck(
    capsys: pytest.CaptureFixture[str], site: Site, *options: str, code: int | None = None
) -> Any:
    """The report on the only root; clean is 0, and 1 is not."""
    ended = run(["fsck", str(site.root), *options, "--json"])
    report = json.loads(capsys.readouterr().out)
    assert ended == (0 if report["ok"] else 1)
    assert code is None or ended == code, report
    (root,) = report["roots"]
    return root


def counts(report: Any) -> dict[str, int]:
    return {trouble["kind"]: trouble["count"] for trouble in report["troubles"]}


def old(path: Path) -> Path:
    os.utime(path, (LONG_AGO_S, LONG_AGO_S))
    return path


def damage(store: Path, records: int) -> None:
    """Break the first records of the store's first segment that holds as many."""
    for index in sorted(store.glob("*.index")):
        raw = bytearray(index.read_bytes())
        whole = [at for at in range(0, len(raw), 64) if any(raw[at : at + 64])]
        if len(whole) >= records:
            for at in whole[:records]:
                raw[at + 20] ^= 0x40
            index.write_bytes(raw)
            return
    raise AssertionError("no segment with so many records")


def plant(site: Site, store: Path) -> dict[str, int]:
    """Every kind of trouble; how many of each."""
    damage(store, 3)
    (store / "seg-000900.data").write_bytes(bytes(4096))
    (store / "seg-000901.index").write_bytes(bytes(4096))
    (store / ".new-seg-000902.data").write_bytes(b"x")
    (store / "note.txt").write_text("mine")
    old_ones = (site.behind / ".medium-0", store.parent / ".namespace-0")
    for path in old_ones:
        path.write_bytes(b"x")
        old(path)
    (site.behind / ".medium-1").write_bytes(b"young, in the making")
    (site.behind / "core.1234").write_text("of somebody")
    empty = site.behind / ("e" * 64)
    empty.mkdir()
    (empty / "namespace.msgpack").write_bytes(b"x")
    old(empty)
    return {
        "damaged_records": 3,
        "half_segments": 2,
        "drafts": 3,
        "foreign_entries": 2,
        "empty_namespaces": 1,
    }


def whole_pages(site: Site, store: str) -> int:
    found = {s.store: s for n in read_medium(site.root).namespaces for s in n.stores}
    return found[store].pages


def test_a_killed_writer_leaves_nothing_that_is_wrong(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    with site.writer(20) as writer:
        assert fsck(capsys, site, code=0)["in_use"] == 1
        writer.kill()
    report = fsck(capsys, site, code=0)
    assert (report["kind"], report["stores"], report["in_use"]) == (
        "local" if site.backend == "nvme" else "3fs",
        1,
        0,
    )
    (left,) = report["left"]
    assert (left["pages"], left["adopted"], left["closed_cleanly"]) == (20, False, False)
    assert left["file_bytes"] >= 20 * PAGE_BYTES
    assert left["idle_s"] < 60


@pytest.mark.parametrize("rounds", [1, 6, 15])
def test_a_writer_killed_in_the_middle_is_mended_once(
    rounds: int, site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    with site.writer(10, "live") as live:
        with StoreWriter(site.backend, site.root, 40, busy=True) as writer:
            writer.await_rounds(rounds)
            fsck(capsys, site)
            writer.kill()
        fsck(capsys, site, "--repair", code=0)
        assert fsck(capsys, site, code=0)["troubles"] == []
        assert whole_pages(site, live.store) == 10
        live.close()


def test_each_kind_of_trouble_is_found_mended_and_then_gone(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    with site.writer(20) as gone, site.writer(10, "live") as live:
        gone.kill()
        planted = plant(site, site.store(gone.store))
        seen = fsck(capsys, site, code=1)
        assert counts(seen) == planted
        assert not any(trouble["mended"] for trouble in seen["troubles"])
        assert all(trouble["examples"] for trouble in seen["troubles"])
        assert counts(fsck(capsys, site, code=1)) == planted, "looking has changed something"

        mended = fsck(capsys, site, "--repair", code=1)
        assert counts(mended) == planted
        by_kind = {t["kind"]: t["mended"] for t in mended["troubles"]}
        assert by_kind == {**planted, "foreign_entries": 0}

        again = fsck(capsys, site, "--repair", code=1)
        assert counts(again) == {"foreign_entries": 2}
        assert whole_pages(site, gone.store) == 17
        assert whole_pages(site, live.store) == 10
        (site.store(gone.store) / "note.txt").unlink()
        (site.behind / "core.1234").unlink()
        assert fsck(capsys, site, code=0)["troubles"] == []
        live.close()


def test_what_was_mended_is_read_as_before(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    with site.writer(20) as gone:
        gone.kill()
    plant(site, site.store(gone.store))
    fsck(capsys, site, "--repair")
    storage = open_store(site.backend, site.root)
    digests = [f"{n:016d}".encode() for n in range(20)]
    buffers = [bytearray(PAGE_BYTES) for _ in digests]
    outcomes = storage.get(
        digests, Pages.from_buffers(buffers, writable=True), Deadline.after_ms(10000)
    )
    hits = [n for n, outcome in enumerate(outcomes) if outcome.ok]
    assert len(hits) == 17
    assert all(bytes(buffers[n]) == bytes([n]) * PAGE_BYTES for n in hits)
    assert storage.close()


def test_a_live_store_is_never_harmed(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    with site.writer(10) as live:
        store = site.store(live.store)
        (store / ".new-seg-000902.data").write_bytes(b"its own process may be at it")
        (store / "seg-000901.index").write_bytes(bytes(4096))
        before = {path.name: path.read_bytes() for path in store.glob("*seg*")}
        report = fsck(capsys, site, "--repair", "--delete-left", "--idle", "0s", code=0)
        assert (report["in_use"], report["left"], report["troubles"]) == (1, [], [])
        assert {path.name: path.read_bytes() for path in store.glob("*seg*")} == before
        damage(store, 2)
        report = fsck(capsys, site, "--repair", "--delete-left", "--idle", "0s", code=1)
        assert counts(report) == {"damaged_records": 2}
        assert report["troubles"][0]["mended"] == 0
        live.close()


def test_stores_left_behind_are_deleted_when_they_are_old_enough(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    with site.writer(20) as gone, site.writer(10, "live") as live:
        gone.kill()
        plant(site, site.store(gone.store))
        (site.store(gone.store) / "note.txt").unlink()
        (site.behind / "core.1234").unlink()
        young = fsck(capsys, site, "--delete-left", code=1)
        assert [store["deleted"] for store in young["left"]] == [False]
        assert young["left"][0]["why_kept"] == ""
        done = fsck(capsys, site, "--delete-left", "--idle", "0s", "--repair", code=0)
        assert [(s["pages"], s["deleted"]) for s in done["left"]] == [(17, True)]
        again = fsck(capsys, site, "--delete-left", "--idle", "0s", "--repair", code=0)
        assert (again["left"], again["troubles"], again["stores"]) == ([], [], 1)
        assert whole_pages(site, live.store) == 10
        assert read_medium(site.root).used_bytes == again["file_bytes"]
        live.close()
    assert {path.name for path in site.behind.iterdir() if not path.name.startswith(".")} == {
        namespace("live").fingerprint.hex()
    }


def test_a_store_with_something_foreign_in_it_is_not_deleted(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    with site.writer(5) as gone:
        gone.kill()
    (site.store(gone.store) / "note.txt").write_text("mine")
    report = fsck(capsys, site, "--delete-left", "--idle", "0s", code=1)
    assert report["left"][0]["why_kept"].startswith("note.txt lies there")
    assert run(["namespaces", "prune", str(site.root), "--all"]) == 0
    assert "note.txt lies there" in capsys.readouterr().out
    assert whole_pages(site, gone.store) == 5
    (site.store(gone.store) / "note.txt").unlink()
    fsck(capsys, site, "--delete-left", "--idle", "0s", code=0)
    assert read_medium(site.root).namespaces == ()


def test_an_owner_file_that_cannot_be_read_is_told(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    with site.writer(5) as damaged, site.writer(5, "n") as missing:
        damaged.kill()
        missing.kill()
    file = site.store(damaged.store) / "owner"
    file.write_bytes(bytes(4096))
    old(file)
    (site.store(missing.store) / "owner").unlink()
    old(site.store(missing.store))
    report = fsck(capsys, site, code=1)
    assert counts(report) == {"unreadable_owners": 2}
    said = " ".join(report["troubles"][0]["examples"])
    assert ": damaged" in said
    assert ": missing" in said
    assert len(report["left"]) == 2
    fsck(capsys, site, "--delete-left", "--idle", "0s", code=0)
    assert fsck(capsys, site, code=0)["stores"] == 0


def test_a_namespace_that_cannot_be_read_and_a_damaged_medium_are_told(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    with site.writer(5) as gone:
        gone.kill()
    next(site.behind.rglob("namespace.msgpack")).write_bytes(b"\xc1")
    assert counts(fsck(capsys, site, code=1)) == {"unreadable_namespaces": 1}
    medium = bytearray((site.behind / ".medium").read_bytes())
    medium[20] ^= 1
    (site.behind / ".medium").write_bytes(medium)
    report = fsck(capsys, site, "--repair", "--delete-left", "--idle", "0s", code=1)
    assert counts(report) == {"unreadable_namespaces": 1, "medium": 1}
    assert report["left"][0]["deleted"] is False


def test_a_store_that_another_process_took_over_is_left_to_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ThreeFs(tmp_path / "backing", tmp_path / "mount") as fs:
        site = Site("3fs", fs.mount, fs.backing)
        with site.writer(5) as gone:
            gone.kill()
        with site.writer(1) as heir:
            damage(site.store(gone.store), 1)
            report = fsck(capsys, site, "--repair", "--delete-left", "--idle", "0s", code=1)
            assert counts(report) == {"damaged_records": 1}
            assert [(s["adopted"], s["deleted"]) for s in report["left"]] == [(True, False)]
            assert site.store(gone.store).exists()
            heir.kill()
        report = fsck(capsys, site, "--delete-left", "--idle", "0s", code=0)
        assert [s["deleted"] for s in report["left"]] == [True, True]
        assert {path.name for path in fs.backing.iterdir()} == {".medium"}


def test_a_store_that_is_taken_over_at_that_moment_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreeFs(tmp_path / "backing", tmp_path / "mount") as fs:
        site = Site("3fs", fs.mount, fs.backing)
        with site.writer(5) as gone:
            gone.kill()
        monkeypatch.setattr(adoption, "claim", lambda directory, store: False)
        report = fsck(capsys, site, "--delete-left", "--idle", "0s", code=0)
        assert "adopted" in report["left"][0]["why_kept"]
        assert whole_pages(site, gone.store) == 5
        assert len(list(site.behind.glob("*/*/owner"))) == 1, "the store made for it stays"


def test_deleting_gives_the_space_back_though_files_are_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ThreeFs(tmp_path / "backing", tmp_path / "mount") as fs:
        site = Site("3fs", fs.mount, fs.backing)
        with site.writer(30) as gone:
            gone.kill()
        held = [path.open("rb") for path in fs.backing.rglob("*.data")]
        fsck(capsys, site, "--delete-left", "--idle", "0s", code=0)
        assert held
        assert sum(os.fstat(file.fileno()).st_blocks for file in held) == 0
        for file in held:
            file.close()


def test_the_configured_directories_are_looked_through(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = open_store(site.backend, site.root)
    put(storage, 3)
    file = tmp_path / "l3.json"
    key = "path" if site.backend == "nvme" else "mount_point"
    file.write_text(
        json.dumps({"storage_backend": site.backend, site.backend: {key: str(site.root)}})
    )
    assert run(["fsck", "--config", str(file)]) == 0
    out = capsys.readouterr().out
    assert f"{site.root}: " in out
    assert "1 stores, 1 of them in use, 3 pages" in out
    assert out.splitlines()[-1] == "clean"
    storage.close()
    damage(next(site.behind.glob("*/*/")), 1)
    assert run(["fsck", str(site.root)]) == 1
    out = capsys.readouterr().out
    assert "neither empty nor whole" in out
    assert out.splitlines()[-1] == "not clean"


def test_bad_input_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "l3.json"
    file.write_text(json.dumps({"storage_backend": "memory"}))
    assert run(["fsck", "--config", str(file)]) == 2
    assert "name one" in capsys.readouterr().err
    assert run(["fsck", str(tmp_path)]) == 2
    assert "holds no store" in capsys.readouterr().err
    assert run(["fsck", str(tmp_path), "--idle", "soon"]) == 2
    assert "--idle takes a time" in capsys.readouterr().err
