"""Options of the nvme backend that cannot be meant are refused before anything is touched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hicache_backends.errors import ConfigError, StorageUnavailable
from hicache_backends.nvme import NvmeOptions, open_nvme
from hicache_backends.testing.canaries import NAMESPACE


def refuse(complaint: str, *paths: Path | str, **options: Any) -> None:
    with pytest.raises(ConfigError, match=complaint):
        open_nvme(NAMESPACE, NvmeOptions(tuple(map(str, paths)), **options))


def test_one_directory_is_not_two_drives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refuse("twice", "a", "./a")
    assert not (tmp_path / "a").exists()
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a")
    refuse("twice", "a", "link")


def test_no_directory_is_refused() -> None:
    refuse("names no directory")
    refuse("names no directory", "")
    refuse("zero byte", "a\0b")


def test_a_segment_that_would_take_the_disk_is_refused(tmp_path: Path) -> None:
    refuse("segment_bytes", tmp_path, segment_bytes=500 << 40, capacity_bytes=1000 << 40)
    refuse("segment_bytes", tmp_path, segment_bytes=1 << 30, capacity_bytes=200 << 20)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "value"), [("io_mode", "fast"), ("zero_copy", "always"), ("capacity_bytes", 0)]
)
def test_a_value_that_means_nothing_is_named(tmp_path: Path, name: str, value: object) -> None:
    refuse(name, tmp_path, **{name: value})


def test_a_capacity_below_one_page_is_refused_and_not_remembered(tmp_path: Path) -> None:
    refuse("capacity is 4 KiB: less than the", tmp_path, capacity_bytes=4 << 10)
    assert not list(tmp_path.iterdir())


def test_a_file_in_the_place_of_the_directory_is_called_so(tmp_path: Path) -> None:
    (tmp_path / "kv").write_text("")
    with pytest.raises(StorageUnavailable, match="is not a directory"):
        open_nvme(NAMESPACE, NvmeOptions((str(tmp_path / "kv"),)))
