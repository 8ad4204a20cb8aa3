"""Names of the keys in Redis. Each family starts with a letter of its own.

`tag` is the first 9 bytes of the namespace's fingerprint in base64url, in braces, so that all keys
of a namespace lie on one Cluster shard. `medium` is an 8-letter id made from the medium's uuid.

    g                             set: the tags of all namespaces
    n{tag}                        hash: fingerprint, encoding, schema, epoch, media, ... (NAMES)
    p{tag}<epoch>.<medium>.<nnn>  hash: the pages of bucket nnn; 3 bytes, little endian
    c{tag}<epoch>.<medium>        hash: claims by digest; expires as a whole after its last claim
    q{tag}                        hash: last mutation sequence by store uuid
    s{tag}                        hash: process, medium, epoch and last beat by store uuid
    r{tag}<process>               string with a TTL: a process that is alive
    b{tag}<store>                 list with a TTL: pages of a store that others found bad
    w{tag}                        string with a TTL: who sweeps this namespace, and its fence
    e{tag}                        stream: what happened to pages and processes, for listeners
    i{tag}<process>               string with a TTL: what a process last reported of itself
    o{tag}                        hash: modes ordered of single processes, and when, by process uuid
    t{tag}                        hash: the sums of all reports (names as in `figures`)
    x{tag}                        hash: bytes that a store may keep, by store uuid
    y{tag}                        hash: pinned pages; digest, and when that ends (seconds of TIME)
    f{tag}                        string: what checks found of the namespace, by medium

`tenant` is made from a tenant's name as `tag` is from a fingerprint, in braces as well.

    a                             set: tenants that have settings
    u{tenant}                     hash: a tenant's settings: name, quota, time to live, mode
    h{tenant}                     stream: samples of a tenant's sums, for curves
    z{tenant}                     sorted set: prefixes that are loaded most
    v{tenant}                     hash: sums by namespace when they were last sampled, and of those
                                  that went
    l{tenant}<task>               string with a TTL: who carries a task out, and its fence;
                                  l{tag}<task> for a task that acts on a namespace
    l{tenant}, l{tag}             the last fence that was given out there
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import lru_cache

SCHEMA = 1
NAMES = {
    "fingerprint": "32 bytes, compared when a member joins",
    "encoding": "the readable namespace, compared as well",
    "schema": "newest version of these keys that a member had; neighbours work together",
    "older": "until when members of the version before it count as there, seconds of Redis TIME",
    "epoch": "raised by clearing the namespace; members bring it back to a registry that lost it",
    "cleared": "the epoch that the last clear raised it to, as far as this registry knows",
    "purged": "epochs below this one have no keys left",
    "media": "ids of the media that processes have been seen on",
    "dropping": "ids of media whose keys are being unlinked",
    "m:<medium>": "msgpack: uuid, shared",
    "b:<medium>": "last heartbeat there, seconds of Redis TIME",
    "f:<epoch>.<medium>": "number of buckets; grows with the pages",
    "k:<epoch>.<medium>": "number of pages",
    "hits": "pages found by lookups; counted at heartbeats",
    "mode": "an order to every member: off, read or read_write",
    "ttl_ms": "an order as well: pages that were not used for so long are to go",
    "tenant_mode": "the same where `mode` is not set, copied from the tenant's settings",
    "tenant_ttl_ms": "the same where `ttl_ms` is not set",
    "events_until": "what happens is told in e{tag} until then, seconds of Redis TIME",
    "pins": "how many pages are pinned",
    "seen": "last heartbeat of any member, seconds of Redis TIME",
    "looked": "last sweep, seconds of Redis TIME",
    "back": "since when absences count, after a long time without a sweep; seconds of Redis TIME",
}
"""Fields of n{tag}."""
TAGS = b"g"
MEDIUM_ID_BYTES = 8
FIRST_BUCKETS = 4096
"""Of a medium without pages."""
MIN_BUCKETS, MAX_BUCKETS = 1 << 8, 1 << 22
_TAG = re.compile(rb"\{[A-Za-z0-9_-]{12}\}")


def tag(fingerprint: bytes) -> bytes:
    """The hash tag of a namespace, braces included."""
    return b"{" + base64.urlsafe_b64encode(fingerprint[:9]) + b"}"


def tag_bytes(tag: bytes) -> bytes:
    """The 9 bytes that a hash tag was made from. Raises ValueError for what is none."""
    raw = base64.urlsafe_b64decode(tag[1:-1])
    if len(raw) != 9 or tag[:1] != b"{" or tag[-1:] != b"}":
        raise ValueError(f"not a hash tag: {tag!r:.40}")
    return raw


def is_tag(value: object) -> bool:
    """Whether that is the hash tag of a namespace."""
    return isinstance(value, bytes) and _TAG.fullmatch(value) is not None


@lru_cache(1024)
def tenant_tag(tenant: str) -> bytes:
    """The hash tag of a tenant, braces included."""
    return tag(hashlib.blake2b(tenant.encode(), digest_size=9, person=b"hicache-tenant").digest())


@lru_cache(1024)
def medium_id(medium: bytes) -> bytes:
    """The 8 letters by which key names call a medium."""
    return base64.urlsafe_b64encode(hashlib.blake2b(medium, digest_size=6).digest())


def page_key(tag: bytes, epoch: int, medium: bytes, bucket: int) -> bytes:
    """The key that holds the pages of one bucket of a medium (8-letter id) in one epoch."""
    return page_prefix(tag, epoch, medium) + bucket.to_bytes(3, "little")


def page_prefix(tag: bytes, epoch: int, medium: bytes) -> bytes:
    """Such a key without its bucket."""
    return b"p%b%d.%b." % (tag, epoch, medium)


def bucket(digest: bytes, buckets: int) -> int:
    """The bucket of a digest where there are so many; the field is `digest[1:]`."""
    value = int.from_bytes(digest[:3], "little") & 0x3FFFFF
    low = 1 << (buckets.bit_length() - 1)
    found = value % low
    return found if found >= buckets - low else value % (2 * low)
