"""Asks the service's routes: over HTTP, or without a socket in an application of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, urlencode

from hicache_backends.errors import RegistryRefused, RegistryUnavailable
from kvmanager.cli.needs import read_secret

TIMEOUT_S = 30.0
_DOWN = (502, 503, 504)


class NotThere(Exception):
    """The service knows no such thing, or not for this token."""


class Transport(Protocol):
    """Carries a request to a service and its answer back."""

    def request(self, method: str, target: str, body: bytes | None) -> tuple[int, bytes]:
        """Status and body. `target`: path and query. Raises RegistryUnavailable."""
        ...

    def stream(self, target: str) -> tuple[int, Iterator[bytes]]:
        """Status and lines of an answer that may have no end, as they come. Raises
        RegistryUnavailable, also between lines."""
        ...

    def close(self) -> None:
        """End connections."""
        ...


class Caller:
    """The routes, with documents as Python's own values. Raises NotThere, RegistryUnavailable,
    RegistryRefused."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def get(self, path: str, **query: object) -> Any:
        """What a route answers; a query's None is left out."""
        return self.call("GET", path, query=query)

    def call(
        self,
        method: str,
        path: str,
        document: Mapping[str, Any] | None = None,
        query: Mapping[str, object] | None = None,
    ) -> Any:
        """The document that answers one, or None."""
        body = None if document is None else json.dumps(document).encode()
        return _answer(*self._transport.request(method, _target(path, query or {}), body))

    def every(self, path: str, rows: str, **query: object) -> list[Any]:
        """All rows of a list that a route answers a page at a time."""
        found: list[Any] = []
        cursor = None
        while True:
            answer = self.get(path, **query, cursor=cursor)
            found += answer[rows]
            cursor = answer["next"]
            if cursor is None:
                return found

    def lines(self, path: str, **query: object) -> Iterator[str]:
        """The lines of an answer without an end."""
        status, lines = self._transport.stream(_target(path, query))
        if status != 200:
            _answer(status, b"".join(lines))
        return (line.decode().rstrip("\r\n") for line in lines)


@contextmanager
def asking(endpoint: str, token_file: Path | None = None) -> Iterator[Caller]:
    """The service at an endpoint: addresses with commas between, or a Redis before which one is
    made here. Raises ConfigError, MissingExtra."""
    if endpoint.startswith("http"):
        from kvmanager.cli.over_http import OverHttp

        transport: Transport = OverHttp(endpoint, _token(token_file), TIMEOUT_S)
    else:
        from kvmanager.cli.in_process import InProcess

        transport = InProcess(endpoint, TIMEOUT_S)
    try:
        yield Caller(transport)
    finally:
        transport.close()


def segment(name: str) -> str:
    """A name as one part of a path."""
    return quote(name, safe="")


def _token(file: Path | None) -> str | None:
    return None if file is None else read_secret(file)


def _target(path: str, query: Mapping[str, object]) -> str:
    given = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given, doseq=True)}" if given else path


def _answer(status: int, body: bytes) -> Any:
    try:
        document = json.loads(body) if body else None
    except ValueError:
        document = None
    if status < 300:
        return document
    problem = document if isinstance(document, dict) else {}
    said = f"{problem.get('detail', 'it gives no reason')} (status {status})"
    if status == 404 and problem.get("error") == "not_found":
        raise NotThere(problem.get("detail", ""))
    if status in _DOWN:
        raise RegistryUnavailable(f"the service cannot answer: {said}")
    raise RegistryRefused(f"the service refuses: {said}")
