"""Pages stored and never hit: one warning, which names the cause; none where there is a hit."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hicache_backends.errors import StorageClosed, StorageUnavailable
from hicache_backends.identity import Namespace
from hicache_backends.outcomes import EVICTED, HIT, NEVER_WRITTEN, Outcome, Reason, miss
from hicache_storage.config import load_config
from hicache_storage.opening import open_page_store
from hicache_storage.sglang.neighbours import neighbours
from hicache_storage.sglang.silence import SilentZero
from tests.hicache_storage.sglang_plugin.ranks import ONE, engine, namespace, pool, told

OWN = Namespace("m", "r1", "bfloat16", "page_first", 16, 4096, salt="sglang 0.5.23; tp 0/2")
KEYS = [f"{n:064x}" for n in range(200)]


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("hicache_storage.sglang.silence.time", made)
    return made


def watch(
    explain: Callable[[Sequence[str]], Sequence[Outcome]] | None = None,
    found: Callable[[], Sequence[Namespace]] = list,
    own: Namespace = OWN,
) -> SilentZero:
    """One that speaks after 100 pages and a minute."""
    return SilentZero(
        own,
        explain or (lambda keys: [NEVER_WRITTEN] * len(keys)),
        found,
        min_pages=100,
        min_seconds=60,
    )


def spoken(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was warned of, once the threads that warn have ended."""
    for thread in threading.enumerate():
        if thread.name == "hicache-silent-zero":
            thread.join(10)
            assert not thread.is_alive()
    return [r.message for r in caplog.records if r.levelno == logging.WARNING]


def unlucky(watch: SilentZero, clock: Clock, *, asked: int = 200, found: int = 0) -> None:
    """Enough pages stored, enough time gone, enough asked for and not read."""
    watch.stored(200)
    clock.now += 61
    if asked:
        watch.asked(KEYS[:asked], found)
    else:
        watch.stored(1)


def test_never_asked(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    unlucky(watch(), clock, asked=0)
    [said] = spoken(caplog)
    assert "201 pages were stored and not one was hit in 61 s" in said
    assert "SGLang never asked" in said
    assert "prefetch_threshold" in said


def test_asked_and_absent(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    unlucky(watch(), clock)
    [said] = spoken(caplog)
    assert "no beginning in common" in said


def test_evicted(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    unlucky(watch(lambda keys: [EVICTED] * (len(keys) - 1) + [HIT]), clock)
    [said] = spoken(caplog)
    assert "evicted" in said
    assert "capacity" in said


@pytest.mark.parametrize("reason", sorted(set(Reason) - {Reason.EVICTED, Reason.NEVER_WRITTEN}))
def test_each_other_reason_is_named(
    clock: Clock, caplog: pytest.LogCaptureFixture, reason: Reason
) -> None:
    unlucky(watch(lambda keys: [miss(reason)] * len(keys)), clock)
    assert [reason.value in said for said in spoken(caplog)] == [True]


def test_other_ranks_missing(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    unlucky(watch(), clock, found=150)
    [said] = spoken(caplog)
    assert "150 pages were found here" in said
    assert "another rank" in said


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"revision": "r0"}, "revision ('r0' there, 'r1' here)"),
        ({"layout": "layer_first"}, "layout ('layer_first' there, 'page_first' here)"),
        ({"kv_dtype": "float8_e4m3fn"}, "kv_dtype"),
        ({"page_tokens": 64}, "page_tokens (64 there, 16 here)"),
        ({"tenant": "b"}, "tenant ('b' there, 'default' here)"),
        ({"salt": "sglang 0.5.20; tp 1/2"}, "salt ('sglang 0.5.20"),
        ({"salt": "sglang 0.5.23; tp 0/4", "page_bytes": 2048}, "page_bytes"),
    ],
)
def test_another_namespace_is_named_by_what_differs(
    clock: Clock, caplog: pytest.LogCaptureFixture, other: dict[str, Any], named: str
) -> None:
    unlucky(watch(found=lambda: [dataclasses.replace(OWN, **other)]), clock)
    [said] = spoken(caplog)
    assert "under another namespace, with another " in said
    assert named in said


