"""Steps of the service's loops, without a service around them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kvmanager import keys
from kvmanager.control import leases
from kvmanager.service.access import Access
from kvmanager.service.backing import Backing
from kvmanager.service.control.base import Control
from kvmanager.service.loops.loop import LoopOptions, Task, Worker
from kvmanager.service.loops.sweeping import Sweeping
from tests.kvmanager.deployments import Deployment
from tests.kvmanager.members import NAMESPACE
from tests.kvmanager.servers import Server

TAG = keys.tag(NAMESPACE.fingerprint)


def run_step(server: Server | Deployment, make: Callable[[Worker], Task], **options: float) -> None:
    async def once() -> None:
        backing = Backing(server.url)
        await backing.open()
        try:
            await make(Worker(Control(backing, Access()), LoopOptions(**options))).step()
        finally:
            await backing.close()

    asyncio.run(once())


def sweep_all(server: Server) -> None:
    """As if everything had been left a week ago."""
    with server.client() as client:
        client.delete(leases.sweep_key(TAG))
    run_step(server, lambda worker: Sweeping(worker, -1000, -1000, -1000))
