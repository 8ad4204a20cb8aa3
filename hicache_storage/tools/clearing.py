"""Taking pages away by namespace: on the media of this machine, as objects, in the registry."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hicache_backends.deadline import Deadline
from hicache_backends.identity import Namespace
from hicache_storage.config import Config
from hicache_storage.tools.fsck_find import foreign_entries
from hicache_storage.tools.media import NamespaceReport, read_medium
from hicache_storage.tools.objects import is_objects, object_medium, read_objects
from hicache_storage.tools.roots import Root, explained, is_root, open_root

MIN_PREFIX = 8
Wanted = Callable[[NamespaceReport], bool]
Chosen = Callable[[str, Namespace | None], bool]
"""Of a fingerprint and its namespace."""


@dataclass(frozen=True)
class Removed:
    """What became of one store: `removed`, or why not."""

    root: str
    fingerprint: str
    store: str
    pages: int
    file_bytes: int
    removed: bool
    why_not: str = ""


def prune(root: str, wanted: Wanted, *, idle_s: float = 0, dry_run: bool = False) -> list[Removed]:
    """Delete the stores of the wanted namespaces that nobody has open and that were not used for
    `idle_s` seconds. With `dry_run` nothing is deleted, only told. Raises as `read_medium`."""
    results = []
    opened = open_root(root)
    for namespace in read_medium(root).namespaces:
        if not wanted(namespace):
            continue
        for store in namespace.stores:
            why_not = ""
            if store.in_use_by:
                why_not = f"in use by {store.in_use_by}"
            elif store.idle_s < idle_s:
                why_not = f"used {store.idle_s:.0f} s ago"
            elif not dry_run:
                why_not = delete_store(opened, store.path)
            results.append(
                Removed(
                    root,
                    namespace.fingerprint,
                    store.store,
                    store.pages,
                    store.file_bytes,
                    removed=not why_not,
                    why_not=why_not,
                )
            )
    return results


def selected(tenant: str | None = None, namespace: str | None = None) -> Chosen:
    """Whether a fingerprint and its namespace are of the tenant, and are the one that `namespace`
    names: a fingerprint's first digits, or a model."""

    def wanted(fingerprint: str, known: Namespace | None) -> bool:
        if tenant is not None and (known is None or known.tenant != tenant):
            return False
        if namespace is None:
            return True
        by_prefix = len(namespace) >= MIN_PREFIX and fingerprint.startswith(namespace.lower())
        return by_prefix or (known is not None and known.model == namespace)

    return wanted


def roots_of(config: Config) -> list[str]:
    """The directories of the configured backend that are media already. Raises ConfigError where
    none is configured, StorageUnavailable where one does not answer."""
    config.storage_options()  # says what is missing
    return [root for root in config.roots() if is_root(root)]


def clear_objects(config: Config, wanted: Chosen, *, dry_run: bool = False) -> list[Removed]:
    """Remove the objects of the wanted namespaces, whoever uses them: those that read one miss it.
    Nothing else is touched, and where no objects are kept nothing is. Raises ConfigError,
    MissingExtra, StorageUnavailable."""
    if not is_objects(config):
        return []
    results = []
    with object_medium(config) as medium:
        for found in medium.read().namespaces:
            if not wanted(found.fingerprint, found.namespace):
                continue
            pages = len(found.pages)
            if not dry_run:
                medium.remove_namespace(found.fingerprint, found.pages)
            results.append(
                Removed(medium.store.name, found.fingerprint, "", pages, found.page_bytes, True)
            )
    return results


def namespaces_of(config: Config, roots: Iterable[str]) -> list[Namespace]:
    """Every namespace that this machine knows of: on its media, and the configuration's own."""
    known = [each.namespace for root in roots for each in read_medium(root).namespaces]
    if is_objects(config):
        known += [each.namespace for each in read_objects(config).namespaces]
    known.append(config.own_namespace())
    return list({each.fingerprint: each for each in known if each is not None}.values())


def raise_epochs(config: Config, namespaces: Sequence[Namespace]) -> dict[str, int]:
    """Void every entry of these namespaces in the registry; their owners drop the pages at their
    next heartbeat. The new epochs by fingerprint. Raises RegistryError."""
    from kvmanager.connect import connect_registry
    from kvmanager.model import Member

    options = config.registry_options()
    visitor = Member(os.urandom(16), "", "", store=b"", medium=b"")
    epochs = {}
    for namespace in namespaces:
        registry = connect_registry(config.registry_endpoint(), namespace, visitor, options=options)
        try:
            deadline = Deadline.after_ms(options.connect_timeout_ms + options.timeout_ms)
            epochs[namespace.fingerprint.hex()] = registry.clear_namespace(deadline)
        finally:
            registry.close()
    return epochs


def delete_store(root: Root, path: str) -> str:
    """Delete one store if it is still nobody's, and its namespace with the last store; "" or why
    it is still there, as it is where something foreign lies in it. Raises StorageUnavailable."""
    with explained(path, "deleted"):
        if foreign := root.run(lambda: foreign_entries(path)):
            return f"{Path(foreign[0]).name} lies there, which is no part of a store"
        with root.taken(path) as why_not:
            return why_not or root.delete(path)
