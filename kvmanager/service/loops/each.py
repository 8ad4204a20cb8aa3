"""One after another, so that what goes wrong with one of them does not stop the others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from hicache_backends.errors import RegistryUnavailable
from kvmanager.control.leases import LeaseLost

A = TypeVar("A")


async def each(things: Iterable[A], step: Callable[[A], Awaitable[None]]) -> None:
    """Do it for all of them; where another service has the lease by now, it does it. Raises what
    first went wrong, rather than that a shard does not answer, once all have had their turn."""
    failure: Exception | None = None
    for thing in things:
        try:
            await step(thing)
        except LeaseLost:
            continue
        except Exception as error:  # of any kind: it is raised below
            if failure is None or isinstance(failure, RegistryUnavailable):
                failure = error
    if failure is not None:
        raise failure
