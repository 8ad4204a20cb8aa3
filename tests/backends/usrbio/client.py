"""A process that reads through the rings until it is killed: python -m ... <directory> <file>."""

from __future__ import annotations

import os
import sys

from hicache_backends.usrbio.engine import UsrbioEngine
from tests.backends.io.batches import memory, read_batch, soon
from tests.backends.usrbio.conftest import PAGE, SMALL


def main() -> None:
    engine = UsrbioEngine(sys.argv[1], SMALL, client="own")
    fd = os.open(sys.argv[2], os.O_RDONLY)
    _, pages = memory(20, [PAGE])
    zero_copy = engine.allocate(PAGE)
    assert zero_copy.size == PAGE
    while True:
        engine.read(read_batch([fd] * 20, [i * PAGE for i in range(20)], pages), soon())
        os.write(1, b".")


if __name__ == "__main__":
    main()
