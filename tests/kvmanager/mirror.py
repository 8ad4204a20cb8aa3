"""A router's mirror of what is stored, as the description of GET /v1/events says to keep one."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

from tests.kvmanager.http_service import Service

Message = tuple[str, str, dict[str, Any]]
"""Kind, sequence ("" for none), data."""


class Mirror:
    """Pages by medium and digest, with their store; the stores that are there."""

    def __init__(self) -> None:
        self.pages: dict[tuple[str, str], str] = {}
        self.stores: dict[str, dict[str, Any]] = {}
        self.fingerprint = ""
        self.sequence = ""
        self.kinds: list[str] = []

    def apply(self, message: Message) -> None:
        kind, sequence, said = message
        self.kinds.append(kind)
        self.sequence = sequence or self.sequence
        if kind == "snapshot":
            self.pages.clear()
            self.fingerprint = said["fingerprint"]
            self.stores = {store["store"]: store for store in said["stores"]}
        elif kind == "pages":
            for store, digests in said["stores"].items():
                self.pages.update(((said["medium"], digest), store) for digest in digests)
        elif kind == "added":
            self.pages.update(((said["medium"], page), said["store"]) for page in said["digests"])
        elif kind == "removed":
            for page in said["digests"]:
                self.pages.pop((said["medium"], page), None)
        elif kind == "cleared":
            self.pages.clear()
        elif kind == "forgotten":
            self.pages = {k: v for k, v in self.pages.items() if k[0] != said["medium"]}
        elif kind == "joined":
            self.stores[said["store"]] = {**said, "alive": True}
        elif kind == "lost":
            self.stores[said["store"]] |= {"alive": False, "why": said.get("why")}


class Stream:
    """One connection to GET /v1/events."""

    def __init__(self, service: Service, query: str, headers: dict[str, str] | None = None) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=20)
        self._connection.request("GET", f"/v1/events?{query}", headers=headers or {})
        self.response = self._connection.getresponse()
        self.status = self.response.status

    def messages(self) -> Iterator[Message]:
        """As they come, until the service ends the stream."""
        kind, sequence, data = "", "", ""
        while line := self.response.readline():
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name == "event":
                kind = value
            elif name == "id":
                sequence = value
            elif name == "data":
                data = value
            elif not name and kind:
                yield kind, sequence, json.loads(data)
                kind, sequence, data = "", "", ""

    def until(self, mirror: Mirror, kind: str) -> Mirror:
        """Apply messages up to the first of that kind."""
        for message in self.messages():
            mirror.apply(message)
            if message[0] == kind:
                return mirror
        raise AssertionError(f"the stream ended before {kind}")

    def close(self) -> None:
        self._connection.close()
        self.response.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
