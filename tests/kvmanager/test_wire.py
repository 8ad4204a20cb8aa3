"""Bytes from elsewhere: malformed replies and records are misses or errors, never a crash."""

from __future__ import annotations

import ast
import os
import struct
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_backends.errors import RegistryRefused, RegistryUnavailable, StaleEpoch
from hicache_backends.outcomes import Reason
from hicache_backends.storage import ROOT, UNKNOWN
from kvmanager import keys, replies, resp, wire
from kvmanager.model import Claim, Published
from tests.kvmanager.members import NAMESPACE, Cluster, Store, digests, soon
from tests.kvmanager.servers import Server

TAG = keys.tag(NAMESPACE.fingerprint)
ABSENT = Reason.NEVER_WRITTEN


def stored(location: bytes) -> bytes:
    return bytes((64 + len(location),)) + b"\0" * 6 + location


@given(st.lists(st.one_of(st.binary(min_size=1, max_size=48), st.sampled_from([128, 129, 130]))))
def test_a_lookups_reply_is_read_key_by_key(pages: list[bytes | int]) -> None:
    body = b"".join(stored(p) if isinstance(p, bytes) else bytes((p,)) for p in pages)
    found = replies.read_lookup(b"K" + body, len(pages), ABSENT)
    why = {128: ABSENT, 129: Reason.BEING_WRITTEN, 130: Reason.OTHER_HOST}
    assert found.locations == [p if isinstance(p, bytes) else b"" for p in pages]
    assert found.reasons == [None if isinstance(p, bytes) else why[p] for p in pages]


@given(st.integers(0, 5), st.integers(1, 48), st.integers(0, 5))
def test_keys_after_the_first_miss_share_its_reason(hits: int, size: int, rest: int) -> None:
    body = stored(b"x" * size) * hits + b"\x81"
    found = replies.read_lookup(b"K" + body, hits + 1 + rest, ABSENT)
    assert found.locations == [b"x" * size] * hits + [b""] * (1 + rest)
    assert found.reasons == [None] * hits + [Reason.BEING_WRITTEN] * (1 + rest)


@given(st.binary(max_size=300), st.integers(0, 40))
def test_any_reply_is_read_or_refused(reply: bytes, n: int) -> None:
    for read in (
        lambda: replies.read_lookup(reply, n, ABSENT),
        lambda: replies.read_lookup(b"K" + reply, n, ABSENT),
        lambda: replies.read_claims(b"K" + reply, n),
        lambda: replies.read_mutation(reply, n),
        lambda: replies.read_mutation(b"G" + reply, n),
        lambda: replies.published(reply, n),
        lambda: replies.removals(reply, n),
        lambda: replies.read_beat(reply),
        lambda: resp.parse(reply),
    ):
        try:
            result = read()
        except (RegistryRefused, RegistryUnavailable, StaleEpoch):
            continue
        if isinstance(result, list):
            assert len(result) == n


@pytest.mark.parametrize("reply", [None, 7, b"", b"K", b"K\x05", b"K\x00\x00\x00"])
def test_a_reply_for_another_number_of_keys_is_refused(reply: resp.Reply) -> None:
    with pytest.raises(RegistryRefused):
        replies.read_claims(reply, 2)


def test_numbers_beyond_reason_are_refused() -> None:
    fields = {"epoch": float("inf"), "sequence": 1, "clear": 0, "returned": 0, "bad": [], "now": 1}
    with pytest.raises(RegistryRefused):
        replies.read_beat(msgpack.packb(fields))
    with pytest.raises(RegistryRefused):
        replies.read_done(b"S" + b"9" * 5000)
    assert replies.read_done(b"K7") == b"7"
    with pytest.raises(StaleEpoch, match="1234567890123"):
        replies.read_done(b"S1234567890123")


def test_short_replies_are_never_taken_for_hits() -> None:
    whole = b"K" + stored(b"x" * 44) * 3
    for end in range(len(whole)):
        with pytest.raises(RegistryRefused):
            replies.read_lookup(whole[:end], 3, ABSENT)


@given(st.binary(max_size=200))
def test_where_a_reply_ends_is_seen_in_any_pieces(payload: bytes) -> None:
    raw = b"$%d\r\n%b\r\n" % (len(payload), payload)
    for n in range(len(raw)):
        assert resp.reply_size(bytearray(raw[:n])) in (0, len(raw))
    assert resp.reply_size(b"+OK\r\n" + raw, 5) == len(raw)
    assert resp.split(b"+OK\r\n" + raw) == [b"+OK\r\n", raw]
    assert resp.parse(raw) == payload


@given(st.lists(st.binary(min_size=16, max_size=16), min_size=1, max_size=9), st.data())
def test_links_say_where_each_parent_is(chain: list[bytes], data: st.DataObject) -> None:
    parents = [
        data.draw(st.sampled_from([UNKNOWN, ROOT, b"p" * 16, *chain[max(0, n - 1) : n]]))
        for n in range(len(chain))
    ]
    links, listed = wire._links(b"".join(chain), b"".join(parents))
    rest = [listed[n : n + 16] for n in range(0, len(listed), 16)]
    for n, (link, parent) in enumerate(zip(links, parents, strict=True)):
        if link == 1:
            assert parent == chain[n - 1]
        elif link == 2:
            assert parent == rest.pop(0)
        else:
            assert parent in (UNKNOWN, ROOT)
    assert not rest


