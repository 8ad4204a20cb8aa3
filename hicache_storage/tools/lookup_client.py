"""A process that looks up the requests of a trace and times each; run by `registry_bench`.

It also runs under another interpreter that has none of this distribution, so nothing outside the
standard library is imported before the side is known. Standard input: one JSON object of orders,
then a line "START STOP STEP" a run; standard output: one JSON object each.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

BATCH_PAGES = 1024
LookUp = Callable[[list[str]], int]
"""How many of a request's pages from the start are there."""


def page_key(block: int) -> str:
    """A page hash of SGLang's form for a block of a trace."""
    return hashlib.sha256(block.to_bytes(8, "big")).hexdigest()


def read_keys(trace: str) -> list[list[str]]:
    """The page hashes of every request of a (checked) trace."""
    with Path(trace).open() as lines:
        return [[page_key(block) for block in json.loads(line)["hash_ids"]] for line in lines]


def timed(look_up: LookUp, chains: list[list[str]], numbers: range) -> dict[str, Any]:
    """Monotonic seconds of begin and end, pages found, microseconds of each request."""
    latencies = []
    hits = 0
    began = time.monotonic()
    for number in numbers:
        keys = chains[number]
        before = time.perf_counter_ns()
        hits += look_up(keys)
        latencies.append((time.perf_counter_ns() - before) // 1000)
    return {"began": began, "ended": time.monotonic(), "hits": hits, "us": latencies}


def serve(look_up: LookUp, trace: str, commands: IO[str], answers: IO[str]) -> None:
    """One timed run a command, until the input ends."""
    chains = read_keys(trace)
    print("ready", file=answers, flush=True)
    for line in commands:
        start, stop, step = map(int, line.split())
        print(
            json.dumps(timed(look_up, chains, range(start, stop, step))), file=answers, flush=True
        )


def mini3fs_look_up(orders: dict[str, Any]) -> LookUp:
    """By SGLang's own client; the prefix is counted as its 3FS backend does."""
    sys.path.append(orders["site"])
    module = importlib.import_module(orders["module"])
    client = module.Hf3fsGlobalMetadataClient(orders["url"])
    if orders["stored_requests"]:
        mini3fs_store(client, read_keys(orders["trace"])[: orders["stored_requests"]])

    def look_up(keys: list[str]) -> int:
        found = client.exists(0, keys)
        prefix = 0
        while prefix < len(keys) and found[prefix]:
            prefix += 1
        return prefix

    return look_up


def mini3fs_store(client: Any, chains: list[list[str]]) -> None:
    """Make the pages of these requests known, in room for exactly as many."""
    keys = list(dict.fromkeys(key for chain in chains for key in chain))
    client.initialize(0, len(keys))
    for at in range(0, len(keys), BATCH_PAGES):
        batch = keys[at : at + BATCH_PAGES]
        reserved = client.reserve_and_allocate_page_indices(0, [(key, "") for key in batch])
        client.confirm_write(0, [(key, n) for key, (_, n) in zip(batch, reserved)], [])  # noqa: B905  # the interpreter may be older


def registry_look_up(orders: dict[str, Any]) -> LookUp:
    """By a page store whose own index is empty, so that the registry is asked for every page."""
    from hicache_storage.tools.registry_bench_store import open_bench_store

    return open_bench_store(orders["url"], Path(orders["root"])).exists


def main() -> None:
    """Obey the orders on standard input, under the interpreter that an argument names."""
    if len(sys.argv) > 1:
        os.execv(sys.argv[1], [sys.argv[1], "-I", __file__])  # noqa: S606  # no shell
    orders = json.loads(sys.stdin.readline())
    look_up = (mini3fs_look_up if orders["side"] == "mini3fs" else registry_look_up)(orders)
    serve(look_up, orders["trace"], sys.stdin, sys.stdout)


if __name__ == "__main__":
    main()
