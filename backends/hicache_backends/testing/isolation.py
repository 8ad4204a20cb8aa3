"""Two namespaces on one medium share nothing, whichever field tells them apart."""
# ruff: noqa: S101 - these are tests

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from hicache_backends.identity import Namespace
from hicache_backends.pages import Pages
from hicache_backends.storage import UNKNOWN, PageStorage
from hicache_backends.testing.canaries import NAMESPACE, Target, digests_of, get, put, soon
from hicache_backends.testing.medium import Medium
from hicache_backends.testing.suite import Suite


def variant(field: str, namespace: Namespace = NAMESPACE) -> Namespace:
    """The same namespace but for this field."""
    value = getattr(namespace, field)
    other: Any = (value[0], value[1] + 1) if isinstance(value, tuple) else value * 2 or "x"
    return dataclasses.replace(namespace, **{field: other})


FIELDS = [field.name for field in dataclasses.fields(Namespace)]


class IsolationTests(Suite):
    """The same digests under another namespace are other pages."""

    @pytest.fixture(params=FIELDS)
    def other(self, medium: Medium, request: pytest.FixtureRequest) -> Iterator[PageStorage]:
        """A store of a namespace that differs in one field, open beside `storage`."""
        self.other_bytes = variant(request.param).page_bytes
        other = medium.open(variant(request.param))
        yield other
        other.close()

    def test_pages_of_one_namespace_are_not_found_in_another(
        self, storage: PageStorage, other: PageStorage
    ) -> None:
        pages = digests_of(*range(5))
        assert all(put(storage, pages))
        assert other.contains(pages) == [False] * 5
        target = Target(5, self.other_bytes)
        assert not any(other.get(pages, target.pages, soon()))

    def test_equal_digests_of_two_namespaces_keep_their_own_bytes(
        self, storage: PageStorage, other: PageStorage
    ) -> None:
        pages = digests_of(*range(5))
        put(storage, pages)
        content = [bytes([i + 1]) * self.other_bytes for i in range(5)]
        outcomes = other.put(
            pages, Pages.from_buffers(content, writable=False), [UNKNOWN] * 5, soon()
        )
        assert [(o.ok, o.existed) for o in outcomes] == [(True, False)] * 5
        assert get(storage, pages) == [True] * 5
        target = Target(5, self.other_bytes)
        assert all(other.get(pages, target.pages, soon()))
        assert [target[i] for i in range(5)] == content
        other.remove(pages)
        assert get(storage, pages) == [True] * 5
