"""fsck compares the registry with the media both ways, repairs, and is clean the second time; it
harms no good page and finds nothing wrong where nothing is."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest
import redis

from hicache_backends.identity import page_digests
from hicache_backends.segment.format import Location
from hicache_backends.segment.owner import OwnerFile
from hicache_storage.cli.app import run
from hicache_storage.tools import fsck_registry
from hicache_storage.tools.media import read_medium
from hicache_storage.tools.registry_access import RegistryAccess
from kvmanager import keys, reports
from kvmanager.connect import connect_registry
from kvmanager.control import census, checks, namespaces, processes
from kvmanager.control.checks import FsckResult
from kvmanager.control.overview_parts import liveness
from kvmanager.model import Member
from kvmanager.options import RegistryOptions
from tests.hicache_storage.page_process import (
    REGISTRY,
    SEGMENT_PAGES,
    PageProcess,
    hashes,
    namespace,
    open_pages,
    read,
    write,
)
from tests.kvmanager.members import eventually, soon
from tests.kvmanager.servers import BINARIES, Server

TAG = keys.tag(namespace().fingerprint)
BOTH = pytest.mark.parametrize("server", ["valkey", "redis"], indirect=True)


class Site:
    """A medium and a registry."""

    def __init__(self, root: Path, server: Server, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self.server = root, server
        self._capsys = capsys

    def process(self, model: str = "m", capacity: int = 1024) -> PageProcess:
        return PageProcess(self.root, self.server.url, model, capacity)

    def fsck(self, *options: str, settle_ms: int = 100) -> Any:
        """What the command says of the registry."""
        self._capsys.readouterr()
        where = (str(self.root), "--registry", self.server.url, "--settle-ms", str(settle_ms))
        ended = run(["fsck", *where, *options, "--json"])
        said = self._capsys.readouterr()
        assert said.out, said.err
        report = json.loads(said.out)
        if "rebuilt" in report:
            assert ended == 0
            return report["rebuilt"]
        assert ended == (0 if report["ok"] else 1), report
        return report["registry"]

    def counts(self, *options: str) -> dict[str, int]:
        return counts(self.fsck(*options))

    def repaired(self) -> dict[str, int]:
        """What a repair found, all of it mended; a second run finds nothing."""
        report = self.fsck("--repair")
        for trouble in report["troubles"]:
            assert trouble["mended"] == trouble["count"], report
        assert report["ok"]
        again = self.fsck()
        assert again["troubles"] == [], again
        return counts(report)

    def store(self, name: str) -> Path:
        return next(self.root.glob(f"*/{name}"))

    @property
    def medium(self) -> bytes:
        return keys.medium_id(bytes.fromhex(read_medium(self.root).medium))

    def kept(self) -> FsckResult:
        """What the registry keeps of checks."""
        with self.server.client() as client:
            found = checks.read(client.get(b"f" + TAG))
        assert found is not None
        return found

    def kill(self, process: PageProcess) -> None:
        """kill -9, and wait until the registry hears of it no more."""
        process.kill()
        with self.server.client() as client:
            record = client.hget(self.tag_of(process, client), bytes.fromhex(process.store))
            assert isinstance(record, bytes)
            tag = self.tag_of(process, client)[1:]
            alive = b"r" + tag + msgpack.unpackb(record, raw=True)[0]
            eventually(lambda: not client.exists(alive))

    @staticmethod
    def tag_of(process: PageProcess, client: redis.Redis) -> bytes:
        """The key of the stores that this process's is one of."""
        stores = list(client.scan_iter(match="s*"))
        found: bytes = next(k for k in stores if client.hexists(k, bytes.fromhex(process.store)))
        return found

    def fresh_reader(self, chain: str, n: int) -> list[int]:
        """What a new member reads."""
        with open_pages(self.root, self.server.url) as reader:
            return read(reader, chain, n)

    def key_of(self, page: str) -> tuple[bytes, bytes]:
        """Key and field of a page in the registry."""
        digest = page_digests(namespace().fingerprint, [page])[0]
        key = keys.page_key(TAG, 0, self.medium, keys.bucket(digest, keys.FIRST_BUCKETS))
        return key, digest[1:]


