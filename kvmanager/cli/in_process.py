"""The service's own application, asked in this process: for operators who have Redis itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from hicache_backends.errors import RegistryUnavailable
from kvmanager.cli.needs import need_service

Message = dict[str, Any]


class InProcess:
    """An ASGI application and an event loop, without a socket. Its lifespan does not begin: the
    work of a service in the background is not for a command."""

    def __init__(self, redis: str, timeout_s: float) -> None:
        """Raises MissingExtra, ConfigError."""
        need_service("asking a Redis itself")
        from kvmanager.service.access import Access
        from kvmanager.service.app import make_app
        from kvmanager.service.backing import Backing

        logging.getLogger("kvmanager").setLevel(logging.ERROR)  # what fails is said in one line
        self._timeout_s = timeout_s
        self._backing = Backing(redis)
        self._app = make_app(self._backing, Access(), loops=None)
        self._loop = asyncio.new_event_loop()

    def request(self, method: str, target: str, body: bytes | None) -> tuple[int, bytes]:
        """As `Transport.request`."""
        exchange = _Exchange(self._app, method, target, body)
        return self._loop.run_until_complete(exchange.whole(self._timeout_s))

    def stream(self, target: str) -> tuple[int, Iterator[bytes]]:
        """As `Transport.stream`."""
        exchange = _Exchange(self._app, "GET", target, None)
        return self._loop.run_until_complete(exchange.status()), self._lines(exchange)

    def _lines(self, exchange: _Exchange) -> Iterator[bytes]:
        rest = b""
        while (part := self._loop.run_until_complete(exchange.part())) is not None:
            *whole, rest = (rest + part).split(b"\n")
            yield from whole
        yield from [rest] if rest else []

    def close(self) -> None:
        """End the connections to Redis, and the loop with all that still runs on it."""
        self._loop.run_until_complete(self._end())
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    async def _end(self) -> None:
        self._app.end()
        await self._backing.close()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)


class _Exchange:
    """One request to the application and its answer, as both come."""

    def __init__(self, app: Any, method: str, target: str, body: bytes | None) -> None:
        path, _, query = target.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
            "client": None,
            "server": ("localhost", 0),
        }
        self._body: bytes | None = body or b""
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue()
        self._work = self._answer(app, scope)
        self._task: asyncio.Task[None] | None = None

    async def whole(self, timeout_s: float) -> tuple[int, bytes]:
        """Status and body."""
        try:
            return await asyncio.wait_for(self._whole(), timeout_s)
        except asyncio.TimeoutError:
            raise RegistryUnavailable(f"no answer in {timeout_s:g} s") from None
        finally:
            await self.end()

    async def status(self) -> int:
        """Waits for the beginning of the answer."""
        message = await self._next()
        return 500 if message is None else int(message["status"])

    async def part(self) -> bytes | None:
        """The next piece of the body; None behind the last one."""
        message = await self._next()
        return None if message is None else message.get("body", b"")

    async def end(self) -> None:
        """Leave the application, wherever it is."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _whole(self) -> tuple[int, bytes]:
        status = await self.status()
        parts = []
        while (part := await self.part()) is not None:
            parts.append(part)
        return status, b"".join(parts)

    async def _next(self) -> Message | None:
        if self._task is None:
            self._task = asyncio.ensure_future(self._work)
        message = await self._messages.get()
        if message is None:
            await self._task  # raises what the application raised
        return message

    async def _answer(self, app: Any, scope: Message) -> None:
        try:
            await app(scope, self._receive, self._messages.put)
        finally:
            self._messages.put_nowait(None)

    async def _receive(self) -> Message:
        body, self._body = self._body, None
        if body is None:
            await asyncio.Event().wait()  # the one who asked stays
        return {"type": "http.request", "body": body, "more_body": False}
