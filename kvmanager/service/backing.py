"""The Redis behind the service, shared by all its requests: one server, or the shards of a
Cluster."""

from __future__ import annotations

import asyncio
import logging
import time

from hicache_backends.deadline import Deadline
from hicache_backends.errors import RegistryError, RegistryRefused, RegistryUnavailable
from kvmanager.flow import Flow, T, answer
from kvmanager.replies import Garbled
from kvmanager.service.codec import Refusal
from kvmanager.service.node import MAX_TIMEOUT_MS, PATIENCE_MS, Node
from kvmanager.service.routes import Answer, Plan
from kvmanager.shards import Shards, finder

_KEYLESS = (b"SCRIPT", b"INFO", b"CLUSTER")
RETRY_S = 0.5
"""Masters that are down are looked for this often."""
_SAME_S, _OTHER_S = 60.0, 1.0

_log = logging.getLogger(__name__)


class Backing:
    """Carries plans out where their keys lie; while a master is down it looks for another one in
    the background, never for a request."""

    def __init__(self, url: str, connect_timeout_ms: float = 1000.0) -> None:
        """Raises ConfigError for a URL that names no Redis."""
        self._connect_timeout_ms = connect_timeout_ms
        self._finder = finder(url)
        self._shards: Shards | None = None
        self._nodes: dict[str, Node] = {}
        self._complaint = ""
        self._said, self._said_s = "", float("-inf")
        if self._finder.known:
            self._use(self._finder.known)

    @property
    def shown(self) -> str:
        """Where it is, without secrets."""
        return self._finder.shown

    @property
    def down(self) -> bool:
        """Whether all requests are refused without asking."""
        return self._shards is None or all(node.down for node in self._nodes.values())

    @property
    def impaired(self) -> bool:
        """Whether some are: those for the keys of one shard, at least."""
        return self._shards is None or any(node.down for node in self._nodes.values())

    async def ask(self, plan: Plan, tag: bytes, timeout_ms: float) -> Answer:
        """As `run`, for a data route's plan."""
        if plan.routes is not None:
            plan.routes.clock_ahead = self._node(tag).clock_ahead
        found = await self.run(_carried_out(plan), tag, timeout_ms)
        after = plan.after(found)
        if after is not None:
            try:
                await self.run(_once(after), b"", timeout_ms)
            except RegistryUnavailable as error:  # of another shard; what was asked for is done
                _log.info("left out what follows a call: %s", error)
        return found

    async def run(self, flow: Flow[T], tag: bytes, timeout_ms: float) -> T:
        """Carry a flow out where the keys of `tag` lie (a hash tag, braces included). b"": keys
        without one, such as `g` and `a`: each request of the flow goes to the shard of its first
        key, or where it has none to that of the request before. Raises RegistryError, Refusal."""
        deadline = Deadline.after_ms(min(max(timeout_ms, PATIENCE_MS), MAX_TIMEOUT_MS))
        if tag or not self._finder.apart:
            return await self._node(tag).run(flow, deadline)
        node = self._node(tag)
        try:
            request = next(flow)
            while True:
                try:
                    command = request if isinstance(request, bytes) else request.packed()
                    key = _first_key(command)
                    node = node if key is None else self._node(key)
                    reply = await node.ask(command, deadline)
                except RegistryError as error:
                    request = flow.throw(error)
                else:
                    request = flow.send(reply)
        except StopIteration as done:
            value: T = done.value
            return value
        finally:
            flow.close()

    async def ping(self) -> None:
        """Raises RegistryError if no Redis answers: with one shard of several, the others'
        requests can be answered."""
        if not self._nodes:
            raise self._nowhere()
        pings = (node.ping() for node in self._nodes.values())
        errors = await asyncio.gather(*pings, return_exceptions=True)
        if all(errors) and errors[0]:
            raise errors[0]

    async def open(self) -> None:
        """Look for the masters; if none is found, `watch` looks again."""
        try:
            patience = Deadline.after_ms(self._connect_timeout_ms)
            shards = await asyncio.to_thread(self._finder.find, patience)
        except RegistryError as error:
            if self._complaint != str(error):
                self._complaint = str(error)
                _log.warning("no Redis found: %s", error)
            return
        self._complaint = ""
        if shards != self._shards:
            gone = self._use(shards)
            await asyncio.gather(*(node.close() for node in gone))

    async def watch(self) -> None:
        """Look for the masters while one is down, and use them again when they answer; runs until
        it is cancelled."""
        while True:
            try:
                if self.impaired:
                    await self.open()
                await asyncio.gather(*(node.tend() for node in self._nodes.values()))
            except Exception as error:  # nobody else would ever use that Redis again
                if self.complain(f"{type(error).__name__}: {error}"):
                    _log.exception("watching Redis went wrong")
            await asyncio.sleep(RETRY_S)

    def complain(self, complaint: str) -> bool:
        """Whether that is to be logged: once a minute as long as it is the same, and no more than
        one a second, since each may be a little different."""
        now_s = time.monotonic()
        rest_s = _SAME_S if complaint == self._said else _OTHER_S
        due = now_s > self._said_s + rest_s
        if due:
            self._said, self._said_s = complaint, now_s
        return due

    async def close(self) -> None:
        """Close the idle connections."""
        await asyncio.gather(*(node.close() for node in self._nodes.values()))

    def _use(self, shards: Shards) -> list[Node]:
        """From now on. The nodes that are masters no longer."""
        before, endpoints = self._nodes, shards.endpoints
        self._shards = shards
        self._nodes = {
            name: before.get(name)
            or Node(endpoint, self._connect_timeout_ms, clustered=self._finder.apart)
            for name, endpoint in endpoints.items()
        }
        return [node for name, node in before.items() if name not in endpoints]

    def _node(self, key: bytes) -> Node:
        if self._shards is None:
            raise self._nowhere()
        return self._nodes[self._shards.holder(key).shown]

    def _nowhere(self) -> RegistryUnavailable:
        return RegistryUnavailable(f"no Redis found yet: {self._complaint or self.shown}")


def _first_key(command: bytes) -> bytes | None:
    """Of a command that has one in its usual place."""
    lines = command.split(b"\r\n", 9)  # *n, then $bytes and an argument by turns
    name, count = lines[2].upper(), int(lines[0][1:])
    if name in (b"EVALSHA", b"EVAL"):
        return lines[8] if lines[6] != b"0" else None
    return lines[4] if count > 1 and name not in _KEYLESS else None


def _once(command: bytes) -> Flow[object]:
    return (yield command)


def _carried_out(plan: Plan) -> Flow[Answer]:
    if isinstance(plan.call, bytes):
        reply = yield plan.call
    else:
        reply = yield from answer(plan.call)
    try:
        return plan.read(reply)
    except Garbled:
        raise
    except RegistryRefused as refused:
        raise Refusal(409, "refused", str(refused)) from None
