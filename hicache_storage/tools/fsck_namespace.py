"""One namespace of a registry: its records and its pages, each looked at twice, then mended."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import partial

from hicache_backends.errors import StaleEpoch
from hicache_storage.tools import fsck_kinds as kinds
from hicache_storage.tools.fsck_find import Found, Trouble
from hicache_storage.tools.fsck_pages import Owners, PageCheck, PageFindings, Say
from hicache_storage.tools.lying import NO_LOCATION, NO_STORE, Lying, LyingMedium
from hicache_storage.tools.registry_access import RegistryAccess
from hicache_storage.tools.registry_faults import Fault, faults, forgetting
from hicache_storage.tools.registry_records import Records, read_records
from kvmanager import keys
from kvmanager.control import audit, checks
from kvmanager.control.audit import Place
from kvmanager.control.checks import RECORDS
from kvmanager.control.namespaces import id_of

_TRIES = 3
_MANY = 1000
_KIND_OF = {NO_STORE: kinds.NO_STORE, NO_LOCATION: kinds.NO_LOCATION}
"""By why an entry does not fit; any other reason is that it is stale."""


class NamespaceCheck:
    """`media`: that can be seen. Raises RegistryError and StorageUnavailable."""

    def __init__(
        self, access: RegistryAccess, tag: bytes, media: Sequence[LyingMedium], say: Say
    ) -> None:
        self.tag = tag
        self.announced = 0
        self.records: Records | None = None
        self.pages: list[PageCheck] = []
        self._access = access
        self._media = media
        self._say = say
        self._faults: list[Fault] = []
        self._noted: defaultdict[bytes, list[Found]] = defaultdict(list)  # by medium, or RECORDS

    @property
    def found(self) -> list[Found]:
        """Everything that is wrong, or was."""
        return [each for found in self._noted.values() for each in found]

    @property
    def is_doubtful(self) -> bool:
        """Whether the last look found something that may have been under way."""
        return bool(self._faults) or any(map(_is_doubtful, self.pages))

    @property
    def has_told(self) -> bool:
        """Whether owners were told of entries that do not fit."""
        return any(c.owners.of(at) for c in self.pages for _, at in c.found.stale)

    @property
    def unseen(self) -> list[str]:
        """Media that the registry knows and that there is nothing here to compare with."""
        here = {keys.medium_id(medium.uuid) for medium in self._media}
        known = self.records.known_media if self.records else {}
        return [f"{id_of(self.tag)} on {uuid.hex()}" for m, uuid in known.items() if m not in here]

    def look_at_records(self) -> None:
        """Find what is wrong with them."""
        self._say(f"namespace {id_of(self.tag)}")
        self._faults = list(self._read_faults())

    def confirm_records(self) -> None:
        """Keep what is still so."""
        if self._faults:
            before = {fault.name for fault in self._faults}
            self._faults = [fault for fault in self._read_faults() if fault.name in before]

    def settle_records(self, *, repair: bool) -> None:
        """Mend and note what was found."""
        for fault in self._faults:
            mended = repair and bool(fault.mend)
            for command in fault.mend if mended else ():
                shard = keys.TAGS if command[1] == keys.TAGS else self.tag
                self._access.ask(partial(audit.ask, *command), shard)
            self._note(fault.medium, Trouble(fault.kind, fault.path, 1, fault.detail), mended)
        if self._faults and repair:
            self.records = self._read()
        self._faults = []

    def look_at_pages(self) -> None:
        """Compare both ways, on each medium that is there to compare with."""
        for _ in range(_TRIES):
            try:
                self.pages = list(self._page_checks())
                for check in self.pages:
                    check.look()
                return
            except StaleEpoch:  # cleared meanwhile
                self.records = self._read()
        self.pages = []

    def confirm_pages(self) -> None:
        """Keep what is still so."""
        if not any(map(_is_doubtful, self.pages)):
            return
        self.records = self._read()
        for check in self.pages:
            try:
                check.confirm(_owners(self.records))
            except StaleEpoch:  # all of it is void
                check.found = PageFindings(full=True)

    def settle_pages(self, *, repair: bool, media: bool) -> None:
        """Mend and note what was found. `media`: delete stores of before a clear, too."""
        for check in self.pages:
            path = f"{id_of(self.tag)} on {check.lying.name}"
            self._settle_entries(check, path, repair=repair)
            self._settle_missing(check, path, repair=repair)
            self._settle_cleared(check, repair=media)

    def verify(self) -> None:
        """Entries that owners were told of and have made known again are not mended."""
        for check in self.pages:
            insisted = check.insisted()
            if insisted:
                path = f"{id_of(self.tag)} on {check.lying.name}: {insisted[0][0].hex()}"
                why = "its process has made it known again"
                self._note(check.place.medium, Trouble(kinds.STALE, path, len(insisted), why))

    def count(self, *, repair: bool) -> None:
        """Compare the numbers of pages with the entries, where they seem to differ and nothing
        changes them."""
        for check in self.pages:
            if not (check.found.miscounted or (repair and check.has_mended)):
                continue
            try:
                wrong = self._miscount(check)
            except StaleEpoch:
                continue
            if wrong:
                name, field = b"n" + self.tag, b"k:" + check.place.family
                if repair:
                    change = partial(audit.ask, b"HINCRBY", name, field, b"%d" % wrong)
                    self._access.ask(change, self.tag)
                path = f"{id_of(self.tag)} on {check.lying.name}"
                trouble = Trouble(kinds.COUNTS, path, 1, f"off by {-wrong:+,}")
                self._note(check.place.medium, trouble, repair)

    def keep_result(self) -> None:
        """Have the registry keep what was found, for whoever looks at it later. What earlier checks
        found on media that this one has not looked at stands."""
        records = self.records
        if records is None or records.names.kind == "none":
            return
        now_s = records.names.now_s
        looked = {check.place.medium for check in self.pages if not check.found.full}
        parts = {m: self._part(m, now_s) for m in (RECORDS, *looked, *self._noted)}
        self._access.ask(partial(checks.keep, self.tag, parts, records.media, now_s), self.tag)

    def _part(self, medium: bytes, now_s: int) -> checks.Part:
        found = self._noted.get(medium, [])
        counts: Counter[str] = Counter()
        for each in found:
            counts[each.trouble.kind] += each.trouble.count
        repaired = sum(each.trouble.count for each in found if each.mended)
        return checks.Part(now_s, all(each.mended for each in found), counts, repaired)

    def _note(self, medium: bytes, trouble: Trouble, mended: bool = False) -> None:
        self._noted[medium].append(Found(trouble, mended))

    def _read(self) -> Records:
        listed = partial(audit.ask, b"SISMEMBER", keys.TAGS, self.tag)
        return read_records(self._access, self.tag, listed=self._access.ask(listed, keys.TAGS) == 1)

    def _read_faults(self) -> Iterator[Fault]:
        self.records = self._read()
        lying = [each for medium in self._media for each in medium.found if self._is_own(each)]
        namespace = lying[0].namespace if lying else None
        return faults(self.records, self._here(), namespace)

    def _is_own(self, lying: Lying) -> bool:
        return keys.tag(lying.namespace.fingerprint) == self.tag

    def _here(self) -> list[Lying]:
        """What lies of the namespace on media that can be seen; nothing, on those where the
        registry knows it and nothing is there."""
        records = self.records or self._read()
        listed = set(records.media)
        here = []
        for medium in self._media:
            own = [each for each in medium.found if self._is_own(each)]
            if not own and records.namespace and keys.medium_id(medium.uuid) in listed:
                own = [medium.empty(records.namespace)]
            here += own
        return here

    def _page_checks(self) -> Iterator[PageCheck]:
        records = self.records or self._read()
        if records.names.kind != "none" and records.epoch is None:
            return  # nothing can be found there
        owners = _owners(records)
        for lying in self._here():
            place = Place(self.tag, records.epoch or 0, keys.medium_id(lying.medium))
            yield PageCheck(self._access, place, lying, owners, self._say)

    def _settle_entries(self, check: PageCheck, path: str, *, repair: bool) -> None:
        found = check.found
        for kind, count, page, why in _stale(found):
            self._note(check.place.medium, Trouble(kind, f"{path}: {page}", count, why), repair)
        foreign = [each for bucket in found.foreign.values() for each in bucket]
        if foreign:
            detail = f"bucket {next(iter(found.foreign))}"
            trouble = Trouble(kinds.GARBAGE, path, len(foreign), detail)
            self._note(check.place.medium, trouble, repair)
        if repair:
            check.drop_stale()
            check.purge()

    def _settle_missing(self, check: PageCheck, path: str, *, repair: bool) -> None:
        found = check.found
        missing = sum(found.missing.values())
        if missing:
            sent = check.publish_missing() if repair else 0
            self.announced += sent
            self._note(check.place.medium, Trouble(kinds.MISSING, path, missing), repair)
        lost = check.call_owners() if repair else sum(found.short.values())
        if lost:
            self._note(check.place.medium, Trouble(kinds.UNANNOUNCED, path, lost), repair)

    def _settle_cleared(self, check: PageCheck, *, repair: bool) -> None:
        for store, user in check.lying.stores().items() if check.owners.void else ():
            if store in check.owners.void and not user and store not in check.owners.alive:
                why_kept = check.lying.delete(store) if repair else ""
                for command in forgetting(self.tag, store) if repair and not why_kept else ():
                    self._access.ask(partial(audit.ask, *command), self.tag)
                trouble = Trouble(kinds.CLEARED, check.lying.path(store), 1, why_kept)
                self._note(check.place.medium, trouble, repair and not why_kept)

    def _miscount(self, check: PageCheck) -> int:
        """What is to be added to the number of pages. While stores change it, only a great
        difference tells."""
        kept, sequences = check.kept_count(), self._read().sequences.items
        counted = check.counted()
        if counted is None:
            return 0
        quiet = sequences == self._read().sequences.items and kept == check.kept_count()
        wrong = counted - kept
        return wrong if quiet or abs(wrong) > max(_MANY, counted // 50) else 0


def _stale(found: PageFindings) -> Iterator[tuple[str, int, str, str]]:
    """Kind, number, a page of it and why, for each reason that there is."""
    examples = {why: digest.hex() for (digest, _), why in found.stale.items()}
    for why, count in Counter(found.stale.values()).items():
        yield _KIND_OF.get(why, kinds.STALE), count, examples[why], why


def _owners(records: Records) -> Owners:
    return Owners(records.live_stores, records.void_stores, records.held)


def _is_doubtful(check: PageCheck) -> bool:
    found = check.found
    return bool(found.stale or found.foreign or found.missing or found.unannounced)
