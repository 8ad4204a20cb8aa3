"""Pages as objects keep every promise in an S3 bucket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hicache_backends.testing.conformance import PageStorageConformance
from hicache_backends.testing.medium import Medium
from tests.backends.objects.media import FsspecMedium
from tests.backends.objects.s3_server import fresh_prefix, s3_options, s3_server


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_server() as endpoint:
        yield endpoint


class TestS3(PageStorageConformance):
    machine_examples = 2
    hole_patterns = 4
    endpoint = ""

    @pytest.fixture(autouse=True)
    def _server(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def make_medium(self, directory: Path) -> Medium:
        return FsspecMedium(fresh_prefix(), options=s3_options(self.endpoint))
