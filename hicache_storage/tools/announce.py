"""Making the pages of a store that nobody uses known, as its process would."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hicache_backends.errors import RegistryRefused, RegistryUnavailable
from hicache_backends.identity import Namespace
from hicache_backends.storage import PageEntry
from kvmanager.connect import connect_registry
from kvmanager.model import TOOL, Member, Orders, State
from kvmanager.options import RegistryOptions

_PATIENCE_S = 30.0
_POLL_S = 0.02


@dataclass(frozen=True)
class Announced:
    """How many pages were sent. `cleared`: none, since they are from before a clear."""

    pages: int
    cleared: bool = False


def announce(
    endpoint: str,
    options: RegistryOptions,
    namespace: Namespace,
    store: bytes,
    medium: bytes,
    pages: Callable[[], Iterator[PageEntry]],
) -> Announced:
    """Register the namespace, the medium and the store, publish the pages at the options' rate,
    and leave again; of a page that is known on the medium already nothing changes.

    Raises RegistryError, also where nothing got on for half a minute; what `pages` raises ends the
    announcement as if there were no more of them, and is raised.
    """
    source = _Counted(pages)
    member = Member(os.urandom(16), socket.gethostname(), TOOL, store, medium)
    cleared = threading.Event()

    def obey(orders: Orders) -> None:
        if orders.clear:
            cleared.set()
            raise RegistryRefused("these pages are from before a clear")

    session = connect_registry(endpoint, namespace, member, entries=source, options=options)
    try:
        session.start(obey)
        _await(lambda: session.state is State.UP or cleared.is_set(), source)
    finally:
        session.close()
    if source.failure is not None:
        raise source.failure
    return Announced(source.told, cleared.is_set())


class _Counted:
    """A source of pages that counts them, and keeps what it raised."""

    def __init__(self, pages: Callable[[], Iterator[PageEntry]]) -> None:
        self.told = 0
        self.failure: Exception | None = None
        self._pages = pages

    def __call__(self) -> Iterator[PageEntry]:
        self.told = 0
        try:
            for page in self._pages():
                self.told += 1
                yield page
        except Exception as error:  # raised where it is waited for
            self.failure = error


def _await(done: Callable[[], bool], source: _Counted) -> None:
    told, since_s = -1, time.monotonic()
    while not done() and source.failure is None:
        if source.told != told:
            told, since_s = source.told, time.monotonic()
        elif time.monotonic() - since_s > _PATIENCE_S:
            raise RegistryUnavailable("the registry takes no announcement")
        time.sleep(_POLL_S)
