"""A dry run on 3FS: what it says when all is well, and the remedy for each thing that is not."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hicache_backends.threefs import backend
from hicache_backends.usrbio.layout import SHM_DIR
from hicache_storage.cli.app import run
from hicache_storage.tools import roots
from hicache_storage.tools.media import read_medium
from tests.hicache_storage.store_writer import StoreWriter, namespace
from tests.threefs.stand_in import ThreeFs

REPOSITORY = Path(__file__).parents[2]
IDENTITY = {"model": "m", "revision": "r", "kv_dtype": "bf16", "layout": "page_first"}
AS_NOBODY = """
import os, sys
from pathlib import Path
from hicache_storage.cli.app import run
from hicache_storage.config import load_config
config = load_config(Path(sys.argv[1]))
assert run(["check", "--config", sys.argv[1]]) == 0  # all that is needed is imported by now
from hicache_storage.sglang import settings
settings.file_config = lambda path: config
os.setgid(65534)
os.setuid(65534)
sys.exit(run(["check"]))
"""


@pytest.fixture
def fs(tmp_path: Path) -> Iterator[ThreeFs]:
    with ThreeFs(tmp_path / "backing", tmp_path / "mount") as daemon:
        yield daemon


def config_file(directory: Path, mount_point: Path, **more: Any) -> str:
    """Keys of the section 3fs, or whole sections."""
    sections = {key: more.pop(key) for key in ("identity", "global_kvmanager") if key in more}
    small = {"capacity": "64MiB", "free_floor": 0, "staging_bytes": "8MiB", "rings": 2}
    threefs = {"mount_point": str(mount_point), "page_size": 64, **small, **more}
    file = directory / "l3.json"
    file.write_text(json.dumps({"storage_backend": "3fs", "3fs": threefs, **sections}))
    return str(file)


def checked(capsys: pytest.CaptureFixture[str], file: str) -> tuple[int, str, str]:
    code = run(["check", "--config", file])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def refused(capsys: pytest.CaptureFixture[str], file: str) -> tuple[str, str]:
    """What failed, and what is to be done."""
    code, out, err = checked(capsys, file)
    assert code == 1
    assert "HiCache initialized" not in out
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert lines[0].startswith("error: storage backend init failed: ")
    assert lines[-1].startswith("error: to do: ")
    return lines[0].removeprefix("error: storage backend init failed: "), lines[-1]


# -- all is well


@pytest.mark.parametrize("engine", ["usrbio", "auto", "fuse"])
def test_all_is_initialised_and_nothing_stays_behind(
    engine: str, fs: ThreeFs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = fs.mount / "kv"
    code, out, err = checked(capsys, config_file(tmp_path, root, io_engine=engine))
    assert code == 0, err
    lines = out.splitlines()
    used = "fuse" if engine == "fuse" else "usrbio (ring client own)"
    assert lines[0] == (
        f"3FS backend connected: {root}, cluster stand-in, io_engine {used}, chunks of 64 KiB, "
        "pages of 64 KiB are whole chunks, capacity 64 MiB"
    )
    assert lines[2].startswith("self-test passed: set, exists, get of a page of 64 KiB")
    assert lines[-1] == "HiCache initialized"
    assert [path.name for path in (fs.backing / "kv").iterdir()] == [".medium"]
    registered = [path.name for path in fs.iovs.iterdir()]
    assert all(name.startswith("submit-ios") for name in registered)


@pytest.mark.parametrize("suffix", ["json", "toml"])
@pytest.mark.parametrize("nested", [False, True])
def test_the_shipped_configuration_works_but_for_its_addresses(
    suffix: str, nested: bool, fs: ThreeFs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    threefs = {
        "mount_point": str(fs.mount / "kvcache"),
        "cluster_id": "kvcache-prod",
        "token": "s3cret-3fs-token",
        "io_engine": "usrbio",
        "page_size": 64,
        "prefetch_depth": 4,
        "batch_get_size": 32,
        "batch_set_size": 32,
        "timeout_ms": 5000,
    }
    manager = {
        "enabled": True,
        "endpoint": f"embedded:{tmp_path / 'registry'}",
        "namespace": "agent-inference",
    }
    tree: dict[str, Any] = {"storage_backend": "3fs", "3fs": threefs, "global_kvmanager": manager}
    if nested:
        tree = {"storage": {"backend": "3fs", "3fs": threefs}, "global_kvmanager": manager}
    file = tmp_path / f"l3.{suffix}"
    file.write_text(json.dumps(tree) if suffix == "json" else as_toml(tree))
    code, out, err = checked(capsys, str(file))
    assert code == 0, err
    assert "cluster kvcache-prod, io_engine usrbio" in out
    assert "note: 3fs.token is not needed" in out
    assert "s3cret" not in out + err
    assert "KVManager connected: embedded:" in out
    assert out.splitlines()[-1] == "HiCache initialized"


def as_toml(tree: dict[str, Any], above: str = "") -> str:
    """Tables after plain values, each under its full name."""
    plain = [f"{k} = {json.dumps(v)}" for k, v in tree.items() if not isinstance(v, dict)]
    tables = [
        f"[{above}{k}]\n{as_toml(v, f'{above}{k}.')}"
        for k, v in tree.items()
        if isinstance(v, dict)
    ]
    return "\n".join([*plain, *tables])


def test_an_embedded_registry_is_said_to_reach_this_machine_only(
    fs: ThreeFs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    manager = {"enabled": True, "endpoint": "embedded"}
    file = config_file(tmp_path, fs.mount / "kv", global_kvmanager=manager)
    code, out, err = checked(capsys, file)
    assert code == 0, err
    (line,) = [line for line in out.splitlines() if line.startswith("KVManager connected")]
    assert f"embedded in {tmp_path}/hicache-registry-{os.geteuid()}-" in line
    assert "processes of this machine only" in line
    assert [path.name for path in (fs.backing / "kv").iterdir()] == [".medium"]


@pytest.mark.parametrize(
    ("page", "says"),
    [("64KiB", "are whole chunks"), ("60KiB", "are whole chunks that stay empty by 6.2%")],
)
def test_pages_that_fit_their_chunks(
    page: str, says: str, fs: ThreeFs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = config_file(tmp_path, fs.mount, identity={"page_bytes": page})
    code, out, _ = checked(capsys, file)
    assert code == 0
    assert f"pages of {page.removesuffix('KiB')} KiB {says}," in out
    assert "warning" not in out


def test_a_page_that_is_no_multiple_of_the_chunk_is_a_warning(
    fs: ThreeFs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = config_file(tmp_path, fs.mount, identity={"page_bytes": "40KiB"})
    code, out, _ = checked(capsys, file)
    assert code == 0
    assert "pages of 40 KiB share chunks" in out
    assert "warning: a page of 40960 bytes would leave 38% of its chunks of 65536 bytes emp" in out
    assert "HiCache initialized" in out


def test_a_check_takes_nothing_over_and_disturbs_nobody(
    fs: ThreeFs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with StoreWriter("3fs", fs.mount, 5) as gone:
        gone.kill()
    with StoreWriter("3fs", fs.mount, 5, "other") as alive:
        identity = {**IDENTITY, "page_bytes": namespace().page_bytes}
        tenant = {"namespace": "t"}
        file = config_file(tmp_path, fs.mount, identity=identity, global_kvmanager=tenant)
        assert checked(capsys, file)[0] == 0
        found = {s.store: s for n in read_medium(fs.mount).namespaces for s in n.stores}
        assert found.keys() == {gone.store, alive.store}
        assert not found[gone.store].adopted
        assert [store.pages for store in found.values()] == [5, 5]
    assert not list(fs.backing.rglob("adopter-*"))


# -- what is not


@pytest.mark.parametrize("exists", [False, True])
def test_a_directory_that_is_not_on_3fs(
    exists: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if exists:
        (tmp_path / "kv").mkdir()
    why, todo = refused(capsys, config_file(tmp_path, tmp_path / "kv"))
    assert "is not on 3FS" in why
    assert "not fuse.hf3fs" in why
    assert "mount 3FS there with hf3fs_fuse_main, or mend 3fs.mount_point" in todo


def test_a_file_system_of_another_type(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    why, todo = refused(capsys, config_file(tmp_path, Path("/dev/shm")))  # noqa: S108 - a tmpfs
    assert f"{SHM_DIR} is of type tmpfs, not fuse.hf3fs" in why
    assert "mount 3FS there" in todo
    assert not Path(SHM_DIR, ".medium").exists()


def test_a_parent_that_is_missing(
    fs: ThreeFs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    why, todo = refused(capsys, config_file(tmp_path, fs.mount / "absent" / "kv"))
    assert "does not exist on the 3FS mount" in why
    assert "create the directory above 3fs.mount_point" in todo


@pytest.mark.parametrize("exists", [False, True])
def test_a_mount_that_is_read_only(
    exists: bool, fs: ThreeFs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if exists:
        (fs.backing / "kv").mkdir()
    fs.set(read_only=1)
    why, todo = refused(capsys, config_file(tmp_path, fs.mount / "kv"))
    assert "Read-only file system" in why
    assert "a mount that is read-only" in todo


def test_a_directory_that_this_user_may_not_write_to(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as directory:
        own = Path(directory)
        own.chmod(0o755)
        with ThreeFs(own / "backing", own / "mount") as fs:
            done = subprocess.run(
                [sys.executable, "-c", AS_NOBODY, config_file(tmp_path, fs.mount)],
                env={**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY}/backends"},
                capture_output=True,
                text=True,
                timeout=60,
            )
    assert done.returncode == 1, done.stderr
    assert done.stdout.count("HiCache initialized") == 1
    assert "storage backend init failed" in done.stderr
    assert "to do: let this user read and write there" in done.stderr


def test_a_daemon_that_is_dead(
    fs: ThreeFs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fs.kill()
    for mount_point in (fs.mount, fs.mount / "kv"):
        why, todo = refused(capsys, config_file(tmp_path, mount_point))
        assert "does not answer" in why
        assert "Transport endpoint is not connected" in why
        assert "restart what serves the mount: for 3FS hf3fs_fuse_main" in todo


def test_a_daemon_that_hangs_ends_the_check_in_time(
    fs: ThreeFs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(backend, "_OPEN_MS", 500.0)
    monkeypatch.setattr(roots, "_ANSWER_MS", 500.0)
    fs.pause()
    why, todo = refused(capsys, config_file(tmp_path, fs.mount / "kv"))
    assert "does not answer: is its daemon hung?" in why
    assert "see what hf3fs_fuse_main waits for, or restart it" in todo
    fs.resume()


@pytest.mark.parametrize("engine", ["usrbio", "auto"])
def test_no_shm_in_common_fails_where_rings_were_asked_for(
    engine: str, fs: ThreeFs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in fs.iovs.glob("submit-ios*"):
        name.readlink().unlink()
    file = config_file(tmp_path, fs.mount, io_engine=engine)
    if engine == "usrbio":
        why, todo = refused(capsys, file)
        assert "daemon and client must see the same /dev/shm" in why
        assert "run daemon and engine with one /dev/shm (containers: --ipc=host)" in todo
    else:
        falls_back(capsys, file, "must see the same /dev/shm")


def falls_back(capsys: pytest.CaptureFixture[str], file: str, why: str) -> None:
    code, out, err = checked(capsys, file)
    assert code == 0, err
    assert "io_engine fuse" in out
    (warning,) = [line for line in out.splitlines() if line.startswith("warning: ")]
    assert "going through the mount, which is slower" in warning
    assert why in warning


@pytest.mark.parametrize("engine", ["usrbio", "auto"])
def test_shm_that_is_too_small_fails_where_rings_were_asked_for(
    engine: str, fs: ThreeFs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rings = shutil.disk_usage(SHM_DIR).total // (512 << 20) + 1
    file = config_file(
        tmp_path,
        fs.mount,
        io_engine=engine,
        identity={"page_bytes": "4MiB"},
        rings=rings,
        staging_bytes=rings << 30,
    )
    if engine == "usrbio":
        why, todo = refused(capsys, file)
        assert f"{SHM_DIR} is too small" in why
        assert "enlarge /dev/shm (docker: --shm-size), or lower 3fs.staging_bytes" in todo
    else:
        falls_back(capsys, file, f"{SHM_DIR} is too small")


@pytest.mark.parametrize(
    ("faults", "says"),
    [
        ({"corrupt_share": 1}, "other bytes came back"),
        ({"fail_share": 1, "fail_errno": errno.EREMOTEIO}, "Remote I/O error"),
        ({"short_share": 1, "only": 1}, "bytes were moved"),
    ],
)
def test_rings_that_fail_their_self_test(
    faults: dict[str, float],
    says: str,
    fs: ThreeFs,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fs.set(**faults)
    why, todo = refused(capsys, config_file(tmp_path, fs.mount, io_engine="usrbio"))
    assert "the ring self-test failed" in why
    assert says in why
    assert "read the log of hf3fs_fuse_main and mend the daemon" in todo
    falls_back(capsys, config_file(tmp_path, fs.mount), says)


def test_the_official_client_asked_for_and_not_there(
    fs: ThreeFs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = config_file(tmp_path, fs.mount, io_engine="usrbio", ring_client="official")
    why, todo = refused(capsys, file)
    assert "the official ring client is not installed" in why
    assert 'install the module hf3fs_fuse, or set 3fs.ring_client to "auto" or "own"' in todo


def test_a_directory_of_another_cluster(
    fs: ThreeFs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert checked(capsys, config_file(tmp_path, fs.mount, cluster_id="one"))[0] == 0
    why, todo = refused(capsys, config_file(tmp_path, fs.mount, cluster_id="two"))
    assert "belongs to the cluster 'one', not to 'two'" in why
    assert "mend 3fs.cluster_id" in todo


def test_a_directory_of_the_nvme_backend(
    fs: ThreeFs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with StoreWriter("nvme", tmp_path / "kv", 3) as writer:
        writer.close()
    shutil.copytree(tmp_path / "kv", fs.backing / "kv")
    why, todo = refused(capsys, config_file(tmp_path, fs.mount / "kv"))
    assert "nvme wrote it" in why
    assert "set 3fs.mount_point to a directory that no other backend uses" in todo


def test_a_self_test_that_fails_leaves_nothing_behind(
    fs: ThreeFs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = config_file(tmp_path, fs.mount, io_engine="fuse", free_floor="100TiB")
    why, todo = refused(capsys, file)
    assert "the self-test failed at set" in why
    assert "see what the medium lacks: space" in todo
    assert [path.name for path in fs.backing.iterdir()] == [".medium"]


@pytest.mark.parametrize("engine", ["usrbio", "fuse"])
def test_a_cluster_without_room_is_said_to_be_full(
    fs: ThreeFs, tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: str
) -> None:
    fs.set(no_space=1)
    reason, _ = refused(capsys, config_file(tmp_path, fs.mount, io_engine=engine))
    assert "No space left" in reason
    assert "free some space" in reason
    assert "self-test" not in reason


def test_a_capacity_that_holds_no_page_is_refused_before_anything_is_written(
    fs: ThreeFs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        reason, _ = refused(capsys, config_file(tmp_path, fs.mount, capacity="64KiB"))
        assert "3fs.capacity is 64 KiB: less than the 64.1 KiB that one page" in reason
        assert not [*fs.backing.iterdir()]
