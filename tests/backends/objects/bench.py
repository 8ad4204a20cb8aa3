"""What the backend costs over a file system's own calls, in turns on one local S3 server.

python -m tests.backends.objects.bench [--rounds 5] [--page-kib 1024] [--pages 32]

Each round puts and gets the same pages by a bare gather of `_pipe_file` and `_cat_file`, without
checksums, and through the backend. Ratios are medians of the rounds: above 1, the backend is
faster.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import statistics
import sys
import time
import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any

import fsspec
import numpy as np
from fsspec.asyn import sync

from hicache_backends.deadline import Deadline
from hicache_backends.fsspec_store import FsspecOptions, open_fsspec
from hicache_backends.objects.storage import ObjectStorage
from hicache_backends.pages import Pages
from hicache_backends.storage import UNKNOWN
from hicache_backends.testing.canaries import NAMESPACE, digests_of
from tests.backends.objects.s3_server import fresh_prefix, s3_options, s3_server

Times = dict[str, list[float]]


async def gathered(calls: Sequence[Any]) -> list[Any]:
    return await asyncio.gather(*[call() for call in calls])


def bare(fs: Any, root: str, data: Sequence[bytes], times: Times) -> None:
    names = [f"{root}/{uuid.uuid4().hex}" for _ in data]
    began = time.perf_counter()
    puts = [partial(fs._pipe_file, n, d) for n, d in zip(names, data, strict=True)]
    sync(fs.loop, gathered, puts)
    times.setdefault("bare put", []).append(time.perf_counter() - began)
    began = time.perf_counter()
    gets = [partial(fs._cat_file, n, start=0, end=len(data[0])) for n in names]
    found = sync(fs.loop, gathered, gets)
    times.setdefault("bare get", []).append(time.perf_counter() - began)
    assert found == list(data)


def ours(storage: ObjectStorage, data: Sequence[bytes], times: Times) -> None:
    pages = Pages.from_buffers([bytearray(each) for each in data], writable=True)
    digests = digests_of(*(uuid.uuid4().hex for _ in data))
    later = Deadline.after_ms(120_000)
    began = time.perf_counter()
    assert all(storage.put(digests, pages, [UNKNOWN] * len(data), later))
    times.setdefault("ours put", []).append(time.perf_counter() - began)
    began = time.perf_counter()
    assert all(storage.get(digests, pages, later))
    times.setdefault("ours get", []).append(time.perf_counter() - began)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--page-kib", type=int, default=1024)
    parser.add_argument("--pages", type=int, default=32)
    chosen = parser.parse_args(arguments)
    size = chosen.page_kib << 10
    chance = np.random.default_rng(1)
    data = [chance.integers(0, 255, size, np.uint8).tobytes() for _ in range(chosen.pages)]
    times: Times = {}
    with s3_server() as endpoint:
        options, root = s3_options(endpoint), fresh_prefix()
        fs = fsspec.filesystem("s3", use_listings_cache=False, **options)
        namespace = dataclasses.replace(NAMESPACE, page_bytes=size)
        storage = open_fsspec(namespace, FsspecOptions(root, options))
        for number in range(chosen.rounds + 1):
            if number == 1:
                times.clear()  # the first round warms up
            turns = [partial(bare, fs, root, data, times), partial(ours, storage, data, times)]
            for turn in turns if number % 2 else reversed(turns):
                turn()
        storage.close()
    for way in ("put", "get"):
        pairs = [*zip(times[f"bare {way}"], times[f"ours {way}"], strict=True)]
        rates = [
            len(data) * size / statistics.median(column) / 1e6
            for column in zip(*pairs, strict=True)
        ]
        ratio = statistics.median(a / b for a, b in pairs)
        print(f"{way}: bare {rates[0]:.0f} MB/s, ours {rates[1]:.0f} MB/s ({ratio:.2f})")  # noqa: T201 - a report
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
