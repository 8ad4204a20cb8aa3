"""Documents as bytes, and why a request is refused."""

from __future__ import annotations

import json
from typing import Any

import msgpack
from pydantic import ValidationError
from starlette.types import Receive

from kvmanager.service.documents import Asked

MSGPACK = "application/msgpack"
JSON = "application/json"
MAX_BODY_BYTES = 512 << 10
"""A publication of 1,024 pages takes 90 KiB, twice that as JSON."""


Headers = dict[bytes, bytes]
"""Of a request, by their names in small letters."""


class Refusal(Exception):
    """The request is answered with this status and a `Problem`."""

    def __init__(self, status: int, error: str, detail: str, epoch: int | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.document: dict[str, Any] = {"error": error, "detail": detail, "epoch": epoch}


def content_type(headers: Headers) -> str:
    """The request's, which is the answer's too. Raises Refusal for another."""
    named = header(headers, b"content-type").partition(";")[0].strip().lower()
    if named not in (MSGPACK, JSON):
        raise Refusal(415, "content_type", f"the content type is {MSGPACK} or {JSON}")
    return named


def header(headers: Headers, name: bytes) -> str:
    """The value of a header; "" if there is none."""
    return headers.get(name, b"").decode("latin-1")


async def read_body(headers: Headers, receive: Receive) -> bytes:
    """Raises Refusal for one that is too long or does not come."""
    announced = headers.get(b"content-length", b"0")
    if announced.isdigit() and int(announced[:18]) > MAX_BODY_BYTES:
        raise _too_long()
    body = b""
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise Refusal(400, "gone", "the request ended before its body")
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > MAX_BODY_BYTES:
            raise _too_long()
    return body


def decoded(kind: type[Asked], body: bytes, content: str) -> Asked:
    """The document in a body. Raises Refusal for anything else."""
    try:
        if content == JSON:
            return kind.model_validate_json(body)
        return kind.model_validate(msgpack.unpackb(body))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        status = 400 if first["type"] == "json_invalid" else 422
        raise Refusal(status, "invalid", f"{place}: {first['msg']}".removeprefix(": ")) from None
    except (ValueError, msgpack.UnpackException):
        raise Refusal(400, "malformed", "the body is not one whole msgpack value") from None


def encoded(document: dict[str, Any], content: str) -> bytes:
    """A document as a body."""
    if content == MSGPACK:
        packed: bytes = msgpack.packb(document)
        return packed
    return json.dumps(document, default=bytes.hex, separators=(",", ":")).encode()


def _too_long() -> Refusal:
    return Refusal(413, "too_long", f"a body has at most {MAX_BODY_BYTES} bytes")
