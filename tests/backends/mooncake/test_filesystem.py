"""Mooncake as an fsspec file system, used by itself."""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import fsspec
import pytest

from hicache_backends.errors import ConfigError, StorageClosed, StorageUnavailable
from hicache_backends.mooncake.filesystem import MooncakeFileSystem
from hicache_backends.mooncake.options import find_cluster
from hicache_backends.pages import Pages
from tests.backends.mooncake.cluster import MooncakeCluster

PROJECT = Path(__file__).parents[3] / "pyproject.toml"


@pytest.fixture
def fs(cluster: MooncakeCluster) -> Iterator[MooncakeFileSystem]:
    fs = MooncakeFileSystem(cluster.address, http=cluster.http, skip_instance_cache=True)
    yield fs
    fs.close()


@pytest.fixture
def root(fs: MooncakeFileSystem) -> Iterator[str]:
    root = uuid.uuid4().hex
    yield root
    for key in fs.find(root):
        fs.rm_file(key)


def test_fsspec_finds_it_by_its_protocol(cluster: MooncakeCluster) -> None:
    entry = re.search(
        r'^\[project.entry-points."fsspec.specs"\]\nmooncake = "(.*)"', PROJECT.read_text(), re.M
    )
    assert entry is not None
    module, _, name = entry[1].partition(":")
    assert getattr(import_module(module), name) is MooncakeFileSystem
    fsspec.register_implementation("mooncake", MooncakeFileSystem, clobber=True)
    fs = fsspec.filesystem("mooncake", master=cluster.address)
    fs.pipe_file("mooncake://by/protocol", b"x")
    assert fs.cat_file("by/protocol") == b"x"
    with fsspec.open("mooncake://by/protocol", master=cluster.address) as file:
        assert file.read() == b"x"
    fs.rm_file("by/protocol")
    fs.close()


def test_what_is_piped_is_read_whole_and_in_ranges(fs: MooncakeFileSystem, root: str) -> None:
    data = bytes(range(256)) * 64
    fs.pipe_file(f"{root}/a", data)
    assert fs.cat_file(f"mooncake://{root}/a") == data
    assert fs.cat_file(f"{root}/a", 10, 20) == data[10:20]
    assert fs.cat_file(f"{root}/a", start=-5) == data[-5:]
    fs.pipe_file(f"{root}/b", b"other")
    found = fs.cat_ranges([f"{root}/a", f"{root}/none", f"{root}/b"], [0, 0, 1], [4, 4, 3])
    assert [found[0], found[2]] == [data[:4], b"th"]
    assert isinstance(found[1], FileNotFoundError)
    assert fs.cat([f"{root}/a", f"{root}/b"]) == {f"{root}/a": data, f"{root}/b": b"other"}
    with pytest.raises(FileNotFoundError):
        fs.cat_file(f"{root}/none")


def test_a_second_pipe_overwrites_unless_it_creates(fs: MooncakeFileSystem, root: str) -> None:
    fs.pipe_file(f"{root}/a", b"old")
    fs.pipe_file(f"{root}/a", b"newer")
    assert fs.cat_file(f"{root}/a") == b"newer"
    with pytest.raises(FileExistsError):
        fs.pipe_file(f"{root}/a", b"x", mode="create")
    with pytest.raises(ValueError, match="empty"):
        fs.pipe_file(f"{root}/a", b"")


def test_files_are_opened_read_and_written(fs: MooncakeFileSystem, root: str) -> None:
    data = bytes(1000) + b"end"
    with fs.open(f"{root}/f", "wb") as file:
        file.write(data[:500])
        file.write(data[500:])
    with fs.open(f"{root}/f") as file:
        assert file.read(3) == data[:3]
        file.seek(-3, 2)
        assert file.read() == b"end"
    with fs.open(f"{root}/f", "rb") as file:
        assert list(file)[-1].endswith(b"end")
    with pytest.raises(NotImplementedError):
        fs.open(f"{root}/f", "ab")


def test_info_exists_and_rm(fs: MooncakeFileSystem, root: str) -> None:
    fs.pipe_file(f"{root}/a", b"12345")
    assert fs.info(f"{root}/a") == {"name": f"{root}/a", "size": 5, "type": "file"}
    assert fs.size(f"{root}/a") == 5
    assert fs.isfile(f"{root}/a")
    assert fs.isdir(root)
    assert fs.exists(f"{root}/a")
    fs.rm(f"{root}/a")
    assert not fs.exists(f"{root}/a")
    assert not fs.exists(root)
    with pytest.raises(FileNotFoundError):
        fs.info(f"{root}/a")
    with pytest.raises(FileNotFoundError):
        fs.rm_file(f"{root}/a")


