"""`hicache-storage fsck`, which is `kvmanager fsck` as well: look media and the registry through,
mend what may be mended, make the registry anew."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hicache_backends.errors import ConfigError
from hicache_storage.cli.config import ConfigFile
from hicache_storage.cli.namespaces import seconds
from hicache_storage.cli.output import AsJson, print_json

if TYPE_CHECKING:
    from hicache_backends.identity import Namespace
    from hicache_storage.tools.fsck import Known, Orders, RootCheck
    from hicache_storage.tools.fsck_objects import ObjectCheck
    from hicache_storage.tools.fsck_registry import RegistryCheck
    from hicache_storage.tools.lying import LyingMedium
    from hicache_storage.tools.registry_access import RegistryAccess
    from kvmanager.options import RegistryOptions


def fsck(
    directories: Annotated[
        list[str] | None,  # a Path would be looked at by typer, which may wait for ever
        typer.Argument(metavar="[PATH]...", help="Directories; else those of the configuration."),
    ] = None,
    config: ConfigFile = None,
    registry: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Compare with this registry; else with the configuration's, if any."
        ),
    ] = None,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Delete unfinished files and halves of segments, and empty damaged records, in "
            "stores that nobody uses; mend the registry.",
        ),
    ] = False,
    rebuild: Annotated[
        bool,
        typer.Option(
            "--rebuild", help="Only make the registry anew from what lies in the directories."
        ),
    ] = False,
    delete_left: Annotated[
        bool, typer.Option("--delete-left", help="Delete stores whose process is gone.")
    ] = False,
    idle: Annotated[
        str, typer.Option(help="With --delete-left: only those unused for so long: 30m, 12h, 7d.")
    ] = "1h",
    settle_ms: Annotated[
        int | None,
        typer.Option(
            min=0, help="Wait so long before a second look; else for what may be under way."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Look through what lies in the directories, compare it with the registry both ways, and say
    what is wrong; 1 if that is anything.

    A store that is in use is never touched: its process is told, and mends it.
    """
    from hicache_storage.tools.fsck import Orders

    orders = Orders(repair, delete_left, seconds(idle, "--idle"))
    run = _Run(directories, config, registry, settle_ms)
    if rebuild:
        if repair or delete_left:
            raise ConfigError("--rebuild changes nothing but the registry: leave the others out")
        run.rebuild(as_json=as_json)
    elif not run.check(orders, as_json=as_json):
        raise typer.Exit(1)


