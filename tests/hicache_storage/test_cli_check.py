"""A dry run initialises everything for real, and says what failed and what to do."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from hicache_backends.errors import RegistryRefused
from hicache_storage.cli.app import run
from hicache_storage.config import load_config
from hicache_storage.opening import open_page_store
from hicache_storage.tools.media import read_medium
from hicache_storage.tools.remedies import remedy

IDENTITY = {
    "model": "m",
    "revision": "r",
    "kv_dtype": "bf16",
    "layout": "page_first",
    "page_bytes": 65536,
}


def config_file(directory: Path, **sections: Any) -> str:
    file = directory / "l3.json"
    file.write_text(json.dumps(sections))
    return str(file)


def nvme(root: Path, **more: Any) -> dict[str, Any]:
    return {"path": str(root), "capacity": "64MiB", "free_floor": 0, "page_size": 64, **more}


def checked(capsys: pytest.CaptureFixture[str], file: str) -> tuple[int, str, str]:
    code = run(["check", "--config", file])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_all_is_initialised_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "kv"
    file = config_file(tmp_path, nvme=nvme(root), identity=IDENTITY)
    code, out, _ = checked(capsys, file)
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith(f"NVMe backend connected: {root}, io_engine ")
    assert "capacity 64 MiB" in lines[0]
    assert lines[1].startswith("KVManager off")
    assert lines[2].startswith("self-test passed: set, exists, get of a page of 64 KiB")
    assert "incomplete" not in lines[2]
    assert lines[3] == "HiCache initialized"
    (found,) = read_medium(root).namespaces
    assert found.namespace is not None
    assert found.namespace.model == "m"
    assert found.pages == 0, "the probe page is still there"


def test_without_an_identity_nothing_stays_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "kv"
    assert checked(capsys, config_file(tmp_path, nvme=nvme(root)))[0] == 0
    assert read_medium(root).namespaces == ()
    assert read_medium(root).used_bytes == 0


def test_a_look_with_less_capacity_changes_no_limit_and_evicts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "kv"
    config = load_config({"nvme": nvme(root), "identity": IDENTITY})
    keys = [f"page {i}" for i in range(64)]
    with open_page_store(config, config.namespace()) as store:
        assert all(store.set(keys, [bytes(65536)] * 64, parent=None))
    before = read_medium(root)
    file = config_file(tmp_path, nvme=nvme(root, capacity="1MiB"), identity=IDENTITY)
    code, out, _ = checked(capsys, file)
    assert code == 0
    assert "warning" in out
    assert "makes room by deleting" in out
    after = read_medium(root)
    assert after.capacity_bytes == before.capacity_bytes
    assert after.namespaces[0].pages == 64


def test_a_look_at_a_full_medium_pushes_out_no_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "kv"
    full = nvme(root, capacity="2MiB")
    config = load_config({"nvme": full, "identity": IDENTITY})
    with open_page_store(config, config.namespace()) as store:
        store.set([f"page {i}" for i in range(40)], [bytes(65536)] * 40, parent=None)
        held = int(store.storage.stats()["pages"])
    code, out, _ = checked(capsys, config_file(tmp_path, nvme=full))
    assert code == 0
    assert "self-test skipped: the capacity is used up" in out
    assert read_medium(root).namespaces[0].pages == held


def test_figures_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = config_file(tmp_path, nvme=nvme(tmp_path / "kv"))
    assert run(["check", "--config", file, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"]
    assert report["stats"]["storage_capacity_bytes"] == 64 << 20
    assert report["steps"][-1]["name"] == "HiCache initialized"


def test_memory_needs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = checked(capsys, config_file(tmp_path, storage_backend="memory"))
    assert code == 0
    assert "Memory backend connected" in out


@pytest.mark.parametrize("directory", [None, "registry"])
def test_an_embedded_registry_is_started_and_asked(
    directory: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    manager: dict[str, Any] = {"enabled": True, "endpoint": "embedded"}
    if directory:
        manager["embedded_dir"] = str(tmp_path / directory)
    file = config_file(tmp_path, nvme=nvme(tmp_path / "kv"), global_kvmanager=manager)
    code, out, err = checked(capsys, file)
    assert code == 0, err
    assert "KVManager connected: embedded" in out
    expected = tmp_path / directory if directory else tmp_path / "kv" / ".registry"
    assert (expected / "valkey.log").exists()
    assert not any((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("where", ["a file", "absent/kv"])
def test_a_directory_that_cannot_be_used(
    where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a file").write_text("")
    root = tmp_path / where
    code, out, err = checked(capsys, config_file(tmp_path, nvme=nvme(root)))
    assert code == 1
    assert "HiCache initialized" not in out
    assert "error: storage backend init failed: " in err
    assert str(root) in err
    assert "to do: create or mount the directory" in err


def test_a_directory_that_is_not_configured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = checked(capsys, config_file(tmp_path, storage_backend="3fs"))
    assert code == 1
    assert "storage backend init failed: 3fs.mount_point is missing" in err
    assert "to do: mend the option" in err


def test_a_registry_that_does_not_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        manager = {
            "enabled": True,
            "endpoint": f"redis://127.0.0.1:{unused.getsockname()[1]}",
            "timeout_ms": 200,
            "connect_timeout_ms": 200,
        }
        file = config_file(tmp_path, nvme=nvme(tmp_path / "kv"), global_kvmanager=manager)
        code, out, err = checked(capsys, file)
    assert code == 1
    assert "NVMe backend connected" in out
    assert "KVManager init failed" in err
    assert "to do: start the registry" in err


def test_an_endpoint_that_cannot_be_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manager = {"enabled": True, "endpoint": "ftp://kvmanager:8080"}
    file = config_file(tmp_path, nvme=nvme(tmp_path / "kv"), global_kvmanager=manager)
    code, _, err = checked(capsys, file)
    assert code == 1
    assert "KVManager init failed" in err
    assert "redis://" in err


def test_what_lies_there_under_another_identity(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "kv"
    file = config_file(tmp_path, nvme=nvme(root), identity=IDENTITY)
    assert checked(capsys, file)[0] == 0
    next(root.rglob("namespace.msgpack")).write_bytes(b"\x80")
    code, _, err = checked(capsys, file)
    assert code == 1
    assert "storage backend init failed" in err
    assert "to do: give the pages of another identity another directory" in err


@pytest.mark.parametrize("mode", ["off", "read"])
def test_a_mode_that_writes_nothing_skips_the_page(
    mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = checked(capsys, config_file(tmp_path, nvme=nvme(tmp_path / "kv", mode=mode)))
    assert code == 0
    assert f"self-test skipped: mode is {mode}" in out


def test_a_capacity_above_the_file_system_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = 2 * shutil.disk_usage(tmp_path).total
    file = config_file(tmp_path, nvme=nvme(tmp_path / "kv", capacity=more), identity=IDENTITY)
    code, out, _ = checked(capsys, file)
    assert code == 0
    assert "which is more than the" in out.splitlines()[0]


def test_a_capacity_below_one_page_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = config_file(tmp_path, nvme=nvme(tmp_path / "kv", capacity="4KiB"), identity=IDENTITY)
    code, _, err = checked(capsys, file)
    assert code == 1
    assert "nvme.capacity is 4 KiB: less than the 64.1 KiB that one page of 64 KiB takes" in err


@pytest.mark.parametrize(
    ("target", "why"), [("kv", "form a loop"), ("nowhere", "leads nowhere"), ("l3.json", "")]
)
def test_what_is_no_directory_is_called_so(
    target: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kv").symlink_to(target)
    code, _, err = checked(capsys, config_file(tmp_path, nvme=nvme(tmp_path / "kv")))
    assert code == 1
    assert f"{tmp_path / 'kv'} is not a directory" in err
    assert why in err


def test_a_model_that_cannot_be_read_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    identity = {"model_config": str(tmp_path / "absent")}
    code, out, err = checked(
        capsys, config_file(tmp_path, nvme=nvme(tmp_path / "kv"), identity=identity)
    )
    assert code == 1
    assert "HiCache initialized" not in out
    assert "identity.model_config: " in err


def test_an_incomplete_identity_is_checked_with_its_page_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = config_file(tmp_path, nvme=nvme(tmp_path / "kv"), identity={"page_bytes": "1MiB"})
    code, out, _ = checked(capsys, file)
    assert code == 0
    assert "of a page of 1 MiB" in out
    assert "not under identity, which is incomplete" in out


def test_a_refused_password_is_to_be_mended() -> None:
    assert "password" in remedy(RegistryRefused("invalid username-password pair"))
    assert "start the registry" not in remedy(RegistryRefused(""))


def test_a_file_with_keys_for_sglang_is_checked_like_any_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = config_file(tmp_path, nvme=nvme(tmp_path / "kv"), prefetch_timeout_base=2)
    assert checked(capsys, file)[0] == 0
    assert run(["config", "show", "--config", file]) == 0
    capsys.readouterr()
    file = config_file(tmp_path, nvme=nvme(tmp_path / "kv"), prefetch_timeout_bas=2)
    code, _, err = checked(capsys, file)
    assert code == 2
    assert "did you mean 'prefetch_timeout_base'?" in err


def test_one_of_several_directories_that_cannot_be_used_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [str(tmp_path / "a"), str(tmp_path / "absent" / "b")]
    code, out, err = checked(capsys, config_file(tmp_path, nvme={"paths": paths}))
    assert code == 1
    assert f"init failed: {paths[1]} cannot be used" in err
    assert "HiCache initialized" not in out
