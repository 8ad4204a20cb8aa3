"""What the calls promise, on real servers."""

from __future__ import annotations

import os
import threading

import pytest

from hicache_backends.identity import Namespace
from hicache_backends.outcomes import Reason
from hicache_backends.storage import ROOT, UNKNOWN
from kvmanager.model import Claim, Published, Removal
from tests.kvmanager.members import Cluster, digests, soon


def test_a_published_page_is_found_by_another_member(cluster: Cluster) -> None:
    writer, reader = cluster.store(), cluster.store()
    keys = digests(24)
    entries = writer.chain(keys)
    assert writer.write(entries) == [Published.OK] * 24
    found = reader.lookup(keys)
    assert found.locations == [entry.location for entry in entries]
    assert found.reasons == [None] * 24
    assert found.prefix == 24


def test_a_prefix_lookup_stops_at_the_first_miss(cluster: Cluster) -> None:
    store = cluster.store()
    store.settled()
    keys = digests(6)
    entries = store.chain(keys)
    store.write(entries[:2] + entries[3:])
    found = store.lookup(keys)
    assert found.prefix == 2
    assert found.locations[2:] == [b""] * 4
    assert found.reasons == [None, None] + [Reason.NEVER_WRITTEN] * 4


def test_a_full_lookup_has_one_answer_a_key_whatever_the_holes(cluster: Cluster) -> None:
    store = cluster.store()
    store.settled()
    keys = digests(9)
    entries = store.chain(keys)
    store.write(entries)
    for mask in range(0, 1 << 9, 37):
        here = [bool(mask >> n & 1) for n in range(9)]
        asked = [key if held else os.urandom(16) for key, held in zip(keys, here, strict=True)]
        found = store.lookup(asked, prefix=False)
        assert [bool(location) for location in found.locations] == here
        for entry, location in zip(entries, found.locations, strict=True):
            assert location in (b"", entry.location)


@pytest.mark.parametrize("n", [0, 1, 1023, 1024, 1025, 3000])
def test_any_number_of_keys_is_split_into_scripts_of_at_most_1024(cluster: Cluster, n: int) -> None:
    store = cluster.store()
    store.settled()
    keys = digests(n)
    entries = store.chain(keys)
    token, claims = store.registry.claim(keys, soon())
    assert claims == [Claim.GRANTED] * n
    assert store.write(entries, token) == [Published.OK] * n
    assert store.lookup(keys).prefix == n
    assert store.lookup(keys, prefix=False).prefix == n
    short = store.lookup([*keys, *digests(1), *keys])
    assert len(short.locations) == len(short.reasons) == 2 * n + 1
    assert short.prefix == n
    assert store.registry.remove(entries[::-1], soon()) == [Removal.REMOVED] * n
    assert store.lookup(keys, prefix=False).locations == [b""] * n


def test_the_nearest_of_several_media_is_chosen(cluster: Cluster) -> None:
    near, far = cluster.store(medium=os.urandom(16)), cluster.store(medium=os.urandom(16))
    keys = digests(3)
    at_near, at_far = near.chain(keys), far.chain(keys)
    near.write(at_near[:2])
    far.write(at_far)
    media = [near.member.medium, far.member.medium]
    found = near.registry.lookup(keys, media, soon())
    assert found.locations == [e.location for e in (*at_near[:2], at_far[2])]
    assert near.registry.lookup(keys, media[::-1], soon()).locations == [
        entry.location for entry in at_far
    ]


@pytest.mark.parametrize("prefix", [True, False])
def test_a_lookup_on_many_media_is_split_into_short_commands(
    cluster: Cluster, prefix: bool
) -> None:
    stores = [cluster.store(medium=os.urandom(16), start=False) for _ in range(9)]
    near, far = stores[0], stores[-1]
    keys = digests(1024)
    far.write(far.chain(keys))
    media = [store.member.medium for store in stores]
    near.registry.lookup(keys[:1], media, soon())  # the server has the script
    for n, commands in ((128, 1), (1024, 5)):
        before = int(near.registry.stats()["round_trips"])
        assert near.registry.lookup(keys[:n], media, soon(), prefix=prefix).prefix == n
        assert int(near.registry.stats()["round_trips"]) - before == commands


def test_a_page_on_a_medium_out_of_reach_is_explained(cluster: Cluster) -> None:
    here, there = cluster.store(medium=os.urandom(16)), cluster.store(medium=os.urandom(16))
    here.settled()
    keys = digests(2)
    there.write(there.chain(keys[:1]))
    found = here.lookup(keys, prefix=False)
    assert found.locations == [b"", b""]
    assert found.reasons == [Reason.OTHER_HOST, Reason.NEVER_WRITTEN]


def test_many_missed_pages_are_explained_one_by_one(cluster: Cluster) -> None:
    here, beside = cluster.store(), cluster.store()
    others = [cluster.store(medium=os.urandom(16)) for _ in range(3)]
    here.settled()
    keys = digests(200)
    there, claimed, both = keys[:50], keys[50:100], keys[100:120]
    for store in others:
        store.write(store.chain(there + both))
    beside.registry.claim(claimed + both, soon())
    found = here.lookup(keys, prefix=False)
    assert found.reasons == (
        [Reason.OTHER_HOST] * 50 + [Reason.BEING_WRITTEN] * 70 + [Reason.NEVER_WRITTEN] * 80
    )


