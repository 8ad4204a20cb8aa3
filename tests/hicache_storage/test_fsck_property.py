"""Whatever is damaged, in files or in the registry: fsck repairs it, is clean the second time, and
no page that is whole on its medium is lost to readers."""

from __future__ import annotations

import json
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hicache_backends.deadline import Deadline
from hicache_storage.cli.app import run
from hicache_storage.tools.lying import LyingSegments, lying_in
from hicache_storage.tools.roots import open_root
from kvmanager import keys
from kvmanager.connect import connect_registry
from kvmanager.model import Member
from kvmanager.options import RegistryOptions
from tests.hicache_storage.page_process import namespace, open_pages, write
from tests.kvmanager.servers import BINARIES, Server

TAG = keys.tag(namespace().fingerprint)
PAGES = 24

Damage = Callable[[Path, redis.Redis, random.Random], None]


def page_keys(client: redis.Redis) -> list[bytes]:
    return sorted(client.scan_iter(match=b"p*", count=5000))


def a_file(root: Path, chance: random.Random) -> Path:
    return chance.choice(sorted(root.glob("*/*/seg-*")))


def delete_a_file(root: Path, client: redis.Redis, chance: random.Random) -> None:
    a_file(root, chance).unlink()


def cut_a_file(root: Path, client: redis.Redis, chance: random.Random) -> None:
    path = a_file(root, chance)
    os.truncate(path, chance.randrange(path.stat().st_size or 1))


def break_a_record(root: Path, client: redis.Redis, chance: random.Random) -> None:
    path = chance.choice(sorted(root.glob("*/*/seg-*.index")) or [None])
    if path and path.stat().st_size:
        raw = bytearray(path.read_bytes())
        raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
        path.write_bytes(raw)


def delete_an_entry(root: Path, client: redis.Redis, chance: random.Random) -> None:
    for key in chance.sample(page_keys(client), min(3, len(page_keys(client)))):
        client.delete(key)


def change_an_entry(root: Path, client: redis.Redis, chance: random.Random) -> None:
    for key in chance.sample(page_keys(client), min(3, len(page_keys(client)))):
        if client.type(key) == b"hash":
            held: dict[bytes, bytes] = client.hgetall(key)  # type: ignore[assignment]  # bytes
            name, value = next(iter(held.items()))
            at = chance.randrange(len(value) or 1)
            client.hset(key, name, value[:at] + os.urandom(1) + value[at + 1 :])


def plant_in_a_bucket(root: Path, client: redis.Redis, chance: random.Random) -> None:
    for key in page_keys(client)[:2]:
        if client.type(key) == b"hash":
            client.hset(key, os.urandom(chance.randrange(1, 40)), os.urandom(chance.randrange(60)))


def replace_a_bucket(root: Path, client: redis.Redis, chance: random.Random) -> None:
    for key in page_keys(client)[:1]:
        client.set(key, b"mine")


def spoil_the_names(root: Path, client: redis.Redis, chance: random.Random) -> None:
    field = chance.choice([b"fingerprint", b"encoding", b"schema", b"epoch"])
    client.hset(b"n" + TAG, field, b"?")


def spoil_the_stores(root: Path, client: redis.Redis, chance: random.Random) -> None:
    held: dict[bytes, bytes] = client.hgetall(b"s" + TAG)  # type: ignore[assignment]  # bytes
    for store, record in held.items():
        client.hset(b"s" + TAG, store, record[: chance.randrange(len(record) or 1)])


def delete_a_key(root: Path, client: redis.Redis, chance: random.Random) -> None:
    client.delete(chance.choice([b"s", b"q", b"n"]) + TAG)


def unlist(root: Path, client: redis.Redis, chance: random.Random) -> None:
    client.delete(keys.TAGS)


def miscount(root: Path, client: redis.Redis, chance: random.Random) -> None:
    for field in client.hkeys(b"n" + TAG):
        assert isinstance(field, bytes)
        if field.startswith(b"k:"):
            client.hincrby(b"n" + TAG, field, chance.randrange(-50, 50))