def test_the_most_similar_namespace_is_named(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    near = dataclasses.replace(OWN, revision="r0")
    far = dataclasses.replace(near, layout="layer_first", tenant="b")
    strangers = [dataclasses.replace(OWN, model="x"), dataclasses.replace(OWN, pool="swa")]
    unlucky(watch(found=lambda: [*strangers, far, near]), clock)
    [said] = spoken(caplog)
    assert "'r0'" in said
    assert "layout" not in said
    assert "tenant" not in said


def test_ranks_of_the_same_server_are_no_other_namespace(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Their pages lie there too, and differ in heads, layers and shares of tokens."""
    ranks = [
        told(tp_rank=tp, tp_size=2, pp_rank=pp, pp_size=2, attn_cp_rank=cp, attn_cp_size=2)
        for tp in range(2)
        for pp in range(2)
        for cp in range(2)
    ]
    by = engine(splits=True)
    found = []
    for rank in ranks:
        layers = 3 + rank.pp_rank  # 7 layers on two stages
        of = pool(head_num=1, start_layer=rank.pp_rank * 3, layer_num=layers)
        of.target_layer_num = layers
        found.append(namespace(of, shard=rank, by=by))
    assert len(set(found)) > 1
    unlucky(watch(found=lambda: found[1:], own=found[0]), clock)
    assert ["no beginning in common" in said for said in spoken(caplog)] == [True]
    assert namespace(shard=ONE) not in found


def test_namespaces_are_found_where_pages_are_kept(tmp_path: Path) -> None:
    """On a real disk; the own one and those without pages are left out."""
    config = load_config(
        {
            "storage_backend": "nvme",
            "nvme": {"path": str(tmp_path / "root"), "capacity": "16MiB", "free_floor": 0},
        },
        env={},
    )
    other = dataclasses.replace(OWN, revision="r0")
    empty = dataclasses.replace(OWN, revision="r2")
    for name, pages in ((OWN, 2), (other, 2), (empty, 0)):
        with open_page_store(config, name) as store:
            assert all(store.set(KEYS[:pages], [bytes(4096)] * pages, parent=None))
    assert neighbours(config, OWN) == [other]
    memory = load_config({"storage_backend": "memory"}, env={})
    assert neighbours(memory, OWN) == []


def test_one_warning_only(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    quiet = watch()
    for _ in range(3):
        unlucky(quiet, clock)
        clock.now += 3600
    assert len(spoken(caplog)) == 1


def test_none_after_a_hit(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    lucky = watch()
    lucky.stored(200)
    lucky.read(0)
    lucky.read(1)
    lucky.read(0)
    unlucky(lucky, clock)
    assert spoken(caplog) == []


def test_none_where_a_hit_comes_while_the_cause_is_sought(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    hit = threading.Event()

    def slow(keys: Sequence[str]) -> Sequence[Outcome]:
        assert hit.wait(10)
        return [NEVER_WRITTEN] * len(keys)

    late = watch(slow)
    unlucky(late, clock)
    late.read(1)
    hit.set()
    assert spoken(caplog) == []


def test_nothing_before_enough_pages_and_enough_time(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    quiet = watch()
    clock.now += 3600
    quiet.stored(0)
    quiet.asked(KEYS, 0)
    assert not spoken(caplog), "nothing is stored"
    quiet.stored(99)
    clock.now += 3600
    quiet.asked(KEYS, 0)
    assert not spoken(caplog), "too few"
    again = watch()
    again.stored(200)
    clock.now += 59
    again.asked(KEYS, 0)
    assert not spoken(caplog), "too early"
    quiet.stored(1)
    assert len(spoken(caplog)) == 1


def test_too_few_questions_tell_nothing(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    quiet = watch()
    quiet.stored(200)
    quiet.asked(KEYS[:99], 0)
    clock.now += 61
    quiet.stored(1)
    assert not spoken(caplog)
    quiet.asked(KEYS[:1], 0)
    assert len(spoken(caplog)) == 1


@pytest.mark.parametrize(
    "error", [StorageClosed("closed"), OSError(5, "gone"), RuntimeError("a fault"), ValueError()]
)
@pytest.mark.parametrize("where", ["explain", "neighbours"])
def test_looking_for_the_cause_never_raises(
    clock: Clock, caplog: pytest.LogCaptureFixture, error: Exception, where: str
) -> None:
    """pytest turns an exception of a thread into an error of the test."""

    def fail(*_: Any) -> Any:
        raise error

    unlucky(watch(fail) if where == "explain" else watch(found=fail), clock)
    assert len(spoken(caplog)) == 1


def test_the_caller_does_not_wait_for_the_cause(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    go = threading.Event()
    seen: list[threading.Thread] = []

    def slow(keys: Sequence[str]) -> Sequence[Outcome]:
        seen.append(threading.current_thread())
        assert go.wait(10)
        raise StorageUnavailable("down")

    began = time.perf_counter()
    unlucky(watch(slow), clock)
    assert time.perf_counter() - began < 5
    go.set()
    assert len(spoken(caplog)) == 1
    assert [thread.daemon for thread in seen] == [True]