def counts(report: Any) -> dict[str, int]:
    return {trouble["kind"]: trouble["count"] for trouble in report["troubles"]}


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """Valkey, or what the test is marked with."""
    name = getattr(request, "param", "valkey")
    binary = BINARIES[name]
    if binary is None:
        pytest.skip(f"{name} is not installed")
    place = tmp_path / name
    place.mkdir()
    server = Server(binary, place).start()
    yield server
    server.stop()


@pytest.fixture
def site(
    tmp_path: Path,
    server: Server,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Site:
    # a second, which is ten beats of the owners here, and not six
    monkeypatch.setattr(fsck_registry, "_BEATS", 1000 / RegistryOptions().heartbeat_ms)
    return Site(tmp_path / "kv", server, capsys)


def test_nothing_is_wrong_where_processes_write_evict_and_die(site: Site) -> None:
    with site.process(capacity=200) as busy, site.process("other", 200) as other:
        other.write("a", 20)
        busy.churn(2.5)
        report = site.fsck(settle_ms=1000)
        assert report["troubles"] == []
        assert report["entries"] >= 20
        assert report["namespaces"] == 2
        assert busy.answer() > 200, "it evicted nothing"
        with site.server.client() as client:
            kept = msgpack.unpackb(client.get(b"f" + TAG))
        assert (kept["clean"], kept["found"], kept["repaired"]) == (True, {}, 0)
        assert abs(kept["time_s"] - time.time()) < 60


def test_files_that_were_deleted_are_found_and_their_entries_go(site: Site) -> None:
    with site.process() as live, site.process() as gone:
        assert live.write("live", 40) == 40
        assert gone.write("gone", 40) == 40
        gone.kill()
        for name in (live.store, gone.store):
            (site.store(name) / "seg-000002.data").unlink()
        (site.store(gone.store) / "seg-000003.index").unlink()
        found = {"stale_entries": 3 * SEGMENT_PAGES}
        assert site.counts() == found
        assert site.repaired() == found
        own = live.read("live", 40)
        assert len(own) == 40 - SEGMENT_PAGES, "it goes on with files that are gone"
        assert live.write("live", 40) == 40
        reader = open_pages(site.root, site.server.url)
        assert len(read(reader, "live", 40)) == 40
        assert len(read(reader, "gone", 40)) == 40 - 2 * SEGMENT_PAGES
        assert reader.close()
        assert site.fsck()["ok"]


def test_a_whole_store_that_was_deleted_under_its_process_is_found(site: Site) -> None:
    with site.process() as live:
        live.write("live", 30)
        shutil.rmtree(site.store(live.store))
        assert site.repaired() == {"entries_without_store": 30}
        assert live.read("live", 30) == []
        assert live.write("live", 30) == 30
        eventually(lambda: live.state() == "up")
        assert site.fsck()["ok"]
        assert site.fresh_reader("live", 30) == list(range(30))


def test_a_check_of_another_medium_does_not_hide_what_is_wrong(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Site(tmp_path / "other", site.server, capsys)
    with site.process() as gone, other.process() as elsewhere:
        gone.write("gone", 10)
        elsewhere.write("elsewhere", 10)
        site.kill(gone)
        shutil.rmtree(site.store(gone.store))
        assert site.counts() == {"entries_without_store": 10, "unknown_stores": 1}
        assert (site.kept().clean, site.kept().unseen, site.kept().media) == (False, 1, 2)
        assert other.counts() == {}
        assert site.kept().found == {"entries_without_store": 10, "unknown_stores": 1}
        assert (site.kept().clean, site.kept().unseen) == (False, 0)
        site.repaired()
        assert (site.kept().clean, site.kept().found) == (True, {})


def test_what_fsck_makes_known_looks_like_no_process_that_was_lost(site: Site) -> None:
    with site.process() as gone:
        gone.write("gone", 10)
        site.kill(gone)
        with site.server.client() as client:
            client.flushall()
        assert site.repaired()["missing_pages"] == 10
    with RegistryAccess(site.server.url, RegistryOptions()) as access:
        record = access.ask(lambda: namespaces.describe(TAG), TAG)
        assert record is not None
        look = access.ask(lambda: census.look(record), TAG)
        assert [store.store.hex() for store in look.stores] == [gone.store]
        found = liveness([look], time.time())
        assert (found.known, found.gone_lately, found.processes) == (0, 0, [])
        assert access.ask(lambda: processes.of_namespace(record), TAG) == []
    assert site.fresh_reader("gone", 10) == list(range(10))


def test_a_store_without_a_process_that_was_deleted_leaves_no_record(site: Site) -> None:
    with site.process() as gone:
        gone.write("gone", 10)
        site.kill(gone)
        shutil.rmtree(site.store(gone.store).parent)
    assert site.repaired() == {"entries_without_store": 10, "unknown_stores": 1}
    with site.server.client() as client:
        assert client.hlen(b"s" + TAG) == client.hlen(b"q" + TAG) == 0


def test_a_registry_that_was_flushed_is_whole_again(site: Site) -> None:
    with site.process() as live, site.process() as gone, site.process("other") as other:
        live.write("live", 30)
        gone.write("gone", 40)
        other.write("other", 10)
        site.kill(gone)
        site.kill(other)
        with site.server.client() as client:
            client.flushall()
        eventually(lambda: live.state() == "up")
        expected = {"missing_pages": 50, "unregistered_namespaces": 1}
        assert site.counts() == expected
        assert site.repaired() == expected
        for chain, pages in (("live", 30), ("gone", 40)):
            assert site.fresh_reader(chain, pages) == list(range(pages))


@BOTH
def test_rebuilding_from_media_alone_restores_every_page(site: Site) -> None:
    with site.process() as one, site.process() as two, site.process("other") as other:
        chains = {one: "one", two: "two", other: "three"}
        for process, chain in chains.items():
            assert process.write(chain, 50) == 50
        for process in chains:
            process.kill()
    site.server.kill()  # with all that it knew
    site.server.start()
    done = site.fsck("--rebuild")
    assert (done["namespaces"], done["stores"], done["pages"]) == (2, 3, 150)
    assert (done["in_use"], done["cleared"]) == ([], [])
    # a reader that finds them by the registry alone: the stores are in use when it is opened
    with contextlib.ExitStack() as stack:
        for process in chains:
            lock = OwnerFile.take(str(site.store(process.store)))
            assert lock
            stack.callback(lock.close)
        for model, own in (("m", ("one", "two")), ("other", ("three",))):
            with site.process(model) as reader:
                assert all(reader.read(chain, 50) == list(range(50)) for chain in own)
    assert site.fsck()["troubles"] == []


def test_pages_of_before_a_clear_do_not_come_back(site: Site) -> None:
    with site.process() as gone:
        gone.write("gone", 20)
        site.kill(gone)
    visitor = connect_registry(
        site.server.url, namespace(), Member(os.urandom(16), "", "", b"", b""), options=REGISTRY
    )
    assert visitor.clear_namespace(soon()) == 1
    visitor.close()
    done = site.fsck("--rebuild")
    assert (done["pages"], done["stores"], len(done["cleared"])) == (0, 0, 1)
    assert site.counts() == {"cleared_stores": 1}
    assert site.repaired() == {"cleared_stores": 1}
    assert site.fresh_reader("gone", 20) == []


def test_a_live_process_is_asked_for_what_the_registry_lost(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvmanager.upkeep.EVERY_S", 0.1)
    with open_pages(site.root, site.server.url) as live, site.server.client() as client:

        def reported() -> int:
            found = [client.get(key) for key in client.scan_iter(match=b"i*")]
            return sum(r.gauges.pages for f in found if f and (r := reports.unpacked(f)))

        write(live, "live", 60)
        eventually(lambda: reported() == 60)
        live.storage.restrict(50 * live.namespace.page_bytes, None)
        eventually(lambda: reported() == 50)
        assert site.fsck()["troubles"] == [], "what was evicted is not lost"
        present = [page for page in hashes("live", 60) if live.present([page])[0]]
        for page in present[:20]:
            key, field = site.key_of(page)
            assert client.hdel(key, field) == 1
        expected = {"unannounced_pages": 20, "wrong_counts": 1}
        assert site.counts() == expected
        assert site.repaired() == expected
        visitor = connect_registry(
            site.server.url, namespace(), Member(os.urandom(16), "", "", b"", b""), options=REGISTRY
        )
        digests = page_digests(namespace().fingerprint, present)
        found = visitor.lookup(digests, live.storage.media, soon(), prefix=False)
        visitor.close()
        assert all(found.locations)


def plant(site: Site, client: redis.Redis, page: str) -> dict[str, int]:
    """What does not belong there, of each kind; how many of each."""
    medium, here = site.medium, b"0." + site.medium
    key, field = site.key_of(page)
    entry = client.hget(key, field)
    assert isinstance(entry, bytes)
    foreign = keys.page_key(TAG, 0, medium, 77)
    client.hset(foreign, mapping={b"note": b"mine", b"x" * 15: b"y" * 200, b"z" * 15: entry[:-1]})
    client.set(keys.page_key(TAG, 0, medium, 4000), b"no hash")
    client.hset(keys.page_key(TAG, 0, medium, 78), b"\xff" * 15, entry)  # in another's bucket
    place = Location.unpack(entry[7:])
    for n, location in enumerate(
        (
            replace(place, store=os.urandom(16)).pack(),
            replace(place, segment=99).pack(),
            replace(place, generation=place.generation + 1).pack(),
            replace(place, length=17).pack(),
            b"somewhere",
        )
    ):
        digest = bytes([n]) + bytes(15)
        value = bytes([64 + len(location)]) + entry[1:7] + location
        client.hset(keys.page_key(TAG, 0, medium, n), digest[1:], value)
    soon_ms, late_ms = int(time.time() * 1000) + 60_000, int(time.time() * 1000) + 10**9
    ends_ms = {os.urandom(16): late_ms, b"short": soon_ms, os.urandom(16): soon_ms}
    for digest, end_ms in ends_ms.items():
        client.hset(b"c" + TAG + here, digest, b"8 bytes!%d" % end_ms)
    client.persist(b"c" + TAG + here)
    ghost, other = os.urandom(16), os.urandom(16)
    packed = msgpack.packb([os.urandom(16), medium, 0, 1], use_bin_type=False)
    client.hset(b"s" + TAG, mapping={ghost: packed, b"name": b"garbage"})
    client.hset(b"q" + TAG, mapping={ghost: 5, other: 7})
    client.hincrby(b"n" + TAG, b"k:" + here, 1000)
    client.hset(b"n" + TAG, mapping={b"f:0.nowhere!": 256, b"m:nowhere?": b"x"})
    client.sadd(keys.TAGS, keys.tag(os.urandom(32)), b"no tag")
    client.srem(keys.TAGS, TAG)
    return {
        "stale_entries": 2,
        "entries_without_store": 1,
        "unreadable_locations": 2,
        "garbage_entries": 5,
        "endless_claims": 3,
        "unknown_stores": 1,
        "damaged_store_records": 1,
        "stray_sequences": 1,
        "stray_media": 2,
        "wrong_counts": 1,
        "unknown_namespaces": 2,
        "unlisted_namespaces": 1,
    }


@BOTH
def test_what_does_not_belong_there_is_found_by_its_kind_and_goes(site: Site) -> None:
    with site.process() as live, site.process() as gone:
        live.write("live", 30)
        gone.write("gone", 30)
        site.kill(gone)
        with site.server.client() as client:
            planted = plant(site, client, hashes("gone", 1)[0])
        found = site.counts()
        assert {kind: found.get(kind) for kind in planted} == planted
        assert found.keys() == planted.keys()
        assert site.repaired() == planted
        assert live.state() == "up"
        assert live.read("gone", 30) == list(range(30))
        assert site.fresh_reader("live", 30) == list(range(30))
        with site.server.client() as client:
            assert client.hlen(b"n" + TAG) < 30
            kept = msgpack.unpackb(client.get(b"f" + TAG))
            assert kept["clean"] is True
