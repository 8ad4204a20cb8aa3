"""Names of the keys in Redis. Each family starts with a letter of its own.

`tag` is the first 9 bytes of the namespace's fingerprint in base64url, in braces, so that all keys
of a namespace lie on one Cluster shard. `medium` is an 8-letter id made from the medium's uuid.

    g                             set: the tags of all namespaces
    n{tag}                        hash: fingerprint, encoding, schema, epoch, media, m:<medium>, ...
    p{tag}<epoch>.<medium>.<bb>   hash: the pages of one bucket; bb: the digest's first 14 bits
    c{tag}<epoch>.<medium>        hash: claims by digest; expires as a whole after its last claim
    q{tag}                        hash: last mutation sequence by store uuid
    s{tag}                        hash: process, medium, epoch and last beat by store uuid
    r{tag}<process>               string with a TTL: a process that is alive
    b{tag}<store>                 list with a TTL: pages of a store that others found bad
    w{tag}                        string with a TTL: who sweeps this namespace
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator

SCHEMA = 1
TAGS = b"g"
MEDIUM_ID_BYTES = 8
BUCKETS = 1 << 14


def tag(fingerprint: bytes) -> bytes:
    """The hash tag of a namespace, braces included."""
    return b"{" + base64.urlsafe_b64encode(fingerprint[:9]) + b"}"


def medium_id(medium: bytes) -> bytes:
    """The 8 letters by which key names call a medium."""
    return base64.urlsafe_b64encode(hashlib.blake2b(medium, digest_size=6).digest())


def bucket(digest: bytes) -> bytes:
    """The last two bytes of the key that holds a page; the field is `digest[1:]`."""
    return bytes((digest[0], digest[1] & 0xFC))


def page_keys(tag: bytes, epoch: int, medium: bytes) -> Iterator[bytes]:
    """Every key that can hold pages of one medium (8-letter id) in one epoch."""
    prefix = b"p%b%d.%b." % (tag, epoch, medium)
    for n in range(BUCKETS):
        yield prefix + bytes((n >> 6, (n & 0x3F) << 2))
