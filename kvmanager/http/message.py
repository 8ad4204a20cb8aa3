"""Requests and responses of the service, HTTP/1.1 with msgpack bodies, as bytes. Does no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgpack

from hicache_backends.errors import RegistryRefused, RegistryUnavailable

MAX_HEAD_BYTES: Final = 16 << 10
MAX_BODY_BYTES: Final = 8 << 20
_REPEATABLE = frozenset(
    b"POST /v1/%b HTTP/1.1" % name
    for name in (
        b"lookup",
        b"claim",  # the token says that it is the same one
        b"abort",
        b"report_bad",
        b"register",  # the process does
        b"heartbeat",
        b"figures",  # its number does
        b"leave",
    )
)
_OTHER_PATHS = (404, 405)
_MEANT = (409,)
"""Answers that the call's reader understands."""
_ELSEWHERE = frozenset({408, 429, 500, 502, 503, 504})
"""Answers after which another manager may do better."""
_MAX_LENGTH_DIGITS = 9


def request(name: str, document: Mapping[str, Any]) -> bytes:
    """The request of one call, but for the headers that its connection adds."""
    body: bytes = msgpack.packb(document)
    head = (
        b"POST /v1/%b HTTP/1.1\r\ncontent-type: application/msgpack\r\ncontent-length: %d\r\n\r\n"
    )
    return head % (name.encode(), len(body)) + body


def with_headers(request: bytes, headers: bytes) -> bytes:
    """The request with whole header lines added."""
    line, _, rest = request.partition(b"\r\n")
    return b"%b\r\n%b%b" % (line, headers, rest)


def is_repeatable(request: bytes) -> bool:
    """Whether it does no harm if two managers carry the request out."""
    return request[: request.find(b"\r\n")] in _REPEATABLE


def is_better_elsewhere(response: bytes) -> bool:
    """Whether the manager that said this could not help, so that another may."""
    return _status(response) in _ELSEWHERE


class Response:
    """One response, put together as its bytes come."""

    def __init__(self) -> None:
        self.raw = bytearray()
        self._size = 0  # known once the head is there
        self.closes = False

    def take(self, part: bytes) -> bool:
        """Whether it is whole now. Raises ConnectionResetError for the end of the stream, for what
        is none, and for bytes after it."""
        if not part:
            raise ConnectionResetError("the service closed the connection")
        self.raw += part
        if not self._size:
            end = self.raw.find(b"\r\n\r\n")
            if end < 0:
                if len(self.raw) > MAX_HEAD_BYTES:
                    raise self._wrong()
                return False
            self._size = end + 4 + self._length(bytes(self.raw[:end]))
        if len(self.raw) > self._size:
            raise self._wrong()
        return len(self.raw) == self._size

    def _length(self, head: bytes) -> int:
        if not head.startswith(b"HTTP/1.1 ") or not head[9:12].isdigit():
            raise self._wrong()
        length = b""
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            name = name.lower()
            if name == b"content-length":
                length = value.strip()
            elif name == b"connection":
                self.closes = b"close" in value.lower()
        digits = length.isdigit() and len(length) <= _MAX_LENGTH_DIGITS
        if not digits or int(length) > MAX_BODY_BYTES:
            raise self._wrong()
        return int(length)

    def _wrong(self) -> ConnectionResetError:
        return ConnectionResetError(f"not a response of the service: {bytes(self.raw[:40])!r}")


def parse(response: bytes) -> dict[str, Any]:
    """The document of a whole response. Raises RegistryUnavailable, RegistryRefused."""
    status = _status(response)
    _, _, body = response.partition(b"\r\n\r\n")
    try:
        document = msgpack.unpackb(body)
    except (ValueError, msgpack.UnpackException):
        document = None
    if not isinstance(document, dict):
        document = {}
        if status == 200:
            raise RegistryRefused(f"the service's answer is malformed: {body!r:.60}")
    if status == 200 or (status in _MEANT and document.get("error") != "refused"):
        return document
    said = f"{document.get('detail') or 'no reason given'!s:.200} (status {status})"
    if status in _ELSEWHERE and document.get("error") != "refused":
        raise RegistryUnavailable(f"the service cannot answer: {said}")
    if status in (401, 403):
        raise RegistryRefused(f"the service does not allow it: {said}")
    if status in _OTHER_PATHS:
        raise RegistryRefused(f"there is no KVManager of this version: {said}")
    raise RegistryRefused(f"the service refuses: {said}")


def _status(response: bytes) -> int:
    return int(response[9:12])