class _Run:
    """One command: its media and its registry. Raises ConfigError."""

    def __init__(
        self,
        directories: list[str] | None,
        config: Path | None,
        registry: str | None,
        settle_ms: int | None,
    ) -> None:
        from hicache_storage.sglang.settings import file_config
        from hicache_storage.tools.objects import is_objects
        from kvmanager.options import RegistryOptions

        self._config = None if directories and config is None else file_config(config)
        loaded = self._config
        self._objects = loaded if loaded and not directories and is_objects(loaded) else None
        self._directories = list(directories or ())
        self._endpoint = registry
        if registry is None and loaded is not None and loaded.global_kvmanager.enabled:
            self._endpoint = loaded.registry_endpoint()
        self._options: RegistryOptions = (
            loaded.registry_options() if loaded is not None else RegistryOptions()
        )
        self._settle_s = self._usual_settle_s() if settle_ms is None else settle_ms / 1000

    def check(self, orders: Orders, *, as_json: bool) -> bool:
        """Whether nothing is wrong any more; what is, is shown."""
        from hicache_storage.cli.fsck_show import show_all

        if self._objects and orders.delete_left:
            raise ConfigError("--delete-left: objects belong to no process; see `clear`")
        with contextlib.ExitStack() as stack:
            access = stack.enter_context(self._access()) if self._is_awake() else None
            checks, media = stack.enter_context(self._media(orders, access))
            found = self._compared(access, media, orders) if access else None
        ok = all(check.ok for check in checks) and (found is None or found.ok)
        if as_json:
            report = {"ok": ok, "roots": [check.to_json() for check in checks]}
            print_json(report if found is None else {**report, "registry": found.to_json()})
        else:
            show_all(checks, found)
        return ok

    def rebuild(self, *, as_json: bool) -> None:
        """Make the registry anew."""
        from hicache_storage.cli.fsck_show import show_rebuilt
        from hicache_storage.cli.progress import announced
        from hicache_storage.tools.rebuild import rebuild

        if self._endpoint is None:
            raise ConfigError("--rebuild needs a registry: name it with --registry or --config")
        if not self._is_awake():
            raise ConfigError(
                f"the registry {self._endpoint} ended with its last process: those that start "
                "announce their pages, and find those of others, by themselves"
            )
        with self._seen() as media, announced() as say:
            lying = [each for medium in media for each in medium.found]
            done = rebuild(self._endpoint, self._options, lying, self._settle_s, say)
        print_json({"ok": True, "rebuilt": done.to_json()}) if as_json else show_rebuilt(done)

    def _is_awake(self) -> bool:
        """Whether there is a registry; an embedded one is only while processes use it."""
        from hicache_storage.tools.registry_access import is_asleep

        return self._endpoint is not None and not is_asleep(self._endpoint, self._options)

    def _access(self) -> RegistryAccess:
        from hicache_storage.tools.registry_access import RegistryAccess

        return RegistryAccess(self._endpoint or "", self._options)

    @contextlib.contextmanager
    def _media(
        self, orders: Orders, access: RegistryAccess | None
    ) -> Iterator[tuple[list[RootCheck | ObjectCheck], list[LyingMedium]]]:
        """The reports on them, and what lies there, which needs them open."""
        from hicache_storage.tools.fsck_objects import check_objects

        if self._objects is None:
            known = self._known(access)
            checks = [_checked(path, orders, known) for path in self._paths()]
            with self._seen() as media:
                yield [*checks], media
            return
        from hicache_storage.tools.lying_objects import lying_objects
        from hicache_storage.tools.objects import object_medium

        with object_medium(self._objects) as medium:
            check = check_objects(medium, repair=orders.repair)
            there = lying_objects(medium) if access else None
            yield [check], [there] if there else []

    @contextlib.contextmanager
    def _seen(self) -> Iterator[list[LyingMedium]]:
        from hicache_storage.tools.lying import lying_in
        from hicache_storage.tools.lying_objects import lying_objects
        from hicache_storage.tools.objects import object_medium
        from hicache_storage.tools.roots import open_root

        if self._objects is None:
            found = [lying_in(open_root(path)) for path in self._paths()]
            yield [medium for medium in found if medium]
            return
        with object_medium(self._objects) as medium:
            there = lying_objects(medium)
            yield [there] if there else []

    def _compared(
        self, access: RegistryAccess, media: list[LyingMedium], orders: Orders
    ) -> RegistryCheck:
        from hicache_storage.cli.progress import announced
        from hicache_storage.tools.fsck_registry import RegistryOrders, check_registry

        with announced() as say:
            wanted = RegistryOrders(self._settle_s, orders.repair, orders.repair)
            return check_registry(access, media, wanted, say)

    def _known(self, access: RegistryAccess | None) -> Known:
        """Who knows the namespace of a fingerprint, whose readable form is lost: the configuration
        or the registry."""
        from kvmanager import keys
        from kvmanager.control import namespaces

        def known(fingerprint: str) -> Namespace | None:
            own = self._config.own_namespace() if self._config else None
            if own is not None and own.fingerprint.hex() == fingerprint:
                return own
            if access is None:
                return None
            tag = keys.tag(bytes.fromhex(fingerprint))
            record = access.ask(lambda: namespaces.describe(tag), tag)
            return record.namespace if record else None

        return known

    def _paths(self) -> list[str]:
        if self._directories:
            return self._directories
        from hicache_storage.tools.clearing import roots_of

        if self._config and (found := roots_of(self._config)):
            return found
        raise ConfigError(
            "no directory to look through: name one, or a configuration with --config"
        )

    def _usual_settle_s(self) -> float:
        """What was claimed is published by then, and a process that is gone has gone."""
        from hicache_storage.options import StoreOptions

        store = self._config.store_options() if self._config else StoreOptions()
        claim_ms = store.timeout_ms + self._options.claim_grace_ms
        return max(self._options.ttl_ms, claim_ms) / 1000


def _checked(path: str, orders: Orders, known: Known) -> RootCheck:
    from hicache_storage.cli.progress import counted
    from hicache_storage.tools.fsck import check_root, stores_in
    from hicache_storage.tools.roots import open_root

    root = open_root(path)
    stores = stores_in(root)
    with counted(path, len(stores)) as step:
        return check_root(root, stores, orders, step, known)
