"""A dry run: everything is initialised for real, and one page goes through it and out again."""

from __future__ import annotations

import contextlib
import dataclasses
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

from hicache_backends.deadline import Deadline
from hicache_backends.errors import (
    HiCacheError,
    IdentityMismatch,
    RegistryError,
    StorageUnavailable,
)
from hicache_backends.identity import Namespace, page_digests
from hicache_backends.sizes import format_size
from hicache_storage.config import Config
from hicache_storage.config.backend_sections import SegmentSection, ThreeFsSection
from hicache_storage.config.model import redacted
from hicache_storage.opening import open_page_store
from hicache_storage.page_store import PageStore
from hicache_storage.tools.check_place import notes, place, registry_reach
from hicache_storage.tools.clearing import prune, roots_of
from hicache_storage.tools.media import read_medium
from hicache_storage.tools.objects import is_objects, object_medium
from hicache_storage.tools.remedies import remedy
from kvmanager.connect import check_endpoint

NAMES = {
    "nvme": "NVMe",
    "3fs": "3FS",
    "mooncake": "Mooncake",
    "fsspec": "fsspec",
    "memory": "Memory",
}
_PROBE_MODEL = "hicache-check"
_PROBE_PAGE_BYTES = 64 << 10


@dataclass(frozen=True)
class Step:
    """One part that was initialised."""

    name: str
    detail: str


@dataclass
class Report:
    """What a dry run found. `error` and `remedy` are empty if all is well."""

    backend: str
    steps: list[Step] = field(default_factory=list)
    stats: dict[str, int | float | str] = field(default_factory=dict)
    error: str = ""
    remedy: str = ""

    @property
    def ok(self) -> bool:
        return not self.error


def dry_run(config: Config) -> Report:
    """Initialise backend and registry and pass one page through them. Never raises a
    `HiCacheError`: it becomes the report's error, with a remedy."""
    report = Report(config.backend)
    part = "KVManager"
    try:
        _check_endpoint(config)
        part = "storage backend"
        _initialise(config, report)
    except HiCacheError as error:
        part = "KVManager" if isinstance(error, RegistryError) else part
        report.error = f"{part} init failed: {error}"
        report.remedy = remedy(error)
    return report


def _initialise(config: Config, report: Report) -> None:
    """Every step, with its place in the report. Raises HiCacheError."""
    config, evicting = _harmless(config)
    store = _opened(config)
    try:
        with store:
            name = NAMES.get(config.backend, config.backend)
            if failed := store.storage.stats().get("failed_roots"):
                raise StorageUnavailable(str(failed))  # a server would go on without them
            report.steps.append(Step(f"{name} backend connected", place(config, store)))
            report.steps += [Step(kind, text) for kind, text in notes(config, store)]
            report.steps += [Step("warning", text) for text in evicting]
            report.steps.append(_registry_step(config, store))
            report.steps.append(_self_test(store))
            report.stats = store.stats()
    except HiCacheError:
        with contextlib.suppress(HiCacheError):
            _leave_no_trace(config)
        raise
    _leave_no_trace(config)
    report.steps.append(Step("HiCache initialized", ""))


def _harmless(config: Config) -> tuple[Config, list[str]]:
    """The configuration with the limits that its directories have already, so that a look changes
    none and evicts nothing; and what the configured ones would do."""
    section = config.section
    if not isinstance(section, SegmentSection):
        return config, []
    try:
        reports = [read_medium(root) for root in roots_of(config)]
    except HiCacheError:
        reports = []  # opening it says more
    page_bytes = probe_namespace(config).page_bytes
    if not reports or (section.capacity or page_bytes + 1) <= page_bytes:
        return config, []
    evicting = []
    for report in reports:
        surplus = report.used_bytes - (section.capacity or report.used_bytes)
        if surplus > 0:
            evicting.append(
                f"{report.root} holds {format_size(report.used_bytes)}: a start with a capacity of "
                f"{format_size(section.capacity or 0)} makes room by deleting "
                f"{format_size(surplus)} of it"
            )
    field = "three_fs" if isinstance(section, ThreeFsSection) else "nvme"
    # a segment of one page, so that no other page has to go for it
    kept = section.model_copy(update={"capacity": None, "free_floor": None, "segment_bytes": 1})
    return config.model_copy(update={field: kept}), evicting


