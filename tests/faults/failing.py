"""I/O that fails or is short, at any one call or for a while."""

from __future__ import annotations

import errno
from pathlib import Path

from hicache_backends.errors import StorageError
from hicache_backends.outcomes import Reason
from hicache_backends.storage import PageStorage
from hicache_backends.testing.canaries import chain_parents, get, put
from tests.faults.rig import ANY, CHANGES, FAIL, READ, SHORT, WRITE, Faults
from tests.faults.small_store import CHAINS, check_whole, open_small, play, say


def use_through(storage: PageStorage) -> None:
    """Calls of every kind; each answers truthfully, whatever happens below."""
    for chain in CHAINS:
        outcomes = put(storage, chain, parents=chain_parents(chain))
        assert storage.contains(chain) == [outcome.ok for outcome in outcomes]
        get(storage, chain)
    storage.remove(CHAINS[2][4:])
    get(storage, CHAINS[2])


def one_fault(root: Path, engine: str, action: int, value: int, kinds: int) -> None:
    """Meet one fault at the first call, at the second, ... until there are no more calls."""
    faults = Faults.here()
    for nth in range(1, 1000):
        here = root / str(nth)
        here.mkdir()
        faults.on(kinds, action, value, first=nth, last=nth)
        try:
            storage = open_small(here, engine)
            use_through(storage)
            storage.close()
        except StorageError:
            pass  # opening may fail as a whole; nothing else than a StorageError comes out
        met = faults.acted()
        faults.clear()
        storage = open_small(here, engine)
        check_whole(storage)
        assert storage.close()
        if not met:
            say("faults", nth - 1)
            return
    raise AssertionError("no end of calls")


def read_errors(root: Path, engine: str) -> None:
    one_fault(root, engine, FAIL, errno.EIO, READ)


def write_errors(root: Path, engine: str) -> None:
    one_fault(root, engine, FAIL, errno.EIO, CHANGES)


def no_space(root: Path, engine: str) -> None:
    one_fault(root, engine, FAIL, errno.ENOSPC, CHANGES)


def no_descriptors(root: Path, engine: str) -> None:
    one_fault(root, engine, FAIL, errno.EMFILE, ANY & ~READ & ~CHANGES)


def short_moves(root: Path, engine: str) -> None:
    one_fault(root, engine, SHORT, 0, READ | WRITE)


def odd_moves(root: Path, engine: str) -> None:
    one_fault(root, engine, SHORT, 513, READ | WRITE)


def full_medium(root: Path, engine: str) -> None:
    """No write succeeds for a while: reads do, puts say no space, and all is well afterwards."""
    faults = Faults.here()
    storage = open_small(root, engine)
    assert all(put(storage, CHAINS[0], parents=chain_parents(CHAINS[0])))
    faults.on(CHANGES, FAIL, errno.ENOSPC)
    for _ in range(3):
        outcomes = put(storage, CHAINS[1], parents=chain_parents(CHAINS[1]))
        assert {outcome.reason for outcome in outcomes} == {Reason.NO_SPACE}, outcomes
        assert get(storage, CHAINS[0]) == [True] * 8
    faults.clear()
    assert all(put(storage, CHAINS[1], parents=chain_parents(CHAINS[1])))
    check_whole(storage)
    storage.close()


if __name__ == "__main__":
    play(globals())
