"""The soak, in short and whole, by rings and by the mount."""

from __future__ import annotations

import errno
import random

import pytest

from hicache_backends.outcomes import Reason
from tests.backends.threefs.soak import soak
from tests.backends.usrbio.official_double import OfficialDouble
from tests.threefs.stand_in import ThreeFs

WHOLE = pytest.param(1_000_000, 10, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])


@pytest.mark.parametrize(("pages", "kills"), [(6_000, 1), WHOLE])
def test_by_rings_no_page_is_wrong_and_every_miss_is_explained(
    fs: ThreeFs, pages: int, kills: int
) -> None:
    tally = soak(fs, pages, kills, engine="usrbio")
    assert tally.faults() == [], tally.text()
    for reason in (Reason.EVICTED, Reason.CHECKSUM, Reason.TIMEOUT, Reason.IO_ERROR):
        assert tally.got[reason], f"no miss for {reason}: the test shows nothing"
    assert tally.stats["ring_connects"] == 1 + kills
    assert tally.stats["evicted"]


@pytest.mark.parametrize(("pages", "kills"), [(3_000, 1), WHOLE])
def test_by_the_mount_no_page_is_wrong_and_every_miss_is_explained(
    fs: ThreeFs, pages: int, kills: int
) -> None:
    tally = soak(fs, pages, kills, engine="fuse")
    assert tally.faults() == [], tally.text()
    assert tally.stats["evicted"]


def test_by_the_official_client_no_page_is_wrong(fs: ThreeFs, double: OfficialDouble) -> None:
    chance = random.Random(7)  # noqa: S311 - repeatable faults

    def verdict(offset: int, size: int) -> int:
        return chance.choices((size, -errno.EREMOTEIO), (98, 2))[0]

    double.verdict = verdict
    tally = soak(fs, 3_000, 0, engine="usrbio", client="official", faults=False)
    faults = [fault for fault in tally.faults() if not fault.startswith("misses without faults")]
    assert faults == [], tally.text()  # here there are faults to the end
    assert tally.got[Reason.IO_ERROR]
