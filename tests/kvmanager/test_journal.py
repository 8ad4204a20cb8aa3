"""The journal by itself."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from kvmanager.journal import Batch, Journal
from kvmanager.scripts import Call

CALL = Call.of("clear", (b"n",), ())


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def test_its_length_is_that_of_what_it_keeps() -> None:
    journal = Journal(30)
    for n in range(1, 8):
        journal.append(Batch(n, CALL, n))
    kept = [batch for n in range(8) if (batch := journal.after(n)) is not None]
    assert len(journal) == sum(batch.entries for batch in kept) == 7 + 6 + 5
    journal.clear()
    assert len(journal) == 0


@pytest.mark.usefixtures("frequent_switches")
def test_its_length_can_be_asked_while_mutations_are_appended() -> None:
    journal = Journal(65_536)
    for n in range(13_000):
        journal.append(Batch(n, CALL, 1))
    ended = threading.Event()

    def append() -> None:
        n = 13_000
        while not ended.is_set():
            journal.append(Batch(n, CALL, 1))
            n += 1

    appending = threading.Thread(target=append)
    appending.start()
    try:
        assert all(len(journal) > 12_000 for _ in range(1000))
    finally:
        ended.set()
        appending.join()