def _opened(config: Config) -> PageStore:
    """The store for the probe. Raises HiCacheError."""
    probe = probe_namespace(config)
    try:
        return open_page_store(config, probe, server="hicache-check")
    except IdentityMismatch:
        if not is_objects(config):
            raise
    # another check that ended right now took the probe's namespace away
    return open_page_store(config, probe, server="hicache-check")


def _check_endpoint(config: Config) -> None:
    """Raises ConfigError for an endpoint that cannot be one."""
    if config.global_kvmanager.enabled:
        check_endpoint(config.registry_endpoint())


def _leave_no_trace(config: Config) -> None:
    """Delete what a namespace of the check's own has left on the media. Objects keep the medium's
    name, which a server may have read by now."""
    probe = probe_namespace(config)
    if probe == config.own_namespace():
        return
    if is_objects(config):
        with object_medium(config) as medium:
            medium.remove_namespace(probe.fingerprint.hex(), ())
    else:
        for root in roots_of(config):
            prune(root, lambda found: found.namespace == probe)


def probe_namespace(config: Config) -> Namespace:
    """The configured namespace where the identity is complete, else one of the check's own, with
    pages of the configured size. Raises ConfigError where the identity cannot be read.

    On 3FS always one of the check's own: it would take over stores that a server looks for which
    starts at the same time.
    """
    own = config.own_namespace() or Namespace(
        _PROBE_MODEL,
        "1",
        "uint8",
        "probe",
        config.section.page_size or 64,
        config.identity.page_bytes or _PROBE_PAGE_BYTES,
        tenant=config.global_kvmanager.namespace,
    )
    return dataclasses.replace(own, salt=_PROBE_MODEL) if config.backend == "3fs" else own


def _registry_step(config: Config, store: PageStore) -> Step:
    """Ask the registry one question. Raises RegistryError."""
    if store.registry is None:
        asked = store.storage.capabilities.keyed
        own = "processes find only their own pages"
        return Step("KVManager off", "the store is asked what it holds" if asked else own)
    manager = config.global_kvmanager
    deadline = Deadline.after_ms(manager.connect_timeout_ms + manager.timeout_ms)
    while True:  # the session connects in the background
        try:
            store.registry.lookup([b"\0" * 16], store.storage.media, deadline)
            reached = f"{redacted(manager.endpoint)}{registry_reach(config)}"
            return Step("KVManager connected", reached)
        except RegistryError:
            if deadline.passed:
                raise
            time.sleep(0.02)


def _self_test(store: PageStore) -> Step:
    """Set, find, read, compare and remove one page. Raises StorageUnavailable."""
    if store.mode != "read_write":
        return Step("self-test skipped", f"mode is {store.mode}")
    stats = store.storage.stats()
    capacity, used = (int(stats.get(name, 0)) for name in ("capacity_bytes", "used_bytes"))
    if capacity and capacity - used < 2 * store.namespace.page_bytes:
        return Step("self-test skipped", "the capacity is used up: a page would push out others")
    key = f"hicache-check-{uuid.uuid4().hex}"
    page = (uuid.uuid4().bytes * (store.namespace.page_bytes // 16 + 1))[
        : store.namespace.page_bytes
    ]
    back = bytearray(len(page))
    began = time.monotonic()
    try:
        for step, outcome in _steps(store, key, page, back):
            if outcome:
                raise StorageUnavailable(f"the self-test failed at {step}: {outcome}")
    finally:
        store.storage.remove(page_digests(store.namespace.fingerprint, [key]))
    took = (time.monotonic() - began) * 1000
    size = format_size(len(page))
    own = ", not under identity, which is incomplete" * (store.namespace.model == _PROBE_MODEL)
    return Step("self-test passed", f"set, exists, get of a page of {size} in {took:.1f} ms{own}")


def _steps(store: PageStore, key: str, page: bytes, back: bytearray) -> Iterator[tuple[str, str]]:
    """Each step's name and what went wrong in it, "" if nothing did."""
    stored = store.set([key], [page], parent=None)[0]
    yield "set", "" if stored.ok else f"{stored.reason and stored.reason.value} {stored.detail}"
    yield "exists", "" if store.exists([key]) == 1 else "a page just stored is not found"
    read = store.get([key], [back])[0]
    yield "get", "" if read.ok else f"{read.reason and read.reason.value} {read.detail}"
    yield "compare", "" if bytes(back) == page else "the bytes read are not those written"