def flush(root: Path, client: redis.Redis, chance: random.Random) -> None:
    client.flushall()


DAMAGES: list[Damage] = [
    delete_a_file,
    cut_a_file,
    break_a_record,
    delete_an_entry,
    change_an_entry,
    plant_in_a_bucket,
    replace_a_bucket,
    spoil_the_names,
    spoil_the_stores,
    delete_a_key,
    unlist,
    miscount,
    flush,
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    binary = BINARIES["valkey"]
    assert binary is not None, "the embedded extra is part of the development extras"
    with tempfile.TemporaryDirectory(prefix="kv") as directory:
        server = Server(binary, Path(directory)).start()
        yield server
        server.stop()


def filled(root: Path, url: str) -> None:
    """Two stores that nobody uses any more."""
    stores = [open_pages(root, url) for _ in range(2)]
    for n, store in enumerate(stores):
        assert write(store, f"chain {n}", PAGES) == PAGES
    for store in stores:
        assert store.close()


def whole_pages(root: Path) -> dict[bytes, None]:
    """The digests of the pages that lie on the medium."""
    medium = lying_in(open_root(str(root)))
    assert medium
    found: dict[bytes, None] = {}
    for lying in medium.found:
        assert isinstance(lying, LyingSegments)
        for store in lying.stores():
            found |= {p.digest: None for pages in lying.pages(store) for p in pages}
    return found


def fsck(capsys: pytest.CaptureFixture[str], root: Path, url: str, *options: str) -> Any:
    capsys.readouterr()
    where = ("fsck", str(root), "--registry", url, "--settle-ms", "0", "--json")
    run([*where, *options])
    return json.loads(capsys.readouterr().out)


SETTINGS = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
ANY = given(
    damages=st.lists(st.sampled_from(DAMAGES), min_size=1, max_size=5),
    seed=st.integers(0, 1 << 20),
)
PATIENT = RegistryOptions(timeout_ms=20_000, connect_timeout_ms=20_000, ttl_ms=60_000)


@settings(SETTINGS, max_examples=10)
@ANY
def test_any_damage_is_repaired_and_no_whole_page_is_lost(
    server: Server, capsys: pytest.CaptureFixture[str], damages: list[Damage], seed: int
) -> None:
    check(server, capsys, damages, seed)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@settings(SETTINGS, max_examples=300)
@ANY
def test_any_damage_for_long(
    server: Server, capsys: pytest.CaptureFixture[str], damages: list[Damage], seed: int
) -> None:
    check(server, capsys, damages, seed)


def check(
    server: Server, capsys: pytest.CaptureFixture[str], damages: list[Damage], seed: int
) -> None:
    chance = random.Random(seed)  # noqa: S311 - no secret
    with tempfile.TemporaryDirectory() as directory, server.client() as client:
        root = Path(directory, "kv")
        client.flushall()
        filled(root, server.url)
        for damage in damages:
            damage(root, client, chance)
        report = fsck(capsys, root, server.url, "--repair")
        assert report["ok"], report
        again = fsck(capsys, root, server.url)
        assert again["ok"], again
        assert [*again["roots"][0]["troubles"], *again["registry"]["troubles"]] == []
        whole = list(whole_pages(root))
        medium = lying_in(open_root(str(root)))
        assert medium
        visitor = connect_registry(
            server.url, namespace(), Member(os.urandom(16), "", "", b"", b""), options=PATIENT
        )
        found = visitor.lookup(whole, [medium.uuid], Deadline.after_ms(20_000), prefix=False)
        visitor.close()
        wrong = (
            medium.found[0].misfits(list(zip(whole, found.locations, strict=True))) if whole else []
        )
        assert not any(wrong)
        assert again["registry"]["entries"] == len(whole)
        if delete_a_file not in damages and cut_a_file not in damages:
            assert len(whole) >= 2 * PAGES - damages.count(break_a_record)
