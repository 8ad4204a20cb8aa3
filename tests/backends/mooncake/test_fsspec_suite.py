"""fsspec's own tests of file systems, on the real Mooncake.

Mooncake holds no empty objects and keeps no directories: `touch`, by which the suite makes its
files on both sides, writes a byte here, and a directory is there while something is in it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.tests.abstract import (
    AbstractCopyTests,
    AbstractFixtures,
    AbstractGetTests,
    AbstractOpenTests,
    AbstractPipeTests,
    AbstractPutTests,
)

from hicache_backends.mooncake.filesystem import MooncakeFileSystem
from tests.backends.mooncake.cluster import MooncakeCluster


class ByteByTouch(MooncakeFileSystem):
    def touch(self, path: str, truncate: bool = True, **options: Any) -> None:
        self.pipe_file(path, b"\n")


class LocalByteByTouch(LocalFileSystem):  # type: ignore[misc]  # fsspec ships no types
    cachable = False

    def touch(self, path: str, truncate: bool = True, **options: Any) -> None:
        super().touch(path, truncate, **options)
        self.pipe_file(path, b"\n")


class MooncakeFixtures(AbstractFixtures):  # type: ignore[misc]  # fsspec ships no types
    @pytest.fixture
    def fs(self, cluster: MooncakeCluster) -> Iterator[MooncakeFileSystem]:
        fs = ByteByTouch(cluster.address, http=cluster.http, skip_instance_cache=True)
        yield fs
        fs.close()

    @pytest.fixture
    def fs_path(self) -> str:
        return f"suite/{uuid.uuid4().hex}"

    @pytest.fixture
    def fs_join(self) -> Any:
        return lambda *parts: "/".join(parts)

    @pytest.fixture(scope="class")
    @classmethod
    def local_fs(cls) -> LocalFileSystem:
        return LocalByteByTouch(auto_mkdir=True)

    @pytest.fixture
    def supports_empty_directories(self) -> bool:
        return False


class TestCopy(MooncakeFixtures, AbstractCopyTests):  # type: ignore[misc]  # see above
    pass


class TestGet(MooncakeFixtures, AbstractGetTests):  # type: ignore[misc]  # see above
    pass


class TestPut(MooncakeFixtures, AbstractPutTests):  # type: ignore[misc]  # see above
    pass


class TestPipe(MooncakeFixtures, AbstractPipeTests):  # type: ignore[misc]  # see above
    pass


class TestOpen(MooncakeFixtures, AbstractOpenTests):  # type: ignore[misc]  # see above
    pass
