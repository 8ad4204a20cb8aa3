"""The eviction policy against a model that looks at every page, and against exact LRU."""

from __future__ import annotations

import random
from collections import OrderedDict
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hicache_backends.segment.index import PageIndex
from hicache_backends.segment.policy import Ghosts
from hicache_backends.storage import ROOT, UNKNOWN

NAMES = [bytes([i]) * 16 for i in range(2, 14)]
PARENTS = [ROOT, UNKNOWN, *NAMES]
_names = st.sampled_from(NAMES)


@dataclass
class Page:
    slot: int
    parent: bytes
    recency: int
    chosen: bool = False


class Policy(RuleBasedStateMachine):
    """The model keeps a number a page: larger is more recent."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PageIndex()
        self.index.extend(len(NAMES))
        self.free = list(range(len(NAMES)))
        self.pages: dict[bytes, Page] = {}
        self.clock = 0

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def children(self, name: bytes) -> list[bytes]:
        return [n for n, page in self.pages.items() if page.parent == name and not page.chosen]

    def circle(self, parent: bytes, name: bytes) -> bool:
        """Whether the page would come before itself; only a page with children can."""
        while self.children(name) and parent != name and parent in self.pages:
            page = self.pages[parent]
            parent = UNKNOWN if page.chosen else page.parent
        return parent == name

    def inherit(self, page: Page) -> None:
        parent = self.pages.get(page.parent)
        if parent and not parent.chosen:
            parent.recency = max(parent.recency, page.recency)

    @rule(name=_names, parent=st.sampled_from(PARENTS))
    def add(self, name: bytes, parent: bytes) -> None:
        if name in self.pages:
            return
        slot = self.free.pop()
        self.index.add(slot, name, parent, slot, 0)
        self.pages[name] = Page(slot, UNKNOWN, self.tick())
        if not self.circle(parent, name):
            self.pages[name].parent = parent

    @rule(names=st.lists(_names, max_size=6))
    def touch(self, names: list[bytes]) -> None:
        pages = [self.pages[name] for name in names if name in self.pages]
        self.index.policy.touch([page.slot for page in pages])
        for page in pages:
            page.recency = self.tick()

    @rule(name=_names, parent=st.sampled_from(PARENTS))
    def learn(self, name: bytes, parent: bytes) -> None:
        self.index.learn(name, parent)
        page = self.pages.get(name)
        if page and not page.chosen and page.parent == UNKNOWN and not self.circle(parent, name):
            page.parent = parent

    @rule(count=st.integers(1, 6), pinned=st.sets(_names, max_size=3))
    def choose(self, count: int, pinned: set[bytes]) -> None:
        pins = [self.pages[name].slot for name in pinned if name in self.pages]
        self.index.pin(pins)
        found = self.index.victims(count)
        self.index.unpin(pins)
        assert [self.index.page(slot)[0] for slot in found] == self.expected(count, pinned)

    def expected(self, count: int, pinned: set[bytes]) -> list[bytes]:
        chosen: list[bytes] = []
        passed: list[bytes] = []
        while len(chosen) < count:
            leaves = [
                (page.recency, name)
                for name, page in self.pages.items()
                if not page.chosen and not self.children(name) and name not in passed
            ]
            if not leaves:
                break
            _, name = min(leaves)
            if name in pinned:
                passed.append(name)
                continue
            self.pages[name].chosen = True
            chosen.append(name)
            self.inherit(self.pages[name])
        for name in passed:
            self.pages[name].recency = self.tick()
        return chosen

    @rule(name=_names, stays=st.booleans())
    def settle(self, name: bytes, stays: bool) -> None:
        page = self.pages.get(name)
        if not page or not page.chosen:
            return
        if stays:
            if self.circle(page.parent, name):
                page.parent = UNKNOWN
            page.chosen = False
            page.recency = self.tick()
            self.index.policy.keep(page.slot)
        else:
            self.drop(name)

    @rule(name=_names)
    def remove_a_leaf(self, name: bytes) -> None:
        page = self.pages.get(name)
        if page and not page.chosen and not self.children(name):
            self.inherit(page)
            self.drop(name)

    def drop(self, name: bytes) -> None:
        page = self.pages.pop(name)
        assert self.index.remove(page.slot) == name
        self.free.append(page.slot)

    @invariant()
    def knows_who_has_children(self) -> None:
        for name, page in self.pages.items():
            assert self.index.has_children(page.slot) == bool(self.children(name))
            assert self.index.page(page.slot) == (name, page.parent)


Policy.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestPolicyAgainstModel = Policy.TestCase


class Removals(Policy):
    """The same with pages removed in mid-chain, whose parents' recency is then not exact."""

    @rule(name=_names)
    def remove(self, name: bytes) -> None:
        if name in self.pages:
            self.drop(name)

    def expected(self, count: int, pinned: set[bytes]) -> list[bytes]:
        raise NotImplementedError

    @rule(count=st.integers(1, 6), pinned=st.sets(_names, max_size=3))
    def choose(self, count: int, pinned: set[bytes]) -> None:
        pins = {name: self.pages[name].slot for name in pinned if name in self.pages}
        self.index.pin(pins.values())
        for slot in self.index.victims(count):
            name, _ = self.index.page(slot)
            assert name not in pinned
            assert not self.pages[name].chosen
            assert not self.children(name), "a page with children was chosen"
            self.pages[name].chosen = True
        self.index.unpin(pins.values())

    @rule()
    def everything_can_be_evicted(self) -> None:
        for name in [name for name, page in self.pages.items() if page.chosen]:
            self.drop(name)
        found = self.index.victims(len(NAMES))
        assert {self.index.page(slot)[0] for slot in found} == {*self.pages}
        for name in list(self.pages):
            self.drop(name)


