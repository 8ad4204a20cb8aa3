"""What SGLang counts itself, for reports: prompt tokens by source, prefetches, prefill speed.

With `--enable-metrics` its processes count in files of a directory that they share, one kind of
file a process (Prometheus's multiprocess mode). One process of a server reads them all: whoever
holds the lock there. What a release does not count is not reported.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)
_LOCK = "hicache-reports.lock"
_PROMPTS = "sglang:prompt_tokens_total"
_CACHED = "sglang:cached_tokens_total"
_COMPUTED = "sglang:realtime_tokens_total"
_FORWARD = "sglang:forward_execution_seconds_total"
_FOUND = "sglang:storage_prefetch_hit_tokens_total"
_PREFETCHED = "sglang:prefetched_tokens_total"
_UNFULFILLED = "sglang:storage_prefetch_unfulfilled_tokens_total"
_LABEL = {
    _PROMPTS: "",
    _CACHED: "cache_source",
    _COMPUTED: "mode",
    _FORWARD: "category",
    _FOUND: "",
    _PREFETCHED: "",
    _UNFULFILLED: "reason",
}
"""The counters of interest, and the label by which each is told apart."""
_PREFILLS = ("extend", "mixed", "split_prefill", "prefill")
_LOADED_IN_VAIN = (
    "anchor_lost",
    "aux_window_trim",
    "device_overlap",
    "cache_admission_shortfall",
)
_STOPPED = ("deadline",)
_Values = Counter[tuple[str, str]]


class EngineFigures:
    """Counters of a server since this object was made, by the names of `kvmanager.figures`."""

    def __init__(self, page_tokens: int, directory: str | None = None) -> None:
        """`directory`: where SGLang's files are; None: where its environment says."""
        self._page_tokens = max(1, page_tokens)
        self._directory = directory or os.environ.get("PROMETHEUS_MULTIPROC_DIR", "")
        self._lock = -1
        self._before: dict[str, int] = {}
        _in_children(weakref.WeakMethod(self._let_go))
        self._begin()

    def __call__(self) -> dict[str, int]:
        """What was counted; nothing where another process of the server tells it."""
        if not self._begin():
            return {}
        try:
            now = self._figures()
        except Exception as error:  # whatever a release of SGLang or of prometheus_client does
            _log.debug("SGLang's counters could not be read: %s", error)
            return {}
        return {name: n - self._before.get(name, 0) for name, n in now.items()}

    def close(self) -> None:
        """Let another process tell from now on."""
        self._let_go()
        self._directory = ""

    def _let_go(self) -> None:
        """In a child that was forked, too: its copy would hold the lock when the parent is gone."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _begin(self) -> bool:
        """Whether this process is the one that tells; what others told before is not told again."""
        if self._lock >= 0 or not self._directory:
            return self._lock >= 0
        descriptor = -1
        try:
            place = Path(self._directory, _LOCK)
            descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._before = self._figures()
        except Exception as error:  # held, or nothing that can be read
            _log.debug("SGLang's counters are not told from here: %s", error)
            if descriptor >= 0:
                os.close(descriptor)
            return False
        self._lock = descriptor
        return True

    def _figures(self) -> dict[str, int]:
        values = self._read()
        return {**_tokens(values), **_prefill(values), **self._prefetches(values)}

    def _prefetches(self, values: _Values) -> dict[str, int]:
        """In pages, of all ranks."""
        loaded = values[_PREFETCHED, ""]
        if not loaded and not values[_FOUND, ""]:
            return {}
        missed = {label: n for (name, label), n in values.items() if name == _UNFULFILLED}
        wasted = sum(missed.get(reason, 0) for reason in _LOADED_IN_VAIN)
        cancelled = sum(missed.get(reason, 0) for reason in _STOPPED)
        tokens = {
            "prefetch.pages": values[_FOUND, ""] or loaded,  # older releases count the latter alone
            "prefetch.used": max(0, loaded - wasted),
            "prefetch.wasted": wasted,
            "prefetch.cancelled": cancelled,
            "prefetch.unfulfilled": sum(missed.values()) - wasted - cancelled,
        }
        return {name: int(n) // self._page_tokens for name, n in tokens.items()}

    def _read(self) -> _Values:
        """The counters of all processes, those that are gone included."""
        from prometheus_client.mmap_dict import MmapedDict

        read: Callable[[str], Any] = MmapedDict.read_all_values_from_file
        found: _Values = Counter()
        for file in Path(self._directory).glob("counter_*.db"):
            for key, value, *_ in read(str(file)):
                for name, label in _of_interest(key):
                    found[name, label] += value
        return found


def _in_children(call: weakref.WeakMethod[Callable[[], None]]) -> None:
    """Make this call in each process that is forked from this one."""

    def make() -> None:
        if there := call():
            there()

    os.register_at_fork(after_in_child=make)


def _of_interest(key: str) -> Iterator[tuple[str, str]]:
    if '"sglang:' not in key:
        return
    _, name, labels, *_ = json.loads(key)
    label = _LABEL.get(name)
    if label is not None:
        yield name, str(labels.get(label, ""))


def _tokens(values: _Values) -> dict[str, int]:
    """Nothing of a release that does not tell cached tokens apart."""
    cached = {label: n for (name, label), n in values.items() if name == _CACHED}
    if cached.get("") or cached.get("total"):
        return {}
    stored = sum(n for source, n in cached.items() if source.startswith("storage"))
    computed = values[_PROMPTS, ""] - sum(cached.values())
    return {
        "tokens.l1": int(cached.get("device", 0)),
        "tokens.l2": int(cached.get("host", 0)),
        "tokens.l3": int(stored),
        "tokens.recomputed": max(0, int(computed)),
    }


def _prefill(values: _Values) -> dict[str, int]:
    """Nothing where SGLang does not time its passes."""
    seconds = sum(
        n for (name, label), n in values.items() if name == _FORWARD and label in _PREFILLS
    )
    tokens = values[_COMPUTED, "prefill_compute"]
    if not seconds or not tokens:
        return {}
    return {"prefill.tokens": int(tokens), "prefill.us": int(seconds * 1e6)}
