"""fsck of the registry wherever pages and registry are: 3FS, objects, a Cluster, an embedded
server, behind the service; and by the other command."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import typer

from hicache_storage.cli.app import run
from hicache_storage.cli.fsck import fsck as fsck_command
from hicache_storage.config import Config, load_config
from hicache_storage.opening import open_page_store
from hicache_storage.tools.objects import later, object_medium
from kvmanager.cli import app as kvmanager_app
from tests.backends.mooncake.real import running_cluster
from tests.hicache_storage.page_process import open_pages, read, write
from tests.hicache_storage.store_writer import StoreWriter
from tests.hicache_storage.test_cli_check import IDENTITY, config_file
from tests.kvmanager.deployments import ClusterDeployment
from tests.kvmanager.http_service import Service
from tests.kvmanager.servers import BINARIES, Server
from tests.threefs.stand_in import ThreeFs

QUICK = ("--settle-ms", "100")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    binary = BINARIES["valkey"]
    assert binary is not None, "the embedded extra is part of the development extras"
    place = tmp_path / "valkey"
    place.mkdir()
    server = Server(binary, place).start()
    yield server
    server.stop()


def fsck(capsys: pytest.CaptureFixture[str], *options: str) -> Any:
    capsys.readouterr()
    ended = run(["fsck", *options, *QUICK, "--json"])
    said = capsys.readouterr()
    report = json.loads(said.out)
    assert "error" not in report, said.err
    assert ended == (0 if report.get("ok") else 1), said.err
    return report


def counts(report: Any) -> dict[str, int]:
    return {trouble["kind"]: trouble["count"] for trouble in report["registry"]["troubles"]}


def test_pages_on_3fs_are_made_known_and_entries_of_deleted_ones_go(
    tmp_path: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    with ThreeFs(
        tmp_path / "backing", tmp_path / "mount", attr_ms=0, entry_ms=0, absent_ms=0
    ) as fs:
        where = (str(fs.mount / "kv"), "--registry", server.url)
        with StoreWriter("3fs", fs.mount / "kv", 20) as one:
            one.kill()
        assert fsck(capsys, *where, "--rebuild")["rebuilt"]["pages"] == 20
        report = fsck(capsys, *where)
        assert (report["registry"]["entries"], counts(report)) == (20, {})
        next((fs.backing / "kv").glob("*/*/seg-000001.data")).unlink()
        found = counts(fsck(capsys, *where))
        assert found == {"stale_entries": 15}
        assert counts(fsck(capsys, *where, "--repair")) == found
        assert counts(fsck(capsys, *where)) == {}


def objects_config(directory: Path, endpoint: str, **section: Any) -> tuple[str, Config]:
    file = config_file(
        directory,
        storage_backend=next(iter(section)),
        identity=IDENTITY,
        global_kvmanager={
            "enabled": True,
            "endpoint": endpoint,
            "namespace": "t",
            "heartbeat_ms": 500,  # of which a repair waits for three
        },
        **section,
    )
    return file, load_config(Path(file))


@pytest.mark.parametrize("backend", ["fsspec", pytest.param("mooncake", marks=pytest.mark.slow)])
def test_objects_are_compared_and_made_known(
    backend: str, tmp_path: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    if backend == "mooncake":
        with running_cluster(tmp_path) as cluster:
            check_objects(tmp_path, server, capsys, mooncake={"master": cluster.address})
    else:
        check_objects(tmp_path, server, capsys, fsspec={"url": f"file://{tmp_path}/kv"})


def check_objects(
    tmp_path: Path, server: Server, capsys: pytest.CaptureFixture[str], **section: Any
) -> None:
    file, config = objects_config(tmp_path, server.unix_url, **section)
    namespace = config.namespace(page_tokens=64)
    page = bytes(namespace.page_bytes)
    with open_page_store(config, namespace) as store:
        keys = [f"page {n}" for n in range(20)]
        assert all(o.ok for o in store.set(keys, [page] * 20, parent=None))
        assert fsck(capsys, "--config", file)["registry"]["entries"] == 20
        with object_medium(config) as medium:
            (found,) = medium.read().namespaces
            medium.store.remove(found.pages[:5], later())
        assert counts(fsck(capsys, "--config", file)) == {"stale_entries": 5}
        assert fsck(capsys, "--config", file, "--repair")["ok"]
        assert counts(fsck(capsys, "--config", file)) == {}
        assert sum(o.ok for o in store.get(keys, [bytearray(page) for _ in keys])) == 15
    with redis.Redis(unix_socket_path=server.socket_path) as client:  # in Mooncake's network, too
        client.flushall()
    expected = {"missing_pages": 15, "unregistered_namespaces": 1}
    assert counts(fsck(capsys, "--config", file)) == expected
    assert fsck(capsys, "--config", file, "--rebuild")["rebuilt"]["pages"] == 15
    assert counts(fsck(capsys, "--config", file)) == {}
    with open_page_store(config, namespace) as other:
        assert sum(o.ok for o in other.get(keys, [bytearray(page) for _ in keys])) == 15
        assert sum(other.present(keys)) == 15


def test_a_registry_that_is_a_cluster_is_compared_and_rebuilt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    binary = BINARIES["valkey"]
    assert binary is not None
    (tmp_path / "cluster").mkdir()
    with ClusterDeployment(binary, tmp_path / "cluster", replicas=0) as cluster:
        cluster.start()
        where = (str(tmp_path / "kv"), "--registry", cluster.url)
        for model in ("one", "two", "three"):
            with open_pages(tmp_path / "kv", cluster.url, model) as store:
                assert write(store, model, 20) == 20
        assert fsck(capsys, *where)["registry"]["namespaces"] == 3
        for each in cluster.servers:
            with each.client() as client:
                client.flushall()
        expected = {"missing_pages": 60, "unregistered_namespaces": 3}
        assert counts(fsck(capsys, *where, "--repair")) == expected
        report = fsck(capsys, *where)
        assert (report["registry"]["entries"], counts(report)) == (60, {})


def test_behind_the_service_the_registry_is_rebuilt_but_not_compared(
    tmp_path: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_pages(tmp_path / "kv", server.url) as store:
        write(store, "a", 20)
    with server.client() as client:
        client.flushall()
    service = Service(server.url).start()
    where = (str(tmp_path / "kv"), "--registry", service.url)
    assert run(["fsck", *where]) == 2
    assert "name Redis itself" in capsys.readouterr().err
    assert fsck(capsys, *where, "--rebuild")["rebuilt"]["pages"] == 20
    assert service.process is not None
    service.process.kill()
    service.process.wait()
    report = fsck(capsys, where[0], "--registry", server.url)
    assert (report["registry"]["entries"], counts(report)) == (20, {})


def test_an_embedded_registry_is_compared_while_it_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    section = {"path": str(tmp_path / "kv"), "capacity": "64MiB", "free_floor": 0}
    file, config = objects_config(tmp_path, "embedded", nvme=section)
    namespace = config.namespace(page_tokens=64)
    with open_page_store(config, namespace) as store:
        assert all(store.set(["a", "b"], [bytes(namespace.page_bytes)] * 2, parent=None))
        report = fsck(capsys, "--config", file)
        assert (report["registry"]["entries"], counts(report)) == (2, {})
    assert "registry" not in fsck(capsys, "--config", file)
    assert run(["fsck", "--config", file, "--rebuild"]) == 2
    assert "by themselves" in capsys.readouterr().err


def test_a_lost_namespace_file_is_written_anew(
    tmp_path: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "kv"
    with open_pages(root, server.url) as store:
        write(store, "a", 20)
    (name,) = root.glob("*/namespace.msgpack")
    whole = name.read_bytes()
    name.write_bytes(b"\xc1")
    where = (str(root), "--registry", server.url)
    report = fsck(capsys, *where)
    assert [t["kind"] for t in report["roots"][0]["troubles"]] == ["unreadable_namespaces"]
    assert fsck(capsys, *where, "--repair")["ok"]
    assert name.read_bytes() == whole
    assert fsck(capsys, *where)["roots"][0]["troubles"] == []
    reader = open_pages(root, server.url)
    assert len(read(reader, "a", 20)) == 20
    assert reader.close()


def test_it_is_a_command_of_the_service_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Entry:
        name = "fsck"

        @staticmethod
        def load() -> Any:
            return fsck_command

    assert 'fsck = "hicache_storage.cli.fsck:fsck"' in Path("pyproject.toml").read_text()
    monkeypatch.setattr(kvmanager_app, "entry_points", lambda group: [Entry])
    assert isinstance(kvmanager_app.build(), typer.Typer)
    with open_pages(tmp_path / "kv", "embedded:" + str(tmp_path / "reg")) as store:
        write(store, "a", 3)
        report = ("fsck", str(tmp_path / "kv"), "--registry", f"embedded:{tmp_path}/reg")
        assert kvmanager_app.run([*report, *QUICK]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "clean"


def test_bad_input_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kv").mkdir()
    assert run(["fsck", str(tmp_path), "--rebuild"]) == 2
    assert "needs a registry" in capsys.readouterr().err
    assert run(["fsck", str(tmp_path), "--rebuild", "--repair", "--registry", "redis://x"]) == 2
    assert "changes nothing but the registry" in capsys.readouterr().err
    assert run(["fsck", str(tmp_path), "--registry", "ftp://x"]) == 2
    assert "not one of" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["inspect"], ["namespaces", "list"], ["fsck"]])
def test_a_mount_that_hangs_ends_the_command(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("hicache_storage.tools.roots._ANSWER_MS", 300)
    with ThreeFs(tmp_path / "backing", tmp_path / "mount") as fs:
        root = fs.mount / "kv"
        with StoreWriter("3fs", root, 3) as writer:
            writer.kill()
        fs.pause()
        began_s = time.monotonic()
        ended = run([*command, str(root)])
        took_s = time.monotonic() - began_s
        fs.resume()
    assert ended == 1
    assert took_s < 20
    assert "is its mount hung?" in capsys.readouterr().err


def test_another_root_inside_is_nothing_foreign_and_names_are_shown_safely(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_pages(tmp_path / "kv", f"embedded:{tmp_path}/reg") as store:
        write(store, "a", 3)
        open_pages(tmp_path / "kv" / "inner", f"embedded:{tmp_path}/reg").close()
        assert run(["fsck", str(tmp_path / "kv")]) == 0
        (tmp_path / "kv" / "bad\x1b[31m\udcff").touch()
        capsys.readouterr()
        assert run(["fsck", str(tmp_path / "kv")]) == 1
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "bad\\x1b[31m\\udcff" in said
