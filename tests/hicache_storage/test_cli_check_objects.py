"""A dry run over objects: what it says, what it leaves, and the remedy for what is not well."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hicache_backends.fsspec_files import WRITING
from hicache_storage.cli.app import run
from hicache_storage.config import load_config
from hicache_storage.tools import objects
from tests.backends.mooncake.real import running_cluster
from tests.backends.objects.s3_server import fresh_prefix, s3_options, s3_server
from tests.hicache_storage.test_cli_check import checked, config_file


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with s3_server() as endpoint:
        yield endpoint


@contextmanager
def listening() -> Iterator[str]:
    """The address of something that takes connections and says nothing."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield f"127.0.0.1:{server.getsockname()[1]}"


def refused(capsys: pytest.CaptureFixture[str], file: str) -> str:
    """What failed and what is to be done."""
    found, out, err = checked(capsys, file)
    assert found == 1
    assert "HiCache initialized" not in out
    assert "storage backend init failed" in err
    return err


@pytest.mark.parametrize("kind", ["file", "s3"])
def test_objects_are_checked_and_only_the_mediums_name_stays(
    kind: str, s3: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"file://{tmp_path}/kv" if kind == "file" else fresh_prefix()
    options = {} if kind == "file" else s3_options(s3)
    file = config_file(tmp_path, storage_backend="fsspec", fsspec={"url": url, "options": options})
    code, out, err = checked(capsys, file)
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0] == f"fsspec backend connected: {kind}:{url.partition('://')[2]}"
    assert lines[1] == "KVManager off: the store is asked what it holds"
    assert lines[2].startswith("self-test passed: set, exists, get of a page of 64 KiB")
    assert lines[3] == "HiCache initialized"
    if kind == "file":
        assert {path.name for path in (tmp_path / "kv").rglob("*")} == {".medium", WRITING}
    assert run(["inspect", "--config", file, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["namespaces"], report["foreign"]) == ([], [])


def test_a_check_beside_one_that_ends_does_not_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from hicache_backends.fsspec_store import FsspecStore

    create, taken = FsspecStore.create, list[str]()

    def create_and_lose(self: FsspecStore, key: str, *more: Any) -> None:
        create(self, key, *more)
        if key.endswith("namespace.msgpack") and not taken:
            taken.append(key)
            (tmp_path / "kv" / key).unlink()

    monkeypatch.setattr(FsspecStore, "create", create_and_lose)
    url = {"url": f"file://{tmp_path}/kv"}
    code, _, err = checked(capsys, config_file(tmp_path, storage_backend="fsspec", fsspec=url))
    assert code == 0, err
    assert taken


def test_a_bucket_that_is_missing(
    s3: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    section = {"url": "s3://nobodys/kv", "options": s3_options(s3)}
    err = refused(capsys, config_file(tmp_path, storage_backend="fsspec", fsspec=section))
    assert "to do: create the bucket, or mend fsspec.url" in err


def test_a_bucket_that_is_forbidden(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    def forbid(*_args: Any, **_more: Any) -> None:
        raise PermissionError("Forbidden")  # as s3fs says it

    monkeypatch.setattr(MemoryFileSystem, "cat_file", forbid)
    section = {"url": "memory://forbidden/kv"}
    err = refused(capsys, config_file(tmp_path, storage_backend="fsspec", fsspec=section))
    assert "to do: let these credentials" in err


def test_an_endpoint_where_nothing_listens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        options = s3_options(f"http://127.0.0.1:{unused.getsockname()[1]}")
        section = {
            "url": "s3://pages/kv",
            "options": options | {"config_kwargs": {"retries": {"max_attempts": 0}}},
        }
        err = refused(capsys, config_file(tmp_path, storage_backend="fsspec", fsspec=section))
    assert "to do: mend the endpoint" in err


def test_a_file_system_that_is_not_installed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    section = {"url": "gcs://pages/kv"}
    err = refused(capsys, config_file(tmp_path, storage_backend="fsspec", fsspec=section))
    assert "to do: install what is named" in err


def test_no_master_and_what_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        master = {"master": f"127.0.0.1:{unused.getsockname()[1]}"}
        err = refused(capsys, config_file(tmp_path, storage_backend="mooncake", mooncake=master))
    assert "to do: start mooncake_master" in err
    with listening() as address:
        section = {"master": address}
        err = refused(capsys, config_file(tmp_path, storage_backend="mooncake", mooncake=section))
    assert "to do: mend mooncake.master" in err


def test_no_word_of_a_master(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    err = refused(capsys, config_file(tmp_path, storage_backend="mooncake"))
    assert "mooncake.master is missing" in err


def test_mooncake_is_checked_and_keeps_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_cluster(tmp_path) as cluster:
        section = {"master": cluster.address, "protocol": "rdma"}
        file = config_file(tmp_path, storage_backend="mooncake", mooncake=section)
        code, out, err = checked(capsys, file)
        assert code == 0, err
        lines = out.splitlines()
        name = f"mooncake://{cluster.address}/hicache"
        assert lines[0] == f"Mooncake backend connected: {name}, transport tcp"
        assert (
            lines[1] == "warning: mooncake.protocol is rdma, but this host has no device: TCP runs"
        )
        section["protocol"] = "tcp"
        file = config_file(tmp_path, storage_backend="mooncake", mooncake=section)
        with objects.object_medium(load_config(Path(file))) as medium:
            assert medium.keys() == []
        monkeypatch.setenv(objects.HTTP_PORT, "1")
        assert run(["inspect", "--config", file]) == 1
        assert "set MOONCAKE_MASTER_METRICS_PORT to the master's HTTP port" in (
            capsys.readouterr().err
        )
