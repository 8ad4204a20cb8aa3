"""A process that stores pages, claims others, and is killed before it has written those.

Arguments: endpoint, medium, digests of pages to publish, digests of pages to claim (hexadecimal,
joined), for how many ms. Says `ready` when all that is done.
"""

from __future__ import annotations

import sys
import time

from kvmanager.options import RegistryOptions
from tests.kvmanager.members import Cluster, soon


def main() -> None:
    endpoint, medium, published, claimed, for_ms = sys.argv[1:]
    options = RegistryOptions(timeout_ms=500, heartbeat_ms=100, ttl_ms=400, claim_grace_ms=1)
    with Cluster(endpoint) as cluster:
        store = cluster.store(medium=bytes.fromhex(medium), options=options)
        store.write(store.chain(split(published)))
        store.registry.claim(split(claimed), soon(float(for_ms)))
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        time.sleep(600)


def split(joined: str) -> list[bytes]:
    raw = bytes.fromhex(joined)
    return [raw[i : i + 16] for i in range(0, len(raw), 16)]


if __name__ == "__main__":
    main()
