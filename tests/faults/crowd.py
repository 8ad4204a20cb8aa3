"""Sixteen processes on one root, each with its store, reading each other's pages by location.

`crowd root engine seconds`. Some are killed and take up the stores that they left behind.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from hicache_backends.errors import StorageError
from hicache_backends.storage import ROOT, PageStorage
from hicache_backends.testing.canaries import (
    NAMESPACE,
    Target,
    canary,
    digests_of,
    put,
    soon,
)
from tests.backends.nvme_medium import NvmeMedium, stored_pages

PROCESSES = 16
CAPACITY = 16 * PROCESSES
PAGES = digests_of(*range(3 * CAPACITY))


def member(medium: NvmeMedium, places: Path, end: float, seed: int) -> int:
    """One process: put pages, tell where they are, read those of others; how many were read."""
    chance = random.Random(seed)  # noqa: S311 - not cryptography
    storage = medium.open(NAMESPACE, capacity_pages=CAPACITY)
    said = places / str(os.getpid())
    read = 0
    while time.monotonic() < end:
        chosen = chance.sample(PAGES, 6)
        outcomes = put(storage, chosen, parents=[ROOT] * 6)
        with said.open("a") as file:
            for page, outcome in zip(chosen, outcomes, strict=True):
                if outcome.ok:
                    file.write(f"{json.dumps([page.hex(), outcome.location.hex()])}\n")
        heard = chance.sample(known := [*hearsay(places)], min(12, len(known)))
        read += visit(storage, heard)
    assert storage.close()
    return read


def hearsay(places: Path) -> Iterator[tuple[bytes, bytes]]:
    """Pages and locations that some process told of lately; many are no longer true."""
    for path in places.iterdir():
        for line in path.read_text().splitlines()[-12:]:
            try:
                digest, location = json.loads(line)
            except ValueError:  # its writer was killed
                continue
            yield bytes.fromhex(digest), bytes.fromhex(location)


def visit(storage: PageStorage, heard: list[tuple[bytes, bytes]]) -> int:
    """Read pages by location, each right or a miss; how many were read."""
    pages = [digest for digest, _ in heard]
    target = Target(len(pages))
    outcomes = storage.get(pages, target.pages, soon(), [location for _, location in heard])
    for i, outcome in enumerate(outcomes):
        assert not outcome.ok or target[i] == canary(pages[i]), "a wrong page"
    return sum(outcome.ok for outcome in outcomes)


def start(medium: NvmeMedium, places: Path, end: float, seed: int, counts: int) -> int:
    """A member in a process of its own, which writes a line to `counts` at its end."""
    child = os.fork()
    if not child:
        try:
            os.write(counts, b"%d\n" % member(medium, places, end, seed))
            os._exit(0)
        except (AssertionError, StorageError, OSError) as error:
            sys.stderr.write(f"{seed}: {error!r}\n")
        finally:
            os._exit(1)
    return child


def main() -> None:
    """Run the crowd, kill some of it, and look at what is left."""
    root, engine, seconds = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    places = root / "places"
    places.mkdir()
    medium = NvmeMedium(root, io_engine=engine)
    end = time.monotonic() + seconds
    reader, writer = os.pipe()
    members = {start(medium, places, end, seed, writer) for seed in range(PROCESSES)}
    chance = random.Random(0)  # noqa: S311 - not cryptography
    while time.monotonic() < end - seconds / 4:
        time.sleep(seconds / 16)
        victim = chance.choice(sorted(members))
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)
        members.remove(victim)
        members.add(start(medium, places, end, PROCESSES + victim, writer))
    for child in members:
        assert os.waitpid(child, 0)[1] == 0, "a process failed"
    os.close(writer)
    with os.fdopen(reader) as counts:
        assert sum(map(int, counts)) > 100, "hardly a page was read: the test shows nothing"
    check_leftovers(medium)


def check_leftovers(medium: NvmeMedium) -> None:
    """Every page found on the root is right, and the root is within its capacity."""
    root = medium.roots[0]
    data = sum(path.stat().st_size for path in root.rglob("seg-*.data"))
    pages = sorted({page.digest for page in stored_pages(root, NAMESPACE)})
    assert 0 < data <= CAPACITY * 8192
    storage = medium.open(NAMESPACE, capacity_pages=CAPACITY)
    assert storage.contains(pages) == [True] * len(pages)
    target = Target(len(pages))
    outcomes = storage.get(pages, target.pages, soon())
    assert all(outcomes), "a page that lies there whole is not found"
    assert all(target[i] == canary(page) for i, page in enumerate(pages))
    assert storage.close()


if __name__ == "__main__":
    main()
