from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_backends import identity, native_calls
from hicache_backends.errors import ConfigError, InvalidKey
from hicache_backends.identity import MAX_KEY_BYTES, Namespace, page_digests
from hicache_backends.testing.canaries import NAMESPACE
from hicache_backends.testing.isolation import FIELDS, variant

Digests = Callable[[bytes, Sequence[str]], list[bytes]]
in_both = pytest.mark.parametrize(
    "digests", [identity.page_digests, native_calls.page_digests], ids=["python", "native"]
)

_numbers = st.integers(0, (1 << 63) - 1)
_counts = st.integers(1, (1 << 63) - 1)
_texts = st.text(max_size=12)
_pairs = st.tuples(_numbers, _numbers)
_ranges = _pairs.map(lambda pair: (min(pair), max(pair)))
namespaces = st.builds(
    Namespace,
    model=_texts,
    revision=_texts,
    kv_dtype=_texts,
    layout=_texts,
    page_tokens=_counts,
    page_bytes=_counts,
    layers=_ranges,
    kv_heads=_ranges,
    token_shard=_pairs,
    pool=_texts,
    tenant=_texts,
    salt=_texts,
)


@given(namespaces)
def test_an_encoding_gives_its_namespace_back_so_no_two_share_one(namespace: Namespace) -> None:
    assert Namespace.decode(namespace.encode()) == namespace


@given(namespaces, namespaces)
def test_equal_namespaces_and_only_they_have_equal_fingerprints(
    one: Namespace, other: Namespace
) -> None:
    assert (one.fingerprint == other.fingerprint) == (one == other)
    assert dataclasses.replace(one).fingerprint == one.fingerprint


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_changes_the_fingerprint_and_every_digest(field: str) -> None:
    other = variant(field)
    assert other != NAMESPACE
    assert other.fingerprint != NAMESPACE.fingerprint
    keys = [str(i) for i in range(50)]
    ours = page_digests(NAMESPACE.fingerprint, keys)
    assert not {*ours} & {*page_digests(other.fingerprint, keys)}


def test_text_does_not_flow_from_one_field_into_the_next() -> None:
    texts = ["model", "revision", "kv_dtype", "layout", "pool", "tenant", "salt"]
    split: list[dict[str, Any]] = [
        {left: "ab", right: "c"} for left in texts for right in texts if left != right
    ]
    seen = {dataclasses.replace(NAMESPACE, **fields).fingerprint for fields in split}
    assert len(seen) == len(texts) * (len(texts) - 1)


def test_fingerprint_and_digest_are_these_values_for_ever() -> None:
    """What is stored under them would be lost if they changed."""
    assert NAMESPACE.fingerprint.hex() == (
        "22634c65fec8657214633d3b8ad8e367e4564d60f4b10ecfb6a831db7e00b476"
    )
    assert (
        page_digests(NAMESPACE.fingerprint, ["page"])[0].hex() == "09fd4ed2c09ed171bd7cb31a74e1e46c"
    )


@in_both
def test_a_digest_is_blake2b_of_the_key_under_the_fingerprint(digests: Digests) -> None:
    fingerprint = NAMESPACE.fingerprint
    keys = ["0" * 64, "é", "../x", "a" * MAX_KEY_BYTES]
    assert digests(fingerprint, keys) == [
        hashlib.blake2b(key.encode(), digest_size=16, key=fingerprint).digest() for key in keys
    ]


def test_processes_with_different_hash_seeds_agree() -> None:
    code = (
        "from hicache_backends.testing.canaries import NAMESPACE, digests_of\n"
        "print(NAMESPACE.fingerprint.hex(), [d.hex() for d in digests_of(*range(20))])\n"
    )
    root = Path(identity.__file__).parents[1]
    answers = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2", "random")
    }
    assert len(answers) == 1
    assert NAMESPACE.fingerprint.hex() in answers.pop()


@in_both
@pytest.mark.parametrize("key", ["../x", "/etc/passwd", "\0", "a\nb", "é" * 512, "\ud800", " "])
def test_any_other_string_is_a_key_and_its_digest_names_no_path(digests: Digests, key: str) -> None:
    (digest,) = digests(NAMESPACE.fingerprint, [key])
    assert len(digest) == 16


@in_both
@given(keys=st.lists(st.text(st.characters(exclude_categories=()), min_size=1, max_size=6)))
def test_different_keys_have_different_digests_surrogates_included(
    digests: Digests, keys: list[str]
) -> None:
    found = digests(NAMESPACE.fingerprint, keys)
    assert found == page_digests(NAMESPACE.fingerprint, keys)
    assert len({*found}) == len({*keys})
    assert [len(digest) for digest in found] == [16] * len(keys)


def test_surrogate_pairs_are_not_the_character_they_would_spell() -> None:
    assert len({*page_digests(NAMESPACE.fingerprint, ["\ud83d\ude00", "\U0001f600"])}) == 2


@in_both
@pytest.mark.parametrize("key", ["", "x" * 4096, "é" * 513, b"bytes", None, 7, ["x"]])
def test_what_cannot_name_a_page_is_refused_whole(digests: Digests, key: object) -> None:
    with pytest.raises(InvalidKey):
        digests(NAMESPACE.fingerprint, ["good", key])  # type: ignore[list-item]  # that is the test


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\xc1",
        b"\x00" * 64,
        msgpack.packb(["hicache-namespace-0"]),
        msgpack.packb(["hicache-namespace-1"]),
        msgpack.packb({"hicache-namespace-1": 1}),
        msgpack.packb(["hicache-namespace-1", ["model", "x"]]),
        msgpack.packb(["hicache-namespace-1", "model", 7]),
        NAMESPACE.encode()[:-1],
        NAMESPACE.encode() + b"\0",
    ],
)
def test_anything_but_an_encoding_is_a_value_error(packed: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of msgpack or of our own
        Namespace.decode(packed)


@pytest.mark.parametrize(
    ("field", "value"),
    [("page_bytes", 0), ("page_tokens", -1), ("model", "\ud800"), ("layers", (5, 2))],
)
def test_a_namespace_that_cannot_name_pages_is_refused(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field):
        dataclasses.replace(NAMESPACE, **{field: value})  # type: ignore[arg-type]  # the point
