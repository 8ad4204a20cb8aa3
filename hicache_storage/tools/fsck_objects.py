"""Looking through pages that are objects: each is read and verified, and wrong ones may go."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from hicache_backends.errors import StorageUnavailable
from hicache_backends.io.select import open_engine
from hicache_backends.objects.lanes import Area
from hicache_backends.objects.trailer import fits
from hicache_backends.outcomes import Outcome, Reason
from hicache_storage.tools.objects import ObjectMedium, ObjectNamespace, later

_BATCH_BYTES = 16 << 20
_EXAMPLES = 5


@dataclass
class ObjectCheck:
    """What was found. `wrong`: keys of pages that fail their checksum; `unnamed`: fingerprints
    without a readable form, whose pages can't be verified; `foreign`: keys that are no page's."""

    root: str
    pages: int = 0
    page_bytes: int = 0
    wrong: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    removed: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong by now."""
        return not self.unnamed and len(self.wrong) == self.removed

    def to_json(self) -> dict[str, Any]:
        """Plain values by name."""
        counted = {"root": self.root, "kind": "objects", "ok": self.ok, "pages": self.pages}
        examples = {name: keys[:_EXAMPLES] for name, keys in self.troubles()}
        numbers = {f"{name}_count": len(keys) for name, keys in self.troubles()}
        return (
            counted | {"page_bytes": self.page_bytes, "removed": self.removed} | examples | numbers
        )

    def troubles(self) -> Iterator[tuple[str, list[str]]]:
        """Each kind of trouble and what has it."""
        yield from (("wrong", self.wrong), ("unnamed", self.unnamed), ("foreign", self.foreign))


def check_objects(
    medium: ObjectMedium, *, repair: bool = False, step: Callable[[], None] = lambda: None
) -> ObjectCheck:
    """Read and verify every page. `repair` removes the wrong ones. `step` is called for each
    namespace. Raises StorageUnavailable, also where the store fails while it is read."""
    report = medium.read()
    check = ObjectCheck(report.name, foreign=list(report.foreign))
    for found in report.namespaces:
        check.pages += len(found.pages)
        check.page_bytes += found.page_bytes
        if found.namespace is None:
            check.unnamed.append(found.fingerprint)
        else:
            check.wrong += _wrong_pages(medium, found, found.namespace.page_bytes)
        step()
    if repair:
        check.removed = medium.remove(check.wrong)
    return check


def _wrong_pages(medium: ObjectMedium, found: ObjectNamespace, page_bytes: int) -> Iterator[str]:
    """Keys of pages that are not what they are called. One that went meanwhile isn't."""
    engine, area = open_engine(), Area(medium.store)
    at_once = max(1, _BATCH_BYTES // page_bytes)
    try:
        for start in range(0, len(found.pages), at_once):
            keys = found.pages[start : start + at_once]
            objects, pages, trailers = area.objects(len(keys), page_bytes)
            outcomes = medium.store.get_into(keys, objects, later())
            yield from _of_another_length(medium, keys, outcomes)
            came = [n for n, outcome in enumerate(outcomes) if outcome.ok]
            digests = [bytes.fromhex(keys[n].rpartition("/")[2]) for n in came]
            sums = engine.checksum(pages[came], b"".join(digests))
            right = fits(trailers[came], digests, page_bytes, sums)
            yield from (keys[n] for n, good in zip(came, right, strict=True) if not good)
    finally:
        area.release()


def _of_another_length(
    medium: ObjectMedium, keys: Sequence[str], outcomes: Sequence[Outcome]
) -> Iterator[str]:
    for key, outcome in zip(keys, outcomes, strict=True):
        if outcome.reason is Reason.CHECKSUM:
            yield key
        elif not outcome.ok and outcome.reason not in (Reason.NEVER_WRITTEN, Reason.BEING_WRITTEN):
            raise StorageUnavailable(f"{medium.store.name}: {key}: {outcome.detail}")
