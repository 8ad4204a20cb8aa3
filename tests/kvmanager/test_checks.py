"""What a check found on a medium stands until that medium is looked at again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmanager import keys
from kvmanager.control import checks
from kvmanager.control.checks import RECORDS, FsckResult, Part
from tests.kvmanager.members import NAMESPACE, Cluster, soon
from tests.kvmanager.servers import Server

TAG = keys.tag(NAMESPACE.fingerprint)
ONE, TWO, THREE = b"medium01", b"medium02", b"medium03"
BAD = Part(100.0, clean=False, found={"entries_without_store": 500}, repaired=0)
GOOD = Part(200.0, clean=True, found={}, repaired=0)
WEEK_S = 7 * 86_400


def after(
    *runs: dict[bytes, Part], listed: tuple[bytes, ...] = (ONE, TWO), now_s: float = 200.0
) -> FsckResult:
    result = None
    for run in runs:
        kept = checks.packed(checks.merged(result, run, listed, now_s))
        result = checks.read(kept)
    assert result is not None
    return result


def test_a_check_of_another_medium_erases_nothing() -> None:
    found = after({ONE: BAD, RECORDS: GOOD}, {TWO: GOOD, RECORDS: GOOD})
    assert (found.clean, found.found, found.unseen) == (False, {"entries_without_store": 500}, 0)
    assert found.time_s == 100.0, "the oldest"


def test_the_same_medium_looked_at_again_has_the_new_result() -> None:
    found = after({ONE: BAD, RECORDS: GOOD}, {ONE: GOOD, RECORDS: GOOD})
    assert (found.clean, found.found, found.media, found.unseen) == (True, {}, 2, 1)
    assert after({ONE: GOOD}, {TWO: GOOD}).unseen == 0


def test_what_is_wrong_with_records_is_looked_at_by_every_check() -> None:
    assert not after({RECORDS: BAD}).clean
    assert after({RECORDS: BAD}, {RECORDS: GOOD, TWO: GOOD}).clean


def test_a_medium_that_is_listed_no_more_is_forgotten_after_a_week() -> None:
    runs = {ONE: BAD}, {TWO: GOOD}
    assert not after(*runs, listed=(TWO,), now_s=100.0 + WEEK_S - 1).clean
    assert after(*runs, listed=(TWO,), now_s=100.0 + WEEK_S).clean


def test_there_is_an_end_to_what_is_kept() -> None:
    many = {b"m%07d" % n: BAD for n in range(checks.MAX_PARTS + 5)}
    assert len(after(many, {THREE: GOOD}, listed=(*many,)).parts) == checks.MAX_PARTS


def test_a_record_of_the_version_before_can_be_read() -> None:
    told = {"time_s": 7, "clean": False, "found": {"missing_pages": 3}, "repaired": 1}
    found = checks.read(msgpack.packb(told))
    assert found == FsckResult(7.0, False, {"missing_pages": 3}, 1)
    fields = msgpack.unpackb(checks.packed(after({ONE: BAD})))
    assert {name: fields[name] for name in told} == {**told, "time_s": 100.0, "repaired": 0} | {
        "found": {"entries_without_store": 500}
    }


@given(
    st.binary(max_size=40) | st.builds(msgpack.packb, st.dictionaries(st.text(), st.integers(0, 9)))
)
def test_what_makes_no_sense_is_nothing(kept: bytes) -> None:
    assert checks.read(kept) is None


@pytest.mark.parametrize("found", [3, [], None, {"a": "b"}])
def test_nor_is_what_makes_some(found: Any) -> None:
    plain = {"time_s": 1, "clean": True, "found": found, "repaired": 0}
    assert checks.read(msgpack.packb(plain)) is None


def test_checks_of_many_media_at_once_lose_nothing(server: Server, cluster: Cluster) -> None:
    media = [b"m%07d" % n for n in range(6)]
    ready = threading.Barrier(len(media))

    def look(medium: bytes, keep: Callable[..., Any]) -> None:
        ready.wait()
        for _ in range(5):
            keep({medium: BAD})

    drivers = [cluster.store(start=False).registry.driver for _ in media]
    threads = [
        threading.Thread(target=look, args=(medium, partial(_keep, driver, media)))
        for medium, driver in zip(media, drivers, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with server.client() as client:
        found = checks.read(client.get(b"f" + TAG))
    assert found is not None
    assert (sorted(found.parts), found.unseen) == (media, 0)


def _keep(driver: Any, media: list[bytes], fresh: dict[bytes, Part]) -> None:
    driver.run(checks.keep(TAG, fresh, media, 100.0), soon())