def test_listings_are_made_of_the_keys(fs: MooncakeFileSystem, root: str) -> None:
    for name in ("a", "d/b", "d/c", "d/e/f"):
        fs.pipe_file(f"{root}/{name}", name.encode())
    assert fs.ls(root, detail=False) == [f"{root}/a", f"{root}/d"]
    assert fs.find(root) == [f"{root}/{name}" for name in ("a", "d/b", "d/c", "d/e/f")]
    assert fs.glob(f"{root}/d/*") == [f"{root}/d/b", f"{root}/d/c", f"{root}/d/e"]
    assert fs.ls(f"{root}/a", detail=False) == [f"{root}/a"]
    assert [entry["size"] for entry in fs.ls(f"{root}/d")] == [3, 3, 0]
    fs.rm(f"{root}/d", recursive=True)
    assert fs.find(root) == [f"{root}/a"]
    with pytest.raises(FileNotFoundError):
        fs.ls(f"{root}/none")


def test_without_the_masters_http_port_nothing_is_listed(cluster: MooncakeCluster) -> None:
    fs = MooncakeFileSystem(cluster.address, skip_instance_cache=True)
    with pytest.raises(NotImplementedError, match="http"):
        fs.ls("")
    assert not fs.exists("nothing")
    fs.close()
    with pytest.raises(StorageClosed):
        fs.exists_many(["a"])


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("registered", [False, True])
def test_pages_move_in_batches_in_several_pieces(
    fs: MooncakeFileSystem, root: str, pieces: int, registered: bool
) -> None:
    count, size = 2100, 60
    memory = [bytearray(bytes([i % 251]) * size) for i in range(count)]
    block = bytearray(b"".join(memory))
    view = memoryview(block)
    step = size // pieces
    rows = [
        [view[i * size + p * step : i * size + (p + 1) * step] for p in range(pieces)]
        for i in range(count)
    ]
    pages = Pages.from_buffers(rows, writable=True)
    start = int(pages.addresses[0, 0])
    assert fs.client.reaches(pages) is False
    if registered:
        assert fs.register(start, len(block))
        assert fs.client.reaches(pages)
    keys = [f"{root}/{i}" for i in range(count)]
    assert fs.put_from(keys, pages) == [0] * count
    assert fs.exists_many([*keys, "none"]) == [True] * count + [False]
    block[:] = bytes(len(block))
    assert fs.get_into(keys, pages) == [size] * count
    assert block == b"".join(memory)
    fs.unregister(start)
    assert fs.client.reaches(pages) is False


def test_many_threads_share_one_client(fs: MooncakeFileSystem, root: str) -> None:
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for i in range(20):
                fs.pipe_file(f"{root}/{number}/{i}", bytes([number + 1]) * 100)
                assert fs.cat_file(f"{root}/{number}/{i}") == bytes([number + 1]) * 100
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors


def test_settings_come_from_mooncakes_own_names(tmp_path: Path) -> None:
    (tmp_path / "mooncake.json").write_text(
        '{"local_hostname": "h", "metadata_server": "m", "master_server_address": "f:1",'
        ' "protocol": "rdma", "device_name": "mlx5_0", "global_segment_size": "1gb"}'
    )
    file = {"MOONCAKE_CONFIG_PATH": str(tmp_path / "mooncake.json")}
    found = find_cluster({}, file)
    assert (found.master, found.local_hostname, found.metadata_server) == ("f:1", "h", "m")
    assert (found.protocol, found.device, found.segment_bytes) == ("rdma", "mlx5_0", 1 << 30)
    variables = {**file, "MOONCAKE_MASTER": "v:2", "MOONCAKE_PROTOCOL": "tcp"}
    found = find_cluster({"device": "own", "master": None}, variables)
    assert (found.master, found.protocol, found.device) == ("v:2", "tcp", "own")


def test_rdma_without_a_device_is_called_tcp() -> None:
    found = find_cluster({"master": "m:1", "protocol": "rdma"}, {})
    devices = Path("/sys/class/infiniband")
    has_device = devices.is_dir() and any(devices.iterdir())
    assert found.transport == ("rdma" if has_device else "tcp")


@pytest.mark.parametrize(
    "given",
    [{}, {"master": "m"}, {"master": "m:x"}, {"master": "m:1", "protocol": "udp"},
     {"master": "m:1", "segment_bytes": 1}],
)  # fmt: skip
def test_wrong_settings_name_their_key(given: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"mooncake\."):
        find_cluster(given, {})


def test_nobody_at_the_address_is_said_so(network: None) -> None:
    with pytest.raises(StorageUnavailable, match="no Mooncake master"):
        MooncakeFileSystem("127.0.0.1:9", skip_instance_cache=True)