def test_one_of_many_claimants_is_granted(cluster: Cluster) -> None:
    stores = [cluster.store() for _ in range(4)]
    keys = digests(50)
    answers: list[list[Claim]] = []

    def claim(n: int) -> None:
        answers.append(stores[n].registry.claim(keys, soon())[1])

    threads = [threading.Thread(target=claim, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one_key in zip(*answers, strict=True):
        assert sorted(one_key, key=lambda c: c.value) == [Claim.GRANTED] + [Claim.ELSEWHERE] * 3


def test_a_claimed_page_is_being_written_until_it_is_published_or_given_up(
    cluster: Cluster,
) -> None:
    writer, other = cluster.store(), cluster.store()
    other.settled()
    keys = digests(2)
    token, _ = writer.registry.claim(keys, soon())
    assert other.lookup(keys).reasons == [Reason.BEING_WRITTEN] * 2
    writer.write(writer.chain(keys[:1]), token)
    writer.registry.abort(keys[1:], token, soon())
    assert other.lookup(keys).reasons == [None, Reason.NEVER_WRITTEN]
    assert other.registry.claim(keys, soon())[1] == [Claim.STORED, Claim.GRANTED]


def test_only_the_holder_of_a_claim_gives_it_up(cluster: Cluster) -> None:
    holder, other = cluster.store(), cluster.store()
    keys = digests(1)
    token, _ = holder.registry.claim(keys, soon())
    other.registry.abort(keys, b"8 bytes!", soon())
    assert other.registry.claim(keys, soon())[1] == [Claim.ELSEWHERE]
    holder.registry.abort(keys, token, soon())
    assert other.registry.claim(keys, soon())[1] == [Claim.GRANTED]


def test_a_slow_writer_renews_its_claim(cluster: Cluster) -> None:
    writer, other = cluster.store(), cluster.store()
    keys = digests(2)
    token, _ = writer.registry.claim(keys, soon())
    again, claims = writer.registry.claim(keys, soon(), token=token)
    assert (again, claims) == (token, [Claim.GRANTED] * 2)
    assert writer.registry.claim(keys, soon())[1] == [Claim.ELSEWHERE] * 2  # another thread
    assert other.registry.claim(keys, soon())[1] == [Claim.ELSEWHERE] * 2


def test_a_medium_that_nobody_shares_needs_no_claims(cluster: Cluster) -> None:
    store = cluster.store(shared=False, start=False)
    trips = store.registry.stats()["round_trips"]
    assert store.registry.claim(digests(2), soon()) == (b"", [Claim.GRANTED] * 2)
    assert store.registry.stats()["round_trips"] == trips


def test_the_first_publication_wins_and_the_loser_is_told(cluster: Cluster) -> None:
    first, second = cluster.store(), cluster.store()
    keys = digests(3)
    entries = first.chain(keys)
    first.write(entries[:2])
    assert second.write(second.chain(keys)) == [
        Published.DUPLICATE,
        Published.DUPLICATE,
        Published.OK,
    ]
    assert second.lookup(keys).locations[:2] == [entry.location for entry in entries[:2]]


def test_publishing_the_same_page_again_is_fine_and_a_new_slot_of_the_same_store_replaces(
    cluster: Cluster,
) -> None:
    store = cluster.store()
    keys = digests(2)
    entries = store.chain(keys)
    assert store.write(entries) == [Published.OK] * 2
    assert store.write(entries) == [Published.OK] * 2
    moved = store.chain(keys)
    assert store.write(moved) == [Published.OK] * 2
    assert store.lookup(keys).locations == [entry.location for entry in moved]


def test_a_page_that_has_moved_is_not_removed_by_its_old_location(cluster: Cluster) -> None:
    store = cluster.store()
    keys = digests(1)
    old, new = store.chain(keys), store.chain(keys)
    store.write(old)
    store.write(new)
    assert store.registry.remove(old, soon()) == [Removal.REMOVED]
    assert store.lookup(keys).locations == [new[0].location]


def test_a_page_is_kept_while_pages_follow_it(cluster: Cluster) -> None:
    one, other = cluster.store(), cluster.store()
    keys = digests(3)
    head = one.chain(keys[:1])
    tail = other.chain(keys[1:], parent=keys[0])
    one.write(head)
    other.write(tail)
    idle = [3_600_000]
    assert one.registry.remove(head, soon(), touched_ms=idle) == [Removal.PARENT]
    assert other.registry.remove(tail[::-1], soon(), touched_ms=idle * 2) == [Removal.REMOVED] * 2
    assert one.registry.remove(head, soon(), touched_ms=idle) == [Removal.REMOVED]


@pytest.mark.parametrize("mended", [True, False])
def test_a_child_reported_without_its_parent_is_uncounted_by_its_owner(
    cluster: Cluster, mended: bool
) -> None:
    owner, reader = cluster.store(), cluster.store()
    head, tail = digests(2)
    trunk, leaf = owner.chain([head, tail])
    owner.write([trunk, leaf])
    reader.registry.report_bad(tail, leaf.location, soon())
    assert reader.lookup([head, tail]).prefix == 1
    if mended:
        leaf = owner.entry(tail, head)
        owner.write([leaf])
        assert reader.lookup([head, tail]).prefix == 2
        assert owner.registry.remove([trunk], soon(), touched_ms=[0]) == [Removal.PARENT]
    owner.registry.remove([leaf], soon())
    assert owner.registry.remove([trunk], soon(), touched_ms=[0]) == [Removal.REMOVED]


@pytest.mark.parametrize("parent", [ROOT, UNKNOWN])
def test_a_page_without_a_known_parent_holds_nothing(cluster: Cluster, parent: bytes) -> None:
    store = cluster.store()
    keys = digests(2)
    entries = [store.entry(key, parent) for key in keys]
    store.write(entries)
    assert store.registry.remove(entries, soon(), touched_ms=[0, 0]) == [Removal.REMOVED] * 2


def test_branches_are_counted_one_by_one(cluster: Cluster) -> None:
    store = cluster.store()
    head, *branches = digests(4)
    trunk = store.chain([head])
    leaves = [store.entry(branch, head) for branch in branches]
    store.write(trunk + leaves)
    for leaf in leaves:
        assert store.registry.remove(trunk, soon(), touched_ms=[0]) == [Removal.PARENT]
        assert store.registry.remove([leaf], soon(), touched_ms=[0]) == [Removal.REMOVED]
        assert store.registry.remove([leaf], soon()) == [Removal.REMOVED]  # counts once
    assert store.registry.remove(trunk, soon(), touched_ms=[0]) == [Removal.REMOVED]


def test_a_parent_learned_later_counts_from_then(cluster: Cluster) -> None:
    store = cluster.store()
    head, tail = digests(2)
    trunk = store.chain([head])
    store.write(trunk)
    orphan = store.entry(tail, UNKNOWN)
    store.write([orphan])
    known = type(orphan)(orphan.digest, head, orphan.location)
    store.write([known])
    store.write([known])
    assert store.registry.remove(trunk, soon(), touched_ms=[0]) == [Removal.PARENT]
    store.registry.remove([known], soon())
    assert store.registry.remove(trunk, soon(), touched_ms=[0]) == [Removal.REMOVED]


def test_a_page_that_others_looked_up_since_its_owner_used_it_is_kept(cluster: Cluster) -> None:
    owner, reader = cluster.store(), cluster.store()
    keys = digests(2)
    entries = [owner.entry(key) for key in keys]
    owner.write(entries)
    reader.lookup(keys[:1])
    used_long_ago, used_now = [60_000, 60_000], [0, 0]
    assert owner.registry.remove(entries, soon(), touched_ms=used_long_ago) == [
        Removal.TOUCHED,
        Removal.REMOVED,
    ]
    assert owner.registry.remove(entries, soon(), touched_ms=used_now) == [Removal.REMOVED] * 2


def test_a_bad_page_is_forgotten_and_its_owner_told(cluster: Cluster) -> None:
    owner, reader = cluster.store(), cluster.store()
    keys = digests(2)
    entries = owner.chain(keys)
    owner.write(entries)
    reader.registry.report_bad(keys[1], b"elsewhere", soon(), parent=keys[0])
    assert reader.lookup(keys).prefix == 2
    reader.registry.report_bad(keys[1], entries[1].location, soon(), parent=keys[0])
    assert reader.lookup(keys).prefix == 1
    assert owner.registry.remove(entries[:1], soon(), touched_ms=[0]) == [Removal.REMOVED]
    owner.settled()
    told = [bad for orders in owner.orders for bad in orders.bad]
    while not told:
        told = [bad for orders in owner.orders for bad in orders.bad]
    assert [(bad.digest, bad.location) for bad in told] == [(keys[1], entries[1].location)]


def test_namespaces_do_not_see_each_other(cluster: Cluster) -> None:
    other = Namespace("model", "other revision", "bf16", "page_first", 64, 4096)
    here, there = cluster.store(), cluster.store(namespace=other)
    keys = digests(2)
    here.write(here.chain(keys))
    assert there.lookup(keys).prefix == 0
    assert there.registry.claim(keys, soon())[1] == [Claim.GRANTED] * 2


def test_locations_that_cannot_be_stored_are_refused_before_anything_is_sent(
    cluster: Cluster,
) -> None:
    store = cluster.store()
    entry = store.entry(digests(1)[0])
    for location in (b"", b"x" * 49):
        with pytest.raises(ValueError, match="location"):
            store.registry.publish([type(entry)(entry.digest, ROOT, location)], b"", soon())
    with pytest.raises(ValueError, match="digest"):
        store.lookup([b"short"])