Removals.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestRemovalsAgainstModel = Removals.TestCase


def _chains(chance: random.Random) -> list[list[bytes]]:
    """Chains that share prefixes, as conversations do."""
    chains: list[list[bytes]] = []
    for n in range(400):
        prefix: list[bytes] = []
        if chains and chance.random() < 0.7:
            source = chance.choice(chains)
            prefix = source[: chance.randrange(len(source) + 1)]
        fresh = [b"%08d%08d" % (n, i) for i in range(chance.randrange(1, 8))]
        chains.append(prefix + fresh)
    return [chance.choice(chains) for _ in range(1500)]


def test_whole_chains_are_evicted_as_by_exact_lru_with_the_last_page_touched_first() -> None:
    chance = random.Random(3)  # noqa: S311 - not cryptography
    capacity = 200
    index, exact = PageIndex(), OrderedDict[bytes, None]()
    index.extend(capacity)
    free = list(range(capacity))
    for chain in _chains(chance):
        missing = [page for page in chain if page not in index.slots]
        pinned = [index.slots[page] for page in chain if page in index.slots]
        index.pin(pinned)
        for slot in index.victims(max(0, len(missing) - len(free))):
            index.remove(slot)
            free.append(slot)
        index.unpin(pinned)
        for page in reversed(chain):
            exact[page] = None
            exact.move_to_end(page)
            if page in index.slots:
                index.policy.touch([index.slots[page]])
            else:
                at = chain.index(page)
                index.add(free.pop(), page, chain[at - 1] if at else ROOT, 1, 0)
        while len(exact) > capacity:
            exact.popitem(last=False)
        assert {*index.slots} == {*exact}


def test_heads_that_nobody_asks_for_stay_as_long_as_their_tails() -> None:
    chain = [bytes([i]) * 16 for i in range(2, 10)]
    index = PageIndex()
    index.extend(64)
    for i, page in enumerate(chain):
        index.add(i, page, chain[i - 1] if i else ROOT, i, 0)
    for n in range(40):
        index.policy.touch([index.slots[page] for page in reversed(chain[4:])])
        index.add(10 + n % 20, b"%016d" % n, ROOT, 100 + n, 0)
        if len(index) > 16:
            (victim,) = index.victims(1)
            assert index.page(victim)[0] not in chain
            index.remove(victim)


def test_ghosts_are_bounded_and_the_newest_are_remembered() -> None:
    ghosts = Ghosts(100)
    names = [b"%016d" % n for n in range(1000)]
    for name in names:
        ghosts.add(name)
    assert all(name in ghosts for name in names[-100:])
    assert sum(name in ghosts for name in names) <= 200