@given(st.binary(min_size=16, max_size=16), st.integers(256, 70_000))
def test_a_bucket_splits_into_itself_and_the_newest_one(digest: bytes, buckets: int) -> None:
    before, after = keys.bucket(digest, buckets), keys.bucket(digest, buckets + 1)
    low = 1 << (buckets.bit_length() - 1)
    assert before < buckets
    assert after == before or (after == buckets and before == buckets - low)
    assert after % 256 == digest[0]


MALFORMED = {
    "empty": b"",
    "short": b"\x40\0\0",
    "text": b"cos\nsystem\n(S'true'\ntR.",
    "wrong length byte": b"\x50" + b"\0" * 6 + b"x" * 44,
    "too long": b"\x7f" + b"\0" * 6 + b"x" * 63,
    "newer format": b"\x2c" + b"\0" * 6 + b"x" * 44,
    "huge": b"x" * 100_000,
}


@pytest.mark.parametrize("value", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_record_is_a_miss_and_is_written_again(
    server: Server, cluster: Cluster, value: bytes
) -> None:
    store = cluster.store()
    store.settled()
    chain = digests(3)
    entries = store.chain(chain)
    store.write(entries)
    with server.client() as client:
        client.hset(bucket_key(store, chain[1]), chain[1][1:], value)
    found = store.lookup(chain, prefix=False)
    assert found.reasons == [None, Reason.NEVER_WRITTEN, None]
    assert store.registry.claim(chain, soon())[1] == [Claim.STORED, Claim.GRANTED, Claim.STORED]
    store.registry.report_bad(chain[1], entries[1].location, soon(), parent=chain[0])
    store.registry.remove(entries[1:2], soon())
    assert store.write(entries) == [Published.OK] * 3
    assert store.lookup(chain).prefix == 3


def test_a_key_of_another_kind_in_the_place_of_a_bucket_is_a_miss(
    server: Server, cluster: Cluster
) -> None:
    store = cluster.store()
    store.settled()
    (digest,) = digests(1)
    with server.client() as client:
        client.set(bucket_key(store, digest), b"not a hash")
    assert store.lookup([digest]).reasons == [Reason.NEVER_WRITTEN]
    with pytest.raises(RegistryRefused, match="WRONGTYPE"):
        store.write(store.chain([digest]))


@pytest.mark.parametrize("junk", [b"", b"\xc1", b"\xff" * 40, os.urandom(64)])
def test_malformed_records_of_members_do_not_stop_heartbeats(
    server: Server, cluster: Cluster, junk: bytes
) -> None:
    store = cluster.store()
    store.settled()
    with server.client() as client:
        client.hset(b"s" + TAG, store.member.store, junk)
        client.hset(b"q" + TAG, store.member.store, junk)
        client.hset(b"n" + TAG, mapping={"mode": "", "purged": junk})
    entries = store.chain(digests(2))
    store.write(entries)
    store.settled()
    assert store.lookup([entry.digest for entry in entries]).prefix == 2


def bucket_key(store: Store, digest: bytes) -> bytes:
    medium = keys.medium_id(store.member.medium)
    return keys.page_key(TAG, 0, medium, keys.bucket(digest, keys.FIRST_BUCKETS))


def test_client_and_scripts_agree_about_the_place_of_a_page(
    server: Server, cluster: Cluster
) -> None:
    store = cluster.store()
    entries = store.chain(digests(6000))
    medium = keys.medium_id(store.member.medium)
    with server.client() as client:
        client.hset(b"n" + TAG, b"f:0." + medium, 256)
        store.write(entries)
        buckets = int(client.hget(b"n" + TAG, b"f:0." + medium) or 0)
        assert buckets == -(-6000 // 16)
        assert store.lookup([entry.digest for entry in entries]).prefix == 6000
        for entry in entries[::50]:
            key = keys.page_key(TAG, 0, medium, keys.bucket(entry.digest, buckets))
            value = client.hget(key, entry.digest[1:])
            assert value is not None
            assert value[7:] == entry.location
            assert client.object("encoding", key) == b"listpack"


def test_what_a_page_looks_like_in_redis_is_fixed(server: Server, cluster: Cluster) -> None:
    store = cluster.store()
    head, tail = store.chain(digests(2))
    store.write([head, tail])
    store.lookup([head.digest])
    with server.client() as client:
        seconds, _ = client.time()
        values = [client.hget(bucket_key(store, e.digest), e.digest[1:]) for e in (head, tail)]
    for value, entry, counts in zip(values, (head, tail), (0x4001, 0x8000), strict=True):
        assert value is not None
        length, stamp, flags = struct.unpack(">BIH", value[:7])
        assert length == 64 + len(entry.location)
        assert abs(stamp - seconds * 10 % (1 << 32)) < 50
        assert flags == counts
        assert value[7:] == entry.location


def test_nothing_in_the_package_runs_what_it_reads() -> None:
    forbidden = {"pickle", "marshal", "shelve", "yaml", "dill"}
    for path in Path(keys.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert forbidden.isdisjoint(alias.name for alias in node.names), path
            elif isinstance(node, ast.ImportFrom):
                assert node.module not in forbidden, path
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec", "compile", "__import__"), path
    for path in Path(keys.__file__).parent.rglob("*.lua"):
        text = path.read_text()
        assert "loadstring" not in text, path
        assert text.startswith("-- "), path


@pytest.mark.parametrize("said", [b"", b"x", b"-1", b"7.5", b"9" * 5000])
def test_an_epoch_that_is_none_is_a_malformed_reply(said: bytes) -> None:
    with pytest.raises(RegistryRefused, match="malformed"):
        replies.read_epoch(b"K" + said)
    assert replies.read_epoch(b"K7") == 7
