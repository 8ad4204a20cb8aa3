"""A registry against the media that it tells of, both ways, and its repair.

The records beside the pages come first, since pages are found by them. Each of the two parts looks
twice: what the first look finds counts if it is still so when whatever was under way must have
ended. Owners that are alive are told, and mend what is theirs; what has no owner is mended here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hicache_storage.tools.fsck_find import Found, Trouble, by_kind
from hicache_storage.tools.fsck_kinds import KINDS, UNKNOWN_NAMESPACES
from hicache_storage.tools.fsck_namespace import NamespaceCheck
from hicache_storage.tools.fsck_pages import Say
from hicache_storage.tools.lying import LyingMedium
from hicache_storage.tools.registry_access import RegistryAccess
from kvmanager import keys
from kvmanager.control import audit

_MAX_NAMESPACES = 1 << 16
_BEATS = 3  # an owner hears at the next, looks into its pages, and tells at the one after
_TICK_S = 0.25


@dataclass(frozen=True)
class RegistryOrders:
    """`settle_s`: between two looks. `repair`: mend the registry; `media`: delete stores of before
    a clear from the media, too."""

    settle_s: float
    repair: bool = False
    media: bool = False


@dataclass
class RegistryCheck:
    """What is in a registry, and what is wrong. `entries`: compared with media; `unseen`: media
    that it knows and that were not there to compare with; `unjoined`: stores in use by processes
    that it does not hear of; neither of these is wrong. `full`: there is more than one run looks
    at."""

    registry: str
    namespaces: int = 0
    entries: int = 0
    announced: int = 0
    found: list[Found] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    unjoined: list[str] = field(default_factory=list)
    full: bool = False

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong any more."""
        return not self.full and all(found.mended for found in self.found)

    def by_kind(self) -> list[dict[str, Any]]:
        """Each kind of trouble there is: how often, how often mended, a few examples."""
        return by_kind(self.found, KINDS, _shown)

    def to_json(self) -> dict[str, Any]:
        """Plain values by name; the troubles counted by kind, with examples."""
        plain = {name: value for name, value in vars(self).items() if name != "found"}
        return {**plain, "ok": self.ok, "troubles": self.by_kind()}


def check_registry(
    access: RegistryAccess, media: Sequence[LyingMedium], orders: RegistryOrders, say: Say
) -> RegistryCheck:
    """Compare a registry with what lies on media; `say` is told what is being done. Raises
    RegistryError, StorageUnavailable."""
    lying = [each for medium in media for each in medium.found]
    tags = dict.fromkeys(keys.tag(each.namespace.fingerprint) for each in lying)
    found: list[Found] = []
    for tag in _listed(access, found, repair=orders.repair):
        tags.setdefault(tag)
    checks = [NamespaceCheck(access, tag, media, say) for tag in tags]

    def each(act: Callable[[NamespaceCheck], None]) -> None:
        for check in checks:
            act(check)

    each(NamespaceCheck.look_at_records)
    _wait(checks, orders.settle_s, say)
    each(NamespaceCheck.confirm_records)
    each(lambda check: check.settle_records(repair=orders.repair))
    each(NamespaceCheck.look_at_pages)
    _wait(checks, orders.settle_s, say)
    each(NamespaceCheck.confirm_pages)
    each(lambda check: check.settle_pages(repair=orders.repair, media=orders.media))
    each(lambda check: check.count(repair=orders.repair))
    if orders.repair and any(check.has_told for check in checks):
        _pause(_BEATS * access.options.heartbeat_ms / 1000, "waiting for owners", say)
        each(NamespaceCheck.verify)
    each(NamespaceCheck.keep_result)
    return _summed(access, checks, found)


def _summed(
    access: RegistryAccess, checks: Iterable[NamespaceCheck], found: list[Found]
) -> RegistryCheck:
    result = RegistryCheck(access.shown, found=found)
    for check in checks:
        result.namespaces += 1
        result.announced += check.announced
        result.found += check.found
        result.unseen += check.unseen
        for pages in check.pages:
            result.entries += pages.found.entries
            result.unjoined += map(pages.lying.path, sorted(pages.found.unjoined))
            result.full |= pages.found.full
    return result


def _listed(access: RegistryAccess, found: list[Found], *, repair: bool) -> list[bytes]:
    """The tags of all namespaces; what else is in the list is noted."""
    tags: list[bytes] = []
    cursor = b"0"
    while len(tags) < _MAX_NAMESPACES:
        part = access.ask(partial(audit.part, keys.TAGS, cursor), keys.TAGS)
        if part.kind not in ("set", "none"):
            if repair:
                access.ask(partial(audit.ask, b"UNLINK", keys.TAGS), keys.TAGS)
            found.append(Found(_no_tag(f"g is a {part.kind}"), repair))
            break
        for member in part.found:
            if keys.is_tag(member):
                tags.append(member)
            else:
                if repair:
                    access.ask(partial(audit.ask, b"SREM", keys.TAGS, member), keys.TAGS)
                found.append(Found(_no_tag(repr(member[:64])), repair))
        cursor = part.after
        if cursor == b"0":
            break
    return tags


def _no_tag(path: str) -> Trouble:
    return Trouble(UNKNOWN_NAMESPACES, path)


def _wait(checks: Iterable[NamespaceCheck], seconds: float, say: Say) -> None:
    if any(check.is_doubtful for check in checks):
        _pause(seconds, "waiting for what is under way", say)


def _pause(seconds: float, why: str, say: Say) -> None:
    until_s = time.monotonic() + seconds
    while (left_s := until_s - time.monotonic()) > 0:
        say(f"{why}: {left_s:.0f} s")
        time.sleep(min(left_s, _TICK_S))


def _shown(trouble: Trouble) -> str:
    return f"{trouble.path}: {trouble.detail}" if trouble.detail else trouble.path
