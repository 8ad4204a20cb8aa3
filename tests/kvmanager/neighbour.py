"""The registry's client or service as another version of the keys: a process with its SCHEMA moved.

member URL MEDIUM: "write n" answers n new pages (hex, commas between); "look pages" how many are
found from the start; "beat" how many heartbeats there were. serve ...: as `kvmanager serve`.
"""

from __future__ import annotations

import sys

from hicache_backends.errors import RegistryError
from hicache_storage.tools.line_process import LineProcess, reply
from kvmanager import keys
from kvmanager.cli import main as run_kvmanager
from tests.kvmanager.members import FAST, Store, digests


def neighbour(schema: int, url: str, medium: bytes) -> LineProcess:
    """A member whose keys have that version; it says "ready", or why it is refused."""
    return LineProcess.of_module("a member", __name__, str(schema), "member", url, medium.hex())


def member(url: str, medium: str) -> None:
    try:
        store = Store(url, medium=bytes.fromhex(medium), options=FAST)
    except RegistryError as error:
        reply(str(error))
        return
    store.settled()
    reply("ready")
    for line in sys.stdin:
        order, _, rest = line.strip().partition(" ")
        if order == "write":
            pages = digests(int(rest))
            store.write(store.chain(pages))
            reply(",".join(page.hex() for page in pages))
        elif order == "look":
            reply(str(store.lookup([bytes.fromhex(page) for page in rest.split(",")]).prefix))
        else:
            reply(f"{store.registry.stats()['heartbeats']} {store.registry.state.value}")
    store.registry.close(500)


def main(schema: str, kind: str, *arguments: str) -> None:
    keys.SCHEMA = int(schema)
    if kind == "member":
        member(*arguments)
    else:
        sys.argv = ["kvmanager", kind, *arguments]
        run_kvmanager()


if __name__ == "__main__":
    main(*sys.argv[1:])
