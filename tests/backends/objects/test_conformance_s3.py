"""Pages as objects keep every promise in an S3 bucket.

The server takes milliseconds a request, so that the tests of hundreds of calls are slow here; where
they are quick, in memory, they are always run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hicache_backends.storage import PageStorage
from hicache_backends.testing.batches import BatchTests
from hicache_backends.testing.concurrency import ConcurrencyTests
from hicache_backends.testing.conformance import PageStorageConformance
from hicache_backends.testing.locations import LocationTests
from hicache_backends.testing.medium import Medium
from hicache_backends.testing.state_machine import StateMachineTests
from tests.backends.objects.media import FsspecMedium
from tests.backends.objects.s3_server import fresh_prefix, s3_options, s3_server


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_server() as endpoint:
        yield endpoint


class InS3:
    endpoint = ""

    @pytest.fixture(autouse=True)
    def _server(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def make_medium(self, directory: Path) -> Medium:
        return FsspecMedium(fresh_prefix(), options=s3_options(self.endpoint))


class TestS3(InS3, PageStorageConformance):
    machine_examples = 1
    hole_patterns = 1

    @pytest.mark.slow
    def test_a_batch_of_hundreds_is_one_batch(self, storage: PageStorage) -> None:
        super().test_a_batch_of_hundreds_is_one_batch(storage)

    @pytest.mark.slow
    def test_no_location_however_garbled_gives_wrong_bytes(
        self, storage: PageStorage, reader: PageStorage
    ) -> None:
        super().test_no_location_however_garbled_gives_wrong_bytes(storage, reader)

    @pytest.mark.slow
    def test_writers_of_one_page_all_succeed_and_one_wrote(self, storage: PageStorage) -> None:
        super().test_writers_of_one_page_all_succeed_and_one_wrote(storage)

    @pytest.mark.slow
    def test_scattered_and_reordered_reads_find_their_pages(self, storage: PageStorage) -> None:
        super().test_scattered_and_reordered_reads_find_their_pages(storage)

    @pytest.mark.slow
    def test_a_limit_holds_from_the_call_on_and_ends_when_it_is_lifted(
        self, storage: PageStorage
    ) -> None:
        super().test_a_limit_holds_from_the_call_on_and_ends_when_it_is_lifted(storage)

    @pytest.mark.slow
    def test_a_churning_store_never_gives_a_wrong_page(self, medium: Medium) -> None:
        super().test_a_churning_store_never_gives_a_wrong_page(medium)


@pytest.mark.slow
class TestS3Long(InS3, StateMachineTests, ConcurrencyTests, LocationTests, BatchTests):
    machine_examples = 10
    hole_patterns = 20
